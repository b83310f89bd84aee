"""Changes of an app that Azure goes on with alone: begun, watched for a refusal, remembered."""

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import anyio
from azure.core.polling import AsyncLROPoller
from azure.core.polling.base_polling import BadResponse, BadStatus
from azure.mgmt.appcontainers.models import ContainerApp
from pydantic import ValidationError

from backends.aca.site import READ_SECONDS, Ground, Site, reading, strictly, writing
from backends.common.concurrency import on_disk, write_whole
from core.errors import CloudError, ConcurrentChange
from core.records import NAME_PATTERN, Failure, Record
from core.reply import note

T = TypeVar("T")

REFUSAL_SECONDS: Final = 10.0
"""Azure refuses soon what it refuses at all; what is still under way then goes on."""
BUSY_SECONDS: Final = 15.0
"""As long another change of the same app is waited out."""
AGAIN_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 0.5
_UNREADABLE: Final = frozenset({401, 403, 404, 408, 429})
"""Of a look at a change these say nothing of the change itself; nor does anything from 500 on."""

Kind = Literal["create_or_update", "update", "delete", "start", "stop"]


class Change(Record):
    """The last change of one app that Azure took; holds no secret."""

    kind: Kind
    what: str
    ground: Ground
    since: datetime
    token: str
    """With it the SDK goes on where another process left off; empty once it is over."""
    failure: Failure | None = None


async def carry_out(
    site: Site,
    name: str,
    kind: Kind,
    what: str,
    *,
    body: ContainerApp | None = None,
    seconds: float | None = None,
) -> bool:
    """Begin a change and watch it for so many seconds, else `REFUSAL_SECONDS`.

    Gives whether it was seen to be over: it may go on, or nobody may see how it goes.
    """
    with strictly(what):
        poller = await _begin(site, name, kind, body, **writing())
    return await watch(site, name, kind, what, poller, seconds=seconds)


async def watch(
    site: Site,
    name: str,
    kind: Kind,
    what: str,
    poller: AsyncLROPoller[Any],
    *,
    seconds: float | None = None,
) -> bool:
    """Write down a change that was begun, and watch it as `carry_out` does."""
    change = Change(
        kind=kind,
        what=what,
        ground=site.ground,
        since=datetime.now(UTC),
        token=poller.continuation_token(),
    )
    _keep(site, name, change)
    deadline = anyio.current_time() + (REFUSAL_SECONDS if seconds is None else seconds)
    while (over := await _over(site, name, change)) is False:
        if anyio.current_time() + _LOOK_SECONDS > deadline:
            return False
        await anyio.sleep(_LOOK_SECONDS)
    return over is True


async def patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    """Try again, for `BUSY_SECONDS`, as long as something else is being changed.

    Raises:
        ConcurrentChange: It still is.
    """
    deadline = anyio.current_time() + BUSY_SECONDS
    while True:
        try:
            return await attempt()
        except ConcurrentChange:
            if anyio.current_time() + AGAIN_SECONDS > deadline:
                raise
        await anyio.sleep(AGAIN_SECONDS)


async def failure_of(site: Site, name: str) -> Failure | None:
    """Say why the last change of an app from this machine failed; None if it did not (yet)."""
    change = _kept(site, name)
    if change is None or not change.token:
        return change.failure if change else None
    try:
        await _over(site, name, change)
    except CloudError as exc:
        return _failure(exc)
    return None


def forget_change(site: Site, name: str) -> None:
    """Let go of what is known of an app's changes: it is gone."""
    if re.fullmatch(NAME_PATTERN, name):
        with on_disk(site.folder):
            _path(site, name).unlink(missing_ok=True)


async def _over(site: Site, name: str, change: Change) -> bool | None:
    """Look once whether a change is over, and remember how it went; None where nobody may see."""
    try:
        over = await _polled(site, name, change)
    except CloudError as exc:
        status = getattr(exc.__cause__, "status_code", None)
        if status is None or status >= 500 or status in _UNREADABLE:  # the look failed, not it
            note(f"Azure took it, and does not say how it goes: {change.what}. {exc.cause}".strip())
            return None
        if not site.settings.read_only:
            _keep(site, name, change.model_copy(update={"token": "", "failure": _failure(exc)}))
        raise
    if over and not site.settings.read_only:
        _keep(site, name, change.model_copy(update={"token": ""}))
    return over


async def _polled(site: Site, name: str, change: Change) -> bool:
    """Ask once, by the SDK's own poller."""
    with strictly(change.what):
        # By `timeout` a poller means something else than a call.
        limits = {name: limit for name, limit in reading().items() if name != "timeout"}
        more = {**limits, "continuation_token": change.token}
        poller = await _begin(site, name, change.kind, None, **more)
        method: Any = poller.polling_method()
        told = True
        try:
            if not method.finished():
                await method.update_status()
        except (BadStatus, BadResponse):
            told = False
        if not told or (method.finished() and method.status().lower() != "succeeded"):
            with anyio.move_on_after(READ_SECONDS):
                await poller.wait()  # which raises what Azure answered
    return bool(method.finished())


async def _begin(
    site: Site, name: str, kind: Kind, body: ContainerApp | None, **more: Any
) -> AsyncLROPoller[Any]:
    """Begin a change, or with a continuation token go on with it: then no body is sent."""
    apps = (await site.clients.apps()).container_apps
    begin = getattr(apps, f"begin_{kind}")
    given = (body,) if kind in {"create_or_update", "update"} else ()
    poller: AsyncLROPoller[Any] = await begin(site.ground.resource_group, name, *given, **more)
    return poller


def _failure(exc: CloudError) -> Failure:
    return Failure(code=exc.code, cause=exc.cause or exc.summary, fix=exc.fix)


def _keep(site: Site, name: str, change: Change) -> None:
    path = _path(site, name)
    with on_disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, change.model_dump_json(exclude_defaults=True))


def _kept(site: Site, name: str) -> Change | None:
    """Return the last change; that of another subscription, group or region is none of this app."""
    try:
        change = Change.model_validate_json(_path(site, name).read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None
    return change if change.ground == site.ground else None


def _path(site: Site, name: str) -> Path:
    return site.folder / "changes" / f"{name}.json"
