"""What a deployment does now: its request, VM and log, read as one record; where it answers."""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

import anyio

from backends import container
from backends.base import EngineFacts, Prediction
from backends.common.concurrency import or_note, side_by_side
from backends.common.engine import facts_of, predict, why_silent
from backends.container import PORT
from backends.google import secrets
from backends.google.logs import quoted
from backends.tpu import chips, firewall, logs
from backends.tpu.chips import (
    Look,
    chip_of,
    deployment_record,
    expires_at,
    is_internal,
    list_chips,
    url_of,
)
from backends.tpu.logs import (
    BOOTING,
    CERTIFICATE,
    ENDED,
    ENGINE,
    FAILED,
    READY,
    SCRIPT,
    ScriptLine,
    VmLog,
)
from backends.tpu.planes import SAID, Chip, ChipState, Ended
from backends.tpu.search import DELETING, REPLACING, RETURNING, SEARCHING, Search, describe_search
from backends.tpu.site import Site, vm_id
from backends.tpu.vm import LOG, rules
from core.address import KEY_HEADER
from core.errors import (
    CloudError,
    InvalidArgument,
    NextStep,
    NotAuthenticated,
    NotReady,
    Unreachable,
)
from core.records import Access, Deployment, Failure, Phase, State
from core.reply import note
from logs.boot import COMPILING, WARMING, boot_of, phase_of
from logs.failures import died_of, evidence
from planner.boot import boot
from planner.flags import Flags
from planner.places import accelerator

MAKING: Final = "making the VM"
STOPPING: Final = "waiting for its VM to stop"
GOING: Final = "waiting for its VM to be gone"
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


async def why_gone(seen: Look) -> tuple[Failure, datetime | None]:
    """Say why its VM is gone, or stands there as a leftover; and since when, if that is known."""
    kept, chip, ends = seen.kept, seen.chip, expires_at(seen)
    place = chip.place if chip else kept.placed if kept else None
    told: Ended | None = None
    if place is not None:
        plane, since, zone = seen.site.planes[place.plane], seen.created_at, place.zone
        told = await or_note(lambda: plane.ended(zone, vm_id(seen.name), since=since), None)
    code: str = told.code if told else "NOT_KNOWN"
    words = told.words if told else ""
    if code == "NOT_KNOWN":
        code, words = _by_itself(chip), words or (chip.why if chip else "")
        code = "EXPIRED" if ends and ends <= seen.now else code
    cause = f"{_CAUSES[code]}{f' ({place})' if place else ''}. {words}".strip()
    fix = _FIXES.get(code, f"{_AGAIN}.")
    if chip is not None:  # an instance that was stopped keeps its disk
        bills = "bills its disk until then, though no chip"
        quota = "bills nothing and counts against the quota"
        fix += (
            f" Call destroy_vllm to be rid of what is left: {SAID[chip.place.plane]} {chip.id} in"
            f" {chip.place.zone} ({chip.said})"
            f" {bills if chip.place.plane == 'compute' else quota}."
        )
    at = (told.at if told else None) or (ends if code == "EXPIRED" else None)
    return Failure(code=code, cause=cause, fix=fix), at


def _by_itself(chip: Chip | None) -> str:
    """Return the code of what a leftover tells by itself."""
    if chip is None:
        return "NOT_KNOWN"
    if chip.state is ChipState.FAILED:
        return "REQUEST_FAILED"
    return {"service": "PREEMPTED", "user": "DELETED_ELSEWHERE"}.get(chip.taken_by, "NOT_KNOWN")


_SILENT: Final = timedelta(minutes=10)
"""A VM tells that it boots within a minute or two."""
_MESSAGE: Final = 200
"""Characters of what the script tells."""


async def status_while_running(seen: Look) -> Deployment:
    """Say of a deployment whose VM runs what its script, its engine and its model tell."""
    told = await _heard(seen)
    last = told.last
    if last and last.phase in {FAILED, ENDED}:
        return _failed(seen, last, told)
    since = last.at if last else seen.begun
    if is_internal(seen.spec):
        if last and last.phase == READY:
            note(f"That {seen.name} answers is said by its own VM: nobody here is let in to ask.")
            return deployment_record(seen, State.READY, since)
    elif has_answered(seen, told):
        return deployment_record(seen, State.READY, since)
    elif (last and last.phase == READY) or boot_of(told.boot).started:  # worth asking the model
        silence = await probe_model(seen, told)
        state = State.LOADING if silence else State.READY
        phase = Phase(name=WARMING, since=since) if silence else None
        return deployment_record(seen, state, since, phase=phase, failure=silence)
    return deployment_record(seen, State.LOADING, seen.begun, phase=_phase(seen, told))


