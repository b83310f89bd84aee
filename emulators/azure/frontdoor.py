"""An app's ingress: who may come in, which replica answers, how long that may take."""

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from emulators.azure import fleet_shapes as shapes
from emulators.azure.fleet_scaling import Fleet
from emulators.azure.replicas import Running
from emulators.azure.state import Subscription, World
from emulators.common.doors import Answer, Door, TurnedAway, open_door, pass_on

_RHYTHM_SECONDS: Final = 0.02
_TIMED_OUT: Final = "stream timeout"
_FORBIDDEN: Final = "RBAC: access denied"
_ALLOW: Final = "Allow"
_GONE: Final = """<!DOCTYPE html>
<html>
<head><title>Azure Container App - Unavailable</title></head>
<body bgcolor="#00abec">
<h1 id="unavailable">Error 404 - This Container App is stopped or does not exist.</h1>
</body>
</html>
"""
"""The title and the sentence are Azure's."""


def open_app(world: World, sub: Subscription, fleet: Fleet, port: int = 0) -> Door:
    """Listen for an app; where it did before, if that is still free."""
    return open_door(world.tasks, _Host(world, sub, fleet), port)


class _Host:
    """Answers for one app."""

    def __init__(self, world: World, sub: Subscription, fleet: Fleet) -> None:
        self._world = world
        self._sub = sub
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._world.touch()
        request, answer = Request(scope, receive), Answer(send)
        name = self._fleet.app_id.rpartition("/")[2]
        self._sub.called(f"{request.method} app/{name}{request.url.path}")
        try:
            self._admit()
            with anyio.fail_after(self._sub.knobs.gateway_seconds):
                body = await request.body()
                replica = await self._replica()
                try:
                    path = (
                        await replica.guard.admit(request, replica.url) if replica.guard else None
                    )
                    await pass_on(request, body, replica.url, answer, path=path)
                finally:
                    replica.gave()
                    self._world.touch()
        except TurnedAway as turned:
            await turned.response(scope, receive, send)
        except TimeoutError:
            if not answer.begun:  # else it is cut short
                await PlainTextResponse(_TIMED_OUT, status_code=504)(scope, receive, send)
        except ClientDisconnect:
            return

    def _admit(self) -> None:
        app = self._fleet.app
        ingress = shapes.ingress_of(app) if app else None
        if app is None or ingress is None or not ingress.get("external") or self._fleet.closed:
            raise TurnedAway(HTMLResponse(_GONE, status_code=404))
        if shapes.is_stopped(app) or self._fleet.serving is None:
            raise TurnedAway(HTMLResponse(_GONE, status_code=404))
        if not allowed(ingress.get("ipSecurityRestrictions") or [], self._sub.knobs.caller_address):
            raise TurnedAway(PlainTextResponse(_FORBIDDEN, status_code=403))

    async def _replica(self) -> Running:
        """Wait for a replica with room; the fleet sees that somebody waits."""
        self._fleet.waiting += 1
        try:
            while True:
                self._admit()
                found = self._fleet.free()
                if found:
                    found.took()
                    return found
                await anyio.sleep(_RHYTHM_SECONDS)
        finally:
            self._fleet.waiting -= 1


def allowed(rules: Sequence[dict[str, Any]], address: str) -> bool:
    """Whether the ingress lets an address in; its rules are all of one action."""
    if not rules:
        return True
    caller = ipaddress.ip_address(address)
    within = any(
        caller in ipaddress.ip_network(rule["ipAddressRange"], strict=False) for rule in rules
    )
    allows: bool = rules[0]["action"] == _ALLOW
    return within == allows
