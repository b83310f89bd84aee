"""What boots took, as a server that followed them tells it afterwards."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from backends.base import BootBudget
from core.journal import Journal
from core.settings import Settings
from operations.boots import Booted, boots_of, chart, last_words, span
from operations.explain import Case, boot_check
from operations.runtime import Stage
from planner.model import read_model
from planner.places import place
from tests.conversation import agent_of
from tests.operations.diagnosis.made import deployment
from tests.operations.test_explaining import L4, LARGE, MODEL

pytestmark = pytest.mark.anyio

SEEN: Final = deployment()
COLD: Final = {"host": 30.0, "pull": 60.0, "start": 20.0, "download": 200.0, "load": 40.0}
WARM: Final = {"host": 20.0, "start": 20.0, "load": 40.0, "capture": 10.0}


def keep(journal: Journal, number: int, seconds: dict[str, float], *, name: str = "") -> Booted:
    """Keep a boot of the deployment that the tests share."""
    warm_at = datetime(2026, 11, 20, 10, tzinfo=UTC) + timedelta(hours=number)
    one = Booted(
        target=SEEN.target,
        name=name or SEEN.name,
        model=SEEN.model,
        created_at=SEEN.created_at,
        warm_at=warm_at,
        seconds=seconds,
    )
    journal.keep_pair("boot", f"{name}{number}", one.model_dump_json())
    return one


def test_boots_are_drawn_as_bars_of_one_scale(tmp_path: Path) -> None:
    """A letter for each phase, as long as it took; of phases beside them the seconds in words."""
    journal = Journal(tmp_path / "journal.db")
    boots = [keep(journal, number, took) for number, took in enumerate((COLD, WARM))]
    assert chart(boots) == (
        f"11-20 10:00    350 s hhhpppppppsssddddddddddddddddddddddlllll {last_of(boots[:1])}",
        f"11-20 11:00     90 s {'hhsssllllg'.ljust(40)} {last_of(boots)}",
    )
    assert chart(()) == ()


def last_of(boots: list[Booted]) -> str:
    """What is said of the newest without its sum."""
    return (last_words(boots) or "").partition(": ")[2]


def test_a_boot_too_short_for_phases_is_told_by_its_time_alone(tmp_path: Path) -> None:
    quick = keep(Journal(tmp_path / "journal.db"), 0, {"start": 0.9, "warm-up": 0.8})
    assert last_words([quick]) == "its last boot took 2 s"


def test_only_its_own_boots_are_a_deployments(tmp_path: Path) -> None:
    """Not those of another name, nor of an earlier deployment that had the same."""
    journal = Journal(tmp_path / "journal.db")
    keep(journal, 1, COLD, name="other")
    mine = keep(journal, 2, WARM)
    assert boots_of(journal, SEEN) == (mine,)
    later = SEEN.model_copy(update={"created_at": datetime.now(UTC)})
    assert boots_of(journal, later) == ()


def test_after_two_boots_a_plan_is_by_the_deployments_own(tmp_path: Path) -> None:
    """Before that by what is known of the model and the place; a probe never sees the host."""
    journal = Journal(tmp_path / "journal.db")
    boots = [keep(journal, 0, COLD)]
    assert span(boots, inside=True) is None
    where, model = place("cloud-run-l4"), read_model(LARGE.model)
    case = Case(LARGE, model, where, usd_per_hour=1, weights_from="gcs-fuse")
    budget = BootBudget(weights_from="gcs-fuse", seconds=250)
    assert "are predicted" in boot_check(case, budget, journal, SEEN).verdict
    boots.append(keep(journal, 1, WARM))
    found = boot_check(case, budget, journal, SEEN)
    assert "its own 2 boots took 165 (70-260) s" in found.verdict
    assert found.long_enough == "probably"
    assert found.cold_start_seconds == "220 (90-350)"


async def test_a_plan_foresees_first_and_later_boots_as_they_took_there(settings: Settings) -> None:
    """From the second boot of the model that was seen on the target; one of them downloads."""
    journal = Journal(Stage(settings).folder / "journal.db")
    about = {"model": MODEL, "target": L4}
    async with agent_of(settings) as agent:
        for number, took in enumerate((COLD, WARM)):
            before = (await agent.call("plan_deployment", **about)).data["foreseen"]
            assert "took here" not in before["boot_seconds"]
            one = keep(journal, number, took).model_copy(update=about)
            journal.keep_pair("boot", str(number), one.model_dump_json())
        plan = (await agent.call("plan_deployment", **about)).data["foreseen"]
    assert plan["boot_seconds"] == "350 (350-350), as 1 took here"
    assert plan["boot_again_seconds"] == "90 (90-90), as 1 took here"


async def test_a_boot_that_was_followed_is_told_afterwards(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its status while it lasts and after it, and drawn in the full system status.

    Three seconds: a boot whose log has stamps of whole seconds.
    """
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "3")
    async with agent_of(settings) as agent:
        await agent.serve("one")
        last = None
        while last is None:
            last = (await agent.call("status_vllm")).data.get("last_boot")
        assert last.startswith("its last boot took ")
        status = await agent.call("get_system_status", detail="full")
        (bars,) = status.data["boots"].values()
        assert len(bars) == 1
        assert "w warm-up" in status.data["boots_legend"]
        found = await agent.call("diagnose")
        assert "its last boot took" in found.text