async def _heard(seen: Look) -> VmLog:
    """Read no more than is needed: Cloud Logging answers 60 times a minute."""
    chip = seen.chip
    if chip is None:
        return VmLog()
    nothing: Sequence[ScriptLine] = ()
    if _key(chip) not in seen.site.answered:
        return await or_note(lambda: logs.read_newest_boot(seen.site, chip), VmLog())
    told = VmLog(
        await or_note(lambda: logs.read_script(seen.site, seen.name, chip.created_at), nothing)
    )
    last = told.last
    if has_answered(seen, told) and last and last.phase in {ENGINE, READY}:
        return told
    return await or_note(lambda: logs.read_newest_boot(seen.site, chip), told)


def _failed(seen: Look, last: ScriptLine, told: VmLog) -> Deployment:
    """Say what its startup script could not do, or why its engine ended; the VM bills on."""
    hourly = chips.usd_per_hour(seen.site, seen.chip)
    paid = "at a price nobody knows" if hourly is None else f"at ${hourly:.2f} an hour"
    note(
        f"The VM of {seen.name} runs on and bills, {paid}, though nothing serves there:"
        " call destroy_vllm, or deploy_vllm with what is corrected."
    )
    if last.phase == FAILED:
        why = last.message or "its script does not say why."
        failure = Failure(
            code="BOOT_FAILED",
            cause=f"Its VM could not begin to serve: {why}",
            fix="Call get_logs for the log of its startup script; correct the cause, then"
            " destroy_vllm and deploy_vllm again.",
            evidence=evidence([last.message]),
        )
    else:
        match = _EXIT.search(last.message)
        code = int(match[1]) if match else None
        # docker says 128 + the signal's number
        signal = 128 - code if code and code > 128 else code
        failure = died_of(signal, [line.text for line in told.boot])
    return deployment_record(seen, State.FAILED, last.at, failure=failure)


def _phase(seen: Look, told: VmLog) -> Phase:
    last, lines = told.last, told.boot
    if last is None and not lines:
        _note_silence(seen, seen.chip)
        return Phase(name=BOOTING, since=seen.begun)
    if lines and (last is None or last.phase in {ENGINE, READY}):
        phase = phase_of(lines)
        if phase.name != COMPILING:
            return phase
        # Minutes without a line are normal there: it is said how many there usually are.
        graphs = boot_of(lines).compiled
        done = f"{graphs} graphs so far; the total is not reported" if graphs else ""
        detail = "; ".join(part for part in (done, _foreseen(seen)) if part)
        return phase.model_copy(update={"detail": detail})
    if last is None:
        return Phase(name=BOOTING, since=seen.begun)
    is_command = last.phase in {ENGINE, READY} and not last.is_again
    detail = "" if is_command else last.message[:_MESSAGE]
    return Phase(name=SCRIPT.get(last.phase, last.phase), since=last.at, detail=detail)


def _foreseen(seen: Look) -> str:
    """Say how long it should take, as the planner foresees it; by whom that was seen."""
    if seen.kept is None:
        return ""
    spec, model = seen.kept.spec, seen.kept.model
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


_STATES: Final = {
    ChipState.PROVISIONING: (State.CREATING, MAKING),
    ChipState.STOPPING: (State.STOPPING, STOPPING),
    ChipState.STOPPED: (State.STOPPED, ""),
    ChipState.DELETING: (State.DELETING, GOING),
    ChipState.UNKNOWN: (State.UNKNOWN, ""),
}
"""What needs no second look, and what is waited for in it."""
_GIVEN: Final = frozenset({ChipState.PROVISIONING, ChipState.RUNNING})
"""A request with a chip; one that failed has none, and is given back next."""


async def read_status(
    site: Site, kept: Search | None, chip: Chip | None, *, now: datetime
) -> Deployment:
    """Say what a deployment does now, of which at least one of the two is known."""
    seen = Look(site, kept, chip, now)
    if kept and kept.failure:
        return deployment_record(seen, State.FAILED, _since(seen), failure=kept.failure)
    if kept and kept.deleting:
        return _waits(seen, State.DELETING, DELETING)
    if kept and kept.placed is None:
        return _searched(seen, kept)
    return await _by_its_chip(seen)


def _searched(seen: Look, kept: Search) -> Deployment:
    """Say of one without a chip what it waits for; nothing of it bills, but what it replaces."""
    last = kept.attempts[-1] if kept.attempts else None
    if kept.replacing:
        return _waits(seen, State.QUEUED, REPLACING)
    if last and last.outcome and not last.returned:
        return _waits(seen, State.QUEUED, RETURNING)
    given = seen.chip is not None and seen.chip.state in _GIVEN
    return _waits(seen, State.CREATING if given else State.QUEUED, SEARCHING)


