"""A VM's serial port, read where its log is empty: a VM without the right to write one boots on."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from backends.tpu import names, phases
from backends.tpu.chip import Chip
from backends.tpu.heard import Heard, Said, pem_in
from backends.tpu.site import Site
from logs.lines import Line, clean

PORT: Final = f"serial port {names.SERIAL_PORT}"
_PREFIX: Final = re.compile(r"^.*?\bstartup-script: ?")
"""So Google's agent begins each line of the script; the time before it is the VM's own."""
_KNOWN: Final = "|".join((*phases.SCRIPT, phases.READY, phases.ENDED, phases.FAILED))
_SAID: Final = re.compile(rf"(?:{names.LOG}: )?(?P<phase>{_KNOWN})(?:: (?P<message>.*))?")
_BEGIN: Final = "-----BEGIN "
_END: Final = "-----END "


async def hear(site: Site, chip: Chip) -> Heard:
    """Give what the script has told there; nothing where the plane has no serial port.

    Raises:
        CloudError: Compute Engine cannot be asked.
    """
    at = chip.given_at or chip.created_at
    script = list(_said(await _lines(site, chip), at))
    return Heard(script=script)


async def shown(site: Site, chip: Chip) -> Sequence[Line]:
    """Give its newest lines for people, without certificates and keys.

    Raises:
        CloudError: Compute Engine cannot be asked.
    """
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


def _said(lines: Sequence[str], at: datetime) -> Iterator[Said]:
    """Give each thing said; a certificate goes over several lines."""
    for number, line in enumerate(lines):
        if match := _SAID.fullmatch(line):
            phase, message = match["phase"], match["message"] or ""
            if phase == phases.CERTIFICATE:
                message = pem_in("\n".join((message, *lines[number + 1 :]))) or ""
            yield Said(at, phase, message)
