"""The VMs of both control planes: which there are, whose they are, and what is read of one."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from pydantic import ValidationError

from backends import container
from backends.base import QueuedResource
from backends.common.concurrency import side_by_side
from backends.container import PORT
from backends.google.clients import EXPIRES_LABEL, SPEC_LABEL
from backends.tpu.planes import SAID, Blueprint, Chip, ChipState, ControlPlane, Place
from backends.tpu.site import Site, vm_id
from backends.tpu.vm import rules
from core.errors import (
    ApiDisabled,
    CloudError,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    NotFound,
    NotOurs,
    PermissionDenied,
    WaitedTooLong,
)
from core.records import NAME_PATTERN, Deployment, DeploymentSpec, Failure, Phase, State
from core.reply import note
from core.waiting import wait_until
from planner.price import price

if TYPE_CHECKING:
    from backends.tpu.search import Search

_ALIVE: Final = frozenset(
    {ChipState.RUNNING, ChipState.PROVISIONING, ChipState.STOPPING, ChipState.STOPPED}
)
_FRESH_SECONDS: Final = 1.0
"""Nine targets that are listed together look once."""


async def list_chips(site: Site) -> Sequence[Chip]:
    """Return every TPU of the project, of both control planes, ours and others'.

    A control plane that is off, or that the caller may not ask, is noted.
    """
    found: Sequence[Chip] = await site.inventory.read(
        "chips", _FRESH_SECONDS, partial(_look_everywhere, site)
    )
    return found


async def _look_everywhere(site: Site) -> Sequence[Chip]:
    refused = list[CloudError]()

    async def ask(plane: ControlPlane) -> Sequence[Chip]:
        try:
            return await plane.list()
        except (ApiDisabled, PermissionDenied) as exc:
            refused.append(exc)
            return ()

    found = await side_by_side([partial(ask, plane) for plane in site.planes.values()])
    if len(refused) == len(site.planes):
        raise refused[0]
    for exc in refused:
        note(f"{exc.summary} {exc.cause}".strip())
    return tuple(chip for row in found for chip in row)


async def chip_of(site: Site, name: str) -> Chip | None:
    """Return a deployment's VM, or its request; None while nothing in the cloud stands for it.

    Raises:
        DeploymentNotFound: There is no such deployment.
        NotOurs: A VM of its id was not made here.
        CloudError: A control plane cannot be asked.
    """
    kept = site.records.get(name)
    where = _where(kept)
    if where:
        found = await site.planes[where.plane].get(where.zone, vm_id(name))
        return found if found and found.deployment == name else None
    if kept:
        return None
    if not re.fullmatch(NAME_PATTERN, name):
        raise _not_found(site, name)
    chips = await list_chips(site)
    named = [chip for chip in chips if chip.deployment == name]
    best = best_chip([chip for chip in named if chip.target == site.target.name], None)
    if best:
        return best
    if named:
        raise _not_found(site, name, f": it is on {named[0].target or 'another target'}")
    foreign = next((chip for chip in chips if chip.id == vm_id(name) and not chip.ours), None)
    if foreign:
        raise not_ours_error(foreign, fix="Take another name.")
    raise _not_found(site, name)


async def spec_of(site: Site, name: str) -> DeploymentSpec | None:
    """Return what was asked for, None where nothing says it any more."""
    kept = site.records.get(name)
    if kept:
        spec: DeploymentSpec = kept.spec
        return spec
    chip = await chip_of(site, name)
    return spec_in(chip) if chip else None


def _where(kept: "Search | None") -> Place | None:
    """Return where its chip is, or the request that may become one."""
    if kept is None:
        return None
    return kept.placed or (kept.current.place if kept.current else None)


def best_chip(chips: Sequence[Chip], kept: "Search | None") -> Chip | None:
    """Return that where it was placed, else the one that lives, else the newest."""
    if kept:
        where = _where(kept)
        return next((chip for chip in chips if chip.place == where), None)
    ranked = sorted(chips, key=lambda chip: (chip.state in _ALIVE, chip.created_at))
    return ranked[-1] if ranked else None


def _not_found(site: Site, name: str, where: str = "") -> DeploymentNotFound:
    return DeploymentNotFound(
        f"No deployment named '{name[:60]}' on {site.target.name}{where}.",
        fix="Call list_deployments for those that there are.",
        next_steps=(NextStep("list_deployments"),),
    )


async def find_named(
    site: Site, name: str, places: Collection[Place] = (), *, or_there: bool = False
) -> Sequence[Chip]:
    """Return every TPU with a deployment's label or id, looked for now, whoever made it.

    At `places` it is looked for by its id, should a list not have it; `or_there`: where the lists
    fail, there alone.
    """
    site.inventory.forget()
    found: list[Chip] = []
    try:
        every = await list_chips(site)
    except CloudError as exc:
        if not (or_there and places):
            raise
        note(f"Whether there is more of {name} elsewhere is not known: {exc.summary}")
    else:
        found = [one for one in every if one.deployment == name or one.id == vm_id(name)]
    seen = {one.place for one in found}
    for place in (one for one in places if one not in seen):
        chip = await site.planes[place.plane].get(place.zone, vm_id(name))
        found += [chip] if chip else []
    return found


def is_ours(site: Site, name: str, chip: Chip) -> bool:
    """Whether a chip is a deployment of this target."""
    return chip.deployment == name and chip.target == site.target.name


def is_wanted(site: Site, made: Blueprint, chip: Chip) -> bool:
    """Whether a chip was asked for by just this blueprint's spec, here or on another machine."""
    same = chip.labels.get(SPEC_LABEL) == made.labels[SPEC_LABEL]
    return same and is_ours(site, made.spec.name, chip)


