"""Google Cloud Run as a target: one service for each deployment, and what it stands on."""

import re
import shlex
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar, Final

import anyio
from google.cloud.run_v2 import Service

from backends import container
from backends import lease as leases
from backends.base import (
    BootBudget,
    DeploymentConfig,
    EngineFacts,
    Hardware,
    LogQuery,
    Prediction,
    Quota,
    RegisteredModel,
    StoredModel,
    World,
)
from backends.cloud_run import access, checks, status, storage
from backends.cloud_run import service as run
from backends.cloud_run.build import BUILDING, image_of_build, remaining_image, unfinished_build
from backends.cloud_run.container import gpu_of, place_of
from backends.cloud_run.site import Clients, IdentityTokens, Site
from backends.common.engine import facts_of, hardware_of, highest_usd_per_hour, predict
from backends.common.keeper import decide_keeper, plan_words
from backends.common.preflight import always_on, by_schedule, price_doubts, tagged
from backends.compile_cache import without_cache
from backends.google import cache, lease, schedule, secrets
from backends.google.backend import GoogleBackend
from backends.google.buckets import looking_into, read_location, usd_per_month
from backends.google.clients import HF_SECRET, SPEC_LABEL, as_sent, rest_command
from backends.google.errors import strictly, writing
from backends.google.leftovers import size_of
from backends.google.setup import SET_UP, pinned
from backends.lease import Lease
from backends.lifecycle import (
    Pending,
    PendingStore,
    Resource,
    Status,
    absence,
    advance,
    not_found,
    spec_lost,
    steps,
    what_is_left,
)
from core.errors import (
    CloudError,
    ConcurrentChange,
    InvalidArgument,
    NotConfigured,
    OpsError,
)
from core.records import (
    NAME_PATTERN,
    Access,
    Deleted,
    Deployment,
    DeploymentSpec,
    ModelShape,
    Phase,
    Plan,
    Preflight,
    Target,
    lease_words,
)
from core.reply import note
from logs.boot import boot_of
from logs.read import Line
from planner.memory import foresee
from planner.model import read_model
from planner.places import Accelerator, accelerator
from planner.price import Price, price

_SIZE_SECONDS: Final = 8.0


