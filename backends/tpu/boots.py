"""A VM that runs, which says nothing of its model: how far its boot is, until the model answers."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Final

from backends.common.concurrency import or_note
from backends.tpu import answering, endings, heard, logs
from backends.tpu.chip import Chip
from backends.tpu.heard import Heard, Said
from backends.tpu.looks import Look, deployment, is_internal
from backends.tpu.phases import BOOTING, CERTIFICATE, ENDED, ENGINE, FAILED, READY, SCRIPT
from core.errors import InvalidArgument
from core.records import Deployment, Failure, Phase, State
from core.reply import note
from logs.boot import COMPILING, WARMING, boot_of, phase_of
from logs.lines import Line
from planner.boot import boot
from planner.flags import Flags

_SILENT: Final = timedelta(minutes=10)
"""A VM tells that it boots within a minute or two."""
_MESSAGE: Final = 200
"""Characters of what the script tells."""


async def running(seen: Look) -> Deployment:
    """Say of a deployment whose VM runs what its script, its engine and its model tell."""
    told = await _heard(seen)
    last = told.last
    if last and last.phase in {FAILED, ENDED}:
        return _failed(seen, last, told)
    since = last.at if last else seen.begun
    if is_internal(seen.spec):
        if last and last.phase == READY:
            note(f"That {seen.name} answers is said by its own VM: nobody here is let in to ask.")
            return deployment(seen, State.READY, since)
    elif answering.has_answered(seen, told):
        return deployment(seen, State.READY, since)
    elif _is_up(told):
        silence = await answering.unanswered(seen, told)
        state = State.LOADING if silence else State.READY
        phase = Phase(name=WARMING, since=since) if silence else None
        return deployment(seen, state, since, phase=phase, failure=silence)
    return deployment(seen, State.LOADING, seen.begun, phase=_phase(seen, told))


async def _heard(seen: Look) -> Heard:
    """Read no more than is needed: Cloud Logging answers 60 times a minute."""
    chip = seen.chip
    if chip is None:
        return Heard()
    nothing: Sequence[Said] = ()
    if not answering.ever_answered(seen):
        return await or_note(lambda: logs.hear(seen.site, chip), Heard())
    told = Heard(
        await or_note(lambda: heard.hear_script(seen.site, seen.name, chip.created_at), nothing)
    )
    last = told.last
    if answering.has_answered(seen, told) and last and last.phase in {ENGINE, READY}:
        return told
    return await or_note(lambda: logs.hear(seen.site, chip), told)


def _is_up(told: Heard) -> bool:
    """Whether it is worth asking the model."""
    ready = told.last is not None and told.last.phase == READY
    return ready or boot_of(told.boot).started


def _failed(seen: Look, last: Said, told: Heard) -> Deployment:
    lines = [line.text for line in told.boot]
    failure: Failure = (
        endings.script_failed(seen, last)
        if last.phase == FAILED
        else endings.engine_failed(seen, last, lines)
    )
    return deployment(seen, State.FAILED, last.at, failure=failure)


def _phase(seen: Look, told: Heard) -> Phase:
    last, lines = told.last, told.boot
    if last is None and not lines:
        _note_silence(seen, seen.chip)
        return Phase(name=BOOTING, since=seen.begun)
    if lines and (last is None or last.phase in {ENGINE, READY}):
        phase = phase_of(lines)
        detail = _compiling(seen, lines) if phase.name == COMPILING else phase.detail
        return phase.model_copy(update={"detail": detail})
    return _of_the_script(told, last) if last else Phase(name=BOOTING, since=seen.begun)


def _of_the_script(told: Heard, last: Said) -> Phase:
    """Name its step; one that is tried again goes on since it was tried first."""
    since = last.at
    for said in reversed([one for one in told.script if one.phase != CERTIFICATE]):
        if said.phase != last.phase:
            break
        since = said.at
    name = SCRIPT.get(last.phase, last.phase)
    is_command = last.phase in {ENGINE, READY} and not last.is_again
    return Phase(name=name, since=since, detail="" if is_command else last.message[:_MESSAGE])


def _compiling(seen: Look, lines: Sequence[Line]) -> str:
    """Say that minutes without a line are normal there, and how many there usually are."""
    graphs = boot_of(lines).compiled
    done = f"{graphs} graphs so far; the total is not reported" if graphs else ""
    return "; ".join(part for part in (done, _foreseen(seen)) if part)


def _foreseen(seen: Look) -> str:
    """Say how long it should take, as the planner foresees it; by whom that was seen."""
    if seen.kept is None:
        return ""
    spec, model = seen.kept.blueprint.spec, seen.kept.model
    with suppress(InvalidArgument):  # how large the model is, which is nothing to this phase
        foreseen = boot(model, seen.site.offered, Flags.of(spec), weights_from="hub")
        span = next(one.seconds for one in foreseen.phases if one.name == "compile")
        low, usual, high = (round(each / 60) for each in (span.low, span.expected, span.high))
        return f"expected: {usual} min, {low} to {high} ({span.source})"
    return ""


def _note_silence(seen: Look, chip: Chip | None) -> None:
    if chip and seen.now - seen.begun > _SILENT:
        minutes = (seen.now - seen.begun).total_seconds() / 60
        note(
            f"The VM of {seen.name} has run for {minutes:.0f} min and logged nothing in Cloud"
            " Logging: its service account may lack roles/logging.logWriter (setup_target)."
        )