def not_ours_error(chip: Chip, *, fix: str) -> NotOurs:
    """Say that something of a deployment's id was not made here."""
    return NotOurs(
        f"{chip.id} in {chip.place} was not made here: it is left alone.",
        cause=f"It is {chip.said}.",
        fix=fix,
    )


_GONE_SECONDS: Final = 20.0
_EVERY_SECONDS: Final = 1.0
_LIST: Final = (NextStep("list_queued_resources"),)


async def list_queue(site: Site) -> Sequence[QueuedResource]:
    """Return every one of both planes, ours and others'; leftovers of ours first, then ours."""
    chips = sorted(await list_chips(site), key=lambda one: (not one.ours, not one.state.leftover))
    return tuple(_row(chip) for chip in chips)


async def delete_leftover(site: Site, zone: str, resource: str) -> bool:
    """Delete a request of ours that has no chip any more; whether it was seen to be gone.

    Raises:
        NotFound: There is none of that id in the zone.
        NotOurs: It was not made here.
        InvalidArgument: It is no leftover: a deployment stands on it, or waits for it.
        CloudError: Google refuses, or does not answer.
    """
    site.inventory.forget()
    named = [one for one in await list_chips(site) if (one.place.zone, one.id) == (zone, resource)]
    if not named:
        raise NotFound(
            f"Nothing named {resource[:80]} is in {zone[:40]}.",
            fix="Call list_queued_resources for what there is.",
            next_steps=_LIST,
        )
    chip = next((one for one in named if one.ours and one.state.leftover), named[0])
    _require_leftover(chip)
    async with site.records.locked(chip.deployment or chip.id):
        plane = site.planes[chip.place.plane]
        now = await plane.get(zone, resource)
        if now is None:
            return True
        _require_leftover(now)
        await plane.delete(zone, resource)
        site.inventory.forget()
        try:
            await wait_until(
                lambda: plane.get(zone, resource),
                lambda chip: chip is None,
                waiting_for=f"{resource} to be gone",
                every=_EVERY_SECONDS,
                timeout=_GONE_SECONDS,
            )
        except WaitedTooLong:
            return False
    return True