class CloudRunBackend(GoogleBackend):
    """One accelerator in one region of one project."""

    site: Site
    beside_engine: ClassVar[frozenset[str]] = leases.LIMITS | {
        "schedule",
        "min_replicas",
        "max_replicas",
    }
    waits_in: ClassVar[frozenset[str]] = frozenset({BUILDING, status.SPREADING, status.PREPARING})

    def __init__(self, target: Target, world: World) -> None:
        clients = Clients(target, world)
        self.target, self.reads_only = target, world.settings.read_only
        self.site = Site(
            target=target,
            settings=world.settings,
            clients=clients,
            identity=IdentityTokens(clients, world.settings.google_service_account),
        )
        where = clients.parent if clients.configured else ""
        self.pending = PendingStore(Pending, world.folder / "cloud_run" / target.name, where)

    @property
    def own_engine(self) -> tuple[str, str]:
        gpu = gpu_of(self.target)
        return gpu.vllm, gpu.image

    async def wanted(self, spec: DeploymentSpec, model: ModelShape) -> Sequence[Resource]:
        """Return token, key and grant, or image; then the service, and who may call it."""
        now = await run.refuse_foreign(self.site, spec.name)
        reads_token, tokens = await secrets.hub_token(self.site, spec)
        anew = now is None or _is_outdated(now, spec)
        store = await cache.usable(self.site, spec) if now is None or anew else run.store_of(now)
        drawn = run.blueprint(self.site, spec, model, hf_token=reads_token, store=store)
        held = await self._wanted_lease(drawn, now, anew=anew)
        change = _change(now, spec, held) if now and not anew else None
        if anew and (spec.engine == "vllm" or spec.image):
            await pinned(self.site, drawn.container.image)  # or it is refused, before all
        rollout = run.Rollout(
            self.site, drawn, now=now, change=change, done=not (anew or change), lease=held
        )
        keeping, first = self._lease_steps(spec, held, leases.read(now.labels) if now else None)
        *before, service = self._resources(drawn, rollout)
        service = replace(
            service, after=(*service.after, "schedule", *(["lease"] if first else []))
        )
        if not first:
            keeping = tuple(replace(one, after=("service",)) for one in keeping)
        times = await self._schedule_resources(spec, now)
        granted = not spec.schedule or any(one.name == "lease grant" for one in keeping)
        grant = () if granted else (self._grant(spec.name, forced=True),)
        # The service stands last of those that fail: where it is there, nothing is taken back.
        return (
            *(*tokens, *times, *keeping, *before, service, *grant),
            *access.invoker(self.site, spec),
        )

    async def _schedule_resources(
        self, spec: DeploymentSpec, now: Service | None
    ) -> tuple[Resource, ...]:
        """Return the jobs of its schedule, none of which may be left where it has none any more.

        They come before the service: what would wake it goes while it still says so.
        """
        said = run.read_spec(now) if now else None
        if spec.schedule and not (said and said.schedule):
            await self._require_jobs(spec)
        had = said and said.schedule if now else await schedule.are_left(self.site, spec.name)
        return (schedule.resource(self.site, spec),) if spec.schedule or had else ()

    async def _require_jobs(self, spec: DeploymentSpec) -> None:
        if lacking := await lease.missing(self.site, spec.name, schedule.LIST):
            raise NotConfigured(
                f"Google cannot keep the schedule of {spec.name}; missing: {'; '.join(lacking)}."
                " Nothing was made.",
                fix=f"{SET_UP} Or leave schedule out: nothing else would keep it.",
            )

    async def _wanted_lease(
        self, drawn: run.Blueprint, now: Service | None, *, anew: bool
    ) -> Lease | None:
        """Return when it is to end, and who ends it; a start, or a new engine, begins its time.

        Raises:
            NotConfigured: The cloud is to end it, and cannot.
        """
        spec, before = drawn.spec, leases.read(now.labels) if now else None
        said = run.read_spec(now) if now else None
        begins = now is None or anew or run.is_stopped(now)
        held = leases.wanted_lease(before, said, spec, self._hourly(drawn), anew=begins)
        if held is None:
            return None
        if spec.lease != "server" and before and before.keeper == "cloud" and not anew:
            return held.model_copy(update={"keeper": "cloud"})
        keeper = await decide_keeper(spec, partial(lease.means, self.site, spec.name))
        return held.model_copy(update={"keeper": keeper})

    def _hourly(self, drawn: run.Blueprint) -> float | None:
        """Return the most that an instance may cost an hour, by any source."""
        return highest_usd_per_hour(self.target, place_of(self.target), drawn.instance)

    def _lease_steps(
        self, spec: DeploymentSpec, held: Lease | None, before: Lease | None
    ) -> tuple[tuple[Resource, ...], bool]:
        """Return what keeps a lease in the cloud, and whether its job comes before the service.

        It does where nothing ends what is made yet, or where it ends sooner: whoever dies between
        the two leaves nothing that runs for longer than it says.
        """
        name = spec.name
        if held is None or held.keeper == "server":
            was = before is not None and before.keeper == "cloud"
            return ((absence(self._owned_job(name)),) if was else ()), was
        first = before is None or before.keeper == "server" or held.ends <= before.ends
        forced = spec.lease == "cloud" or bool(spec.schedule)
        return self._lease_resources(name, held.ends, forced=forced), first

    def _lease_resources(
        self, name: str, ends: int | None, *, forced: bool
    ) -> tuple[Resource, ...]:
        return lease.job(self.site, name, ends), self._grant(name, forced=forced)

    def _grant(self, name: str, *, forced: bool) -> Resource:
        thing = f"{lease.parent_of(self.site)}/services/{name}"
        return lease.grant(self.site, name, thing, self.site.clients.run, forced=forced)

    def _resources(
        self, drawn: run.Blueprint, rollout: run.Rollout | None = None
    ) -> tuple[Resource, ...]:
        before: tuple[Resource, ...] = ()
        if drawn.spec.engine == "vllm":
            before = secrets.key(self.site, drawn.name)
        elif not drawn.spec.image:
            before = (image_of_build(self.site, drawn.spec, project=drawn.project),)
        if drawn.store:
            bucket = cache.bucket_in(drawn.store)
            before = (*before, cache.grant(self.site, drawn.name, bucket))
        rollout, sent = rollout or run.Rollout(self.site, drawn), as_sent(run.service_of(drawn))
        url = f"https://run.googleapis.com/v2/{drawn.parent}/services/{drawn.name}"
        service = Resource(
            name="service",
            title=f"the service {drawn.name} in {drawn.region}",
            body={"parent": drawn.parent, "serviceId": drawn.name, "service": sent},
            get=rollout.get,
            put=rollout.put,
            status=rollout.status,
            after=tuple(one.name for one in before),
            command=rest_command(f"{url}?allowMissing=true", sent, method="PATCH"),
        )
        return (*before, service)

    def owned(self, name: str) -> Sequence[Resource]:
        service = Resource(
            name="service",
            title=f"the service {name} in {self.site.clients.region} with every revision",
            get=lambda: run.find_service(self.site, name),
            delete=lambda: self._delete_service(name),
            status=lambda found: Status.DELETING if found.delete_time else Status.READY,
            is_ours=run.is_ours,
        )

        async def leased() -> bool:
            found = await run.find_service(self.site, name)
            held = leases.read(found.labels) if found else None
            # Where there is no service, a server may have died once it had made the job.
            return found is None or (held is not None and held.keeper == "cloud")

        async def scheduled() -> bool:
            found = await run.find_service(self.site, name)
            spec = run.read_spec(found) if found else None
            return spec is None or spec.schedule is not None

        lock, known = anyio.Lock(), list[str]()

        async def bucket() -> str:
            """Return where its cache may lie, as what is there said when it was looked at first."""
            async with lock:
                if not known:
                    found, asked = await run.find_service(self.site, name), self.pending.get(name)
                    said = run.read_spec(found) if found else asked and asked.spec
                    own = cache.bucket_in(run.store_of(found)) if found else ""
                    known.append(own or cache.bucket_of(self.site, said))
            return known[0]

        right, carried = cache.owned(self.site, name, bucket)
        return (
            carried,
            secrets.owned_key(self.site, name),
            unfinished_build(self.site, name),
            schedule.owned(self.site, name, scheduled),
            self._owned_job(name, leased),
            right,
            service,
        )

    def _owned_job(
        self, name: str, leased: Callable[[], Awaitable[bool]] | None = None
    ) -> Resource:
        return lease.owned(lease.job(self.site, name, None), leased)

    async def _delete_service(self, name: str) -> None:
        client = await self.site.clients.run()
        with strictly(f"delete the service {name}"):
            await client.delete_service(name=run.service_path(self.site, name), **writing())

    def remaining(self, name: str, spec: DeploymentSpec | None = None) -> Sequence[Resource]:
        """Return a built image, weights in a bucket, and the token that others may read."""
        weights = (spec.weights if spec else None) or ""
        image, token = remaining_image(self.site, name), secrets.stored_token(self.site)
        if spec is None:
            return (image, token, Resource(name="weights", title="weights in buckets", get=_none))
        if spec.engine == "ollama":
            return (image,)
        return (self._weights_resource(weights),) if weights.startswith("gs://") else (token,)

    def _weights_resource(self, weights: str) -> Resource:
        bucket, under = storage.parse_bucket(self.site, weights)

        async def get() -> list[float]:
            """Return the folder's size in GB and its price, nothing where it cannot be told."""
            try:
                with (
                    anyio.move_on_after(_SIZE_SECONDS),
                    looking_into(bucket, "add up its files"),
                ):
                    files = await storage.list_objects(self.site, bucket, under)
                    size = sum(file.size_bytes for file in files.values())
                    there = (await self.site.clients.storage()).bucket(bucket)
                    await read_location(there)
                    return [size / 1e9, usd_per_month(there, size)]
            except OpsError as exc:
                note(f"How large {weights} is, is not known: {exc.summary}")
            return []

        def bill(found: list[float]) -> tuple[str, float]:
            known = f"{found[0]:.1f} GB" if found else "its size is not known"
            return f"the weights in {weights} ({known})", round(sum(found[1:]), 2)

        return Resource(
            name="weights",
            title=f"the weights in {weights}",
            get=get,
            bill=bill,
            how_to_remove=f"gcloud storage rm --recursive {shlex.quote(weights)}",
        )

    def shared(self) -> Sequence[Resource]:
        return checks.shared(self.site)

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        """Say which key, grant, image and service would be made; nothing is asked of anybody."""
        drawn, memory = run.blueprint(self.site, spec, model), None
        costs = price(place_of(self.target), drawn.instance)
        time, job, grant = lease_words(spec, self._hourly(drawn)), [], []
        if time and spec.lease != "server":
            job, grant = ([one] for one in self._lease_resources(spec.name, None, forced=False))
        if spec.schedule:
            job = [schedule.resource(self.site, spec), *job]
            grant = [self._grant(spec.name, forced=True)]
        if spec.engine == "vllm":
            version = None if spec.image else gpu_of(self.target).vllm
            memory = foresee(
                spec, model, self.hardware_known()[0], vllm_version=version, pinned=True
            )
        return Plan(
            spec=spec,
            target=self.target,
            model=model,
            steps=steps((*job, *self._resources(drawn), *grant)),
            usd_per_hour=costs.usd_per_hour,
            usd_per_hour_highest=costs.usd_per_hour_highest,
            memory=memory,
            warnings=(
                *_warnings(drawn, costs),
                *by_schedule(spec, costs, idle_minutes=run.IDLE_MINUTES),
                *_lease_warnings(spec, time),
                *_cache_warnings(drawn),
            ),
        )

    async def check(self, plan: Plan) -> Preflight:
        return await checks.preflight(self.site, plan)

    async def refuse_name(self, name: str) -> None:
        await run.refuse_foreign(self.site, name)

    async def refuse_deploy(self, spec: DeploymentSpec) -> Sequence[str]:
        """Refuse a name that another service has, what its owner could not call, and no quota."""
        is_new = await run.refuse_foreign(self.site, spec.name) is None
        if is_new and spec.engine == "vllm":
            await secrets.refuse_elsewhere(self.site, spec.name)
        if is_new:
            await checks.refuse_without_quota(self.site)
        await access.refuse_uncallable(self.site, spec)
        if spec.lease == "cloud":
            await decide_keeper(spec, partial(lease.means, self.site, spec.name))
        if spec.schedule:
            await self._require_jobs(spec)
        return ()

    async def refuse_start(self, name: str) -> None:
        await run.get_service(self.site, name)

    async def refuse_scale(self, name: str, minimum: int, maximum: int) -> None:
        """Refuse what is not there, or more than its max_usd pays; Google alone knows the rest."""
        service = await run.get_service(self.site, name)
        spec = run.read_spec(service)
        if spec and maximum:
            count = {"min_replicas": minimum, "max_replicas": maximum}
            run.refuse_idle(spec.model_copy(update=count))
            self._rescaled(service, spec, count)

    def _rescaled(
        self, service: Service, spec: DeploymentSpec, count: Mapping[str, int]
    ) -> Lease | None:
        """Return its lease with other replicas; a start begins it. Raises as `rescaled` does."""
        if run.is_stopped(service):
            return self._renewed_lease(service, spec.model_copy(update=count))
        held = leases.read(service.labels)
        return held and held.rescaled(spec.max_replicas, count["max_replicas"])

    async def go_on(self, name: str) -> None:
        """Take the next step; one whose account may not read its key yet gets another revision."""
        if self.reads_only:
            return
        service = await run.find_service(self.site, name)
        ours = service is not None and run.target_of(service) == self.target.name
        if service is not None and ours and status.progress(service) == "failed":
            await self._try_again(name, service)
        await super().go_on(name)

    async def _try_again(self, name: str, service: Service) -> None:
        """Make another revision of the same template where a grant has had its time to spread."""
        revision = await run.find_revision(self.site, run.newest_revision(service))
        wait = status.seconds_to_next_try(service, revision, datetime.now(UTC))
        if revision is None or wait is None or wait > 0:
            return
        tried = str(status.tries(revision) + 1)
        change = run.Change(
            f"try {name} again",
            lambda one: one.template.labels.update({status.TRY_LABEL: tried}),
            lambda one: one.template.labels.get(status.TRY_LABEL) == tried,
        )
        with suppress(ConcurrentChange):  # another server was first
            await run.change_service(self.site, name, change, seconds=0)

    async def describe(self, name: str) -> Deployment:
        service, pending = await run.find_service(self.site, name), self.pending.get(name)
        if service is not None or not re.fullmatch(NAME_PATTERN, name):
            found = await status.read_status(self.site, run.own_service(self.site, name, service))
            if found.phase and pending and not pending.is_over:  # a step is left beside the boot
                phase = Phase(name=status.PREPARING, since=pending.since)
                return found.model_copy(update={"phase": phase})
            return found
        if pending:
            return status.before_service(self.site, pending)
        missing = not_found(name, self.target)
        jobs = self._owned_job(name), schedule.owned(self.site, name)
        missing.fix += await what_is_left(*jobs)
        raise missing

    async def list(self) -> Sequence[Deployment]:
        if not self.site.clients.configured:
            return ()
        found = await status.list_deployments(self.site)
        for pending in self.pending.all():
            found.setdefault(pending.spec.name, status.before_service(self.site, pending))
        return tuple(found[name] for name in sorted(found))

    async def delete(self, name: str, *, keep_cache: bool = False) -> Deleted:
        """Delete service, build and key; another target's deployment is not here."""
        service = await run.find_service(self.site, name)
        if (
            service is not None
            and run.is_ours(service)
            and run.target_of(service) != self.target.name
        ):
            return Deleted(name=name, target=self.target.name, gone=True)
        return await super().delete(name, keep_cache=keep_cache)

    async def purge(self, name: str) -> tuple[str, ...]:
        """Delete the image that was built for a deployment; while its service runs, nothing."""
        if await run.find_service(self.site, name) is not None:
            note(f"{name} is still there: its image is kept.")
            return ()
        return await super().purge(name)

    async def access(self, name: str) -> Access:
        return await access.access(self.site, name)

    async def scale(self, name: str, *, min_replicas: int, max_replicas: int) -> Deployment:
        """Change how many instances there may be; more than it was made for boots a revision."""
        if max_replicas < 1:  # which would mean Google's default of 100
            return await self.stop(name)
        service = await run.get_service(self.site, name)
        spec, held = run.read_spec(service), leases.read(service.labels)
        count = {"min_replicas": min_replicas, "max_replicas": max_replicas}
        if spec:
            held = self._rescaled(service, spec, count)
            spec = spec.model_copy(update=count)
        least = spec.least_replicas if spec else min_replicas
        what = f"let {name} have {min_replicas} to {max_replicas} instances"
        change = run.limits_change(what, held, (least, max_replicas), changed=count)
        return await self._apply_change(name, change, held, spec)

    async def extend(self, name: str, *, ttl_minutes: int) -> Deployment:
        """Let its time end so long from now: its label first, then its job."""
        service = await run.get_service(self.site, name)
        before, spec = leases.read(service.labels), run.read_spec(service)
        if run.is_stopped(service):
            raise InvalidArgument(
                f"{name} is stopped: its time begins when it is started.", fix="Call start_vllm."
            )
        keeper = before.keeper if before else "server"
        if spec and keeper == "server":
            keeper = await decide_keeper(spec, partial(lease.means, self.site, name))
        held = leases.extended_lease(before, ttl_minutes, keeper)
        what, said = f"let {name} end at another time", {"ttl_minutes": ttl_minutes}
        change = run.limits_change(what, held, None, changed=said)
        return await self._apply_change(name, change, held)

    def _renewed_lease(self, service: Service, spec: DeploymentSpec) -> Lease | None:
        """Return the lease of one that is started again, kept as before."""
        before = leases.read(service.labels)
        keeper = before.keeper if before else "server"
        hourly = highest_usd_per_hour(self.target, place_of(self.target), size_of(service))
        return leases.new_lease(spec, hourly, keeper)

    async def stop(self, name: str) -> Deployment:
        """Set the service to no instance by hand, so that no request wakes it."""
        return await self._apply_change(name, run.stop_change(name))

    async def start(self, name: str) -> Deployment:
        service = await run.get_service(self.site, name)
        spec, held = run.read_spec(service), leases.read(service.labels)
        count: tuple[int, int] | None = None
        if run.is_stopped(service):
            count = 0, service.template.scaling.max_instance_count
        if spec and count:
            held = self._renewed_lease(service, spec)
            count = spec.least_replicas, spec.max_replicas
        change = run.limits_change(f"start {name}", held, count)
        return await self._apply_change(name, change, held, spec)

    async def _apply_change(
        self,
        name: str,
        change: run.Change,
        held: Lease | None = None,
        spec: DeploymentSpec | None = None,
    ) -> Deployment:
        """Change it and then the jobs of its lease and schedule; what comes back was read back."""
        await run.change_service(self.site, name, change)
        ends = held.ends if held and held.keeper == "cloud" else None
        kept = [schedule.resource(self.site, spec)] if spec and spec.schedule else []
        kept += self._lease_resources(name, ends, forced=True) if ends else []
        try:
            shared = [replace(one, scope="shared") for one in kept]
            await advance(shared, seconds=self.apply_seconds)
        except CloudError as exc:  # what is read back warns of it as well
            note(f"Its jobs were not changed: {exc.summary} {exc.cause}".strip())
        return await self.describe(name)

    async def wake(self, name: str) -> None:
        await access.wake(self.site, name)

    def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        return status.log_pages(self.site, name, query)

    async def spec(self, name: str) -> DeploymentSpec | None:
        return run.read_spec(await run.get_service(self.site, name))

    async def boot_budget(self, name: str, _model: ModelShape) -> BootBudget:
        return status.boot_budget(self.site, await run.get_service(self.site, name))

    async def engine_facts(self, name: str) -> EngineFacts:
        """Return what the serving revision's first boot tells, or the one that was woken here."""
        service = await run.get_service(self.site, name)
        revision = await run.find_revision(self.site, service.latest_ready_revision)
        if revision is None:
            return EngineFacts()
        woken = name in self.site.woken
        return facts_of(boot_of(await status.boot_lines(self.site, name, revision, newest=woken)))

    async def hardware(self, name: str, /) -> Hardware:
        service = await run.get_service(self.site, name)
        return hardware_of(place_of(self.target), size_of(service))

    async def predicted(self, name: str) -> Prediction | None:
        service = await run.get_service(self.site, name)
        version = run.version_of(self.site, service)
        return await predict(run.read_spec(service), self.hardware_known()[0], version)

    def hardware_known(self) -> tuple[Accelerator, int]:
        place = place_of(self.target)
        return accelerator(place.accelerator), place.count

    async def config(self, name: str) -> DeploymentConfig:
        """Return what runs as commands and YAML, with the image that it runs."""
        service = await run.get_service(self.site, name)
        spec = run.read_spec(service)
        if spec is None:
            raise spec_lost(name, f"gcloud run services describe {name} --format=yaml")
        rows = [variable for row in service.template.containers for variable in row.env]
        hub = any(variable.name == "HF_TOKEN" for variable in rows)
        model = await anyio.to_thread.run_sync(read_model, spec.model)
        store = run.store_of(service)
        drawn = run.blueprint(self.site, spec, model, hf_token=hub, store=store)
        drawn = run.as_running(drawn, service)
        *before, made = self._resources(drawn)
        token = [secrets.reader(self.site, HF_SECRET)] if hub else []
        keyed = "The key is made in a pipe and kept in Secret Manager; it is in no file."
        return DeploymentConfig(
            command="\n".join(one.command for one in (*token, *before, made)),
            docker_run=docker(drawn),
            yaml=container.as_yaml(made.body["service"]),
            notes=(keyed,) if spec.engine == "vllm" else (),
        )

    async def quotas(self) -> Sequence[Quota]:
        return await checks.read_quotas(self.site)

    async def stored_models(self, bucket: str | None = None) -> Sequence[StoredModel]:
        return await storage.models_in_bucket(self.site, bucket)

    async def registered_models(self) -> Sequence[RegisteredModel]:
        return await storage.models_in_registry(self.site)


