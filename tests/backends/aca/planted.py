"""Azure's answers, planted in this process; an app with every reading of it, and its streams."""

import json
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote

from azure.core.credentials import AccessToken
from azure.core.pipeline.transport import AsyncHttpTransport
from azure.core.rest import HttpRequest
from azure.core.rest._http_response_impl_async import AsyncHttpResponseImpl
from azure.keyvault.secrets.aio import SecretClient
from azure.mgmt.appcontainers.aio import ContainerAppsAPIClient
from azure.monitor.query.aio import LogsQueryClient
from azure.monitor.querymetrics.aio import MetricsClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from backends.aca.app import tags_of
from backends.aca.backend import AcaBackend
from backends.aca.site import Site
from backends.base import World
from core.records import DeploymentSpec
from core.settings import Settings
from tests.backends.aca.sites import target_of
from tests.webserver import serving

Answer = tuple[int, Mapping[str, Any]]
Answerer = Callable[[str], Answer]
"""Given the body of the request."""


class Anybody:
    """A login that never runs out."""

    async def get_token(self, *_scopes: str, **_more: Any) -> AccessToken:
        return AccessToken("token", 4_000_000_000)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass


class _Reply(AsyncHttpResponseImpl):
    """An answer that was read already."""

    async def read(self) -> bytes:
        return bytes(self._internal_response)

    async def load_body(self) -> None:
        self._content = bytes(self._internal_response)

    @property
    def content(self) -> bytes:
        return bytes(self._internal_response)


class Arm(AsyncHttpTransport[HttpRequest, _Reply]):
    """Answers by method and path; what nobody planted is not found."""

    def __init__(self) -> None:
        self.routes: list[tuple[re.Pattern[str], Answerer]] = []
        self.calls: list[str] = []
        self.query = ""
        """Of the newest call, what follows its path."""

    def on(self, pattern: str, answer: Answerer) -> None:
        """Answer calls such as `GET .*/revisions`; the newest rule that fits wins."""
        self.routes.insert(0, (re.compile(pattern, re.IGNORECASE), answer))

    def refuse(self, pattern: str, status: int, code: str, message: str = "No.") -> None:
        """Let such calls fail."""
        self.on(pattern, lambda _: (status, {"error": {"code": code, "message": message}}))

    async def send(self, request: HttpRequest, **_more: Any) -> _Reply:
        call = f"{request.method} {unquote(request.url.partition('?')[0])}"
        self.calls.append(call)
        self.query = unquote(request.url.partition("?")[2].replace("+", " "))
        answer = next((found for form, found in self.routes if form.fullmatch(call)), _nothing)
        status, body = answer(str(request.content or ""))
        return _Reply(
            request=request,
            internal_response=json.dumps(body).encode(),
            status_code=status,
            reason="",
            headers={"Content-Type": "application/json"},
            content_type="application/json",
            stream_download_generator=None,
        )

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass


def _nothing(_body: str) -> Answer:
    return 404, {"error": {"code": "ResourceNotFound", "message": "There is nothing."}}


SUBSCRIPTION: Final = "11111111-2222-4333-8444-555555555555"
SPEC: Final = DeploymentSpec(name="gemma", model="google/gemma-4-E4B-it", min_replicas=0)
NEWEST: Final = "gemma--0000002"
FORMER: Final = "gemma--0000001"
WORKSPACE: Final = "aaaaaaaa-0000-4000-8000-000000000000"
STREAM_TOKEN: Final = "stream-token"


