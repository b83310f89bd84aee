"""Plans that the tests look into, without a cloud."""

from typing import Any, Final

from backends.tpu.plan import make_plan
from backends.tpu.site import Blueprint, Site
from backends.tpu.vm import blueprint
from core.records import DeploymentSpec, ModelShape, Plan
from planner.model import read_model
from tests.backends.tpu.sites import offline

ONE, FOUR, EIGHT = "tpu-v6e-1", "tpu-v6e-4", "tpu-v6e-8"
EVERY: Final = tuple(
    f"{each}{how}" for each in (ONE, FOUR, EIGHT) for how in ("", "-spot", "-flex")
)
E4B: Final = "google/gemma-4-E4B-it"
MOE: Final = "google/gemma-4-26B-A4B-it"
DENSE: Final = "google/gemma-4-31B-it"
BARE: Final = ModelShape(model="someone/else")
"""Nobody knows anything of it."""


def spec(model: str = E4B, **said: Any) -> DeploymentSpec:
    return DeploymentSpec(name="gemma", model=model, **said)


def drawn(where: Site | str = ONE, shape: ModelShape | None = None, **said: Any) -> Blueprint:
    wanted, site = spec(**said), offline(where) if isinstance(where, str) else where
    return blueprint(site, wanted, shape or read_model(wanted.model))


def planned(where: Site | str = ONE, shape: ModelShape | None = None, **said: Any) -> Plan:
    wanted, site = spec(**said), offline(where) if isinstance(where, str) else where
    return make_plan(site, wanted, shape or read_model(wanted.model))
