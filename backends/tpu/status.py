"""What a deployment does now: its request, VM and log, read as one record; where it answers."""

import re
import shlex
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, Literal, NamedTuple, NoReturn

import anyio

from backends import container
from backends.common.concurrency import or_note, side_by_side
from backends.common.engine import why_silent
from backends.container import PORT
from backends.google import secrets
from backends.google.clients import SPEC_LABEL
from backends.google.logs import quoted
from backends.lease import EXPIRES
from backends.lifecycle import deployment_of, what_is_left
from backends.tpu import compute, lease, logs
from backends.tpu import site as tpu
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
from backends.tpu.search import best_chip, chip_of, describe_search, record_of, spec_in
from backends.tpu.vm import LOG, rules
from core import errors
from core.address import KEY_HEADER
from core.records import Access, Deployment, DeploymentSpec, Failure, Phase, State
from core.reply import note
from logs.boot import COMPILING, WARMING, boot_of, phase_of
from logs.verdict import died_of, evidence
from planner.price import price

SEARCHING: Final = "waiting for a chip"
RETURNING: Final = "giving a request back"
REPLACING: Final = "deleting the former"
DELETING: Final = "deleting"
WAITS_IN: Final = frozenset({SEARCHING, RETURNING, REPLACING, DELETING})
"""In these nothing goes on by itself: a call takes the next step."""
MAKING: Final = "making the VM"
STOPPING: Final = "waiting for its VM to stop"
GOING: Final = "waiting for its VM to be gone"
_STATES: Final = {
    tpu.ChipState.PROVISIONING: (State.CREATING, MAKING),
    tpu.ChipState.STOPPING: (State.STOPPING, STOPPING),
    tpu.ChipState.DELETING: (State.DELETING, GOING),
    tpu.ChipState.UNKNOWN: (State.UNKNOWN, ""),
}
"""What needs no second look, and what is waited for in it."""
_GIVEN: Final = frozenset({tpu.ChipState.PROVISIONING, tpu.ChipState.RUNNING})
"""A request with a chip; one that failed has none, and is given back next."""
_UNTIL_UNKNOWN: Final = frozenset(
    {tpu.ChipState.STOPPED, tpu.ChipState.SUSPENDED, tpu.ChipState.FAILED}
)
"""It bills no more, and since when is not told here."""
_PLACES_SAID: Final = 6
"""Of those that gave no chip, the newest."""
_SILENT: Final = timedelta(minutes=10)
"""A VM tells that it boots within a minute or two."""
_MESSAGE: Final = 200
"""Characters of what the script tells."""
_KNOWN_SECONDS: Final = 300.0
_EXIT: Final = re.compile(r"exit code (-?[0-9]{1,6})")
_AGAIN: Final = "Call deploy_vllm again for another chip"
_GONE: Final = {
    "PREEMPTED": ("Google took back its chip", f"{_AGAIN}; one on demand is not taken back."),
    "EXPIRED": (
        "Its time was over, and its VM was deleted",
        f"{_AGAIN}, with a longer ttl_minutes if it is to run longer.",
    ),
    "DELETED_ELSEWHERE": ("Its VM was deleted, and not from here", f"{_AGAIN}."),
    "REQUEST_FAILED": ("Google gave up the request for its chip", f"{_AGAIN}."),
    "NOT_KNOWN": ("Its VM is gone, and Google does not tell why", f"{_AGAIN}."),
}
"""Why a VM is there no more, and what to do then."""
_STOPPED: Final = Failure(
    code="NODE_STOPPED",
    cause="Its node was stopped, and a TPU cannot be counted on to start again.",
    fix=f"Call destroy_vllm to be rid of the node. {_AGAIN}.",
)


def usd_per_hour(
    site: tpu.Site, chip: tpu.Chip | None = None, kept: tpu.Search | None = None
) -> float | None:
    """Return the price of one VM of the target, where it is or is asked for; None if unknown."""
    if site.target.usd_per_hour is not None:
        return site.target.usd_per_hour
    places = [chip.place] if chip else kept.blueprint.places if kept else ()
    hourly = price(site.offered, zones=[place.zone for place in places]).usd_per_hour
    return None if hourly is None else round(hourly, 4)


