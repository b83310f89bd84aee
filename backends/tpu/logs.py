"""A deployment's log: what its VM, its startup script and its engine have written."""

import re
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from google.cloud.logging_v2.types import LogEntry

from backends.base import LogLines, LogQuery
from backends.google.clients import when
from backends.google.logs import (
    all_entries,
    any_of,
    between,
    pages_of,
    quoted,
    read_entries,
    text_of,
)
from backends.tpu import chips
from backends.tpu.compute import SERIAL_PORT
from backends.tpu.planes import Chip
from backends.tpu.site import Site
from backends.tpu.vm import LOG
from core.reply import note
from logs.read import Line, clean, pieces

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
    def begun(self) -> datetime:
        """When what it tells of began: of an engine that docker started again, it hears late."""
        return self.at - _LATE if self.is_again else self.at

    @property
    def is_again(self) -> bool:
        """Whether it tells of an engine that ended and that docker started again."""
        return _AGAIN in self.message

    @property
    def line(self) -> Line:
        """As people read it; a certificate is no line."""
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
    def boot(self) -> Sequence[Line]:
        """The engine's output since it was started last."""
        begun = next((one.begun for one in reversed(self.script) if one.phase in _ONCE), None)
        return [line for line in self.output if begun is None or line.at >= begun]

    @property
    def lines(self) -> Sequence[Line]:
        """All of it, as people read it."""
        said = (one.line for one in self.script)
        return sorted((*said, *self.output, *self.worker), key=lambda line: line.at)

    @property
    def certificate(self) -> str | None:
        """The newest that was told, as PEM."""
        told = (one for one in reversed(self.script) if one.phase == CERTIFICATE)
        return next((pem for one in told if (pem := pem_in(one.message))), None)


def pem_in(text: str) -> str | None:
    """Return the first certificate in a text."""
    found = _PEM.search(text)
    return f"{found[0]}\n" if found else None


async def read_vm_log(
    site: Site,
    name: str,
    since: datetime,
    *,
    contains: Sequence[str] = (),
    newest: bool = True,
    node: Chip | None = None,
) -> VmLog:
    """Read one page of both logs of a deployment, the newest or the first, and of its node's.

    `contains` is looked for in what the engine has written; the others have not much to tell.
    """
    query = _all_of(name, between(since, None), contains=contains, node=node)
    found, more = await read_entries(site, query, newest=newest)
    return _sorted(found, more=more)


async def read_vm_log_pages(
    site: Site, name: str, since: datetime, query: LogQuery, *, node: Chip | None = None
) -> AsyncGenerator[VmLog, None]:
    """Read every page, the newest first; `since` is when there was nothing of it yet."""
    time = between(max(since, query.since or since), query.until)
    asked = _all_of(name, time, contains=query.contains, node=node)
    if not query.platform:
        asked = _limited(_output(name), f" AND {time}", query.contains)
    async with aclosing(all_entries(site, asked)) as pages:
        async for found in pages:
            yield _sorted(found, more=False)


async def read_boot(site: Site, name: str, since: datetime) -> VmLog:
    """Read the newest boot: in one call, unless more was written than that gives."""
    newest = await read_vm_log(site, name, since)
    if not newest.more:
        return newest
    script = await read_script(site, name, since)
    begun = next((one.begun for one in reversed(script) if one.phase in _ONCE), since)
    found, more = await read_entries(
        site, f"{_output(name)} AND {between(begun, None)}", newest=False
    )
    first = _sorted(found, more=more).output
    known = first[-1].at if first else begun
    later = [line for line in newest.output if line.at > known]
    return VmLog(script=script, output=(*first, *later), more=more)


async def read_script(site: Site, name: str, since: datetime) -> Sequence[ScriptLine]:
    """Read what the startup script alone has told."""
    found, more = await read_entries(
        site, f"{_script(name)} AND {between(since, None)}", newest=True
    )
    return _sorted(found, more=more).script


def _script(name: str) -> str:
    return f"(log_id({quoted(LOG)}) AND labels.deployment={quoted(name)})"


def _output(name: str) -> str:
    field = "jsonPayload.container.metadata.deployment"
    return f"(log_id({quoted(ENGINE_OUTPUT)}) AND {field}={quoted(name)})"


def _limited(output: str, besides: str, contains: Sequence[str]) -> str:
    """Ask only for that output in which one of the words is, and for whatever is besides."""
    words = any_of("jsonPayload.message", contains, besides=f"{output}{besides}")
    return f"({output} AND {words}){besides}" if words else f"{output}{besides}"


def _all_of(name: str, time: str, *, contains: Sequence[str], node: Chip | None) -> str:
    others = " OR ".join([_script(name), *([_worker(node)] if node else [])])
    return f"({_limited(_output(name), f' OR {others}) AND {time}', contains)}"


