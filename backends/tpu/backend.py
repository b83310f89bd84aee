"""Cloud TPU as a target: chips of one kind, in whichever zone has them."""

import functools
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar, Final

from backends.base import (
    DeploymentConfig,
    EngineFacts,
    Hardware,
    LogQuery,
    Prediction,
    QueuedResource,
    Quota,
    Setup,
    World,
    Zone,
)
from backends.common.engine import facts_of, hardware_of, predict
from backends.common.keeper import decide_keeper
from backends.google import cache, secrets
from backends.google.backend import GoogleBackend
from backends.google.clients import SPEC_LABEL
from backends.google.setup import pinned
from backends.lease import Keeper
from backends.lifecycle import CACHE, PendingStore, Removal, Resource, remove, unless_foreign
from backends.tpu import lease, logs, plan, search, status, zones
from backends.tpu import site as tpu
from backends.tpu.compute import ComputePlane
from backends.tpu.queued_resources import QueuedPlane
from backends.tpu.vm import blueprint, places_of, rules
from core import errors
from core.records import Access, Deployment, DeploymentSpec, ModelShape, Plan, Preflight, Target
from core.reply import note
from logs.boot import boot_of
from logs.read import Line
from planner.places import Accelerator, accelerator

_NO_VM_YET: Final = (tpu.ChipState.WAITING, tpu.ChipState.PROVISIONING)


def opened(target: Target, world: World) -> tpu.Site:
    clients, shared = tpu.Clients(target, world), world.folder / "tpu"
    where = clients.project if clients.configured else ""
    return tpu.Site(
        target=target,
        settings=world.settings,
        clients=clients,
        planes={"queued": QueuedPlane(clients), "compute": ComputePlane(clients)},
        records=PendingStore(tpu.Search, shared / target.name, where, locks=shared),
        folder=shared / target.name,
        shared=shared,
        inventory=_inventory(world.folder, world.settings.google_cloud_project),
    )


@functools.cache
def _inventory(_folder: Path, _project: str | None) -> tpu.Inventory:
    return tpu.Inventory()


_NO_CHIP: Final = frozenset(
    (errors.NoCapacity.code, errors.QuotaExceeded.code, errors.ZoneRefused.code)
)
"""Why a place gives none, to this project or to anybody."""


