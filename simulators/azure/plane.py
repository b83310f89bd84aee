"""The process: a server with TLS for Azure, a plain one for the rest, and the controls."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import anyio
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from core.settings import AzurePlane
from simulators.azure import (
    apps,
    environment,
    files,
    fleet,
    logs,
    providers,
    roles,
    serving,
    storage,
    subscription,
    tokens,
    vaults,
)
from simulators.azure.logs import Saying
from simulators.azure.serving import unknown
from simulators.azure.state import Knobs, Subscription, World
from simulators.azure.subscription import prepare
from simulators.azure.tokens import AUTHORITY, certificate, kept_key
from simulators.common import registry
from simulators.common.doors import loopback, start_web
from simulators.common.lifetime import Recorder, announce, leave_when_idle, until_told_to_end


def dockerhub_http_routes(world: World) -> Sequence[BaseRoute]:
    """Serve `/v2/`, `/v2/{name}/manifests/{reference}` and the token that they ask for."""
    return registry.routes(lambda: world.urls.http, world.touch, registry.hub_digest_of)


_TOLD_LINES: Final = 500
_SUBSCRIPTION: Final = "/rehearsal/subscriptions/{subscription}"


def controls_http_routes(world: World) -> Sequence[BaseRoute]:
    """Serve /rehearsal/alive, /rehearsal/address; each subscription's knobs, tokens and log."""
    one = _Controls(world)
    return (
        Route("/rehearsal/alive", _alive, methods=["GET"]),
        Route("/rehearsal/address", _address, methods=["GET"]),
        Route(_SUBSCRIPTION, one.change, methods=["PUT"]),
        Route(_SUBSCRIPTION, one.look, methods=["GET"]),
        Route(_SUBSCRIPTION, one.drop, methods=["DELETE"]),
        Route(f"{_SUBSCRIPTION}/token", one.token, methods=["POST"]),
        Route(f"{_SUBSCRIPTION}/log", one.say, methods=["POST"]),
    )


class _Controls:
    def __init__(self, world: World) -> None:
        self._world = world

    async def change(self, request: Request) -> Response:
        sub, asked = self._named(request), await request.json()
        try:
            knobs = Knobs.model_validate({**sub.knobs.model_dump(), **asked})
        except ValidationError as exc:
            return JSONResponse({"error": str(exc)}, status_code=400)
        if knobs.prepared and not sub.knobs.prepared:
            prepare(self._world, sub)
        sub.knobs = knobs
        self._world.keep(sub)
        return JSONResponse(seen(sub))

    async def look(self, request: Request) -> Response:
        return JSONResponse(seen(self._named(request)))

    async def drop(self, request: Request) -> Response:
        sub = self._named(request)
        serving.cancel(sub)
        self._world.forget(sub)
        await fleet.forget(self._world, sub)
        return JSONResponse({})

    async def token(self, request: Request) -> Response:
        sub, asked = self._named(request), await request.json()
        refusal = tokens.login_refusal(sub)
        if refusal:
            error, description = refusal
            told = {"error": error, "error_description": description}
            return JSONResponse(told, status_code=400)
        token, ends = tokens.issued(self._world, sub, asked.get("scopes", []))
        return JSONResponse({"access_token": token, "expires_on": ends})

    async def say(self, request: Request) -> Response:
        sub = self._named(request)
        try:
            saying = Saying.model_validate_json(await request.body())
            rows = saying.rows(sub)
        except ValidationError as exc:
            return JSONResponse({"error": str(exc)}, status_code=400)
        except LookupError as exc:
            return JSONResponse({"error": exc.args[0]}, status_code=404)
        self._world.said_in(sub).add(rows, without=saying.without)
        return JSONResponse({"lines": len(rows)})

    def _named(self, request: Request) -> Subscription:
        self._world.touch()
        return self._world.subscription(request.path_params["subscription"])


async def _alive(_request: Request) -> Response:
    return JSONResponse({"alive": True})


async def _address(request: Request) -> Response:
    """Say where the caller is seen to be."""
    return PlainTextResponse(request.client.host if request.client else "127.0.0.1")