def _is_outdated(now: Service, spec: DeploymentSpec) -> bool:
    """Whether a service has to be replaced by a new revision."""
    if status.progress(now) == "failed":
        return True
    if spec.access == "public" and run.is_open(now):
        note(
            f"{spec.name} had nothing before its engine, which computes for everybody at paths"
            " that its key does not protect: a new revision with a proxy takes its place."
        )
        return True
    said = run.read_spec(now)
    beside = set(CloudRunBackend.beside_engine)
    return now.labels.get(SPEC_LABEL) != spec.fingerprint and (
        said is None or said.model_dump(exclude=beside) != spec.model_dump(exclude=beside)
    )


def _change(now: Service, spec: DeploymentSpec, held: Lease | None) -> run.Change | None:
    """Return what is enough to make a service what is wanted, None where it is so already."""
    same = now.labels.get(SPEC_LABEL) == spec.fingerprint and held == leases.read(now.labels)
    if same and not run.is_stopped(now):
        return None
    what = f"let {spec.name} have {spec.min_replicas} to {spec.max_replicas} instances"
    return run.limits_change(what, held, (spec.least_replicas, spec.max_replicas), spec)


def _lease_warnings(spec: DeploymentSpec, time: str) -> Iterator[str]:
    if spec.max_idle_minutes and spec.max_idle_minutes > run.IDLE_MINUTES:
        yield (
            f"Cloud Run takes an instance away about {run.IDLE_MINUTES} minutes after its last"
            " request, whatever max_idle_minutes says."
        )
    job = "a job of Cloud Scheduler"
    yield from plan_words(spec, time, "Google", job, usd_per_month=lease.JOB_USD)