@dataclass
class Planted:
    """What a test may plant, and what was asked."""

    backend: AcaBackend
    arm: Arm
    url: str = ""
    healthy: bool = True
    """Whether the model answers."""
    fails_first: int = 0
    """So many questions, before it does."""
    refusal: tuple[int, str] = (503, "no")
    asked: int = 0
    """How often the model was."""
    stream_status: int = 200
    revisions: list[dict[str, Any]] = field(default_factory=list)
    replicas: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    console: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    points: dict[str, list[float | None]] = field(default_factory=dict)
    """Of the metric, by revision, one a minute."""
    tables: dict[str, Answer] = field(default_factory=dict)
    """Of Log Analytics, by name; one that is not planted is not there."""

    @property
    def site(self) -> Site:
        """The opened target."""
        return self.backend.site

    def app(self, name: str = "gemma", **said: Any) -> dict[str, Any]:
        """Plant an app; `said` are its properties, its `tags` and `age_seconds`."""
        made = ago(said.pop("age_seconds", 3600))
        ingress = {
            "external": True,
            "fqdn": self.url.removeprefix("http://"),
            **said.pop("ingress", {}),
        }
        scale = {"minReplicas": 0, "maxReplicas": 1, "cooldownPeriod": 900, **said.pop("scale", {})}
        tags = said.pop("tags", {**tags_of("aca-a100", SPEC), "vllm-devops-expires": "4102444800"})
        body = {
            "id": self.site.ground.app_id(name), "name": name, "location": "swedencentral",
            "tags": tags, "systemData": {"createdAt": made, "lastModifiedAt": made},
            "properties": {
                "provisioningState": "Succeeded", "runningStatus": "Running",
                "latestRevisionName": NEWEST, "latestReadyRevisionName": NEWEST,
                "environmentId": self.site.ground.environment_id,
                "eventStreamEndpoint": f"{self.url}/events",
                "configuration": {"ingress": ingress},
                "template": {"containers": [container()], "scale": scale},
                **said,
            },
        }  # fmt: skip
        self.arm.on(f"GET .*/containerApps/{name}", lambda _: (200, body))
        self.arm.on("GET .*/containerApps", lambda _: (200, {"value": [body]}))
        return body

    def revision(self, name: str = NEWEST, *, age: float = 3600, **said: Any) -> None:
        """Plant a revision; `said` are its properties."""
        properties = {
            "createdTime": ago(age), "active": True, "runningState": "Running",
            "replicas": len(self.replicas.get(name, ())),
            "template": {"scale": {"minReplicas": 0}}, **said,
        }  # fmt: skip
        self.revisions.append({"name": name, "properties": properties})

    def replica(self, revision: str = NEWEST, *, age: float = 600, **said: Any) -> str:
        """Plant a replica, ready if nothing else is said of its container."""
        there = self.replicas.setdefault(revision, [])
        name = f"{revision}-{len(there)}"
        container = {
            "name": "vllm", "ready": True, "started": True, "restartCount": 0,
            "runningState": "Running", "logStreamEndpoint": f"{self.url}/console/{name}", **said,
        }  # fmt: skip
        properties = {"createdTime": ago(age), "runningState": "Running", "containers": [container]}
        there.append({"name": name, "properties": properties})
        for one in self.revisions:
            if one["name"] == revision:
                one["properties"]["replicas"] = len(there)
        return name

    def event(self, reason: str, text: str = "", *, replica: str = "", age: float = 300) -> None:
        """Plant an event of the newest revision."""
        stamp = ago(age)[:19].replace("T", " ") + " +0000 UTC"
        self.events.append(
            {"TimeStamp": stamp, "Type": "Normal", "ContainerAppName": "gemma",
             "RevisionName": NEWEST, "ReplicaName": replica, "Msg": text, "Reason": reason,
             "EventSource": "ContainerAppController", "Count": 1}
        )  # fmt: skip

    def wrote(self, replica: str, *lines: str, age: float = 60) -> None:
        """Plant lines of a replica's container, a second apart."""
        rows = self.console.setdefault(replica, [])
        rows += [
            {"TimeStamp": ago(age - number), "Log": f"F {line}"}
            for number, line in enumerate(lines)
        ]

    def kept(self, table: str, *rows: Sequence[str], error: str = "") -> None:
        """Plant a table of Log Analytics; each row from its first column on, newest first."""
        reason = ["Reason_s"] if "System" in table else []
        names = ["TimeGenerated", *reason, "Log_s"]
        columns = [
            {"name": one, "type": "datetime" if one == names[0] else "string"} for one in names
        ]
        body: dict[str, Any] = {"tables": [{"name": "t", "columns": columns, "rows": list(rows)}]}
        if error:
            body["error"] = {"code": "PartialError", "message": error}
        self.tables[table] = (200, body)


def ago(seconds: float) -> str:
    """Write a moment of the past."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()


def container() -> dict[str, Any]:
    """Give a template's container."""
    return {
        "name": "vllm",
        "image": "docker.io/vllm/vllm-openai:v0.32.0-cu129@sha256:00",
        "env": [{"name": "VLLM_API_KEY", "secretRef": "api-key"}],
        "resources": {"cpu": 24.0, "memory": "220Gi"},
        "probes": [{"type": "Startup", "periodSeconds": 10, "failureThreshold": 60}],
    }