def _require_leftover(chip: Chip) -> None:
    if not chip.ours:
        raise not_ours_error(chip, fix="Delete it where it was made.")
    if not chip.state.leftover:
        here = {"target": chip.target, "name": chip.deployment}
        raise InvalidArgument(
            f"{chip.id} in {chip.place} is {chip.said}: no leftover.",
            fix=f"Remove its deployment: destroy_vllm(target={chip.target!r},"
            f" name={chip.deployment!r}).",
            next_steps=(NextStep("destroy_vllm", here),) if chip.deployment else _LIST,
        )


def _row(chip: Chip) -> QueuedResource:
    return QueuedResource(
        id=chip.id,
        zone=chip.place.zone,
        control_plane=SAID[chip.place.plane],
        state=chip.said,
        node=f"{chip.node} {chip.node_said}".strip(),
        health=chip.health,
        accelerator=chip.accelerator,
        provisioning=chip.provisioning,
        external_ip=chip.external_ip,
        created_at=f"{chip.created_at:%F %H:%M}",
        ours=chip.ours,
        deployment=chip.deployment,
        target=chip.target,
        leftover=chip.state.leftover,
        why=chip.why,
    )


def usd_per_hour(site: Site, chip: Chip | None = None) -> float | None:
    """Return the price of one VM of the target, where it is; None where nobody has said."""
    if site.target.usd_per_hour is not None:
        return site.target.usd_per_hour
    hourly = price(site.offered, zones=[chip.place.zone] if chip else ()).usd_per_hour
    return None if hourly is None else round(hourly, 4)


def usd_so_far(site: Site, chip: Chip | None, until: datetime) -> float | None:
    """Return what it cost since it was given its chip, None where that moment is not known.

    A request that waits costs nothing.
    """
    hourly = usd_per_hour(site, chip)
    if chip is None or chip.given_at is None or hourly is None:
        return None
    seconds = max(0.0, (until - chip.given_at).total_seconds())
    return round(seconds / 3600 * hourly, 4)


_PLACES_SAID: Final = 6
"""Of those that gave no chip, the newest."""
_UNTIL_UNKNOWN: Final = frozenset({ChipState.STOPPED, ChipState.SUSPENDED, ChipState.FAILED})
"""It bills no more, and since when is not told here."""


class Look(NamedTuple):
    """What was read of a deployment at one moment; either half may be missing."""

    site: Site
    kept: "Search | None"
    chip: Chip | None
    now: datetime

    @property
    def name(self) -> str:
        """Of the deployment."""
        return self.kept.spec.name if self.kept else self.chip.deployment if self.chip else ""

    @property
    def spec(self) -> DeploymentSpec | None:
        """What was asked for, as this machine or the VM's metadata has it."""
        if self.kept:
            return self.kept.spec
        return spec_in(self.chip) if self.chip else None

    @property
    def created_at(self) -> datetime:
        """When it was asked for."""
        return self.kept.since if self.kept else self.chip.created_at if self.chip else self.now

    @property
    def begun(self) -> datetime:
        """When its VM was there, or at least asked for."""
        return (self.chip.given_at if self.chip else None) or self.created_at


def spec_in(chip: Chip) -> DeploymentSpec | None:
    """Read what a VM's metadata says was asked for."""
    try:
        return DeploymentSpec.model_validate_json(chip.spec_json)
    except ValidationError:
        return None


def is_internal(spec: DeploymentSpec | None) -> bool:
    """Whether nobody outside its network is let in."""
    return spec is not None and spec.access == "internal"


def url_of(seen: Look) -> str | None:
    """Return where it answers; None before it has an address, or where it has none for outside."""
    if seen.chip is None or not seen.chip.external_ip or is_internal(seen.spec):
        return None
    return f"https://{seen.chip.external_ip}:{PORT}"


