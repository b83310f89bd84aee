"""A deployment's log: its engine's output, its startup script's words, Google's of its node."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import datetime

from backends.base import LogLines, LogQuery
from backends.google.logs import pages_of
from backends.tpu import finding, heard, serial
from backends.tpu import kept as memory
from backends.tpu.chip import Chip
from backends.tpu.heard import Heard, Said
from backends.tpu.site import Site
from core.reply import note
from logs.lines import Line


async def read(site: Site, name: str, *, lines: int, contains: str | None = None) -> LogLines:
    """Give the newest lines of a deployment since its chip was asked for.

    Where its VM may not write to Cloud Logging, they are those of its serial port.

    Raises:
        DeploymentNotFound: There is no such deployment.
        CloudError: Cloud Logging cannot be asked.
    """
    chip = await finding.chip_of(site, name)
    since, text = _since(site, name, chip), (contains or "").lower()
    told, words = Heard(), (contains,) if contains else ()
    if since:
        told = await heard.hear(site, name, since, contains=words, node=_node(chip))
    found = told.lines
    if not found and chip:
        found = await serial.shown(site, chip)
    texts = [str(line) for line in found if text in line.text.lower()]
    if told.more:
        note(f"There are more than {len(texts)} such lines: only the newest were read and counted.")
    return LogLines(lines=tuple(texts[-lines:]), total=len(texts))


async def pages(site: Site, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
    """Give every line since its chip was asked for, the newest page first.

    Where its VM may not write to Cloud Logging, they are those of its serial port, which tells
    no times: they are given whenever they were written.

    Raises:
        DeploymentNotFound: There is no such deployment.
        CloudError: Cloud Logging cannot be asked.
    """
    chip = await finding.chip_of(site, name)
    since, silent = _since(site, name, chip), True
    if since:
        told = heard.hear_all(site, name, since, query, node=_node(chip))
        async with aclosing(told) as heard_pages:
            async for one in heard_pages:
                silent = False
                for page in pages_of(one.lines, query):
                    yield page
    if silent and chip and query.platform and not await _wrote(site, name, since):
        for page in pages_of(await serial.shown(site, chip), query):
            yield page


async def _wrote(site: Site, name: str, since: datetime | None) -> bool:
    """Whether its VM has ever written to Cloud Logging."""
    return bool(since and await heard.hear_script(site, name, since))


async def hear(site: Site, chip: Chip) -> Heard:
    """Give what was told of the newest boot; a serial port stands in for a log that is empty.

    Raises:
        CloudError: Cloud Logging cannot be asked.
    """
    told = await heard.hear_boot(site, chip.deployment, chip.created_at)
    return told if told.script or told.output else await serial.hear(site, chip)


async def boot_lines(site: Site, chip: Chip) -> Sequence[Line]:
    """Give its engine's output since it was started last, oldest first.

    Raises:
        CloudError: Cloud Logging cannot be asked.
    """
    return (await hear(site, chip)).boot


async def certificate(site: Site, chip: Chip) -> str | None:
    """Give the newest certificate that its VM told of, as PEM; None where it has told of none.

    Raises:
        CloudError: Cloud Logging cannot be asked.
    """
    script = await heard.hear_script(site, chip.deployment, chip.created_at)
    told = Heard(script=script) if script else await serial.hear(site, chip)
    return told.certificate


async def script_phase(site: Site, chip: Chip) -> Said | None:
    """Give what its startup script told last; None where it has told nothing.

    Raises:
        CloudError: Cloud Logging cannot be asked.
    """
    return (await hear(site, chip)).last


def _node(chip: Chip | None) -> Chip | None:
    """Give the chip where Google logs what happens to it: as a node of the queue."""
    return chip if chip and chip.place.plane == "queued" and chip.node else None


def _since(site: Site, name: str, chip: Chip | None) -> datetime | None:
    """Give when it was asked for; its log outlives its VM, but not its name's next use."""
    kept = memory.of(site, name)
    return kept.since if kept else chip.created_at if chip else None
