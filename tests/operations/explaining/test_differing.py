"""What differs between two deployments is told as each of them is explained alone."""

from collections.abc import Sequence
from typing import Final

import pytest

from core.records import DeploymentSpec
from operations.explain import compared
from operations.explain_case import Case
from operations.explain_rows import running_rows
from planner.model import read_model
from planner.places import place
from tests.conversation import agent_of
from tests.stories.conftest import Cloud, bare_cloud, cloud

__all__ = ["bare_cloud", "cloud"]

MODEL: Final = "google/gemma-4-E2B-it"
L4, A100, CHIP, HERE = "cloud-run-l4", "aca-a100", "tpu-v6e-1", "local"


def case(where: str, least: int, stays: int | None = None, usd: float | None = 0.8) -> Case:
    """Give a deployment of E2B with so many replicas at least."""
    spec = DeploymentSpec(name="one", model=MODEL, min_replicas=least)
    shape = read_model(MODEL)
    return Case(spec, shape, place(where), usd_per_hour=usd, stays_seconds=stays)


def idle(told: Sequence[str]) -> str | None:
    """Give what is said of idling, where the two differ in it."""
    return next((line.removeprefix("idle: ") for line in told if line.startswith("idle: ")), None)


def alone(one: Case) -> str:
    """Give what is said of idling where it is explained alone."""
    row = next(row for row in running_rows(one) if row.flag == "min_replicas")
    return row.does.removeprefix("Idle it costs ").partition("; ")[0]


PAIRS: Final = {
    "awake, asleep after a time": (case(L4, 1), case(L4, 0, 900)),
    "asleep after a time, awake": (case(L4, 0, 900), case(L4, 1)),
    "asleep after two times": (case(L4, 0, 900), case(A100, 0, 300, 3.4)),
    "asleep after no known time": (case(A100, 0, None), case(A100, 1)),
    "asleep, a chip": (case(A100, 0, 300), case(CHIP, 1, None, 2.7)),
    "this machine, asleep": (case(HERE, 1, None, 0.0), case(L4, 0, 900)),
    "asleep at a price that nobody has said": (case(L4, 0, 900, None), case(L4, 1, None, None)),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_idling_is_compared_in_the_words_of_each_alone(pair: str) -> None:
    """What may sleep is billed for a while after its last request, on either side."""
    one, other = PAIRS[pair]
    differs = compared(one, other, (tuple(running_rows(one)), tuple(running_rows(other))), "two")
    assert differs.differences
    assert idle(differs.together) == f"{alone(one)} -> {alone(other)}"


def test_idling_alike_is_no_difference() -> None:
    """The same time at the same price, whatever else differs."""
    same = case(L4, 0, 900), case(L4, 0, 900)
    spec = same[1].spec.model_copy(update={"max_model_len": 4096})
    rows = tuple(running_rows(same[0])), tuple(running_rows(same[1].of(spec)))
    assert idle(compared(same[0], same[1].of(spec), rows, "two").together) is None


@pytest.mark.anyio
async def test_the_bill_of_waking_is_told_where_a_deployment_is_compared(cloud: Cloud) -> None:
    """min_replicas=1 costs more than one that sleeps, which does not cost nothing."""
    async with agent_of(cloud.settings) as agent:
        wish = {"model": MODEL, "name": "one", "max_model_len": 4096, "min_replicas": 0}
        deployed = await agent.call("deploy_vllm", target=L4, **wish)
        assert not deployed.failed, deployed
        await agent.settled("one", target=L4)
        whole = await agent.call("explain_deployment")
        reply = await agent.call("explain_deployment", flags=["min_replicas=1"])
    said = next(row["does"] for row in whole.data["flags"] if row["flag"] == "min_replicas")
    costs = said.removeprefix("Idle it costs ").partition("; ")[0]
    assert costs.startswith("nothing once 15 min after the last request are over, $")
    assert f"idle: {costs} -> $" in " ".join(reply.data["comparison"]["together"])
