"""A service's URL: who may come in, which instance answers, how long that may take."""

import html
import time
from typing import Final
from urllib.parse import urlsplit

import anyio
from google.cloud.run_v2.types import Service
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from emulators.common.doors import Answer, Door, TurnedAway, open_door, pass_on
from emulators.google import policies
from emulators.google.engines import Engine
from emulators.google.fleet import Fleet
from emulators.google.idtokens import GCLOUD_CLIENT, InvalidToken
from emulators.google.run_shapes import is_manual, least_instances, timeout_seconds
from emulators.google.state import Project, World

_QUEUE_SECONDS: Final = 60.0
"""How long a request waits for room beside others. source: run/docs/about-instance-autoscaling"""
_RHYTHM_SECONDS: Final = 0.02
_GIVEN: Final = "x-serverless-authorization"
_OURS: Final = frozenset({_GIVEN})
_NO_INSTANCE: Final = "The request was aborted because there was no available instance."
_MALFORMED: Final = "The request failed because the instance could not start successfully."
_INVOKE: Final = "run.routes.invoke"


def open_service(world: World, project: Project, fleet: Fleet, url: str = "") -> Door:
    """Listen for a service; at the URL it had before where that is still free."""
    return open_door(world.tasks, _Host(world, project, fleet), urlsplit(url).port or 0)


class _Host:
    """Answers for one service."""

    def __init__(self, world: World, project: Project, fleet: Fleet) -> None:
        self._world = world
        self._project = project
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._world.touch()
        request, answer = Request(scope, receive), Answer(send)
        try:
            service = self._service()
            self._admit(service, request)
            with anyio.fail_after(timeout_seconds(service.template)):
                body = await request.body()
                engine = await self._engine()
                try:
                    path = await engine.guard.admit(request, engine.url) if engine.guard else None
                    await pass_on(request, body, engine.url, answer, path=path, but=_OURS)
                finally:
                    engine.gave()
                    self._world.touch()
        except TurnedAway as turned:
            await turned.response(scope, receive, send)
        except TimeoutError:
            if not answer.begun:  # else it is cut short
                late = PlainTextResponse("upstream request timeout", status_code=504)
                await late(scope, receive, send)
        except ClientDisconnect:
            return

    def _service(self) -> Service:
        if self._fleet.closed or self._fleet.revision is None:
            raise TurnedAway(_page(404, "Not Found", "The requested URL was not found."))
        service = self._fleet.service
        if is_manual(service) and not least_instances(service):
            # Google publishes no status for a service that is disabled; this is the nearest.
            raise TurnedAway(_page(503, "Service Unavailable", "The service is disabled."))
        return service

    def _admit(self, service: Service, request: Request) -> None:
        if service.invoker_iam_disabled:
            return
        given = request.headers.get(_GIVEN) or request.headers.get("authorization", "")
        kind, _, token = given.partition(" ")
        where = html.escape(request.url.path)
        told = f"Your client does not have permission to get URL <code>{where}</code>"
        email = self._email(service, token) if kind.lower() == "bearer" else None
        if given and email is None:
            page = _page(401, "Unauthorized", f"{told} from this server.")
            page.headers["www-authenticate"] = (
                'Bearer error="invalid_token" error_description="The access token could not be'
                ' verified"'
            )
            raise TurnedAway(page)
        if not self._may_invoke(email):
            raise TurnedAway(_page(403, "Forbidden", f"{told} from this server."))

    def _email(self, service: Service, token: str) -> str | None:
        for audience in (*service.urls, *service.custom_audiences, GCLOUD_CLIENT):
            try:
                return self._world.tokens.verify(token, audience).email
            except InvalidToken:
                continue
        return None

    def _may_invoke(self, email: str | None) -> bool:
        project = self._project
        if email == project.caller:  # who owns the project
            return not project.denies(_INVOKE)
        kept = [project.policy]
        if self._fleet.service.name in project.service_policies:
            kept.append(project.service_policies[self._fleet.service.name])
        return any(policies.granted(one, email or "nobody", _INVOKE) for one in kept)

    async def _engine(self) -> Engine:
        """Wait for an instance with room; wake one if there is none."""
        began, failed = time.monotonic(), self._fleet.failed_starts
        while True:
            engine = self._fleet.free()
            if engine:
                engine.took()
                return engine
            if self._project.knobs.rollout == "no-capacity":
                raise TurnedAway(PlainTextResponse(_NO_INSTANCE, status_code=429))
            if self._fleet.failed_starts > failed:
                raise TurnedAway(_page(503, "Server Error", _MALFORMED))
            booting = self._fleet.wake()
            if not booting and time.monotonic() - began > _QUEUE_SECONDS:
                raise TurnedAway(PlainTextResponse(_NO_INSTANCE, status_code=429))
            await anyio.sleep(_RHYTHM_SECONDS)


def _page(status: int, title: str, told: str) -> HTMLResponse:
    return HTMLResponse(
        "\n<html><head>\n"
        '<meta http-equiv="content-type" content="text/html;charset=utf-8">\n'
        f"<title>{status} {title}</title>\n</head>\n"
        f"<body text=#000000 bgcolor=#ffffff>\n<h1>Error: {title}</h1>\n<h2>{told}</h2>\n"
        "<h2></h2>\n</body></html>\n",
        status_code=status,
    )
