"""What a deployment would be: its price, memory and doubts, and its service as YAML."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import anyio
from google.api.launch_stage_pb2 import LaunchStage
from google.cloud import run_v2

from backends import container
from backends.base import DeploymentConfig
from backends.cloud_run.container import gpu_of, place_of
from backends.cloud_run.service import (
    Blueprint,
    blueprint,
    engine_in,
    read_spec,
    service_of,
)
from backends.cloud_run.site import Site
from backends.common.preflight import always_on, price_doubts, tagged
from backends.container import GUARD_NAME
from backends.google.clients import as_sent
from backends.lifecycle import Resource, steps
from core.errors import NotFound
from core.records import DeploymentSpec, ModelShape, Plan
from planner.memory import foresee
from planner.model import read_model
from planner.places import accelerator
from planner.price import Price, price

_KEY: Final = (
    "The key is made in a pipe and kept in Secret Manager; it is in no file and no argument."
)


def make_plan(
    site: Site,
    spec: DeploymentSpec,
    model: ModelShape,
    drawn: Blueprint,
    resources: Sequence[Resource],
) -> Plan:
    """Say what would be made, and what it costs; nothing is asked of anybody."""
    place, memory = place_of(site.target), None
    costs = price(place, drawn.instance)
    if spec.engine == "vllm":
        version = None if spec.image else gpu_of(site.target).vllm
        memory = foresee(spec, model, accelerator(place.accelerator), vllm_version=version)
    return Plan(
        spec=spec,
        target=site.target,
        model=model,
        steps=steps(resources),
        usd_per_hour=costs.usd_per_hour,
        memory=memory,
        warnings=tuple(_warnings(drawn, spec, costs)),
    )


def _warnings(drawn: Blueprint, spec: DeploymentSpec, costs: Price) -> Iterator[str]:
    yield from drawn.doubts
    if drawn.min_instances:
        yield always_on(drawn.min_instances, costs, called="instances")
    yield from price_doubts(costs)
    if spec.engine != "ollama" or spec.image:
        yield from tagged(drawn.container.image)
    if drawn.public:
        yield (
            "Anybody on the internet reaches it (access=public): a proxy before the engine lets"
            " through those with its key alone, and every request, also a refused one, keeps a GPU"
            " awake at your cost."
        )
    if drawn.network and drawn.network.all_traffic:
        yield (
            f"All traffic leaves through {drawn.network.subnetwork}: it needs Private Google"
            " Access, or nothing of Google's is reached."
        )


def request_of(drawn: Blueprint) -> dict[str, Any]:
    """Return what creates the service."""
    return {"parent": drawn.parent, "serviceId": drawn.name, "service": sent(drawn)}


def sent(drawn: Blueprint) -> dict[str, Any]:
    """Return the service as the API takes it, which is also what people are shown."""
    return as_sent(service_of(drawn))


def command_of(drawn: Blueprint) -> str:
    """Write how a person creates or replaces the service: by the very request that is sent here."""
    return (
        f"cat > service.json <<'END_OF_SERVICE'\n{json.dumps(sent(drawn), indent=2)}\n"
        "END_OF_SERVICE\n"
        "token=$(gcloud auth print-access-token) && curl --fail-with-body -X PATCH"
        " -H @<(printf 'Authorization: Bearer %s' \"$token\") -H 'Content-Type: application/json'"
        f" --data @service.json 'https://run.googleapis.com/v2/{drawn.path}?allowMissing=true'"
    )


async def config(
    site: Site,
    service: run_v2.Service,
    resources: Callable[[Blueprint, DeploymentSpec], Sequence[Resource]],
) -> DeploymentConfig:
    """Write what runs as commands and YAML, with the image that it runs."""
    spec, name = read_spec(service), service.name.rsplit("/", 1)[-1]
    if spec is None:
        raise NotFound(
            f"What was asked for when {name} was made cannot be read any more.",
            fix=f"Read the service itself: `gcloud run services describe {name} --format=yaml`.",
        )
    hub = any(
        variable.name == "HF_TOKEN" for row in service.template.containers for variable in row.env
    )
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    drawn = _as_running(blueprint(site, spec, model, hf_token=hub), service)
    return DeploymentConfig(
        command="\n".join(one.command for one in resources(drawn, spec)),
        docker_run=docker(drawn),
        yaml=container.as_yaml(sent(drawn)),
        notes=(_KEY,) if spec.engine == "vllm" else (),
    )


def docker(drawn: Blueprint) -> str:
    """Run the same container on a machine with a GPU of one's own."""
    mount = drawn.container.mount
    mounted = (f"/mnt/{mount.bucket}:{mount.path}:ro",) if mount else ()
    return container.docker_command(drawn.name, drawn.container, *mounted)


def _as_running(drawn: Blueprint, service: run_v2.Service) -> Blueprint:
    """Give it the image that runs, pinned as it may be, and the launch stage that Google took."""
    images = {row.name: row.image for row in service.template.containers}
    running, guard, stage = engine_in(service), drawn.guard, drawn.launch_stage
    if running:
        made = drawn.container.model_copy(update={"image": running.image})
        drawn = drawn.model_copy(update={"container": made})
    if guard and GUARD_NAME in images:
        guard = guard.model_copy(update={"image": images[GUARD_NAME]})
    if service.launch_stage == LaunchStage.Value("BETA"):
        stage = "beta"
    return drawn.model_copy(update={"guard": guard, "launch_stage": stage})
