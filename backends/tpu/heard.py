"""What a VM has written of itself: its startup script's phases, and its engine's output."""

import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from backends.base import LogQuery
from backends.google.clients import when
from backends.google.logs import all_entries, any_of, between, quoted, read_entries, text_of
from backends.tpu import names, phases
from backends.tpu.chip import Chip
from backends.tpu.site import Site
from logs.lines import Line, pieces

if TYPE_CHECKING:
    from google.cloud.logging_v2.types import LogEntry

OUTPUT: Final = "gcplogs-docker-driver"
"""The log that docker's driver for Cloud Logging writes to; source: moby, daemon/logger/gcplogs."""
SCRIPT: Final = "startup script"
WORKER: Final = "tpu_worker"
"""The resource that Google logs what happens to a node of the queue under; source: Cloud TPU's
documentation of its logs (2026-11)."""
_HIDDEN: Final = "made; get_endpoint shows it"
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_ONCE: Final = frozenset({phases.BOOTING, phases.ENGINE})
"""What a boot of the VM, and of the engine in it, begins with."""
_AGAIN: Final = "started again"
_LATE: Final = timedelta(seconds=15)


class Said(NamedTuple):
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
        message = _HIDDEN if self.phase == phases.CERTIFICATE else self.message
        return Line(self.at, f"{self.phase}: {message}" if message else self.phase, SCRIPT)


class Heard(NamedTuple):
    """What was told since a chip was asked for, oldest first."""

    script: Sequence[Said] = ()
    output: Sequence[Line] = ()
    worker: Sequence[Line] = ()
    """What Google tells of the node: warnings, and worse."""
    more: bool = False
    """There is more output than was read."""

    @property
    def last(self) -> Said | None:
        """The newest that the script told; a certificate is told beside."""
        steps = [one for one in self.script if one.phase != phases.CERTIFICATE]
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
        told = (one for one in reversed(self.script) if one.phase == phases.CERTIFICATE)
        return next((pem for one in told if (pem := pem_in(one.message))), None)


def pem_in(text: str) -> str | None:
    """Give the first certificate in a text."""
    found = _PEM.search(text)
    return f"{found[0]}\n" if found else None


async def hear(
    site: Site,
    name: str,
    since: datetime,
    *,
    contains: Sequence[str] = (),
    newest: bool = True,
    node: Chip | None = None,
) -> Heard:
    """Read one page of both logs of a deployment, the newest or the first, and of its node's.

    `contains` is looked for in what the engine has written; the others have not much to tell.

    Raises:
        CloudError: Cloud Logging cannot be asked.
    """
    query = _all_of(name, between(since, None), contains=contains, node=node)
    found, more = await read_entries(site, query, newest=newest)
    return _sorted(found, more=more)


async def hear_all(
    site: Site, name: str, since: datetime, query: LogQuery, *, node: Chip | None = None
) -> AsyncGenerator[Heard, None]:
    """Read every page, the newest first; `since` is when there was nothing of it yet.

    Raises:
        CloudError: Cloud Logging cannot be asked.
    """
    time = between(max(since, query.since or since), query.until)
    asked = _all_of(name, time, contains=query.contains, node=node)
    if not query.platform:
        asked = _limited(_output(name), f" AND {time}", query.contains)
    async with aclosing(all_entries(site, asked)) as pages:
        async for found in pages:
            yield _sorted(found, more=False)


async def hear_boot(site: Site, name: str, since: datetime) -> Heard:
    """Read the newest boot: in one call, unless more was written than that gives.

    Raises:
        CloudError: Cloud Logging cannot be asked.
    """
    newest = await hear(site, name, since)
    if not newest.more:
        return newest
    script = await hear_script(site, name, since)
    begun = next((one.begun for one in reversed(script) if one.phase in _ONCE), since)
    found, more = await read_entries(
        site, f"{_output(name)} AND {between(begun, None)}", newest=False
    )
    first = _sorted(found, more=more).output
    known = first[-1].at if first else begun
    later = [line for line in newest.output if line.at > known]
    return Heard(script=script, output=(*first, *later), more=more)


async def hear_script(site: Site, name: str, since: datetime) -> Sequence[Said]:
    """Read what the startup script alone has told.

    Raises:
        CloudError: Cloud Logging cannot be asked.
    """
    found, more = await read_entries(
        site, f"{_script(name)} AND {between(since, None)}", newest=True
    )
    return _sorted(found, more=more).script


def _script(name: str) -> str:
    return f"(log_id({quoted(names.LOG)}) AND labels.deployment={quoted(name)})"


def _output(name: str) -> str:
    field = "jsonPayload.container.metadata.deployment"
    return f"(log_id({quoted(OUTPUT)}) AND {field}={quoted(name)})"


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


def _sorted(found: Iterable["LogEntry"], *, more: bool) -> Heard:
    script, output, worker = list[Said](), list[Line](), list[Line]()
    for entry in found:
        at = when(entry.timestamp)
        if entry.log_name.endswith(f"/{names.LOG}"):
            said = dict(entry.json_payload or {})
            phase = str(said.get("phase") or entry.labels.get("phase", ""))
            script.append(Said(at, phase, str(said.get("message", ""))))
        elif entry.resource.type == WORKER:
            worker += [Line(at, part, WORKER) for part in pieces(text_of(entry))]
        else:
            output += [Line(at, part) for part in pieces(text_of(entry))]
    return Heard(script, output, worker, more)
