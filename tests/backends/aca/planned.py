"""Plans that the tests look into, without a cloud."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from backends.aca.app import Blueprint, app_of, blueprint
from backends.aca.plan import make_plan
from backends.aca.plan import wanted as resources_of
from backends.aca.site import Site, as_sent
from backends.base import World
from backends.lifecycle import Resource
from core.records import DeploymentSpec, LayerShape, ModelShape, Plan
from core.settings import Settings
from planner.model import read_model
from tests.backends.aca.sites import target_of

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

A100: Final = "aca-a100"
T4: Final = "aca-t4"
E2B: Final = "google/gemma-4-E2B-it"
E4B: Final = "google/gemma-4-E4B-it"
DENSE_31B: Final = "google/gemma-4-31B-it"
QAT_12B: Final = "google/gemma-4-12B-it-qat-w4a16-ct"
FOLDER: Final = "files://weights/models/gemma"
PATCHED: Final = "ghcr.io/me/vllm@sha256:" + "0" * 64
"""An image of one's own, whose vLLM serves what the published one cannot."""
VAULT: Final = "https://v.vault.azure.net"
CALLERS: Final = ("203.0.113.7/32",)
GIB: Final = 2**30
EVER: Final = datetime(2026, 11, 20, tzinfo=UTC)
SMALL: Final = ModelShape(
    model="Qwen/Qwen3-1.7B",
    model_type="qwen3",
    dtype="bfloat16",
    weight_bytes=3 * GIB,
    max_position_embeddings=40_960,
    layers=(LayerShape(attention="full", kv_heads=8, head_size=128),) * 28,
)
"""A model whose heads a T4 has room for."""


def site(target: str = A100, **settings: Any) -> Site:
    """A target, opened without a subscription unless one is given."""
    said = Settings(**settings)
    return Site.open(target_of(target), World(said, Path("nowhere"), ()))


def spec(model: str = E4B, **said: Any) -> DeploymentSpec:
    return DeploymentSpec(**{"name": "gemma", "model": model, "min_replicas": 0, **said})


def small(**said: Any) -> dict[str, Any]:
    """What asks for a model that every target serves."""
    return {"model": SMALL.model, "shape": SMALL, **said}


def drawn(where: Site | str = A100, shape: ModelShape | None = None, **said: Any) -> Blueprint:
    wanted, opened = spec(**said), site(where) if isinstance(where, str) else where
    return blueprint(opened, wanted, shape or read_model(wanted.model))


def planned(where: Site | str = A100, shape: ModelShape | None = None, **said: Any) -> Plan:
    wanted, opened = spec(**said), site(where) if isinstance(where, str) else where
    return make_plan(opened, wanted, shape or read_model(wanted.model))


def resources(
    where: Site | str = A100, shape: ModelShape | None = None, **said: Any
) -> dict[str, Resource]:
    """What a deployment stands on, by name; those who have a role by its title's first word."""
    wanted, opened = spec(**said), site(where) if isinstance(where, str) else where
    found = resources_of(opened, wanted, shape or read_model(wanted.model), EVER)
    return {one.name: one for one in found}


def script(where: Site | str = A100, **said: Any) -> str:
    """Every command of a plan."""
    return "\n".join(step.command for step in planned(where, **said).steps)


def typed(where: Site | str = A100, **said: Any) -> "ContainerApp":
    opened = site(where) if isinstance(where, str) else where
    return app_of(opened, drawn(opened, **said), kept_at=VAULT, addresses=CALLERS)


def sent(where: Site | str = A100, **said: Any) -> dict[str, Any]:
    return as_sent(typed(where, **said))
