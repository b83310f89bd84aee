"""A scripted model on this machine: agents call our tools because it says so."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests import webserver
from tests.clients.dialects import Anthropic, Body, Dialect, Event, Gemini, Responses, Wish

_DIALECTS: Final[dict[str, Dialect]] = {
    "/messages": Anthropic(),
    ":streamGenerateContent": Gemini(),
    "/responses": Responses(),
}


class Model:
    """One conversation with one agent: it wishes for each call once, in turn."""

    def __init__(self, wishes: Sequence[Wish]) -> None:
        self._wishes = wishes
        self.offered: tuple[str, ...] = ()
        """Our tools that the agent offered, by our names."""
        self.told: tuple[str, ...] = ()
        """What the agent passed on of our answers."""

    def events(self, dialect: Dialect, body: Body) -> Iterable[Event]:
        """Answer one request; what an agent asks on the side, it gets no tool for."""
        offered = dialect.offered(body)
        if not offered:
            return dialect.events(None, 0)
        told = dialect.told(body)
        self.offered, self.told = offered, max(self.told, told, key=len)
        left = self._wishes[len(told) :]
        return dialect.events(left[0] if left else None, len(told))


@contextmanager
def serving(model: Model) -> Iterator[str]:
    """Let a model answer on a port of its own, in a thread of its own; give its URL."""

    async def answer(request: Request) -> Response:
        path = request.url.path
        dialect = next((one for end, one in _DIALECTS.items() if path.endswith(end)), None)
        if dialect is None:
            return Response(status_code=404)
        events = model.events(dialect, await request.json())
        return StreamingResponse(_lines(events), media_type="text/event-stream")

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    with webserver.serving(app) as url:
        yield url


def _lines(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        name = f"event: {event['type']}\n" if "type" in event else ""
        yield f"{name}data: {json.dumps(event)}\n\n"