def seen(sub: Subscription) -> dict[str, Any]:
    """Tell what there is; no secret's value."""
    return {
        "id": sub.id,
        "caller": sub.caller,
        "knobs": sub.knobs.model_dump(mode="json"),
        "providers": sorted(name for name in sub.providers if sub.registered(name)),
        "resources": sorted(sub.resources),
        "operations": [
            one.model_dump(mode="json", include={"work", "resource", "status", "error"})
            for one in sub.operations.values()
        ],
        "secrets": {
            vault: sorted(name for name, one in held.secrets.items() if one.deleted is None)
            for vault, held in sub.vaults.items()
        },
        "replicas": [one.model_dump(mode="json") for one in sub.living()],
        "log": [one.text for one in sub.log[-_TOLD_LINES:]],
        "events": [one.reason for one in sub.log[-_TOLD_LINES:] if one.reason],
        "calls": list(sub.calls),
        "needed": list(sub.needed),
    }


_PARTS: Final[tuple[SimpleNamespace, ...]] = (
    SimpleNamespace(http_routes=controls_http_routes),
    SimpleNamespace(routes=subscription.routes),
    SimpleNamespace(routes=providers.routes),
    SimpleNamespace(routes=roles.identity_routes),
    SimpleNamespace(routes=roles.routes),
    SimpleNamespace(routes=roles.definition_routes),
    SimpleNamespace(routes=environment.workspace_routes),
    SimpleNamespace(routes=storage.account_routes, resume=storage.resume),
    SimpleNamespace(routes=storage.share_routes),
    SimpleNamespace(routes=files.blob_routes),
    SimpleNamespace(routes=files.fileshare_routes),
    SimpleNamespace(routes=vaults.routes),
    SimpleNamespace(routes=vaults.vault_routes),
    SimpleNamespace(routes=environment.environment_routes),
    SimpleNamespace(routes=environment.link_routes),
    SimpleNamespace(routes=environment.profile_routes),
    SimpleNamespace(routes=apps.routes),
    SimpleNamespace(routes=apps.action_routes),
    SimpleNamespace(routes=apps.revision_routes),
    SimpleNamespace(http_routes=logs.http_routes),
    SimpleNamespace(routes=logs.loganalytics_routes),
    SimpleNamespace(routes=logs.metrics_routes),
    SimpleNamespace(routes=serving.routes, resume=serving.resume),
    SimpleNamespace(resume=fleet.resume),
    SimpleNamespace(http_routes=dockerhub_http_routes),
    SimpleNamespace(routes=providers.policies_routes),
)
"""Parts with `routes(world)` for what TLS serves, `http_routes(world)` for the rest, and
`resume(world)` for what goes on when the process is started again."""
_PORTS: Final = "ports.json"


async def serve(folder: Path, idle_exit_seconds: float | None, record: Path | None = None) -> None:
    """Be an Azure until SIGTERM, or until nobody has called for so long."""
    own = certificate(folder)
    secure, plain = _listeners(folder)
    async with anyio.create_task_group() as tasks:
        world = World(folder=folder, tasks=tasks, key=kept_key(folder))
        world.urls = _urls(folder, *(one.getsockname()[1] for one in (secure, plain)))
        secured: ASGIApp = _web(world, "routes")
        if record:
            secured = Recorder(record).web(secured)
        await start_web(tasks, secure, secured, certificate=own)
        await start_web(tasks, plain, _web(world, "http_routes"))
        for part in _PARTS:
            if hasattr(part, "resume"):
                part.resume(world)
        announce(folder, world.urls)
        tasks.start_soon(leave_when_idle, lambda: world.seen, idle_exit_seconds, tasks.cancel_scope)
        await until_told_to_end()
        tasks.cancel_scope.cancel()


def _listeners(folder: Path) -> list[Any]:
    """Listen where the process before did, if nobody else does: operations are known by URL."""
    file = folder / _PORTS
    kept: list[int] = json.loads(file.read_bytes()) if file.exists() else [0, 0]
    try:
        found = [loopback(port) for port in kept]
    except OSError:
        found = [loopback(), loopback()]
    file.write_text(json.dumps([one.getsockname()[1] for one in found]), encoding="utf-8")
    return found


def _urls(folder: Path, secure: int, plain: int) -> AzurePlane:
    base = f"https://127.0.0.1:{secure}"
    return AzurePlane(
        arm=base,
        logs=f"{base}/v1",
        vaults=f"{base}/vaults",
        storage=f"{base}/storage",
        http=f"http://127.0.0.1:{plain}",
        ca=str(folder / AUTHORITY),
        pid=os.getpid(),
    )


def _web(world: World, which: str) -> Starlette:
    routes: list[BaseRoute] = [
        route for part in _PARTS if hasattr(part, which) for route in getattr(part, which)(world)
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: unknown})