def _waits(seen: Look, state: State, phase: str) -> Deployment:
    """Say what a deployment waits for that goes on only where a call takes the next step."""
    detail = describe_search(seen.kept, seen.now) if seen.kept else ""
    if seen.chip and seen.chip.said and not (seen.kept and seen.kept.deleting):
        detail = f"{detail}; {seen.chip.said}".removeprefix("; ")
    since = _since(seen)
    return deployment_record(
        seen, state, since, phase=Phase(name=phase, since=since, detail=detail)
    )


async def _by_its_chip(seen: Look) -> Deployment:
    chip = seen.chip
    if chip is None or chip.state.leftover:
        failure, at = await why_gone(seen)
        state = State.EXPIRED if failure.code == State.EXPIRED.name else State.FAILED
        return deployment_record(seen, state, at or seen.begun, failure=failure, ended=at)
    if chip.state is ChipState.WAITING:
        return _waits(seen, State.QUEUED, SEARCHING)
    if chip.state is ChipState.RUNNING:
        return await status_while_running(seen)
    state, name = _STATES[chip.state]
    phase = Phase(name=name, since=seen.begun, detail=chip.said) if name else None
    return deployment_record(seen, state, seen.begun, phase=phase)


def _since(seen: Look) -> datetime:
    """Return when the newest place was asked, or else the deployment wanted."""
    attempts = seen.kept.attempts if seen.kept else ()
    return attempts[-1].since if attempts else seen.created_at


async def describe(site: Site, name: str) -> Deployment:
    """Say what a deployment does now.

    Raises:
        DeploymentNotFound: There is none, or it is another target's.
        NotOurs: A VM of its id was not made here.
        CloudError: A control plane cannot be asked.
    """
    chip = await chip_of(site, name)
    return await read_status(site, site.records.get(name), chip, now=datetime.now(UTC))


async def list_deployments(site: Site) -> Sequence[Deployment]:
    """Say it of every one that has this target's label or is remembered here, by name."""
    known = {one.spec.name: one for one in site.records.all()}
    here = [chip for chip in await list_chips(site) if chip.target == site.target.name]
    names = sorted({*known, *(chip.deployment for chip in here)} - {""})

    async def look(name: str) -> Deployment:
        kept = known.get(name)
        chip = chips.best_chip([chip for chip in here if chip.deployment == name], kept)
        try:
            return await read_status(site, kept, chip, now=datetime.now(UTC))
        except NotAuthenticated:
            raise
        except CloudError as exc:  # one that cannot be looked at must not hide the others
            words = f"{exc.summary} {exc.cause}".strip()
            note(f"{name}: {words}")
            now, why = datetime.now(UTC), Failure(code=exc.code, cause=words, fix=exc.fix)
            seen = Look(site, kept, chip, now)
            return deployment_record(seen, State.UNKNOWN, now, failure=why)

    return await side_by_side([lambda name=name: look(name) for name in names])  # type: ignore[misc]  # mypy knows no lambda's default


async def engine_facts(site: Site, name: str) -> EngineFacts:
    """Return what the log of the newest boot tells."""
    chip = await chips.chip_of(site, name)
    if chip is None:
        return EngineFacts()
    return facts_of(boot_of((await logs.read_newest_boot(site, chip)).boot))


async def predicted(site: Site, name: str) -> Prediction | None:
    """Return what was to be expected of a deployment's memory, None where too little is known.

    Raises:
        DeploymentNotFound: There is no such deployment.
        InvalidArgument: The model cannot be read.
    """
    spec, own = await chips.spec_of(site, name), rules().engine
    asked = spec.image if spec and spec.image else own.image
    version = container.version_of(asked, own.image, own.vllm)
    return await predict(spec, accelerator(site.offered.accelerator), version)


_TLS: Final = "HTTPS with a certificate of its VM's own, the only one that is trusted for it"
_OPEN: Final = "a proxy lets through what the key opens, and /health and /ping without one"
_KNOWN_SECONDS: Final = 300.0


async def access_to(site: Site, name: str) -> Access:
    """Return address, certificate and the engine's key.

    Raises:
        DeploymentNotFound, NotOurs: Nothing of that name was made here.
        NotReady: It has no chip, no address or no certificate yet, or is reached by a tunnel alone.
        CloudError: Google refused.
    """
    chip = await chips.chip_of(site, name)
    seen = Look(site, site.records.get(name), chip, datetime.now(UTC))
    if chip is None or chip.state is not ChipState.RUNNING:
        _not_yet(seen, "has no VM that runs")
    return await access_of(seen, None if is_internal(seen.spec) else await _certificate(site, chip))