def _cache_warnings(drawn: run.Blueprint) -> Iterator[str]:
    if drawn.spec.engine == "vllm":
        yield cache.plan_words(drawn.spec, drawn.store, "boot", "weights=gs://… or BUCKET_NAME")
    if drawn.store:
        yield "What it compiles and what is carried of it lie in the instance's memory."


def _warnings(drawn: run.Blueprint, costs: Price) -> Iterator[str]:
    spec = drawn.spec
    yield from drawn.doubts
    if spec.min_replicas and not spec.schedule:
        yield always_on(spec, costs, called="instances")
    yield from price_doubts(costs)
    if spec.engine != "ollama" or spec.image:
        yield from tagged(drawn.container.image)
    if spec.access == "public":
        yield (
            "Anybody on the internet reaches it (access=public): a proxy before the engine lets"
            " through those with its key alone, and every request, also a refused one, keeps a GPU"
            " awake at your cost."
        )
    if drawn.network and drawn.network.all_traffic:
        yield (
            f"All traffic leaves through {drawn.network.subnetwork}: it needs Private Google"
            " Access, or nothing of Google's is reached."
        )


def docker(drawn: run.Blueprint) -> str:
    """Return how the same container runs on a machine with a GPU of one's own."""
    mount = drawn.container.mount
    mounted = (f"/mnt/{mount.bucket}:{mount.path}:ro",) if mount else ()
    return container.docker_command(drawn.name, without_cache(drawn.container), *mounted)


async def _none() -> None:
    return None
