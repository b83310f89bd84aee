"""What is advised against an unhealthy one can be done: what cannot be stopped is destroyed."""

from datetime import timedelta
from pathlib import Path
from typing import Final, cast

import pytest

from backends.base import Backend
from core.records import Deployment, Phase, State, Target
from core.settings import Settings
from operations.case import Diagnosis
from operations.observe import health
from operations.resolve import Found
from operations.runtime import Runtime
from tests.operations.diagnosis.made import (
    Engine,
    Somewhere,
    deployment,
    diagnosed,
    just_now,
    tools,
)
from tests.operations.diagnosis.test_answering import WAYS
from tests.webserver import listening

pytestmark = pytest.mark.anyio

OURS: Final = sorted(WAYS.keys() - {"no key", "other model", "too many"})
"""The ways not to answer that a new start may help with."""
BOOTS: Final = Phase(name="compiling", since=just_now() - timedelta(hours=9))
TOO_LONG: Final = (deployment(State.STOPPING, minutes=600), deployment(State.LOADING, phase=BOOTS))


class Machine(Somewhere):
    """It is stopped and started at will."""

    async def stop(self, name: str) -> Deployment:
        """Nobody calls it: a diagnosis changes nothing."""
        raise AssertionError(name)

    async def start(self, name: str) -> Deployment:
        """Nor this."""
        raise AssertionError(name)


class Chip(Somewhere):
    """What is overdue there is deleted: it cannot be stopped."""

    def __init__(self, url: str) -> None:
        super().__init__(url, backend="tpu")
        self.target = Target(name="tpu-v6e-1", backend="tpu", description="made up")

    async def end(self, name: str) -> str:
        """Nobody calls it."""
        raise AssertionError(name)


def told(seen: Diagnosis) -> str:
    """Give all that it advises."""
    return " ".join((seen.fix or "", *tools(seen)))


def stopped_anew(seen: Diagnosis) -> bool:
    """Whether stop_vllm and start_vllm are advised, and nothing else that ends it; or the other."""
    words = told(seen)
    either = {"stop_vllm": "stop_vllm" in words, "destroy_vllm": "destroy_vllm" in words}
    assert sum(either.values()) == 1, words
    assert ("start_vllm" in words) is either["stop_vllm"]
    assert ("deploy_vllm" in words) is either["destroy_vllm"]
    return either["stop_vllm"]


@pytest.mark.parametrize("way", OURS)
async def test_a_chip_that_does_not_answer_is_made_anew(way: str, tmp_path: Path) -> None:
    """stop_vllm would be refused, while its VM bills on; elsewhere it is the gentler way."""
    engine = Engine()
    WAYS[way][0](engine)
    async with listening(engine.app) as url:
        machine = await diagnosed(Machine(url), deployment(), tmp_path)
        chip = await diagnosed(Chip(url), deployment(), tmp_path)
    assert machine.code == chip.code == WAYS[way][2]
    assert stopped_anew(machine)
    assert not stopped_anew(chip)


@pytest.mark.parametrize("now", TOO_LONG, ids=lambda now: str(now.state))
async def test_a_chip_that_takes_too_long_is_not_to_be_stopped(
    now: Deployment, tmp_path: Path
) -> None:
    """Neither one that boots without end nor one that is stopping without end."""
    chip = await diagnosed(Chip("http://127.0.0.1:9"), now, tmp_path)
    machine = await diagnosed(Machine(), now, tmp_path)
    assert chip.code == machine.code
    assert not stopped_anew(chip)
    assert "stop_vllm" in told(machine)


COSTS: Final = {
    "OVERDUE": deployment(expires_at=just_now() - timedelta(hours=1), usd_per_hour=2.7),
    "IDLE_AND_BILLED": deployment(minutes=600, usd_per_hour=2.7),
}


@pytest.mark.parametrize("code", COSTS)
async def test_a_bill_is_ended_by_what_ends_it_there(code: str, tmp_path: Path) -> None:
    async with listening(Engine().app) as url:
        seen = await diagnosed(Chip(url), COSTS[code], tmp_path)
    assert seen.code == code
    assert tools(seen) == ["destroy_vllm"]
    assert "destroy_vllm" in (seen.fix or "")
    assert not {"stop_vllm", "update_vllm_scaling"} & set(told(seen).split())
    assert "cannot be stopped" in (seen.fix or "")


async def test_what_was_made_elsewhere_is_begun_anew_there(tmp_path: Path) -> None:
    """Neither words nor calls name what would be refused."""
    engine = Engine()
    engine.health = 503
    async with listening(engine.app) as url:
        seen = await diagnosed(Somewhere(url), deployment(target="endpoint"), tmp_path)
    assert seen.code == "UNHEALTHY"
    assert "start it anew where it runs" in (seen.fix or "")
    assert not {"stop_vllm", "start_vllm", "destroy_vllm", "deploy_vllm"} & set(told(seen).split())


async def test_a_chip_whose_server_says_no_is_not_to_be_stopped(tmp_path: Path) -> None:
    engine = Engine()
    engine.health = 503
    runtime = Runtime(Settings(vllm_devops_state_dir=tmp_path), frozenset())
    async with listening(engine.app) as url:
        found = Found(cast("Backend", Chip(url)), deployment())
        report = await health(runtime, found)
    assert (report.healthy, report.layer) == (False, "server")
    assert "destroy_vllm and deploy_vllm" in (report.fix or "")
    assert "stop_vllm" not in (report.fix or "")


@pytest.mark.parametrize("state", [State.ASLEEP, State.LOADING, State.CREATING, State.FAILED])
async def test_a_check_asks_nothing_of_what_does_not_serve(state: State, tmp_path: Path) -> None:
    """A question would wake what sleeps, which is paid for; its platform tells enough."""
    engine = Engine()
    runtime = Runtime(Settings(vllm_devops_state_dir=tmp_path), frozenset())
    async with listening(engine.app) as url:
        found = Found(cast("Backend", Somewhere(url)), deployment(state))
        report = await health(runtime, found)
    assert (report.healthy, report.layer) == (False, "process")
    assert engine.asked == 0
