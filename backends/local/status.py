"""A deployment's folder, processes and log, read into what they say of it."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import anyio

from backends.base import LogQuery
from backends.local.identity import Seen
from backends.local.process import (
    PROCESS,
    Folder,
    Made,
    Process,
    find_engine,
    find_watcher,
    is_starting,
    session_members,
)
from core.endpoint import Endpoint
from core.errors import EndpointError, HostError, NotReady, WaitedTooLong
from core.processes import reap
from core.records import Access, Deployment, Failure, Phase, State, Target, expiry
from core.reply import note
from core.waiting import wait_until
from logs.boot import BootLog, read_boot
from logs.read import Line, Wanted, head_lines, newest_lines, newest_pages
from logs.verdict import died_of, evidence, recognize
from planner.memory import GIB

_TAIL: Final = 400
"""Lines from which the cause of a death is read."""
_LAST_WORD_SECONDS: Final = 3.0
"""From an engine's end to that of its watcher, which writes it down: some milliseconds, but for a
machine that has no time."""
_DYING_SECONDS: Final = 0.5
"""For which an engine that does not answer may be just ending."""


class Looker:
    """Remembers which engines have answered, so that looking costs them one answer each."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._answered: set[str] = set()
        self._asked: dict[str, anyio.Event] = {}
        """Engines that are being let answer just now: whoever counts requests knows of one."""

    async def look(self, folder: Folder) -> Deployment:
        """Say what a folder's deployment does now."""
        try:
            folder.check()
            return await self._look(folder)
        except HostError as exc:  # be it damaged while it is looked at
            failure = Failure(code=exc.code, cause=f"{exc.summary} {exc.cause}", fix=exc.fix)
            found = self._deployment(folder, State.UNKNOWN, failure=failure)
            living = session_members(folder)  # it may hold an accelerator
            more: dict[str, Any] = {
                "replicas": int(bool(living)),
                "instance": f"pid {_numbers(living)}" if living else None,
                "usd_per_hour": self._target.usd_per_hour,
            }
            return found.model_copy(update=more)

    async def _look(self, folder: Folder) -> Deployment:
        made, process = folder.made(), folder.process()
        if made is None:
            state = State.DELETING if folder.wanted() == "deleted" else State.FAILED
            return self._deployment(folder, state, failure=_interrupted("anything was started"))
        if find_engine(process) or is_starting(folder):
            assert process is not None
            if folder.wanted() == "deleted":
                return self._deployment(folder, State.DELETING, process.at)
            boot = read_boot(head_lines(folder.log), now=datetime.now(UTC))
            if not boot.started:
                return self._booting(folder, process, boot)
            return await self._serving(folder, made, process, boot)
        await _ending(process, _LAST_WORD_SECONDS)
        left = session_members(folder)
        if any(seen.pid == seen.session for seen in left):  # its watcher, which keeps an engine
            words = f"It does not say what runs as pid {_numbers(left)}."
            raise folder.damaged(PROCESS, words)
        return self._ended(folder, made, left)

    async def _serving(
        self, folder: Folder, made: Made, process: Process, boot: BootLog
    ) -> Deployment:
        endpoint = Endpoint(Access(base_url=made.url, api_key=folder.api_key(), protection=""))
        try:
            if not await endpoint.healthy():
                return self._ill(folder, "Its /health says that the engine is dead.")
            await self._first(endpoint, made, process)
        except EndpointError as exc:
            if await _ending(process, _DYING_SECONDS):
                return self._ended(folder, made, session_members(folder))
            words = f"{exc.summary} {exc.cause}".strip()
            if process.started in self._answered:
                return self._ill(folder, words)
            cause = f"Its server is up but the model has not answered yet: {words}"
            failure = Failure(code=exc.code, cause=cause, fix=exc.fix)
            return self._booting(folder, process, boot, failure=failure)
        finally:
            await endpoint.aclose()
        return self._deployment(folder, State.READY, boot.since or process.at)

    async def _first(self, endpoint: Endpoint, made: Made, process: Process) -> None:
        engine = process.started
        if engine in self._answered:
            return
        if engine in self._asked:  # many may look at once, but one question is enough
            await self._asked[engine].wait()
            if engine not in self._answered:
                raise NotReady("It was asked just now.", fix="Look again with status_vllm.")
            return
        self._asked[engine] = anyio.Event()
        try:
            await endpoint.say_one_token(made.spec.served_model_name)
            self._answered.add(engine)
        finally:
            self._asked.pop(engine).set()

    def _booting(
        self, folder: Folder, process: Process, boot: BootLog, *, failure: Failure | None = None
    ) -> Deployment:
        phase = boot.now(process.at)
        return self._deployment(folder, State.LOADING, process.at, phase=phase, failure=failure)

    def _ill(self, folder: Folder, cause: str) -> Deployment:
        lines = newest_lines(folder.log, _TAIL)
        failure = recognize(lines) or Failure(
            code="UNHEALTHY",
            cause=cause,
            fix="Look again in a few seconds; if it stays so, stop_vllm and start_vllm.",
            evidence=evidence(lines),
        )
        return self._deployment(folder, State.UNKNOWN, datetime.now(UTC), failure=failure)

    def _ended(self, folder: Folder, made: Made, left: Sequence[Seen]) -> Deployment:
        ended, wanted = folder.exit(), folder.wanted()
        at = ended.at if ended else _changed(folder.log) or made.created_at
        if wanted == "deleted":
            return self._deployment(folder, State.DELETING, at)
        outlived = ""
        if left:
            outlived = (
                f"{len(left)} of its processes (pid {_numbers(left)}) live on and may hold memory"
                " and the accelerator: start_vllm or destroy_vllm ends them."
            )
        if wanted == "stopped" or (ended and ended.reason == "ttl"):
            if outlived:
                note(f"{folder.name}: {outlived}")
            expired = {} if wanted == "stopped" else {"expires_at": at}
            return self._deployment(folder, State.STOPPED, at).model_copy(update=expired)
        failure = _death(folder)
        failure = failure.model_copy(update={"cause": f"{failure.cause} {outlived}".strip()})
        return self._deployment(folder, State.FAILED, at, failure=failure)

    def _deployment(
        self,
        folder: Folder,
        state: State,
        since: datetime | None = None,
        *,
        phase: Phase | None = None,
        failure: Failure | None = None,
    ) -> Deployment:
        """Make the record; of one that nothing readable is written down of, with what is known."""
        made, process = folder.made_if_readable(), folder.process_if_readable()
        at = since or _changed(folder.path) or datetime.now(UTC)
        living = find_engine(process)
        known: dict[str, Any] = {
            **dict.fromkeys(("model", "served_model_name"), "not known"),
            **dict.fromkeys(("engine", "revision"), "none"),
            "created_at": at,
        }
        if made:
            ends = expiry(process.at, made.spec.ttl_minutes) if process and living else None
            known = {
                "model": made.spec.model,
                "served_model_name": made.spec.served_model_name,
                "engine": made.engine.label,
                "simulated": made.engine.kind == "simulated",
                "url": made.url,
                "revision": made.spec.fingerprint,
                "instance": f"pid {living.pid}" if living else None,
                "replicas": int(bool(living)),
                "created_at": made.created_at,
                "expires_at": ends,
                "lease": "server" if ends else None,
                "usd_per_hour": self._target.usd_per_hour,
                "usd_so_far": 0.0,
                "resources": _memory(made),
            }
        return Deployment(
            name=folder.name,
            target=self._target.name,
            state=state,
            since=at,
            phase=phase,
            failure=failure,
            **known,
        )