class TpuBackend(GoogleBackend):
    """Chips of one kind, given in one way, in whichever zone has them."""

    site: tpu.Site
    waits_in: ClassVar[frozenset[str]] = status.WAITS_IN
    apply_seconds = 6.0
    """For the first steps of a search; the next ones are taken by whoever looks."""
    go_on_seconds = 6.0

    def __init__(self, target: Target, world: World) -> None:
        self.stand_on(opened(target, world))

    def stand_on(self, site: tpu.Site) -> None:
        self.site, self.target, self.pending = site, site.target, site.records
        self.reads_only = site.settings.read_only

    async def wanted(self, spec: DeploymentSpec, model: ModelShape) -> Sequence[Resource]:
        """Return what a VM stands on, and last it at the first place that is asked."""
        _reads, tokens = await secrets.hub_token(self.site, spec)
        made = blueprint(self.site, spec, model)
        below = await plan.asked_ground(self.site, made)
        return (*tokens, *below, plan.chip_at(self.site, made, made.places[0]))

    @property
    def own_engine(self) -> tuple[str, str]:
        return rules().engine.vllm, rules().engine.image

    def owned(self, name: str) -> Sequence[Resource]:
        kept = self.pending.get(name)
        what = f"its chip: the queued resource {tpu.vm_id(name)} with its node, or that instance"
        chip = search.chips_at(self.site, name, kept.left if kept else {}, what)
        return plan.owned(self.site, name, chip)

    def remaining(self, _name: str, _spec: DeploymentSpec | None = None) -> Sequence[Resource]:
        """Return the Hub's token, which other deployments may read."""
        return (secrets.stored_token(self.site),)

    def shared(self) -> Sequence[Resource]:
        return plan.shared(self.site)

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        return plan.make_plan(self.site, spec, model)

    async def check(self, wanted: Plan, /) -> Preflight:
        return await plan.preflight(self.site, wanted)

    async def apply(self, wanted: Plan, /) -> Deployment:
        """Make it so, as far as can be done at once; neither a chip nor a boot is waited for.

        What stands already is left as it is, what is under way goes on, what failed is tried anew.
        What stands with another spec is deleted first, and seen to be gone.

        Raises:
            NotOurs: Something else has that name; it is left alone.
            Busy: Another server on this machine is at it.
            CloudError: Google refused; what this call made is removed again.
        """
        site, name = self.site, wanted.spec.name
        async with self.pending.locked(name):
            before, there = self.pending.get(name), await self._there(name)
            token, tokens = await secrets.hub_token(site, wanted.spec)
            store = await cache.usable(site, wanted.spec)
            made = blueprint(site, wanted.spec, wanted.model, hf_token=token, store=store)
            keeper: Keeper = "server"
            if lease.is_meant(site, made):
                keeper = await decide_keeper(made.spec, functools.partial(lease.means, site, name))
            if await self._is_under_way(wanted.model, made, before, there):
                await self._hold(name, made, keeper)
            else:
                kept = await self._begin(wanted.model, made, before, there)
                kept = kept.model_copy(update={"keeper": keeper})
                self.pending.keep(kept)
                try:
                    below = (*tokens, *await plan.asked_ground(site, made))
                    kept = await search.carry_on(site, kept, below, seconds=self.apply_seconds)
                    await self._end(kept)
                except errors.OpsError as exc:
                    self._pass_over(exc, name, before)
                self._raise_refusal(name)
        return await self.describe(name)

    async def refuse_name(self, name: str) -> None:
        await self._there(name)

    async def refuse_deploy(self, spec: DeploymentSpec) -> Sequence[str]:
        """Refuse a name that something else has, zones without such chips, an end nobody keeps."""
        there = await self._there(spec.name)
        flex = self.site.provisioning == "flex-start"
        if spec.lease == "cloud" and spec.control_plane != "compute" and not flex:
            await decide_keeper(spec, functools.partial(lease.means, self.site, spec.name))
        if any(one.state.alive for one in there):
            return ()
        return await zones.refuse_without_chips(self.site, places_of(self.site, spec))

    async def can_extend(self, name: str) -> bool:
        """Return whether it is of the queue; others' VMs were made with their end."""
        chip = await search.chip_of(self.site, name)
        return chip is not None and lease.is_kept(self.site, chip.place)

    async def extend(self, name: str, *, ttl_minutes: int) -> Deployment:
        """Let what the queue gave end so long from now.

        Raises:
            Unsupported: Google cannot end it.
            InvalidArgument: It has no chip yet, or its max_usd is used up.
        """
        async with self.pending.locked(name):
            chip = await search.chip_of(self.site, name)
            if chip is None or chip.state is not tpu.ChipState.RUNNING:
                raise errors.InvalidArgument(
                    f"{name} has no chip: its time begins with one.", fix="Call status_vllm."
                )
            kept = search.record_of(self.site, name, chip)
            spec = kept.spec if kept else search.spec_in(chip)
            ends = await lease.extend(self.site, chip, spec, ttl_minutes)
            if kept:
                self.pending.keep(kept.model_copy(update={"lease_ends": ends, "keeper": "cloud"}))
        return await self.describe(name)

    async def _hold(self, name: str, made: tpu.Blueprint, keeper: Keeper) -> None:
        """Make a lease of what stands whole, where Google is to keep it."""
        kept = self.pending.get(name)
        if kept is None or keeper == "server" or not made.run_seconds or not kept.stands:
            return
        if kept.keeper != "cloud":
            self.pending.keep(kept := kept.model_copy(update={"keeper": keeper}))
        chip = await search.chip_of(self.site, name)
        if chip is None or not lease.is_kept(self.site, chip.place):
            return
        held = await lease.read(self.site, chip)
        if held is None or held.lacks:
            end = (chip.given_at or self.site.now()) + timedelta(seconds=made.run_seconds)
            if held and held.ends and held.ends > self.site.now():
                end = held.ends
            ends = await lease.make(self.site, name, chip.place.zone, end)
        else:
            assert held.ends
            ends = int(held.ends.timestamp())
        self.pending.keep(kept.model_copy(update={"lease_ends": ends}))

    async def refuse_start(self, name: str) -> None:
        """Refuse always: a TPU that was stopped cannot be counted on to start."""
        raise errors.Unsupported(
            f"{name} cannot be stopped and started: it is on a TPU.",
            fix="Call destroy_vllm, which ends the bill, and deploy it again when it is needed.",
            next_steps=(
                errors.NextStep("destroy_vllm", {"target": self.target.name, "name": name}),
            ),
        )

    async def refuse_scale(self, name: str, minimum: int, maximum: int) -> None:
        """Refuse always; a TPU has no `scale` either."""
        raise errors.Unsupported(
            f"{name} cannot have {minimum} to {maximum} replicas: a deployment on TPUs is one VM.",
            fix="Deploy a second one under another name, or on a target with more chips.",
            next_steps=(errors.NextStep("list_targets"),),
        )

    async def describe(self, name: str) -> Deployment:
        return await status.describe(self.site, name)

    async def list(self) -> Sequence[Deployment]:
        """Return every one of this target, in whichever zone; none where no project is named."""
        return await status.list_deployments(self.site) if self.site.clients.configured else ()

    async def end(self, name: str) -> str:
        """Delete what is overdue: a TPU that is merely stopped cannot be counted on to start."""
        deleted = await self.delete(name)
        if not deleted.gone:
            return "it is being deleted, which Google may take ten minutes for."
        return "it was deleted: nothing of it bills any more." if deleted.removed else "it is gone."

    async def access(self, name: str) -> Access:
        return await status.access_to(self.site, name)

    def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        return logs.log_pages(self.site, name, query)

    async def spec(self, name: str) -> DeploymentSpec | None:
        return await search.spec_of(self.site, name)

    async def engine_facts(self, name: str) -> EngineFacts:
        chip = await search.chip_of(self.site, name)
        if chip is None:
            return EngineFacts()
        return facts_of(boot_of((await logs.read_newest_boot(self.site, chip)).boot))

    async def hardware(self, _name: str, /) -> Hardware:
        return hardware_of(self.site.offered)

    async def predicted(self, name: str) -> Prediction | None:
        spec = await search.spec_of(self.site, name)
        version = status.version_of(spec.image if spec else None)
        return await predict(spec, accelerator(self.site.offered.accelerator), version)

    def hardware_known(self) -> tuple[Accelerator, int] | None:
        return accelerator(self.site.offered.accelerator), self.site.offered.count

    async def config(self, name: str) -> DeploymentConfig:
        return await plan.config_of(self.site, name)

    async def set_up(self) -> Setup:
        made = await super().set_up()
        self.site.inventory.forget("limits")  # what could not be read a moment ago now can
        return made

    async def quotas(self) -> Sequence[Quota]:
        return await zones.read_quotas(self.site)

    async def zones(self) -> Sequence[Zone]:
        return await zones.list_zones(self.site)

    async def queued_resources(self) -> Sequence[QueuedResource]:
        return await search.list_queue(self.site)

    async def remove_leftover(self, resource: str, kept: Collection[str]) -> bool:
        """Remove it while nobody here asks for a chip under the same name."""
        name = resource.rpartition("/")[2].removeprefix(tpu.vm_id(""))
        async with self.site.records.locked(name):
            gone = await super().remove_leftover(resource, kept)
        self.site.inventory.forget()
        return gone

    async def _there(self, name: str) -> Sequence[tpu.Chip]:
        """Return what stands under a name.

        Raises:
            NotOurs: It was not made here, or is another target's; it is left alone.
            CloudError: A control plane cannot be asked.
        """
        kept = self.pending.get(name)
        found = await search.find_named(self.site, name, kept.left if kept else ())
        search.refuse_foreign(self.site, name, found)
        return found

    async def _is_under_way(
        self,
        model: ModelShape,
        made: tpu.Blueprint,
        before: tpu.Search | None,
        there: Sequence[tpu.Chip],
    ) -> bool:
        """Whether it is there or under way; what another machine made is gone on with."""
        if before is not None and before.deleting:
            return False
        same = before and before.blueprint.labels[SPEC_LABEL] == made.labels[SPEC_LABEL]
        if before is not None and same and not before.at_rest:
            return True
        living = [one for one in there if one.state.alive]
        if len(living) != 1 or not search.is_wanted(self.site, made, living[0]):
            return False
        (chip,) = living
        if before is None or not same or before.placed != chip.place:
            had = chip.state not in _NO_VM_YET
            said = {"outcome": tpu.GIVEN} if had else {"taken": True, "returned": False}
            attempt = tpu.Attempt(place=chip.place, since=chip.created_at, **said)
            kept = self._search(model, made, chip.created_at)
            more = {"attempts": (attempt,), "placed": chip.place if had else None}
            self.pending.keep(kept.model_copy(update={"grounded": True, **more}))
        for leftover in (one for one in there if one is not chip):
            note(
                f"{leftover.id} in {leftover.place} is {leftover.said}; it holds quota until it is"
                " deleted."
            )
        return True

    async def _begin(
        self,
        model: ModelShape,
        made: tpu.Blueprint,
        before: tpu.Search | None,
        there: Sequence[tpu.Chip],
    ) -> tpu.Search:
        """Write a new search down, with the image by its digest and what is to go first."""
        site, name = self.site, made.spec.name
        image = await pinned(site, made.container.image)
        if image is None:
            note(f"{made.container.image} is not pinned: its registry cannot be asked.")
        if not made.opened:  # an earlier deployment of the name may have been
            rule = unless_foreign(plan.owned_rule(site, name))
            await remove([rule], seconds=self.delete_seconds)
        container = made.container.model_copy(update={"image": image or made.container.image})
        made = made.model_copy(update={"container": container})
        known = before.left if before else {}
        more = {
            "again": bool(there) or (before is not None and (before.again or bool(before.placed))),
            "replacing": tuple(dict.fromkeys((*known, *(one.place for one in there)))),
            "late": _latest(known),
        }
        kept = self._search(model, made, site.now()).model_copy(update=more)
        self.pending.keep(kept)
        return kept

    def _search(self, model: ModelShape, made: tpu.Blueprint, since: datetime) -> tpu.Search:
        where = self.pending.where
        return tpu.Search(spec=made.spec, model=model, where=where, since=since, blueprint=made)

    def _pass_over(self, exc: errors.OpsError, name: str, before: tpu.Search | None) -> None:
        """Leave to the next look what may work later; else write down why it goes on no more.

        Raises:
            OpsError: Not even the ground is there: it is as it was before.
        """
        kept = self.pending.get(name)
        if kept is None or isinstance(exc, errors.NotAuthenticated | errors.HostError):
            raise exc
        if not kept.grounded:
            if before is None:
                self.pending.forget(name)
            else:
                self.pending.keep(before)
            raise exc
        if exc.retryable:
            note(f"{name} goes on later. {exc.summary} {exc.cause}".strip())
        else:
            self.give_up(kept, exc)

    def _raise_refusal(self, name: str) -> None:
        """Raise what stands against it everywhere; that no place gives one is a state to tell."""
        kept = self.pending.get(name)
        failure = kept.failure if kept else None
        if kept is None or failure is None or kept.left or failure.code in _NO_CHIP:
            return
        self.pending.forget(name)
        kinds = (kind for kind in vars(errors).values() if isinstance(kind, type))
        coded = (
            one for one in kinds if issubclass(one, errors.CloudError) and one.code == failure.code
        )
        kind = next(coded, errors.CloudError)
        raise kind("Google refused to give a chip.", cause=failure.cause, fix=failure.fix)

    async def _advance(self, asked: tpu.Search) -> None:
        below = () if asked.grounded else (await self.wanted(asked.spec, asked.model))[:-1]
        kept = await search.carry_on(self.site, asked, below, seconds=self.go_on_seconds)
        await self._end(kept)

    async def _end(self, kept: tpu.Search) -> None:
        """Say why no place gave a chip, once what was made for it is taken away."""
        if not kept.at_rest or kept.placed or kept.failure:
            return
        stays = {CACHE, *(["key"] if kept.again else [])}
        own = [one for one in self.owned(kept.spec.name) if one.name not in stays]
        await remove([unless_foreign(one) for one in own], seconds=self.delete_seconds)
        failure = search.search_failure(kept)
        self.pending.keep(kept.model_copy(update={"failure": failure}))

    async def _remove(self, name: str, seconds: float, *, keep_cache: bool) -> Removal:
        """Delete chips by force wherever they are, all of them, then key and rule.

        Raises:
            NotOurs: What has the deployment's id was not made here; nothing is touched.
        """
        site, kept, title = self.site, self.pending.get(name), "its chip"
        places: Mapping[tpu.Place, datetime | None] = kept.left if kept else {}
        if not (kept and kept.replacing):  # else it is known already where all of it is
            there = await search.find_named(site, name, places, or_there=True)
            mine = [one for one in there if search.is_ours(site, name, one)]
            if kept is None and not mine:
                if any(one.ours for one in there) or search.other_target_of(site, name):
                    return Removal(gone=True, removed=())
                if there:
                    raise search.not_ours_error(there[0], fix="Delete it where it was made.")
            for one in there:
                if not one.ours:
                    note(f"{one.id} in {one.place} was not made here; it is left alone.")
            title = ", ".join(map(_part, mine)) or title
            places = {**dict.fromkeys(one.place for one in mine), **places}
        if kept is not None:  # nothing of it is asked for any more
            said = {"replacing": tuple(places), "late": _latest(places)}
            self.pending.keep(kept.model_copy(update=said))
        chip = search.chips_at(site, name, places, title)
        every = plan.owned(site, name, chip)
        own = [unless_foreign(one) for one in every if not (keep_cache and one.name == CACHE)]
        removal = await remove(own, seconds=seconds)
        if not removal.gone and kept is None:  # nobody remembers that the rest is to go
            await remove(own[:-1], seconds=seconds)
        if removal.gone:
            self.pending.forget(name)
        return removal

    def left_of(self, pending: tpu.Search) -> str:
        """Say what may be there, and bill, of one that goes on no more."""
        left = ", ".join(map(str, pending.left))
        what = f"What it has in {left} may be there still, and bill: " if left else ""
        return f"{what or 'Then '}call destroy_vllm, or deploy again."


def _latest(asked: Mapping[tpu.Place, datetime | None]) -> datetime | None:
    """Return when something was asked for last without an answer."""
    return max((at for at in asked.values() if at), default=None)


def _part(chip: tpu.Chip) -> str:
    if chip.state is tpu.ChipState.WAITING:
        return f"its request for a chip in {chip.place}"
    leftover = ", which had no chip any more" if chip.state.leftover else ""
    what = "queued resource with its node" if chip.place.plane == "queued" else "instance"
    where = chip.place.zone if chip.place.plane == "queued" else chip.place
    return f"its {what} in {where}{leftover}"
