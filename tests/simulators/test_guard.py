"""The simulated proxy before an engine lets through what nginx does."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from backends import container
from simulators.common.doors import TurnedAway, loopback, pass_on, start_web
from simulators.common.programs import CannotStart, guard_of
from tests.guarded import SPELLINGS, guarded, need_nginx, raw

pytestmark = pytest.mark.anyio
PATHS = (
    *("/", "/v1", "/v1/", "/v1/models", "/v1/a%20b", "/v1/a%3Fb", "/V1/models", "/v1/../health"),
    *("/health", "/health/", "/ping", "/metrics", "/metrics?x=1", "/tokenize", "/version/"),
    *SPELLINGS,
)


async def engine(scope: Scope, receive: Receive, send: Send) -> None:
    """Says what it was asked for; nobody's key is right."""
    path = scope["raw_path"].decode("latin-1")
    status = 401 if path == "/v1/models" else 200
    await PlainTextResponse(f"asked {path}", status)(scope, receive, send)


async def simulated(scope: Scope, receive: Receive, send: Send) -> None:
    """The same engine behind the simulated proxy."""
    request, url = Request(scope, receive), f"http://127.0.0.1:{scope['app_port']}"
    made = container.guard_container("nginx")
    try:
        path = await guard_of(made.args, made.env).admit(request, url)
        await pass_on(request, await request.body(), url, send, path=path)
    except TurnedAway as turned:
        await turned.response(scope, receive, send)


@pytest.fixture
async def both(tmp_path: Path) -> AsyncIterator[tuple[str, str]]:
    """The addresses of the real one and of the simulated one, before the same engine."""
    need_nginx()
    real, other = loopback(), loopback()
    port = real.getsockname()[1]

    async def door(scope: Scope, receive: Receive, send: Send) -> None:
        await simulated({**scope, "app_port": port}, receive, send)

    async with anyio.create_task_group() as tasks:
        real.listen()
        other.listen()
        await start_web(tasks, real, engine)
        url = await start_web(tasks, other, door)
        async with guarded(port, tmp_path) as nginx:
            yield nginx, url
        tasks.cancel_scope.cancel()


async def test_every_spelling_of_a_path_is_let_through_alike(both: tuple[str, str]) -> None:
    """The same status, and the engine is asked for the same path."""
    differing = {}
    for path in PATHS:
        if path.startswith("/"):  # what begins otherwise does not get as far as a door
            seen = [await raw(url, path) for url in both]
            asked = {(status, said.partition("asked ")[2].split("\r")[0]) for status, said in seen}
            if len(asked) > 1:
                differing[path] = asked
    assert differing == {}


def test_another_container_is_no_proxy() -> None:
    """What it would let through is not known."""
    with pytest.raises(CannotStart, match="no nginx"):
        guard_of(("sh", "-c", "sleep 1"), {})


@pytest.mark.parametrize(
    ("before", "more"),
    [
        ("server_tokens off;", "http2 on;"),
        ("location / {", "rewrite ^/compute$ /v1/models;"),
        ("location / {", "listen 9000;"),
        ("location / {", "location = /more { return 200; }"),
        ("location / {", "location = /more { internal; }"),
        ("location / {", "location = /more { if ($arg_x) { return 404; } }"),
    ],
)
def test_what_might_let_more_through_is_refused(before: str, more: str) -> None:
    """A directive that is not simulated would pass every test and open the engine."""
    made = container.guard_container("nginx")
    ((name, text),) = made.env.items()
    assert before in text
    with pytest.raises(CannotStart, match="emerg"):
        guard_of(made.args, {name: text.replace(before, f"{more}\n{before}", 1)})
