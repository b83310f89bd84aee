"""Why a deployment's VM is no more, or its engine is not: what Google and the VM's script tell."""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from backends.common.concurrency import or_note
from backends.tpu import spending
from backends.tpu.chip import SAID, Chip, ChipState, Ended
from backends.tpu.heard import Said
from backends.tpu.looks import Look, expires_at
from backends.tpu.names import vm_id
from backends.tpu.phases import ENDED
from core.records import Failure
from core.reply import note
from logs.verdict import died_of, evidence

_EXIT: Final = re.compile(r"exit code (-?[0-9]{1,6})")
_CAUSES: Final = {
    "PREEMPTED": "Google took back its chip",
    "EXPIRED": "Its time was over, and its VM was deleted",
    "DELETED_ELSEWHERE": "Its VM was deleted, and not from here",
    "REQUEST_FAILED": "Google gave up the request for its chip",
    "NOT_KNOWN": "Its VM is gone, and Google does not tell why",
}
_AGAIN: Final = "Call deploy_vllm again for another chip"
_FIXES: Final = {
    "PREEMPTED": f"{_AGAIN}; one on demand is not taken back.",
    "EXPIRED": f"{_AGAIN}, with a longer ttl_minutes if it is to run longer.",
}


class Over(NamedTuple):
    """That a VM is no more."""

    failure: Failure
    at: datetime | None
    """Since when, as far as that is known."""


async def over(seen: Look) -> Over:
    """Say why its VM is gone, or stands there as a leftover."""
    kept, chip = seen.kept, seen.chip
    place = chip.place if chip else kept.placed if kept else None
    told: Ended | None = None
    if place is not None:
        plane, since, zone = seen.site.planes[place.plane], seen.created_at, place.zone
        told = await or_note(lambda: plane.ended(zone, vm_id(seen.name), since=since), None)
    code: str = told.code if told else "NOT_KNOWN"
    words = told.words if told else ""
    if code == "NOT_KNOWN":
        code, words = _by_itself(seen), words or (chip.why if chip else "")
    where = f" ({place})" if place else ""
    cause = f"{_CAUSES[code]}{where}. {words}".strip()
    fix = f"{_FIXES.get(code, f'{_AGAIN}.')}{_leftover(chip)}"
    return Over(Failure(code=code, cause=cause, fix=fix), _at(seen, told, code))


def _by_itself(seen: Look) -> str:
    """Say what a leftover tells by itself, or the time at which its VM was to end."""
    chip, ends = seen.chip, expires_at(seen)
    if ends and ends <= seen.now:
        return "EXPIRED"
    if chip is None:
        return "NOT_KNOWN"
    if chip.state is ChipState.FAILED:
        return "REQUEST_FAILED"
    return {"service": "PREEMPTED", "user": "DELETED_ELSEWHERE"}.get(chip.taken_by, "NOT_KNOWN")


def _at(seen: Look, told: Ended | None, code: str) -> datetime | None:
    if told and told.at:
        return told.at
    return expires_at(seen) if code == "EXPIRED" else None


def _leftover(chip: Chip | None) -> str:
    if chip is None:
        return ""
    return (
        f" Call destroy_vllm to be rid of what is left: {SAID[chip.place.plane]} {chip.id} in"
        f" {chip.place.zone} ({chip.said}) {_held(chip)}."
    )


def _held(chip: Chip) -> str:
    """Say what a leftover still takes: an instance that was stopped keeps its disk."""
    if chip.place.plane == "compute":
        return "bills its disk until then, though no chip"
    return "bills nothing and counts against the quota"


def script_failed(seen: Look, said: Said) -> Failure:
    """Say what its startup script could not do; the VM bills on."""
    bills_on(seen)
    lines = evidence([said.message])
    return Failure(
        code="BOOT_FAILED",
        cause=f"Its VM could not begin to serve: {said.message or 'its script does not say why.'}",
        fix="Call get_logs for the log of its startup script; correct the cause, then"
        " destroy_vllm and deploy_vllm again.",
        evidence=lines,
    )


def engine_failed(seen: Look, said: Said, lines: Sequence[str]) -> Failure:
    """Say why its engine ended, as its own last lines tell; the VM bills on."""
    bills_on(seen)
    match = _EXIT.search(said.message) if said.phase == ENDED else None
    status = int(match[1]) if match else None
    # docker says 128 + the signal's number
    return died_of(128 - status if status and status > 128 else status, lines)


def bills_on(seen: Look) -> None:
    """Note that nothing serves, and what is paid all the same."""
    paid = spending.at_a_price(seen.site, seen.chip)
    note(
        f"The VM of {seen.name} runs on and bills, {paid}, though nothing serves there:"
        " call destroy_vllm, or deploy_vllm with what is corrected."
    )
