"""What is for one kind of target alone is refused by the others."""

from collections.abc import Callable
from typing import Any

import pytest

from backends.local.plan import make_plan
from backends.local.process import simulated
from core.errors import InvalidArgument
from core.records import DeploymentSpec, Target
from planner.model import read_model
from tests.backends.aca.planned import planned as on_aca
from tests.backends.cloud_run.planned import planned as on_cloud_run

_MODEL = "google/gemma-4-E4B-it"


def _here(**said: Any) -> object:
    engine = simulated(("engine",))
    assert engine
    target = Target(name="local", backend="local", description="")
    spec = DeploymentSpec(name="gemma", model=_MODEL, **said)
    return make_plan(target, engine, None, spec, read_model(_MODEL))


@pytest.mark.parametrize("plan", [_here, on_aca, on_cloud_run])
@pytest.mark.parametrize(
    "said", [{"zones": ("us-east5-b",)}, {"zone_wait_minutes": 5}, {"control_plane": "queued"}]
)
def test_only_tpus_are_searched_for(plan: Callable[..., object], said: dict[str, Any]) -> None:
    """Elsewhere zones would be taken silently, and looked for nowhere."""
    plan()
    with pytest.raises(InvalidArgument, match="for Cloud TPU alone"):
        plan(**said)
