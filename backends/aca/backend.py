"""Azure Container Apps as a target: one app for each deployment."""

from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar

from pydantic import SecretStr

from backends.aca import app as apps
from backends.aca import (
    cache,
    checks,
    deployment,
    ground,
    lease,
    logs,
    plan,
    replicas,
    secrets,
    status,
    storage,
)
from backends.aca.container import gpu_of, place_of, weights_of
from backends.aca.leftovers import find_leftovers, remove_leftover
from backends.aca.site import PHASES, SHARE, Site, is_ours, is_policy, not_configured
from backends.base import (
    BootBudget,
    DeploymentConfig,
    EngineFacts,
    Hardware,
    KeptSecret,
    Leaving,
    Leftovers,
    LogQuery,
    Prediction,
    Quota,
    Setup,
    StoredModel,
    Upload,
    World,
)
from backends.common.engine import facts_of, hardware_of, predict
from backends.lifecycle import Lifecycle, Resource, Status, leftovers, look, purge, set_up
from core.errors import CloudError, OpsError, PermissionDenied
from core.records import (
    Access,
    Deleted,
    Deployment,
    DeploymentSpec,
    ModelShape,
    Plan,
    Preflight,
    Remainder,
    Target,
)
from core.reply import note
from logs.boot import boot_of
from logs.read import Line
from planner.places import Accelerator, accelerator

_PURGE_SECONDS = 6.0
"""For each of them; an environment takes minutes, and is looked for by the next call."""
_LOGS_COST = "about 2.30 $ per GB taken in; after a deletion it can be recovered for two weeks"
"""Pay as you go in US regions; the usual price, not looked up [R] (2026-11-21)."""


def _owned(site: Site, name: str) -> tuple[Resource, ...]:
    async def is_there() -> bool:
        return await apps.find_any(site, name) is not None

    key = secrets.owned_key(site, name, is_there)
    job, grant = lease.owned(site, name)
    return (cache.owned(site, name), key, job, deployment.owned_app(site, name), grant)