class Look(NamedTuple):
    """What was read of a deployment at one moment; either half may be missing."""

    site: tpu.Site
    kept: tpu.Search | None
    chip: tpu.Chip | None
    now: datetime
    held: lease.Held | None = None
    """Its lease, where a job of the cloud's is to end it."""

    @property
    def name(self) -> str:
        return self.kept.spec.name if self.kept else self.chip.deployment if self.chip else ""

    @property
    def spec(self) -> DeploymentSpec | None:
        """What was asked for, as this machine or the VM's metadata has it."""
        if self.kept:
            return self.kept.spec
        return spec_in(self.chip) if self.chip else None

    @property
    def created_at(self) -> datetime:
        return self.kept.since if self.kept else self.chip.created_at if self.chip else self.now

    @property
    def started_at(self) -> datetime:
        """When its VM was there, or at least asked for."""
        return (self.chip.given_at if self.chip else None) or self.created_at

    @property
    def asked_at(self) -> datetime:
        """When the newest place was asked, or else the deployment wanted."""
        attempts = self.kept.attempts if self.kept else ()
        return attempts[-1].since if attempts else self.created_at

    @property
    def is_internal(self) -> bool:
        """Whether nobody outside its network is let in."""
        return self.spec is not None and self.spec.access == "internal"

    @property
    def url(self) -> str | None:
        """Where it answers; None before it has an address, or where it has none for outside."""
        if self.chip is None or not self.chip.external_ip or self.is_internal:
            return None
        return f"https://{self.chip.external_ip}:{PORT}"

    @property
    def key(self) -> str:
        """What names just this VM, from its creation to its end."""
        chip = self.chip
        return f"{chip.place} {chip.id} {chip.external_ip} {chip.created_at}" if chip else ""

    @property
    def expires_at(self) -> datetime | None:
        """When it ends, by whichever comes first: Google's hand, our label, or its time to run.

        A job of the cloud's says it by itself. The label was written when the chip was asked for,
        and allows for the wait.
        """
        chip, spec = self.chip, self.spec
        if chip is None:
            return None
        if self.held and self.held.ends:
            return self.held.ends
        label = chip.labels.get(EXPIRES, "")
        said = datetime.fromtimestamp(int(label), UTC) if label.isdigit() and int(label) else None
        minutes = spec.ttl_minutes if spec else None
        over = chip.given_at + timedelta(minutes=minutes) if minutes and chip.given_at else None
        return min((moment for moment in (chip.ends_at, said, over) if moment), default=None)

    @property
    def _lease(self) -> Literal["cloud", "server"] | None:
        """Who ends it: Compute Engine, and the queue for flex-start, do so by themselves."""
        if self.expires_at is None:
            return None
        by_job = self.held is not None and not self.held.lacks
        by_itself = self.site.provisioning == "flex-start" or (self.chip and self.chip.ends_at)
        return "cloud" if by_job or by_itself else "server"

    def record(
        self,
        state: State,
        since: datetime,
        *,
        phase: Phase | str = "",
        detail: str = "",
        failure: Failure | None = None,
        ended: datetime | None = None,
    ) -> Deployment:
        """Make the record of a deployment in some state; `ended` is when its VM was no more."""
        spec, chip, site = self.spec, self.chip, self.site
        runs = chip is not None and chip.state is tpu.ChipState.RUNNING
        until = ended or (None if chip is None or chip.state in _UNTIL_UNKNOWN else self.now)
        label = chip.labels.get(SPEC_LABEL, "") if chip else ""
        asked = spec.image if spec else None
        image = self.kept.blueprint.container.image if self.kept else asked
        version = version_of(image) or "(version not known)"
        hourly, usd = usd_per_hour(site, chip, self.kept), None
        if chip and chip.given_at and until and hourly is not None:
            usd = round(max(0.0, (until - chip.given_at).total_seconds()) / 3600 * hourly, 4)
        gone = state is State.FAILED and chip is not None and chip.state.leftover
        named = phase or None
        if isinstance(named, str):
            named = Phase(name=named, since=since, detail=detail)
        return deployment_of(
            site.target,
            spec,
            name=self.name,
            state=state,
            since=since,
            phase=named,
            engine=f"{'simulated vLLM' if site.rehearsed else 'vLLM'} {version}",
            simulated=site.rehearsed,
            url=self.url,
            revision=label or (spec.fingerprint if spec else "none"),
            instance=(chip.node or chip.id) if chip and runs else None,
            replicas=int(runs),
            created_at=self.created_at,
            expires_at=None if gone else self.expires_at,
            lease=None if gone else self._lease,
            lease_lacks=self.held.lacks if self.held else "",
            usd_per_hour=hourly,
            usd_so_far=usd,
            failure=failure,
            resources={what: words for what, words in _resources(self) if words},
        )


