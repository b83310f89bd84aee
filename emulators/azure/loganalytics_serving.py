"""How Azure Monitor's data planes are served: known callers, with faults, refused as ARM does."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from emulators.azure import tokens
from emulators.azure.faults import denied, take_fault
from emulators.azure.refusing import Refused
from emulators.azure.serving import json_of, refusal
from emulators.azure.state import Subscription, World

Answer = Callable[[Subscription, Request, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Answers the caller's subscription and the body's JSON; raises Refused."""


def posted(
    world: World, path: str, answer: Answer, *, name: str, permission: str, audience: str
) -> Route:
    """Serve one method; faults and the list of calls know it as `POST name`."""

    async def admitted(request: Request) -> dict[str, Any]:
        claims = tokens.caller_of(world, request.headers, audience, world.urls.arm)
        sub = world.subscription(claims.subscription)
        sub.called(f"POST {name}")
        fault = take_fault(sub, f"POST {name}")
        if fault:
            await fault.happen()
        if denied(sub, permission):
            raise Refused(
                403,
                "InsufficientAccessError",
                "The provided credentials have insufficient access to perform the requested"
                " operation",
            )
        return await answer(sub, request, await json_of(request))

    async def endpoint(request: Request) -> Response:
        world.touch()
        try:
            return JSONResponse(await admitted(request))
        except Refused as refused:
            return refusal(refused)

    return Route(path, endpoint, methods=["POST"])
