"""A service's URL: who may come in, which instance answers, how long that may take."""

import contextlib
import html
import socket
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import anyio
import httpx2
from google.cloud.run_v2.types import Service
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import Message, Receive, Scope, Send

from emulators.google import policies
from emulators.google.engines import Engine
from emulators.google.fleet import Fleet
from emulators.google.idtokens import InvalidToken
from emulators.google.run_shapes import is_manual, least_instances, timeout_seconds
from emulators.google.state import Project, World
from emulators.google.web import NO_TLS, WebServer, loopback

_QUEUE_SECONDS: Final = 60.0
"""How long a request waits for room beside others. source: run/docs/about-instance-autoscaling"""
_RHYTHM_SECONDS: Final = 0.02
_OURS: Final = "x-serverless-authorization"
_HOP_BY_HOP: Final = frozenset(
    {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", _OURS}
)
_NO_INSTANCE: Final = "The request was aborted because there was no available instance."
_MALFORMED: Final = "The request failed because the instance could not start successfully."
_INVOKE: Final = "run.routes.invoke"


@dataclass(slots=True)
class Door:
    """What listens on one service's URL."""

    url: str
    server: WebServer

    def close(self) -> None:
        """Listen no more."""
        self.server.should_exit = True


def open_door(world: World, project: Project, fleet: Fleet, url: str = "") -> Door:
    """Listen for a service; at the URL it had before where that is still free."""
    listener = _listener(urlsplit(url).port or 0)
    host = _Host(world, project, fleet)
    server = WebServer(host)
    listener.listen(128)
    world.tasks.start_soon(server.serve, [listener])
    return Door(f"http://127.0.0.1:{listener.getsockname()[1]}", server)


def _listener(port: int) -> socket.socket:
    try:
        return loopback(port)
    except OSError:
        return loopback()


class _Refused(Exception):
    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


class _Host:
    """Answers for one service."""

    def __init__(self, world: World, project: Project, fleet: Fleet) -> None:
        self._world = world
        self._project = project
        self._fleet = fleet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._world.touch()
        request, answer = Request(scope, receive), _Answer(send)
        try:
            service = self._service()
            self._admit(service, request)
            with anyio.fail_after(timeout_seconds(service.template)):
                body = await request.body()
                engine = await self._engine()
                try:
                    await _pass_on(request, body, engine, answer)
                finally:
                    engine.gave()
                    self._world.touch()
        except _Refused as refused:
            await refused.response(scope, receive, send)
        except TimeoutError:
            if not answer.begun:  # else it is cut short
                late = PlainTextResponse("upstream request timeout", status_code=504)
                await late(scope, receive, send)
        except ClientDisconnect:
            return

    def _service(self) -> Service:
        if self._fleet.closed or self._fleet.revision is None:
            raise _Refused(_page(404, "Not Found", "The requested URL was not found."))
        service = self._fleet.service
        if is_manual(service) and not least_instances(service):
            # Google publishes no status for a service that is disabled; this is the nearest.
            raise _Refused(_page(503, "Service Unavailable", "The service is disabled."))
        return service

    def _admit(self, service: Service, request: Request) -> None:
        if service.invoker_iam_disabled:
            return
        given = request.headers.get(_OURS) or request.headers.get("authorization", "")
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
            raise _Refused(page)
        if not self._may_invoke(email):
            raise _Refused(_page(403, "Forbidden", f"{told} from this server."))

    def _email(self, service: Service, token: str) -> str | None:
        for audience in (*service.urls, *service.custom_audiences):
            try:
                return self._world.tokens.verify(token, audience).email
            except InvalidToken:
                continue
        return None

    def _may_invoke(self, email: str | None) -> bool:
        project = self._project
        if email == project.caller:  # who owns the project
            return _INVOKE not in project.knobs.denied_permissions
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
                raise _Refused(PlainTextResponse(_NO_INSTANCE, status_code=429))
            if self._fleet.failed_starts > failed:
                raise _Refused(_page(503, "Server Error", _MALFORMED))
            booting = self._fleet.wake()
            if not booting and time.monotonic() - began > _QUEUE_SECONDS:
                raise _Refused(PlainTextResponse(_NO_INSTANCE, status_code=429))
            await anyio.sleep(_RHYTHM_SECONDS)


class _Answer:
    """Sends, and knows whether anything was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def __call__(self, message: Message) -> None:
        self.begun = True
        await self._send(message)


async def _pass_on(request: Request, body: bytes, engine: Engine, send: Send) -> None:
    """Send the request to an instance, and its answer back as it comes."""
    async with httpx2.AsyncClient(trust_env=False, timeout=None, verify=NO_TLS) as client:
        asked = client.build_request(
            request.method,
            f"{engine.url}{request.url.path}",
            params=request.query_params,
            headers=_headers(request),
            content=body,
        )
        try:
            reply = await client.send(asked, stream=True)
        except httpx2.HTTPError as exc:
            broken = "upstream connect error or disconnect/reset before headers"
            raise _Refused(PlainTextResponse(broken, status_code=503)) from exc
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_leave_with_the_client, request, tasks.cancel_scope)
            await _send(reply, send)
            tasks.cancel_scope.cancel()
        await reply.aclose()


async def _send(reply: httpx2.Response, send: Send) -> None:
    headers = [
        (name.lower(), value)
        for name, value in reply.headers.raw
        if name.decode().lower() not in _HOP_BY_HOP
    ]
    await send({"type": "http.response.start", "status": reply.status_code, "headers": headers})
    with contextlib.suppress(httpx2.HTTPError):  # the instance ended: the answer is cut short
        async for piece in reply.aiter_raw():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _leave_with_the_client(request: Request, scope: anyio.CancelScope) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
    scope.cancel()


def _headers(request: Request) -> list[tuple[str, str]]:
    return [(name, value) for name, value in request.headers.items() if name not in _HOP_BY_HOP]


def _page(status: int, title: str, told: str) -> HTMLResponse:
    return HTMLResponse(
        "\n<html><head>\n"
        '<meta http-equiv="content-type" content="text/html;charset=utf-8">\n'
        f"<title>{status} {title}</title>\n</head>\n"
        f"<body text=#000000 bgcolor=#ffffff>\n<h1>Error: {title}</h1>\n<h2>{told}</h2>\n"
        "<h2></h2>\n</body></html>\n",
        status_code=status,
    )