def version_of(image: str | None) -> str | None:
    """Return vLLM's version: by an image's tag, or as our own has it; None is our own."""
    own = rules().engine
    return container.version_of(image or own.image, own.image, own.vllm)


def _resources(seen: Look) -> Iterator[tuple[str, str]]:
    """Return what stands behind it, in Google's own words; empty where it is not known."""
    chip, ends = seen.chip, seen.expires_at
    if chip:
        queued = chip.place.plane == "queued"
        yield "control plane", tpu.SAID[chip.place.plane]
        if queued:
            yield "queued resource", f"{chip.id} {chip.said}" if chip.said else ""
            yield "node", f"{chip.node} {chip.node_said}".strip()
        else:
            yield "instance", f"{chip.id} {chip.said}"
        yield "zone", chip.place.zone
        for field in ("accelerator", "provisioning", "external_ip", "internal_ip", "health"):
            yield field.replace("_", " "), getattr(chip, field) or ""
        yield "ends at", f"{ends:%F %H:%M} UTC" if ends else ""
        yield "why", chip.why
    if seen.kept:
        tried = [one for one in seen.kept.attempts if one.outcome not in {"", tpu.GIVEN}]
        said = (f"{one.place}: {one.outcome}" for one in tried[-_PLACES_SAID:])
        yield "gave no chip", "; ".join(said)


async def describe(site: tpu.Site, name: str) -> Deployment:
    """Say what a deployment does now.

    Raises:
        DeploymentNotFound: There is none, or it is another target's.
        NotOurs: A VM of its id was not made here.
        CloudError: A control plane cannot be asked.
    """
    try:
        chip = await chip_of(site, name)
    except errors.DeploymentNotFound as missing:
        missing.fix += await what_is_left(lease.owned(site, name))
        raise
    return await read_status(site, record_of(site, name, chip), chip, now=datetime.now(UTC))


async def list_deployments(site: tpu.Site) -> Sequence[Deployment]:
    """Say it of every one that has this target's label or is remembered here, by name."""
    known = {one.spec.name: one for one in site.records.all()}
    here = [chip for chip in await site.chips() if chip.target == site.target.name]
    names = sorted({*known, *(chip.deployment for chip in here)} - {""})

    async def look(name: str) -> Deployment:
        chip = best_chip([chip for chip in here if chip.deployment == name], known.get(name))
        kept = record_of(site, name, chip)
        try:
            return await read_status(site, kept, chip, now=datetime.now(UTC))
        except errors.NotAuthenticated:
            raise
        except errors.CloudError as exc:  # one that cannot be looked at must not hide the others
            words = f"{exc.summary} {exc.cause}".strip()
            note(f"{name}: {words}")
            now, why = datetime.now(UTC), Failure(code=exc.code, cause=words, fix=exc.fix)
            return Look(site, kept, chip, now).record(State.UNKNOWN, now, failure=why)

    return await side_by_side([partial(look, name) for name in names])


