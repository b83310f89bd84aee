"""The rehearsal's own controls: what a subscription's cloud is to do, and what it has done."""

from collections.abc import Sequence
from typing import Any, Final

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from emulators.azure import fleet, operations, tokens
from emulators.azure.knobs import Knobs
from emulators.azure.loganalytics_saying import Saying
from emulators.azure.prepared import prepare
from emulators.azure.state import Subscription, World

_TOLD_LINES: Final = 500
_SUBSCRIPTION: Final = "/rehearsal/subscriptions/{subscription}"


def http_routes(world: World) -> Sequence[BaseRoute]:
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
        operations.cancel(sub)
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