class AcaBackend(Lifecycle):
    """One accelerator in one region of one subscription."""

    beside_engine: ClassVar[frozenset[str]] = deployment.LIMITS
    waits_in: ClassVar[frozenset[str]] = PHASES
    apply_seconds = 4.0
    """Most of what is under way takes seconds, an environment minutes."""
    set_up_seconds = 8.0

    def __init__(self, target: Target, world: World) -> None:
        self.target = target
        self.site = Site.open(target, world)
        self.pending = self.site.pending
        self.reads_only = world.settings.read_only

    def engine_name(self) -> tuple[str, str]:
        gpu = gpu_of(self.target)
        missing = "" if self.site.clients.configured else not_configured().fix
        return f"vLLM {gpu.vllm} ({gpu.image})", missing

    async def wanted(self, spec: DeploymentSpec, model: ModelShape) -> Sequence[Resource]:
        """Return everything from the providers to the app; refuse what can be known before."""
        asked = self.pending.get(spec.name)
        known = asked is not None and asked.phase
        is_there = await deployment.find_own_app(self.site, spec.name) is not None
        if not known:
            await lease.refuse(self.site, spec)
        if not known and not is_there:
            if spec.access == "private":
                await apps.callers(self.site)
            try:
                await checks.refuse_by_policy(self.site, spec, model)
            except checks.PolicyRefusal:
                raise
            except CloudError:
                pass  # the deployment itself tells it
        since = asked.since if asked else datetime.now(UTC)
        found = plan.wanted(self.site, spec, model, since, is_there=is_there)
        # The app last: a failure takes back what was made for it as long as that is not there.
        return sorted(found, key=lambda one: one.name == "app")

    def owned(self, name: str) -> Sequence[Resource]:
        """Return key, lease and app: what may end the app goes first, and then the app."""
        return _owned(self.site, name)

    def remaining(self, _name: str, _spec: DeploymentSpec | None = None) -> Sequence[Resource]:
        """Return what other deployments may use: it is deleted by a purge, or only bills."""
        site = self.site
        # Where there is none, an environment does for a deployment; it is no workspace that stays.
        own = {"workspace": partial(ground.find_workspace, site)}
        kept = [
            replace(one, get=own.get(one.name, one.get), is_ours=is_ours if one.delete else None)
            for one in plan.base(site, SHARE)
            if one.delete or one.bill
        ]
        kept.append(ground.stopping_right(site))
        left = (secrets.hub_token(site), secrets.registry_password(site), *kept)
        account = site.ground.storage_account
        titles = {  # whoever agrees to a purge reads what goes with each
            "workspace": f"the workspace {site.ground.workspace} with its logs ({_LOGS_COST})",
            "account": f"the storage account {account} with its share and all weights",
            **secrets.left_titles(site),
        }
        return tuple(replace(one, title=titles.get(one.name, one.title)) for one in left)

    def leaving(self, name: str, *, keep_cache: bool = False) -> Leaving:
        """Name what is inside of others with them alone: a purge takes all of it."""
        found = super().leaving(name, keep_cache=keep_cache)
        return found if keep_cache else found.model_copy(update={"stays": ()})

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        return plan.make_plan(self.site, spec, model)

    async def check(self, wanted: Plan) -> Preflight:
        return await checks.check(self.site, wanted)

    async def refuse_name(self, name: str) -> None:
        await deployment.find_own_app(self.site, name)

    async def refuse_deploy(self, spec: DeploymentSpec) -> Sequence[str]:
        """Refuse a name that another app has, and a new app where there may be no such GPU."""
        if await deployment.find_own_app(self.site, spec.name):
            return ()
        return await replicas.refuse_without_quota(self.site)

    async def refuse_start(self, name: str) -> None:
        await apps.get_app(self.site, name)

    async def refuse_scale(self, name: str, minimum: int, maximum: int) -> None:
        await deployment.refuse_scale(self.site, name, minimum, maximum)

    async def describe(self, name: str) -> Deployment:
        return await status.describe(self.site, name)

    async def list(self) -> Sequence[Deployment]:
        return await status.list_deployments(self.site) if self.site.clients.configured else ()

    async def delete(self, name: str, *, keep_cache: bool = False) -> Deleted:
        """Delete app and key; what it stood on stays and is named. That of another target stays."""
        app = await apps.find_any(self.site, name)
        if app is not None and is_ours(app) and apps.target_in(app) != self.target.name:
            return Deleted(name=name, target=self.target.name, gone=True)
        deleted = await super().delete(name, keep_cache=keep_cache)
        if deleted.gone:
            replicas.forget_change(self.site, name)
        if deleted.gone and not deleted.stays:  # a purge is agreed to by what stayed
            stays = await leftovers(self.remaining(name))
            return deleted.model_copy(update={"stays": stays})
        return deleted

    async def purge(self, name: str) -> tuple[str, ...]:
        """Delete what the app stood on, if nothing else stands on it and it was made here."""
        site = self.site
        if await apps.find_any(site, name):
            note(f"{name} is still there: what it stands on is kept.")
            return ()
        users = await ground.apps_on(site)
        inside = [str(app.name) for app in users if ground.is_in(app, site)]
        here = f"{site.ground.group_id}/"
        waiting = {one.spec.name for one in site.waiting() if one.where.startswith(here)}
        if needed := sorted({*waiting, *inside}):
            note(
                f"The environment {site.ground.environment} is kept with all else:"
                f" {', '.join(needed)} needs it."
            )
            return ()
        kept = self.remaining(name)
        if users:
            names = ", ".join(sorted(str(app.name) for app in users))
            note(f"What the group shares is kept: {names} in another environment needs it.")
            kept = [one for one in kept if one.name in {"workspace", "environment"}]
        return await purge(kept, seconds=_PURGE_SECONDS)

    async def paid_leftovers(self) -> Sequence[Remainder]:
        """Return the share of weights, which is billed whether it is read or not."""
        if not self.site.clients.configured:
            return ()
        share = storage.share_of(self.site)
        await look(share)  # raises why it cannot be looked at
        return await leftovers((share,))

    @property
    def account(self) -> str:
        return f"subscription {self.site.clients.subscription}"

    async def find_leftovers(self, kept: Collection[str]) -> Leftovers:
        return await find_leftovers(self.site, kept, _owned)

    async def remove_leftover(self, resource: str, kept: Collection[str]) -> bool:
        return await remove_leftover(self.site, resource, kept, _owned)

    async def access(self, name: str) -> Access:
        return await apps.access_of(self.site, await apps.get_app(self.site, name))

    async def scale(self, name: str, *, min_replicas: int, max_replicas: int) -> Deployment:
        await deployment.scale(self.site, name, min_replicas, max_replicas)
        return await self.describe(name)

    async def extend(self, name: str, *, ttl_minutes: int) -> Deployment:
        await deployment.extend(self.site, name, ttl_minutes)
        return await self.describe(name)

    async def stop(self, name: str) -> Deployment:
        await deployment.stop(self.site, name)
        return await self.describe(name)

    async def start(self, name: str) -> Deployment:
        await deployment.start(self.site, name)
        return await self.describe(name)

    async def wake(self, name: str) -> None:
        await status.wake(self.site, name)

    def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        return logs.log_pages(self.site, name, query)

    async def spec(self, name: str) -> DeploymentSpec | None:
        return await apps.get_spec(self.site, name)

    async def boot_budget(self, name: str, model: ModelShape) -> BootBudget:
        app = await apps.get_app(self.site, name)
        spec = apps.spec_as_running(app)
        weights = weights_of(spec, model, place_of(self.target)) if spec else None
        (seconds, probe), cooldown = status.startup_probe_of(app), status.cooldown_seconds(app)
        return BootBudget(
            seconds=seconds,
            probe=probe,
            longest_seconds=place_of(self.target).startup_seconds_max,
            weights_from=weights.boot_source if weights else "hub",
            fetches_first=weights.persistent if weights else False,
            idle_seconds=cooldown,
            stays_seconds=cooldown,
            notes=("The ingress ends every request after 240 s: what wakes it must ask again.",),
        )

    async def engine_facts(self, name: str) -> EngineFacts:
        """Return what the log of the serving revision's first boot tells, or of one woken here."""
        app, found = await apps.get_app(self.site, name), EngineFacts()
        every = await replicas.read_revisions(self.site, name)
        for one in (one for one in every if one.name == app.latest_ready_revision_name):
            for newest in (True, False) if name in self.site.woken else (False,):
                words = await status.boot_words(self.site, app, one, newest=newest)
                if (found := facts_of(boot_of(words))).boot:
                    break
        return found

    async def hardware(self, name: str, /) -> Hardware:
        app = await apps.get_app(self.site, name)
        return hardware_of(place_of(self.target), replicas.size_of(app))

    async def predicted(self, name: str) -> Prediction | None:
        app = await apps.get_app(self.site, name)
        gpu, _ = self.hardware_known()
        return await predict(apps.spec_in(app.tags), gpu, apps.version(self.site, app))

    def hardware_known(self) -> tuple[Accelerator, int]:
        place = place_of(self.target)
        return accelerator(place.accelerator), place.count

    async def config(self, name: str) -> DeploymentConfig:
        return await plan.config(self.site, name)

    def shared(self) -> Sequence[Resource]:
        return (*self._base(), ground.stopping_right(self.site))

    def _base(self, share: str | None = SHARE) -> Sequence[Resource]:
        token = (secrets.hub_token(self.site, renew=True),) if self.site.settings.hf_token else ()
        return (*plan.base(self.site, share), *token)

    async def set_up(self) -> Setup:
        """Make what is missing; but for what a policy or a missing right forbids."""
        try:
            await set_up(self._base(), seconds=self.set_up_seconds)
        except OpsError as exc:
            account = await look(storage.account(self.site))
            if not is_policy(exc) or account.status is not Status.ABSENT:
                raise
            note(f"There will be no file share. {exc.summary} {exc.cause} {exc.fix}")
            await set_up(self._base(share=None), seconds=self.set_up_seconds)
        try:
            await set_up((ground.stopping_right(self.site),), seconds=self.set_up_seconds)
        except PermissionDenied as exc:
            note(f"No deployment is ended by Azure itself. {exc.summary} {exc.cause}".strip())
        return await self.setup()

    async def quotas(self) -> Sequence[Quota]:
        return await replicas.read_quotas(self.site)

    async def keep_secret(self, name: str, value: SecretStr) -> KeptSecret:
        return await secrets.keep(self.site, name, value)

    async def stored_models(self, bucket: str | None = None) -> Sequence[StoredModel]:
        return await storage.list_models(self.site, bucket)

    def upload(self, folder: str, here: str, bucket: str | None = None) -> Upload:
        return storage.upload_commands(self.site, folder, here, bucket)

    async def aclose(self) -> None:
        await self.site.clients.aclose()