def expires_at(seen: Look) -> datetime | None:
    """Return when it ends, by whichever comes first: the cloud's hand, our label, or the time that
    it was to run.

    The label was written when the chip was asked for, and allows for the wait.
    """
    kept, chip = seen.kept, seen.chip
    if chip is None:
        return None
    label = chip.labels.get(EXPIRES_LABEL, "")
    said = datetime.fromtimestamp(int(label), UTC) if label.isdigit() and int(label) else None
    seconds = kept.blueprint.run_seconds if kept else None
    over = chip.given_at + timedelta(seconds=seconds) if seconds and chip.given_at else None
    return min((moment for moment in (chip.ends_at, said, over) if moment), default=None)


def deployment_record(
    seen: Look,
    state: State,
    since: datetime,
    *,
    phase: Phase | None = None,
    failure: Failure | None = None,
    ended: datetime | None = None,
) -> Deployment:
    """Make the record of a deployment in some state; `ended` is when its VM was no more."""
    spec, chip, site = seen.spec, seen.chip, seen.site
    runs = chip is not None and chip.state is ChipState.RUNNING
    until = ended or (None if chip is None or chip.state in _UNTIL_UNKNOWN else seen.now)
    return Deployment(
        name=seen.name,
        target=site.target.name,
        state=state,
        since=since,
        phase=phase,
        model=spec.model if spec else "not known",
        served_model_name=spec.served_model_name if spec else "not known",
        engine=_engine(seen, spec),
        simulated=site.rehearsed,
        url=url_of(seen),
        revision=_fingerprint(seen, spec),
        instance=(chip.node or chip.id) if chip and runs else None,
        replicas=int(runs),
        created_at=seen.created_at,
        expires_at=expires_at(seen),
        usd_per_hour=usd_per_hour(site, chip),
        usd_so_far=usd_so_far(site, chip, until) if until else None,
        failure=failure,
        resources=resource_names(seen),
    )


def resource_names(seen: Look) -> Mapping[str, str]:
    """Return what stands behind it, in Google's own words; only what is known."""
    told = dict(_of_the_chip(seen.chip, expires_at(seen))) if seen.chip else {}
    if seen.kept:
        tried = [one for one in seen.kept.attempts if one.outcome not in {"", "GIVEN"}]
        told["gave no chip"] = "; ".join(
            f"{one.place}: {one.outcome}" for one in tried[-_PLACES_SAID:]
        )
    return {what: words for what, words in told.items() if words}


def _of_the_chip(chip: Chip, ends: datetime | None) -> Iterator[tuple[str, str]]:
    queued = chip.place.plane == "queued"
    yield "control plane", SAID[chip.place.plane]
    if queued:
        yield "queued resource", f"{chip.id} {chip.said}" if chip.said else ""
        yield "node", f"{chip.node} {chip.node_said}".strip()
    else:
        yield "instance", f"{chip.id} {chip.said}"
    yield "zone", chip.place.zone
    yield "accelerator", chip.accelerator
    yield "provisioning", chip.provisioning
    yield "external ip", chip.external_ip
    yield "internal ip", chip.internal_ip
    yield "health", chip.health
    yield "ends at", f"{ends:%F %H:%M} UTC" if ends else ""
    yield "why", chip.why


def _engine(seen: Look, spec: DeploymentSpec | None) -> str:
    name = "simulated vLLM" if seen.site.rehearsed else "vLLM"
    own = rules().engine
    asked = spec.image if spec and spec.image else own.image
    image = seen.kept.blueprint.container.image if seen.kept else asked
    return f"{name} {container.version_of(image, own.image, own.vllm) or '(version not known)'}"


def _fingerprint(seen: Look, spec: DeploymentSpec | None) -> str:
    label = seen.chip.labels.get(SPEC_LABEL, "") if seen.chip else ""
    return label or (spec.fingerprint if spec else "none")
