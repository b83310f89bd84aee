"""A deployment's log: what its VM, its startup script and its engine have written."""

import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from google.cloud.logging_v2.types import LogEntry

from backends.base import LogQuery
from backends.google.clients import when
from backends.google.logs import all_lines, any_of, between, quoted, read_entries, text_of
from backends.tpu.search import chip_of, record_of
from backends.tpu.site import Chip, Site
from backends.tpu.vm import LOG
from logs.read import Line, pieces

CERTIFICATE: Final = "certificate"
"""An entry of the script's whose message is a certificate, not words."""
READY: Final = "ready"
ENDED: Final = "ended"
FAILED: Final = "failed"
ENGINE: Final = "starting engine"
"""From here on the engine's own lines say how far it is."""
BOOTING: Final = "booting"
SCRIPT: Final[Mapping[str, str]] = {
    BOOTING: BOOTING,
    "installing docker": "installing docker",
    CERTIFICATE: BOOTING,
    "pulling image": "pulling image",
    "reading secrets": "reading secrets",
    ENGINE: "starting",
}
"""What the startup script calls what it does, and what it is as a phase of a boot."""
ENGINE_OUTPUT: Final = "gcplogs-docker-driver"
"""The log that docker's driver for Cloud Logging writes to; source: moby, daemon/logger/gcplogs."""
SCRIPT_OUTPUT: Final = "startup script"
WORKER: Final = "tpu_worker"
"""The resource that Google logs what happens to a node of the queue under; source: Cloud TPU's
documentation of its logs (2026-11)."""
_HIDDEN: Final = "made; get_endpoint shows it"
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_ONCE: Final = frozenset({BOOTING, ENGINE})
"""What a boot of the VM, and of the engine in it, begins with."""
_AGAIN: Final = "started again"
_LATE: Final = timedelta(seconds=15)


class ScriptLine(NamedTuple):
    """One thing that the startup script told."""

    at: datetime
    phase: str
    message: str

    @property
    def is_again(self) -> bool:
        """Whether it tells of an engine that ended and that docker started again."""
        return _AGAIN in self.message

    @property
    def line(self) -> Line:
        message = _HIDDEN if self.phase == CERTIFICATE else self.message
        return Line(self.at, f"{self.phase}: {message}" if message else self.phase, SCRIPT_OUTPUT)


class VmLog(NamedTuple):
    """What was told since a chip was asked for, oldest first."""

    script: Sequence[ScriptLine] = ()
    output: Sequence[Line] = ()
    worker: Sequence[Line] = ()
    """What Google tells of the node: warnings, and worse."""
    more: bool = False
    """There is more output than was read."""

    @property
    def last(self) -> ScriptLine | None:
        """The newest that the script told; a certificate is told beside."""
        steps = [one for one in self.script if one.phase != CERTIFICATE]
        return steps[-1] if steps else None

    @property
    def boot_began(self) -> datetime | None:
        """When the newest boot began; of an engine started again, the script hears late."""
        one = next((one for one in reversed(self.script) if one.phase in _ONCE), None)
        return one and (one.at - _LATE if one.is_again else one.at)

    @property
    def engine_started(self) -> datetime | None:
        return next((one.at for one in reversed(self.script) if one.phase == ENGINE), None)

    @property
    def boot(self) -> Sequence[Line]:
        """The engine's output since it was started last."""
        begun = self.boot_began
        return [line for line in self.output if begun is None or line.at >= begun]

    @property
    def lines(self) -> Sequence[Line]:
        said = (one.line for one in self.script)
        return sorted((*said, *self.output, *self.worker), key=lambda line: line.at)

    @property
    def certificate(self) -> str | None:
        told = (_PEM.search(one.message) for one in self.script if one.phase == CERTIFICATE)
        found = [f"{pem[0]}\n" for pem in told if pem]
        return found[-1] if found else None


