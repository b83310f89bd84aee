"""Log streams of apps: what a replica's container writes, and the events of the system."""

import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from emulators.azure import fleet_shapes as shapes
from emulators.azure.state import LogRow, Subscription, World

_APP: Final = "/subscriptions/{subscription}/resourceGroups/{group}/containerApps/{app}"
_CONTAINER: Final = "/revisions/{revision}/replicas/{replica}/containers/{container}"
_MOST_LINES: Final = 300
"""source: azure-cli, which takes 0 to 300 lines."""
_USUAL_LINES: Final = 20
_RHYTHM_SECONDS: Final = 0.05
_STARTED: Final = "ContainerStarted"
WARNINGS: Final = frozenset(
    {
        "AssigningReplicaFailed",
        "ProbeFailed",
        "ContainerTerminated",
        "ContainerBackOff",
        "ContainerCreateFailed",
        "RevisionProvisioningFailed",
    }
)
"""Reasons of events whose type is Warning."""

Shown = Callable[[LogRow], str]


class _Refused(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.response = JSONResponse({"error": {"code": code, "message": message}}, status)


def http_routes(world: World) -> Sequence[BaseRoute]:
    """Serve both streams of every app."""
    one = _Streams(world)
    return (
        Route(f"{_APP}{_CONTAINER}/logstream", one.console, methods=["GET"]),
        Route(f"{_APP}/eventstream", one.events, methods=["GET"]),
    )


class _Streams:
    def __init__(self, world: World) -> None:
        self._world = world

    async def console(self, request: Request) -> Response:
        try:
            sub = self._admitted(request)
            named = request.path_params
            _check_replica(sub, self._app_id(request), named["revision"], named["replica"])
            count, shown = _lines_asked(request), _console_form(request)
        except _Refused as refused:
            return refused.response

        def rows() -> list[LogRow]:
            return _of_container(self._world, sub, named["replica"])

        intro = _intro(named["container"], named["revision"], named["replica"], shown)
        return self._stream(request, intro, rows, shown, count)

    async def events(self, request: Request) -> Response:
        try:
            sub = self._admitted(request)
            count, name = _lines_asked(request), _app_name(sub, self._app_id(request))
        except _Refused as refused:
            return refused.response

        def rows() -> list[LogRow]:
            return _all(self._world, sub, lambda one: one.table == "system" and one.app == name)

        return self._stream(request, _connected(), rows, _event, count)

    def _stream(
        self,
        request: Request,
        intro: Sequence[str],
        rows: Callable[[], list[LogRow]],
        shown: Shown,
        count: int,
    ) -> Response:
        follow = request.query_params.get("follow", "false").lower() == "true"
        lines = self._lines(intro, rows, shown, count, follow=follow)
        return StreamingResponse(lines, media_type="text/plain")

    async def _lines(
        self,
        intro: Sequence[str],
        rows: Callable[[], list[LogRow]],
        shown: Shown,
        count: int,
        *,
        follow: bool,
    ) -> AsyncIterator[str]:
        for line in intro:
            yield line
        there = rows()
        for row in there[-count:] if count else ():
            yield shown(row)
        seen = max((row.number for row in there), default=0)
        while follow:
            self._world.touch()
            await anyio.sleep(_RHYTHM_SECONDS)
            for row in rows():
                if row.number > seen:
                    yield shown(row)
                    seen = row.number

    def _admitted(self, request: Request) -> Subscription:
        self._world.touch()
        sub = self._world.subscription(request.path_params["subscription"])
        sub.called("GET logstream" if "replica" in request.path_params else "GET eventstream")
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or sub.tokens.get(token, 0.0) <= time.time():
            raise _Refused(401, "Unauthorized", "The token is missing, unknown, or has run out.")
        _app_name(sub, self._app_id(request))
        return sub

    def _app_id(self, request: Request) -> str:
        named = request.path_params
        group = f"/subscriptions/{named['subscription']}/resourceGroups/{named['group']}"
        return f"{group}/providers/Microsoft.App/containerApps/{named['app']}".lower()


def _check_replica(sub: Subscription, app_id: str, revision: str, replica: str) -> None:
    if not any(one.name == replica for one in sub.living(app_id, revision)):
        raise _Refused(404, "ReplicaNotFound", f"Replica '{replica}' was not found.")


def _app_name(sub: Subscription, app_id: str) -> str:
    app = sub.get(app_id)
    if app is None:
        raise _Refused(404, "ContainerAppNotFound", "The container app was not found.")
    return shapes.short(app)


def _lines_asked(request: Request) -> int:
    told = request.query_params.get("tailLines") or str(_USUAL_LINES)
    if not told.isdecimal() or int(told) > _MOST_LINES:
        raise _Refused(400, "InvalidTailLines", f"tailLines must be from 0 to {_MOST_LINES}.")
    return int(told)


def _console_form(request: Request) -> Shown:
    form = request.query_params.get("output", "json")
    if form not in {"json", "text"}:
        raise _Refused(400, "InvalidOutput", "output must be json or text.")
    return _line if form == "json" else _plain_line


def _of_container(world: World, sub: Subscription, replica: str) -> list[LogRow]:
    """Give what the newest container of a replica wrote; of those before, nothing is left."""
    rows = _all(world, sub, lambda one: one.replica == replica)
    begun = [place for place, one in enumerate(rows) if one.reason == _STARTED]
    return [one for one in rows[begun[-1] if begun else 0 :] if one.table == "console"]


def _all(world: World, sub: Subscription, judge: Callable[[LogRow], bool]) -> list[LogRow]:
    """Give some lines of the log, also of those that were put in."""
    rows = [*world.said_in(sub).chosen(judge), *filter(judge, sub.log)]
    return sorted(rows, key=lambda row: row.at)


def _line(row: LogRow) -> str:
    return _json({"TimeStamp": datetime.fromtimestamp(row.at, UTC).isoformat(), "Log": row.text})


def _plain_line(row: LogRow) -> str:
    return f"{datetime.fromtimestamp(row.at, UTC).isoformat()} {row.text}\n"


def _event(row: LogRow) -> str:
    at = datetime.fromtimestamp(row.at, UTC)
    return _json(_event_shape(f"{at:%Y-%m-%d %H:%M:%S} +0000 UTC", row))


def _event_shape(at: str, row: LogRow) -> dict[str, str | int | None]:
    return {
        "TimeStamp": at,
        "Type": "Warning" if row.reason in WARNINGS else "Normal",
        "ContainerAppName": row.app or None,
        "RevisionName": row.revision if row.app else None,
        "ReplicaName": row.replica if row.app else None,
        "Msg": row.text,
        "Reason": row.reason,
        "EventSource": "KEDA" if row.reason.startswith("KEDA") else "ContainerAppController",
        "Count": 1,
    }


def _intro(container: str, revision: str, replica: str, shown: Shown) -> list[str]:
    """Give what the stream says of itself before it begins."""
    whose = f"[Revision: '{revision}', Replica: '{replica}']"
    return [
        shown(_own(words))
        for words in (
            f"Connecting to the container '{container}'...",
            f"Successfully Connected to container: '{container}' {whose}",
        )
    ]


def _connected() -> list[str]:
    now = datetime.now(UTC)
    return [
        _json(_event_shape(f"{now:%Y-%m-%dT%H:%M:%SZ}", _own(words, reason)))
        for words, reason in (
            ("Connecting to the events collector...", "StartingGettingEvents"),
            ("Successfully connected to events server", "ConnectedToEventsServer"),
        )
    ]


def _own(words: str, reason: str = "") -> LogRow:
    return LogRow(
        number=0,
        at=time.time(),
        table="",
        app="",
        revision="",
        replica="",
        text=words,
        reason=reason,
    )


def _json(told: dict[str, str | int | None] | dict[str, str]) -> str:
    return json.dumps(told, separators=(",", ":")) + "\n"
