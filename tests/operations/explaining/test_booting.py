"""A startup probe held against the boot that is foreseen."""

from pathlib import Path
from typing import Final

import pytest

from backends.base import BootBudget
from core.journal import Journal
from core.records import DeploymentSpec
from operations.explain import boot_check
from operations.explain_case import BootCheck, Case
from planner.boot import boot
from planner.flags import Flags
from planner.model import read_model
from planner.places import place
from tests.operations.diagnosis.made import deployment

MODEL: Final = "google/gemma-4-26B-A4B-it"
SPEC: Final = DeploymentSpec(name="one", model=MODEL)


def checked(folder: Path, model: str = MODEL, **said: object) -> BootCheck:
    """Check a boot from a bucket that is mounted, on an L4 of Cloud Run."""
    shape = read_model(model)
    case = Case(SPEC, shape, place("cloud-run-l4"), usd_per_hour=1.0, weights_from="gcs-fuse")
    budget = BootBudget.model_validate({"weights_from": "gcs-fuse", **said})
    return boot_check(case, budget, Journal(folder / "journal.db"), deployment())


def seconds(ends: str) -> float:
    """Foresee the same boot without its host, which no probe sees."""
    where, model = place("cloud-run-l4"), read_model(MODEL)
    phases = boot(model, where, Flags.of(SPEC), weights_from="gcs-fuse").phases[1:]
    return sum(float(getattr(phase.seconds, ends)) for phase in phases)


@pytest.mark.parametrize(
    ("ends", "beyond", "verdict"),
    [
        ("high", 1, "yes"),
        ("high", -1, "probably"),
        ("expected", -1, "probably not"),
        ("low", -1, "no"),
    ],
)
def test_the_verdict_is_by_the_slowest_the_usual_and_the_fastest_boot(
    tmp_path: Path, ends: str, beyond: int, verdict: str
) -> None:
    """Each second on the other side of an end changes the answer."""
    found = checked(tmp_path, seconds=round(seconds(ends)) + beyond)
    assert found.long_enough == verdict
    assert ("take a smaller checkpoint" in found.verdict) is (verdict != "yes")


def test_where_nothing_ends_a_boot_no_probe_is_too_short(tmp_path: Path) -> None:
    """It is said so, with what is foreseen."""
    found = checked(tmp_path)
    assert found.long_enough == "nothing ends it"
    assert found.predicted_seconds
    assert found.predicted_seconds in found.verdict


def test_a_first_boot_that_downloads_takes_longer(tmp_path: Path) -> None:
    """It is the one that the probe must be patient enough for: 48 GiB come at 600 Mbps."""
    budget = round(seconds("high")) + 1
    assert checked(tmp_path, seconds=budget).long_enough == "yes"
    found = checked(tmp_path, seconds=budget, fetches_first=True)
    assert found.long_enough == "probably not"
    assert "first boot" in found.verdict


def test_an_autoscaler_that_is_less_patient_than_the_probe_is_told(tmp_path: Path) -> None:
    """It takes away what still boots; the host counts as well."""
    found = checked(tmp_path, seconds=9000, idle_seconds=300)
    assert found.long_enough == "yes"
    (note,) = found.notes
    assert "300 s after" in note
    assert note.endswith("Long enough: no.")


def test_measured_phases_of_earlier_boots_are_added_up(tmp_path: Path) -> None:
    """As the journal has them for this target and engine; other targets' do not count."""
    journal, seen = Journal(tmp_path / "journal.db"), deployment()
    for phase, took in (("loading weights", 60.0), ("loading weights", 80.0), ("warming", 9.0)):
        journal.record_phase(seen.target, seen.engine, phase, took)
    journal.record_phase("elsewhere", seen.engine, "warming", 1000.0)
    found = checked(tmp_path, seconds=1800)
    assert found.measured == {"loading weights": 70.0, "warming": 9.0}
    assert found.measured_seconds == 79.0
    assert "took about 79 s" in found.verdict


@pytest.mark.parametrize("phases", [("starting",), ("starting", "loading weights"), ("warming",)])
def test_what_was_seen_of_a_boot_that_goes_on_is_no_earlier_boot(
    tmp_path: Path, phases: tuple[str, ...]
) -> None:
    """A sum is of whole boots: until one was watched to its end, only phases are told."""
    journal, seen = Journal(tmp_path / "journal.db"), deployment()
    for phase in phases:
        journal.record_phase(seen.target, seen.engine, phase, 2.0)
    found = checked(tmp_path, seconds=1800)
    assert found.measured == dict.fromkeys(phases, 2.0)
    assert found.measured_seconds is None
    assert "Earlier boots" not in found.verdict
