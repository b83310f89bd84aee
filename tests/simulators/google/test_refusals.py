"""What the simulated Google Cloud refuses, as a table: each row is refused by Google as well."""

import importlib
import json
import tomllib
import uuid
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import grpc.aio
import httpx2
import pytest
from google.iam.v1 import iam_policy_pb2
from google.longrunning import operations_pb2
from google.protobuf import json_format
from starlette.types import ASGIApp

from simulators.google import plane
from simulators.google.state import World
from tests.event_loop import BACKEND
from tests.soon import HANGS

pytestmark = pytest.mark.anyio
TYPES: Final = {
    "google.cloud.run.v2": "google.cloud.run_v2",
    "google.cloud.secretmanager.v1": "google.cloud.secretmanager_v1",
    "google.iam.admin.v1": "google.cloud.iam_admin_v1",
    "google.cloud.resourcemanager.v3": "google.cloud.resourcemanager_v3",
    "google.api.serviceusage.v1": "google.cloud.service_usage_v1",
    "google.api.cloudquotas.v1": "google.cloud.cloudquotas_v1",
    "google.devtools.artifactregistry.v1": "google.cloud.artifactregistry_v1",
    "google.devtools.cloudbuild.v1": "google.cloud.devtools.cloudbuild_v1",
    "google.logging.v2": "google.cloud.logging_v2",
    "google.monitoring.v3": "google.cloud.monitoring_v3",
    "google.cloud.scheduler.v1": "google.cloud.scheduler_v1",
    "google.cloud.tpu.v2": "google.cloud.tpu_v2",
}


def sections() -> list[dict[str, Any]]:
    file = Path(__file__).with_name("refusals.toml")
    found: list[dict[str, Any]] = tomllib.loads(file.read_text("utf-8"))["section"]
    return found


def rows() -> Iterator[Any]:
    for number, section in enumerate(sections()):
        method = section["call"].rpartition("/")[2].partition("?")[0]
        if not section.get("alone"):
            yield pytest.param(section, {}, "OK", "", id=f"{number}-{method}-as-it-stands")
        for place, row in enumerate(section["refused"]):
            yield pytest.param(section, *row, id=f"{number}-{method}-{place}")


class Told(NamedTuple):
    """How a call ended."""

    code: str
    words: str


class Cloud(NamedTuple):
    """What is served to all rows of this file, of which each has a project of its own."""

    world: World
    web: ASGIApp
    channel: grpc.aio.Channel


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return BACKEND


@pytest.fixture(scope="module")
async def cloud(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cloud]:
    """Serve everything that is asked by gRPC inside the tests."""
    async with anyio.create_task_group() as tasks:
        world = World(folder=tmp_path_factory.mktemp("refusing"), tasks=tasks)
        server = grpc.aio.server()
        plane.mount(server, world)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Cloud(world, plane.web(world), channel)
        await server.stop(None)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(("section", "change", "status", "words"), list(rows()))
async def test_a_request_is_refused_as_google_refuses_it(
    cloud: Cloud, section: dict[str, Any], change: dict[str, Any], status: str, words: str
) -> None:
    """With its code, and with words that name what is wrong; what it is made of is taken."""
    change = dict(change)
    knobs = {**section.get("knobs", {}), **change.pop("knobs", {})}
    apis, twice = change.pop("apis", None), change.pop("twice", False)
    call = change.pop("call", section["call"])
    project = cloud.world.project(f"p-{uuid.uuid4().hex[:12]}")
    plane.prepare(project)
    plane.prepare_lease(project)
    ask = partial(answer_by_http if call.startswith("POST") else answer, cloud, project.id)
    service = section["call"].rpartition("/")[0]
    for method, request in section.get("before", ()):
        assert (await ask(f"{service}/{method}", json.loads(request))).code == "OK"
    project.knobs = project.knobs.model_copy(
        update=type(project.knobs).model_validate(knobs).model_dump(include=set(knobs))
    )
    project.apis = project.apis if apis is None else set(apis)
    asked = changed(json.loads(section["request"]), change)
    if twice:
        assert (await ask(call, asked)).code == "OK"
    told = await ask(call, asked)
    assert told.code == status, told.words
    assert words in told.words


async def answer(cloud: Cloud, project: str, call: str, request: dict[str, Any]) -> Told:
    """Make a call of its service by its full name."""
    service, _, method = call.partition("/")
    package = service.rpartition(".")[0]
    kind: Any = getattr(iam_policy_pb2, f"{method}Request", None) or getattr(
        operations_pb2, f"{method}Request", None
    )
    if kind is None:
        kind = getattr(importlib.import_module(f"{TYPES[package]}.types"), f"{method}Request").pb()
    text = json.dumps(request).replace("PROJECT", project)
    message = json_format.Parse(text, kind())
    try:
        await cloud.channel.unary_unary(f"/{call}")(message.SerializeToString(), timeout=HANGS)
    except grpc.aio.AioRpcError as exc:
        return Told(exc.code().name, exc.details() or "")
    return Told("OK", "")


async def answer_by_http(cloud: Cloud, project: str, call: str, request: dict[str, Any]) -> Told:
    """Make a call such as POST /path."""
    text = json.dumps(request).replace("PROJECT", project)
    path = call.removeprefix("POST ").replace("PROJECT", project)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(cloud.web)) as client:
        reply = await client.post(f"http://compute{path}", content=text)
    return Told("OK" if reply.is_success else str(reply.status_code), reply.text)


def changed(request: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Put values where JSON pointers say."""
    for pointer, value in change.items():
        *way, last = (part.replace("~1", "/") for part in pointer[1:].split("/"))
        place: Any = request
        for part in way:
            place = place[int(part) if isinstance(place, list) else part]
        place[int(last) if isinstance(place, list) else last] = value
    return request
