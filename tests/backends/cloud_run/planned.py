"""Plans that the tests look into, without a cloud."""

import tomllib
from pathlib import Path
from typing import Any

from google.cloud import run_v2

from backends.base import World
from backends.cloud_run.backend import CloudRunBackend
from backends.cloud_run.service import Blueprint, blueprint, service_of
from backends.cloud_run.site import Clients, IdentityTokens, Site
from core.environment import ROOT
from core.records import DeploymentSpec, ModelShape, Plan, Target
from core.settings import Settings
from planner.model import read_model

L4, RTX = "cloud-run-l4", "cloud-run-rtx-pro-6000"
E4B = "google/gemma-4-E4B-it"
QAT_12B = "google/gemma-4-12B-it-qat-w4a16-ct"
QAT_26B = "google/gemma-4-26B-A4B-it-qat-w4a16-ct"
QAT_31B = "google/gemma-4-31B-it-qat-w4a16-ct"
BUCKET = "gs://my-bucket/models/gemma"


def site(target: str = L4, **settings: Any) -> Site:
    """A target, opened without a project unless one is given."""
    rows = tomllib.loads((ROOT / "backends" / "targets.toml").read_text(encoding="utf-8"))
    named, said = Target(name=target, **rows[target]), Settings(**settings)
    world = World(settings=said, folder=Path("nowhere"), simulated_engine=())
    clients = Clients(named, world)
    return Site(
        target=named,
        settings=said,
        clients=clients,
        identity=IdentityTokens(clients, None),
    )


def spec(model: str = E4B, **said: Any) -> DeploymentSpec:
    return DeploymentSpec(name="gemma", model=model, **{"min_replicas": 0, **said})


def drawn(where: Site | str = L4, shape: ModelShape | None = None, **said: Any) -> Blueprint:
    wanted, opened = spec(**said), site(where) if isinstance(where, str) else where
    return blueprint(opened, wanted, shape or read_model(wanted.model))


def planned(where: Site | str = L4, shape: ModelShape | None = None, **said: Any) -> Plan:
    wanted, opened = spec(**said), site(where) if isinstance(where, str) else where
    backend = CloudRunBackend(opened.target, opened.clients._world)
    return backend.plan(wanted, shape or read_model(wanted.model))


def typed(where: Site | str = L4, **said: Any) -> run_v2.Service:
    return service_of(drawn(where, **said))