def log_pages(site: Site, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
    """Return every line since its chip was asked for, the newest page first."""

    async def asked() -> str:
        chip = await chip_of(site, name)
        if (since := _since(site, name, chip)) is None:
            return ""
        time = between(max(since, query.since or since), query.until)
        if query.platform:
            return _all_of(name, time, query.contains, chip)
        return _limited(_output(name), f" AND {time}", query.contains)

    return all_lines(site, asked, query, lambda found: _sorted(found, more=False).lines)


async def read_newest_boot(site: Site, chip: Chip) -> VmLog:
    """Return what was told of the newest boot: by one call, unless more was written."""
    name, since = chip.deployment, chip.created_at
    newest = await _read(site, _all_of(name, between(since, None)), newest=True)
    if not newest.more:
        return newest
    script = await read_script(site, name, since)
    begun = VmLog(script).boot_began or since
    first = await _read(site, f"{_output(name)} AND {between(begun, None)}", newest=False)
    known = first.output[-1].at if first.output else begun
    later = [line for line in newest.output if line.at > known]
    return VmLog(script=script, output=(*first.output, *later), more=first.more)


async def read_script(site: Site, name: str, since: datetime) -> Sequence[ScriptLine]:
    return (await _read(site, f"{_script(name)} AND {between(since, None)}", newest=True)).script


async def certificate(site: Site, chip: Chip) -> str | None:
    """Return the newest certificate that its VM told of, as PEM; None where it has told of none."""
    return VmLog(await read_script(site, chip.deployment, chip.created_at)).certificate


def _since(site: Site, name: str, chip: Chip | None) -> datetime | None:
    """Return when it was asked for; its log outlives its VM, but not its name's next use."""
    kept = record_of(site, name, chip)
    return kept.since if kept else chip.created_at if chip else None


async def _read(site: Site, query: str, *, newest: bool) -> VmLog:
    found, more = await read_entries(site, query, newest=newest)
    return _sorted(found, more=more)


def _script(name: str) -> str:
    return f"(log_id({quoted(LOG)}) AND labels.deployment={quoted(name)})"


def _output(name: str) -> str:
    field = "jsonPayload.container.metadata.deployment"
    return f"(log_id({quoted(ENGINE_OUTPUT)}) AND {field}={quoted(name)})"


def _limited(output: str, besides: str, contains: Sequence[str]) -> str:
    """Ask only for that output in which one of the words is, and for whatever is besides."""
    words = any_of("jsonPayload.message", contains, besides=f"{output}{besides}")
    return f"({output} AND {words}){besides}" if words else f"{output}{besides}"


def _all_of(name: str, time: str, contains: Sequence[str] = (), chip: Chip | None = None) -> str:
    """Ask for both logs of a deployment, and for what Google tells of a node of the queue.

    Some logs name a node by its id, others by its number; what is no warning is much.
    """
    others = _script(name)
    if chip and chip.place.plane == "queued" and chip.node:
        named = [quoted(one) for one in (chip.node, chip.node_number) if one]
        called = " OR ".join(f"resource.labels.node_id={one}" for one in named)
        where = f"resource.labels.zone={quoted(chip.place.zone)} AND ({called})"
        others += f" OR (resource.type={quoted(WORKER)} AND {where} AND severity>=WARNING)"
    return f"({_limited(_output(name), f' OR {others}) AND {time}', contains)}"


def _sorted(found: Iterable[LogEntry], *, more: bool) -> VmLog:
    script, output, worker = list[ScriptLine](), list[Line](), list[Line]()
    for entry in found:
        at = when(entry.timestamp)
        if entry.log_name.endswith(f"/{LOG}"):
            said = dict(entry.json_payload or {})
            phase = str(said.get("phase") or entry.labels.get("phase", ""))
            script.append(ScriptLine(at, phase, str(said.get("message", ""))))
        elif entry.resource.type == WORKER:
            worker += [Line(at, part, WORKER) for part in pieces(text_of(entry))]
        else:
            output += [Line(at, part) for part in pieces(text_of(entry))]
    return VmLog(script, output, worker, more)