async def read_status(
    site: tpu.Site, kept: tpu.Search | None, chip: tpu.Chip | None, *, now: datetime
) -> Deployment:
    """Say what a deployment does now, of which at least one of the two is known."""
    held = None
    if chip and chip.ours and not chip.state.leftover and lease.is_kept(site, chip.place):
        look = partial(lease.read, site, chip)
        held = await or_note(look, None)
    seen = Look(site, kept, chip, now, held)
    if kept and kept.failure:
        return seen.record(State.FAILED, seen.asked_at, failure=kept.failure)
    if waits := _waits_for(kept, chip):
        said = [describe_search(kept, now) if kept else ""]
        if chip and not (kept and kept.deleting):
            said.append(chip.said)
        detail = "; ".join(part for part in said if part)
        return seen.record(waits[0], seen.asked_at, phase=waits[1], detail=detail)
    if chip is None or chip.state.leftover:
        failure, at = await why_gone(seen)
        state = State.EXPIRED if failure.code == State.EXPIRED.name else State.FAILED
        return seen.record(state, at or seen.started_at, failure=failure, ended=at)
    if chip.state is tpu.ChipState.STOPPED:
        return seen.record(State.FAILED, seen.started_at, failure=_STOPPED)
    if chip.state is tpu.ChipState.RUNNING:
        return await _running(seen, chip)
    state, phase = _STATES[chip.state]
    return seen.record(state, seen.started_at, phase=phase, detail=chip.said)


def _waits_for(kept: tpu.Search | None, chip: tpu.Chip | None) -> tuple[State, str] | None:
    """Say what a deployment waits for that goes on only where a call takes the next step."""
    if kept and kept.deleting:
        return State.DELETING, DELETING
    if kept and kept.placed is None:  # nothing of it bills, but what it replaces
        last = kept.attempts[-1] if kept.attempts else None
        if kept.replacing:
            return State.QUEUED, REPLACING
        if last and last.outcome and not last.returned:
            return State.QUEUED, RETURNING
        given = chip is not None and chip.state in _GIVEN
        return State.CREATING if given else State.QUEUED, SEARCHING
    waits = chip is not None and chip.state is tpu.ChipState.WAITING
    return (State.QUEUED, SEARCHING) if waits else None


async def why_gone(seen: Look) -> tuple[Failure, datetime | None]:
    """Say why its VM is gone, or stands there as a leftover; and since when, if that is known."""
    kept, chip, ends = seen.kept, seen.chip, seen.expires_at
    place = chip.place if chip else kept.placed if kept else None
    told = None
    if place is not None:
        ask = partial(seen.site.planes[place.plane].ended, since=seen.created_at)
        told = await or_note(lambda: ask(place.zone, tpu.vm_id(seen.name)), None)
    code, words = (str(told.code), told.words) if told else ("NOT_KNOWN", "")
    at = told.at if told else None
    if code == "NOT_KNOWN":
        if chip is not None:  # what a leftover tells by itself
            words = words or chip.why
            by = {"service": "PREEMPTED", "user": "DELETED_ELSEWHERE"}.get(chip.taken_by, code)
            code = "REQUEST_FAILED" if chip.state is tpu.ChipState.FAILED else by
        if ends and ends <= seen.now:
            code = "EXPIRED"
    if code == "DELETED_ELSEWHERE" and kept and kept.lease_ends:
        over = datetime.fromtimestamp(kept.lease_ends, UTC)
        if over <= seen.now:  # by the job that was made for that
            code, ends, words = "EXPIRED", over, ""
    cause, fix = _GONE[code]
    if chip is not None:  # an instance that was stopped keeps its disk
        bills = "bills its disk until then, though no chip"
        quota = "bills nothing and counts against the quota"
        fix += (
            f" Call destroy_vllm to be rid of what is left: {tpu.SAID[chip.place.plane]} {chip.id}"
            f" in {chip.place.zone} ({chip.said})"
            f" {bills if chip.place.plane == 'compute' else quota}."
        )
    if at is None and ends and code == "EXPIRED":
        at = min(ends, seen.now)
    cause = f"{cause}{f' ({place})' if place else ''}. {words}".strip()
    return Failure(code=code, cause=cause, fix=fix), at