async def access_of(seen: Look, certificate: str | None) -> Access:
    """Return it of a deployment whose VM was looked at, and the certificate that this told of.

    Raises:
        NotReady: It has no address or no certificate yet, or is reached by a tunnel alone.
        CloudError: Google refused.
    """
    site, url = seen.site, url_of(seen)
    if seen.chip and is_internal(seen.spec):
        _through_a_tunnel(seen, seen.chip)
    if url is None:
        _not_yet(seen, "has no address")
    if certificate is None:
        _not_yet(seen, "has published no certificate")
    let_in = await or_note(lambda: firewall.let_in(site, seen.name), None)
    return Access(
        base_url=url,
        api_key=await secrets.read(site, site.key_secret(seen.name)),
        certificate=certificate,
        certificate_command=_certificate_command(seen),
        header_commands={KEY_HEADER: _key_command(seen)},
        protection=f"{_TLS}; {firewall.described(let_in)}; {_OPEN}.",
    )


def remember(site: Site, chip: Chip, certificate: str | None) -> None:
    """Spare the next questions a look into the log."""
    if certificate:
        site.certificates[_key(chip)] = (anyio.current_time(), certificate)


def tunnel(seen: Look, chip: Chip) -> str:
    """Return the command that brings its port to this machine, as `localhost`."""
    compute = chip.place.plane == "compute"
    kind = "compute ssh" if compute else "compute tpus tpu-vm ssh"
    through = "" if chip.external_ip else " --tunnel-through-iap"
    alpha = "alpha " if through and not compute else ""
    where = f"--zone={chip.place.zone} --project={shlex.quote(seen.site.clients.project)}"
    return (
        f"gcloud {alpha}{kind} {chip.node or chip.id} {where}{through}"
        f" -- -N -L {PORT}:localhost:{PORT}"
    )


async def _certificate(site: Site, chip: Chip) -> str | None:
    """Return its certificate; a VM that boots again within minutes is told of by status_vllm."""
    at, known = site.certificates.get(_key(chip), (0.0, None))
    if known and anyio.current_time() - at < _KNOWN_SECONDS:
        return known
    found = await logs.certificate(site, chip)
    remember(site, chip, found)
    return found


def _key(chip: Chip) -> str:
    return f"{chip.place} {chip.id} {chip.external_ip} {chip.created_at}"


def _through_a_tunnel(seen: Look, chip: Chip) -> NoReturn:
    raise NotReady(
        f"{seen.name} lets nobody in from outside its VM (access=internal).",
        fix=f"Run `{tunnel(seen, chip)}` and, while it runs, ask http://localhost:{PORT}"
        f" with the key that `{_key_command(seen)}` prints; or deploy it with access=private.",
    )


def _not_yet(seen: Look, why: str) -> NoReturn:
    raise NotReady(
        f"{seen.name} {why} (yet).",
        fix="Call status_vllm, which says how far it is.",
        next_steps=(NextStep("status_vllm", {"target": seen.site.target.name, "name": seen.name}),),
    )


def _key_command(seen: Look) -> str:
    return (
        f"gcloud secrets versions access latest --secret={seen.site.key_secret(seen.name)}"
        f" --project={shlex.quote(seen.site.clients.project)}"
    )


def _certificate_command(seen: Look) -> str:
    """Print it from the log; the newest is that of the newest boot."""
    wanted = (
        f"log_id({quoted(LOG)}) AND labels.deployment={quoted(seen.name)}"
        f" AND labels.phase={quoted(CERTIFICATE)}"
    )
    return (
        f"gcloud logging read {shlex.quote(wanted)} --limit=1 --order=desc --freshness=30d"
        " --format='value(jsonPayload.message)'"
        f" --project={shlex.quote(seen.site.clients.project)}"
    )


def has_answered(seen: Look, told: VmLog) -> bool:
    """Whether it has been heard since its engine was started last."""
    known, key = seen.site.answered, _key(seen.chip) if seen.chip else ""
    return key in known and known[key] == started(told)


def started(told: VmLog) -> datetime | None:
    """Return when its engine was started last."""
    return next((one.at for one in reversed(told.script) if one.phase == ENGINE), None)


async def probe_model(seen: Look, told: VmLog) -> Failure | None:
    """Ask the model; None once it has answered, else why it has not."""
    if seen.chip:
        remember(seen.site, seen.chip, told.certificate)

    async def reached() -> Access:
        return await access_of(seen, told.certificate)

    failure = await why_silent(reached, "Its VM")
    if failure is None:
        if seen.chip:
            seen.site.answered[_key(seen.chip)] = started(told)
        return None
    if failure.code != Unreachable.code:
        return failure
    return await firewall.keeps_out(seen.site, seen.name, failure)
