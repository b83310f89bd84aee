"""Whether the model answers: asked until it has, and once for each life of its engine."""

from backends.common.engine import why_silent
from backends.tpu import access, firewall
from backends.tpu.heard import Heard
from backends.tpu.looks import Look
from backends.tpu.phases import ENGINE
from core.errors import OpsError, Unreachable
from core.records import Access, Failure


def life(seen: Look, told: Heard) -> str:
    """Name one life of an engine: another address or another start is another one."""
    chip = seen.chip
    started = next((one.at for one in reversed(told.script) if one.phase == ENGINE), None)
    return f"{chip.place} {chip.id} {chip.external_ip} {started}" if chip else ""


def has_answered(seen: Look, told: Heard) -> bool:
    """Whether it has been heard in this life."""
    return life(seen, told) in seen.site.answered


def ever_answered(seen: Look) -> bool:
    """Whether it has been heard in any life of this VM."""
    chip = seen.chip
    known = f"{chip.place} {chip.id} {chip.external_ip} " if chip else ""
    return any(one.startswith(known) for one in seen.site.answered) if known else False


async def unanswered(seen: Look, told: Heard) -> Failure | None:
    """Ask the model; None once it has answered, else why it has not."""
    if seen.chip:
        access.remember(seen.site, seen.chip, told.certificate)

    async def reached() -> Access:
        return await access.access_of(seen, told.certificate)

    failure = await why_silent(reached, "Its VM")
    if failure is None:
        seen.site.answered.add(life(seen, told))
        return None
    return await _with_callers(seen, failure) if failure.code == Unreachable.code else failure


async def _with_callers(seen: Look, failure: Failure) -> Failure:
    """Say whether the firewall keeps this machine out: Google drops what it does not let in."""
    try:
        let_in = await firewall.seen(seen.site, seen.name)
        here = await firewall.callers(seen.site)
    except OpsError:
        return failure
    if not set(here) - set(let_in) or set(firewall.ANYBODY) & set(let_in):
        return failure
    cause = (
        f"{failure.cause} Its firewall lets in {', '.join(let_in) or 'nobody'}, and callers are"
        f" {', '.join(here)} now."
    )
    fix = "Call deploy_vllm again, which lets them in; the model need not boot again."
    return failure.model_copy(update={"cause": cause, "fix": fix})