async def _running(seen: Look, chip: tpu.Chip) -> Deployment:
    """Say of a deployment whose VM runs what its script, its engine and its model tell."""
    told = await _read_log(seen, chip)
    last = told.last
    if last and last.phase in {FAILED, ENDED}:
        return _failed(seen, last, told)
    since = last.at if last else seen.started_at
    ready = last is not None and last.phase == READY
    if seen.is_internal:
        if ready:
            note(f"That {seen.name} answers is said by its own VM: nobody here is let in to ask.")
            return seen.record(State.READY, since)
    elif _has_answered(seen, told):
        return seen.record(State.READY, since)
    elif ready or boot_of(told.boot).started:  # worth asking the model
        silence = await _probe(seen, told)
        if silence is None:
            return seen.record(State.READY, since)
        return seen.record(State.LOADING, since, phase=WARMING, failure=silence)
    return seen.record(State.LOADING, seen.started_at, phase=_phase(seen, told))


async def _read_log(seen: Look, chip: tpu.Chip) -> VmLog:
    """Read no more than is needed: Cloud Logging answers 60 times a minute."""
    told, nothing = VmLog(), list[ScriptLine]()
    if seen.key in seen.site.answered:
        told = VmLog(
            await or_note(lambda: logs.read_script(seen.site, seen.name, chip.created_at), nothing)
        )
        if _has_answered(seen, told) and told.last and told.last.phase in {ENGINE, READY}:
            return told
    return await or_note(lambda: logs.read_newest_boot(seen.site, chip), told)


def _has_answered(seen: Look, told: VmLog) -> bool:
    """Whether it has been heard since its engine was started last."""
    known = seen.site.answered
    return seen.key in known and known[seen.key] == told.engine_started


async def _probe(seen: Look, told: VmLog) -> Failure | None:
    _remember(seen, told.certificate)
    failure = await why_silent(partial(_access, seen, told.certificate), "Its VM")
    if failure is None:
        seen.site.answered[seen.key] = told.engine_started
    elif failure.code == errors.Unreachable.code:
        return await compute.keeps_out(seen.site, seen.name, failure)
    return failure