def _worker(chip: Chip) -> str:
    """Some logs name a node by its id, others by its number; what is no warning is much."""
    called = " OR ".join(
        f"resource.labels.node_id={quoted(one)}" for one in (chip.node, chip.node_number) if one
    )
    where = f"resource.labels.zone={quoted(chip.place.zone)} AND ({called})"
    return f"(resource.type={quoted(WORKER)} AND {where} AND severity>=WARNING)"


def _sorted(found: Iterable["LogEntry"], *, more: bool) -> VmLog:
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


PORT: Final = f"serial port {SERIAL_PORT}"
_PREFIX: Final = re.compile(r"^.*?\bstartup-script: ?")
"""So Google's agent begins each line of the script; the time before it is the VM's own."""
_KNOWN: Final = "|".join((*SCRIPT, READY, ENDED, FAILED))
_SAID: Final = re.compile(rf"(?:{LOG}: )?(?P<phase>{_KNOWN})(?:: (?P<message>.*))?")
_BEGIN: Final = "-----BEGIN "
_END: Final = "-----END "


async def read_serial(site: Site, chip: Chip) -> VmLog:
    """Return what the script has told there; nothing where the plane has no serial port.

    A certificate, of several lines, is read from the log alone.
    """
    at = chip.given_at or chip.created_at
    found = [match for line in await _lines(site, chip) if (match := _SAID.fullmatch(line))]
    steps = (one for one in found if one["phase"] != CERTIFICATE)
    return VmLog([ScriptLine(at, one["phase"], one["message"] or "") for one in steps])


async def serial_lines(site: Site, chip: Chip) -> Sequence[Line]:
    """Return its newest lines for people, without certificates and keys."""
    at, hidden, found = chip.given_at or chip.created_at, False, list[Line]()
    for line in await _lines(site, chip):
        hidden = hidden or _BEGIN in line
        if not hidden and line.strip():
            found.append(Line(at, line, PORT))
        hidden = hidden and _END not in line
    return found


async def _lines(site: Site, chip: Chip) -> Sequence[str]:
    raw = await site.planes[chip.place.plane].serial(chip.place.zone, chip.id)
    return [_PREFIX.sub("", clean(line).rstrip()) for line in raw]


async def read_logs(site: Site, name: str, *, lines: int, contains: str | None = None) -> LogLines:
    """Return the newest lines of a deployment since its chip was asked for.

    Where its VM may not write to Cloud Logging, they are those of its serial port.
    """
    chip = await chips.chip_of(site, name)
    since, text = _since(site, name, chip), (contains or "").lower()
    told, words = VmLog(), (contains,) if contains else ()
    if since:
        told = await read_vm_log(site, name, since, contains=words, node=_node(chip))
    found = told.lines
    if not found and chip:
        found = await serial_lines(site, chip)
    texts = [str(line) for line in found if text in line.text.lower()]
    if told.more:
        note(f"There are more than {len(texts)} such lines: only the newest were read and counted.")
    return LogLines(lines=tuple(texts[-lines:]), total=len(texts))


async def log_pages(site: Site, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
    """Return every line since its chip was asked for, the newest page first.

    Where its VM may not write to Cloud Logging, they are those of its serial port, which tells
    no times: they are given whenever they were written.
    """
    chip = await chips.chip_of(site, name)
    since, silent = _since(site, name, chip), True
    if since:
        told = read_vm_log_pages(site, name, since, query, node=_node(chip))
        async with aclosing(told) as heard_pages:
            async for one in heard_pages:
                silent = False
                for page in pages_of(one.lines, query):
                    yield page
    if silent and chip and query.platform and not (since and await read_script(site, name, since)):
        for page in pages_of(await serial_lines(site, chip), query):
            yield page


async def read_newest_boot(site: Site, chip: Chip) -> VmLog:
    """Return what was told of the newest boot; a serial port stands in for a log that is empty."""
    told = await read_boot(site, chip.deployment, chip.created_at)
    return told if told.script or told.output else await read_serial(site, chip)


async def certificate(site: Site, chip: Chip) -> str | None:
    """Return the newest certificate that its VM told of, as PEM; None where it has told of none."""
    script = await read_script(site, chip.deployment, chip.created_at)
    return VmLog(script=script).certificate


def _node(chip: Chip | None) -> Chip | None:
    """Return the chip where Google logs what happens to it: as a node of the queue."""
    return chip if chip and chip.place.plane == "queued" and chip.node else None


def _since(site: Site, name: str, chip: Chip | None) -> datetime | None:
    """Return when it was asked for; its log outlives its VM, but not its name's next use."""
    kept = site.records.get(name)
    return kept.since if kept else chip.created_at if chip else None