@asynccontextmanager
async def planting(
    folder: Path, *, target: str = "aca-a100", **said: Any
) -> AsyncIterator[Planted]:
    """Give a site whose Azure is what a test plants."""
    settings = Settings(rehearsal=True, azure_subscription_id=SUBSCRIPTION, **said)
    found, arm = target_of(target), Arm()
    backend = AcaBackend(found, World(settings, folder, ()))
    clients, planted = backend.site.clients, Planted(backend, arm)
    whose: Any = Anybody()
    more: Any = {"transport": arm, "retry_backoff_factor": 0.001}
    clients._credential = whose
    clients._open |= {
        ContainerAppsAPIClient: ContainerAppsAPIClient(whose, SUBSCRIPTION, **more),
        MetricsClient: MetricsClient("https://metrics.example", whose, **more),
        LogsQueryClient: LogsQueryClient(whose, **more),
        (SecretClient, await clients.secrets_url()): SecretClient(
            "https://vault.example", whose, verify_challenge_resource=False, **more
        ),
    }
    _answers(planted)
    with serving(_web(planted)) as planted.url:
        try:
            yield planted
        finally:
            await clients.aclose()


def _answers(there: Planted) -> None:
    arm, environment = there.arm, {
        "name": "vllm-devops-swedencentral", "location": "swedencentral",
        "properties": {"appLogsConfiguration": {
            "destination": "log-analytics", "logAnalyticsConfiguration": {"customerId": WORKSPACE},
        }},
    }  # fmt: skip
    arm.on("GET .*/revisions", lambda _: (200, {"value": there.revisions}))
    arm.on("GET .*/managedEnvironments/[^/]*", lambda _: (200, environment))
    arm.on("POST .*/getAuthtoken", lambda _: (200, _token()))
    arm.on("POST .*metrics:getBatch", lambda _: (200, _metrics(there)))
    arm.on("POST .*/query", lambda body: _table(there, body))
    arm.on("GET .*vault.example/secrets/.*", lambda _: (200, {"value": "the-key", "id": _SECRET}))
    arm.on(".*/replicas", lambda _: (200, {"value": []}))
    for revision in (NEWEST, FORMER):
        arm.on(f"GET .*/{revision}/replicas", _held(there, revision))


def _held(there: Planted, revision: str) -> Any:
    return lambda _: (200, {"value": there.replicas.get(revision, [])})


_SECRET: Final = "https://vault.example/secrets/vllm-devops-gemma-api-key/1"


def _token() -> dict[str, Any]:
    return {"location": "swedencentral", "properties": {"token": STREAM_TOKEN}}


def _table(there: Planted, body: str) -> Answer:
    table = next((name for name in there.tables if name in body), None)
    if table:
        return there.tables[table]
    deepest = {"code": "SEM0100", "message": "Failed to resolve table or column expression"}
    error = {
        "code": "BadArgumentError",
        "message": "The request had some invalid properties",
        "innererror": {"code": "SemanticError", "message": "x", "innererror": deepest},
    }
    return 400, {"error": error}


def _metrics(there: Planted) -> dict[str, Any]:
    """Without the dimension, Azure gives the mean of all revisions at each moment."""
    points = there.points
    if "revisionName eq '*'" not in there.arm.query:
        each = zip(*points.values(), strict=False)
        points = {"": [sum(row) / len(row) for row in each if None not in row]}
    rows = [
        {
            "metadatavalues": [{"name": {"value": "revisionName"}, "value": revision}],
            "data": [{"timeStamp": ago(60), "average": value} for value in values],
        }
        for revision, values in points.items()
    ]
    name = {"value": "Replicas"}
    metric = {"id": "m", "type": "t", "name": name, "unit": "Count", "timeseries": rows}
    return {
        "values": [{"starttime": ago(60), "endtime": ago(0), "interval": "PT1M", "value": [metric]}]
    }


def _web(there: Planted) -> Starlette:
    def model(request: Request) -> Response:
        there.asked += 1
        if request.headers.get("authorization") != "Bearer the-key":
            return PlainTextResponse("no key", 401)
        if there.healthy and there.asked > there.fails_first:
            return JSONResponse({"data": [{"id": SPEC.model}]})
        return PlainTextResponse(there.refusal[1], there.refusal[0])

    def stream(request: Request) -> Response:
        if request.headers.get("authorization") != f"Bearer {STREAM_TOKEN}":
            return PlainTextResponse("no token", 401)
        replica = request.path_params.get("replica")
        rows = there.console.get(replica, []) if replica else there.events
        text = "".join(json.dumps(row) + "\n" for row in rows)
        return PlainTextResponse(text, there.stream_status)

    return Starlette(
        routes=[
            Route("/v1/models", model),
            Route("/events", stream),
            Route("/console/{replica}", stream),
        ]
    )