def _failed(seen: Look, last: ScriptLine, told: VmLog) -> Deployment:
    """Say what its startup script could not do, or why its engine ended; the VM bills on."""
    hourly = usd_per_hour(seen.site, seen.chip)
    paid = "at a price nobody knows" if hourly is None else f"at ${hourly:.2f} an hour"
    note(
        f"The VM of {seen.name} runs on and bills, {paid}, though nothing serves there:"
        " call destroy_vllm, or deploy_vllm with what is corrected."
    )
    if last.phase == FAILED:
        failure = Failure(
            code="BOOT_FAILED",
            cause=f"Its VM could not begin to serve: {last.message or 'nothing says why.'}",
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
    return seen.record(State.FAILED, last.at, failure=failure)


def _phase(seen: Look, told: VmLog) -> Phase:
    last, lines = told.last, told.boot
    if lines and (last is None or last.phase in {ENGINE, READY}):
        phase, graphs = phase_of(lines), boot_of(lines).compiled
        if phase.name != COMPILING or not graphs:
            return phase
        # Minutes without a line are normal there.
        detail = f"{graphs} graphs so far; the total is not reported"
        return phase.model_copy(update={"detail": detail})
    if last is None:
        silent = seen.now - seen.started_at
        if silent > _SILENT:
            note(
                f"The VM of {seen.name} has run for {silent.total_seconds() / 60:.0f} min and"
                " logged nothing in Cloud Logging: its service account may lack"
                " roles/logging.logWriter (setup_target). Of an instance, `gcloud compute instances"
                " get-serial-port-output` shows its console."
            )
        return Phase(name=BOOTING, since=seen.started_at)
    is_command = last.phase in {ENGINE, READY} and not last.is_again
    detail = "" if is_command else last.message[:_MESSAGE]
    return Phase(name=SCRIPT.get(last.phase, last.phase), since=last.at, detail=detail)


async def access_to(site: tpu.Site, name: str) -> Access:
    """Return address, certificate and the engine's key.

    Raises:
        DeploymentNotFound, NotOurs: Nothing of that name was made here.
        NotReady: It has no chip, no address or no certificate yet, or is reached by a tunnel alone.
        CloudError: Google refused.
    """
    chip = await chip_of(site, name)
    seen = Look(site, record_of(site, name, chip), chip, datetime.now(UTC))
    if chip is None or chip.state is not tpu.ChipState.RUNNING:
        _not_yet(seen, "has no VM that runs")
    at, known = site.certificates.get(seen.key, (0.0, None))
    # A VM that boots again within minutes is told of by status_vllm.
    if not (seen.is_internal or (known and anyio.current_time() - at < _KNOWN_SECONDS)):
        known = await logs.certificate(site, chip)
        _remember(seen, known)
    return await _access(seen, known)


def _remember(seen: Look, certificate: str | None) -> None:
    if certificate:
        seen.site.certificates[seen.key] = (anyio.current_time(), certificate)


async def _access(seen: Look, certificate: str | None) -> Access:
    site, key = seen.site, seen.site.key_secret(seen.name)
    project = shlex.quote(site.clients.project)
    key_command = f"gcloud secrets versions access latest --secret={key} --project={project}"
    if seen.chip and seen.is_internal:
        raise errors.NotReady(
            f"{seen.name} lets nobody in from outside its VM (access=internal).",
            fix=f"Run `{_tunnel(seen.chip, project)}` and, while it runs, ask"
            f" http://localhost:{PORT} with the key that `{key_command}` prints; or deploy it with"
            " access=private.",
        )
    if seen.url is None:
        _not_yet(seen, "has no address")
    if certificate is None:
        _not_yet(seen, "has published no certificate")
    ranges = await or_note(lambda: compute.let_in(site, seen.name), None)
    whom = "everybody" if ranges and compute.ANYBODY in ranges else ", ".join(ranges or ())
    rule = "the firewall's rule could not be read"
    if ranges is not None:
        rule = f"the firewall lets in {whom or 'nobody'}"
    # The newest certificate in the log is that of the newest boot.
    wanted = (
        f"log_id({quoted(LOG)}) AND labels.deployment={quoted(seen.name)}"
        f" AND labels.phase={quoted(CERTIFICATE)}"
    )
    return Access(
        base_url=seen.url,
        api_key=await secrets.read(site, key),
        certificate=certificate,
        certificate_command=(
            f"gcloud logging read {shlex.quote(wanted)} --limit=1 --order=desc --freshness=30d"
            f" --format='value(jsonPayload.message)' --project={project}"
        ),
        header_commands={KEY_HEADER: key_command},
        protection="HTTPS with a certificate of its VM's own, the only one that is trusted for it;"
        f" {rule}; a proxy lets through what the key opens, and /health and /ping without one.",
    )


def _tunnel(chip: tpu.Chip, project: str) -> str:
    """Return the command that brings its port to this machine, as `localhost`."""
    instance = chip.place.plane == "compute"
    kind = "compute ssh" if instance else "compute tpus tpu-vm ssh"
    through = "" if chip.external_ip else " --tunnel-through-iap"
    alpha = "alpha " if through and not instance else ""
    return (
        f"gcloud {alpha}{kind} {chip.node or chip.id} --zone={chip.place.zone} --project={project}"
        f"{through} -- -N -L {PORT}:localhost:{PORT}"
    )


def _not_yet(seen: Look, why: str) -> NoReturn:
    raise errors.NotReady(
        f"{seen.name} {why} (yet).",
        fix="Call status_vllm, which says how far it is.",
        next_steps=(
            errors.NextStep("status_vllm", {"target": seen.site.target.name, "name": seen.name}),
        ),
    )