def _numbers(seen: Sequence[Seen]) -> str:
    return ", ".join(str(one.pid) for one in seen)


async def _ending(process: Process | None, seconds: float) -> bool:
    """Whether the engine is gone; one that is just dying is waited for, and its watcher's work."""

    async def look() -> bool:
        return not (find_engine(process) or find_watcher(process))

    with suppress(WaitedTooLong):
        await wait_until(look, bool, waiting_for="its end", every=0.01, timeout=seconds)
    reap()
    return find_engine(process) is None


def _interrupted(before: str) -> Failure:
    return Failure(
        code="INTERRUPTED",
        cause=f"It was interrupted before {before}.",
        fix="Call deploy_vllm again to go on, or destroy_vllm to clear it away.",
    )


def _death(folder: Folder) -> Failure:
    process, ended = folder.process(), folder.exit()
    if process is None or (process.engine is None and ended is None):
        return _interrupted("its engine was started")
    if ended and ended.reason == "not started":
        return Failure(code="NOT_STARTED", cause=ended.detail, fix="Call deploy_vllm again.")
    return died_of(ended.status if ended else None, newest_lines(folder.log, _TAIL))


def _changed(path: Path) -> datetime | None:
    try:
        return datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError:
        return None


def _memory(made: Made) -> dict[str, str]:
    """Say how large its KV cache was made, where that was computed."""
    if made.kv_cache_memory_bytes is None or made.free_gib is None:
        return {}
    size = made.kv_cache_memory_bytes / GIB
    return {"memory": f"KV cache {size:.2f} GiB, of {made.free_gib:.1f} GiB free at its start"}


async def log_pages(log: Path, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
    """Give what was written since the engine was started last; each block is read in a thread."""
    wanted = Wanted(query.since, query.until, query.contains)
    with closing(newest_pages(log, wanted)) as found:
        while (page := await anyio.to_thread.run_sync(next, found, None)) is not None:
            if page:
                yield page
