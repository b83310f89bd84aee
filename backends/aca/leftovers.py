"""What is ours in a whole subscription and has no deployment any more: found, and removed."""

import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, TypeVar

from azure.mgmt.appcontainers.models import ContainerApp, ManagedEnvironment
from azure.mgmt.resource.resources.aio import ResourceManagementClient

from backends.aca import cache, ground, replicas, secrets, storage
from backends.aca.app import APPS
from backends.aca.container import rules
from backends.aca.deployment import is_stopped
from backends.aca.ground import ENVIRONMENTS, GRANTS, GROUPS, IDENTITIES, ROLES, WORKSPACES
from backends.aca.lease import JOBS
from backends.aca.secrets import DELETED_VAULTS, VAULTS
from backends.aca.site import (
    DEPLOYMENT_TAG,
    GROUP_TAG,
    MANAGED_BY,
    READING,
    SHARE,
    Kind,
    Site,
    is_going,
    is_ours,
    key_secret,
    presence,
    strictly,
    tags_in,
)
from backends.aca.storage import ACCOUNTS, FILE_SHARES
from backends.base import Leftover, Leftovers
from backends.common.concurrency import in_time, side_by_side
from backends.lifecycle import CACHE, Resource, no_leftover, remove
from core import errors
from planner.price import HOURS_PER_MONTH

T = TypeVar("T")
_LOOK_SECONDS: Final = 8.0
"""For each list; what needs a list looks once more, for as long."""
_REMOVE_SECONDS: Final = 7.0
"""After a look: a client waits for both."""
_FREE_DAYS: Final = 31
"""A workspace keeps its lines for so long at no cost; source: Azure Monitor's prices, 2026-11."""
_REST: Final = Kind("resource", ResourceManagementClient, "resources", every="list")
"""Everything with a location, of whatever type."""
_KINDS: Final = (
    APPS, JOBS, ENVIRONMENTS, WORKSPACES, IDENTITIES, VAULTS, DELETED_VAULTS, ACCOUNTS, GROUPS,
    ROLES, GRANTS, _REST,
)  # fmt: skip
_LISTED: Final = frozenset(
    {
        "microsoft.app/containerapps",
        "microsoft.app/jobs",
        "microsoft.app/managedenvironments",
        "microsoft.operationalinsights/workspaces",
        "microsoft.managedidentity/userassignedidentities",
        "microsoft.keyvault/vaults",
        "microsoft.storage/storageaccounts",
    }
)
"""Types that have a list of their own."""
_VAULT_NAME: Final = re.compile(r"(?:/vaults/|//)([^./]+)[^/]*/secrets/")
_KEY: Final = re.compile(re.escape(key_secret("NAME")).replace("NAME", "(.+)"))


@dataclass(kw_only=True)
class _Look:
    """One look through the subscription; ids and names of groups are in lower case."""

    site: Site
    kept: Collection[str]
    """Deployments of the target's own resource group."""
    owned: Callable[[Site, str], Sequence[Resource]]
    """Returns what a deployment of a place has."""
    lists: dict[Kind, Sequence[Any] | None] = field(default_factory=dict)
    """None: it may not be seen."""
    rows: dict[str, tuple[Leftover, Sequence[Resource]]] = field(default_factory=dict)
    """Each with what its removal deletes, the last one first."""
    others: Counter[str] = field(default_factory=Counter)
    not_seen: list[str] = field(default_factory=list)
    ids: dict[str, bool] = field(default_factory=dict)
    """Whatever was seen, and whether it is ours."""
    names: set[tuple[str, str]] = field(default_factory=set)
    """Group and name of every app."""
    used: set[str] = field(default_factory=set)
    """Environments, identities (ids) and vaults (names) that something stands on."""
    groups: set[str] = field(default_factory=set)
    """Those in which somebody may stand on what is shared."""

    async def all(self) -> None:
        found = await side_by_side([partial(self._every, kind) for kind in _KINDS])
        self.lists = dict(zip(_KINDS, found, strict=True))
        for kind in _KINDS:
            self._count(kind)
        if self.lists[APPS] is None or self.lists[JOBS] is None:
            self.not_seen.append("Without these it is not known what is a leftover: none is named.")
            return
        self._use()
        self._judge_environments()
        self._judge_deleted_vaults()
        for one in filter(self._is_free, self._ours(IDENTITIES)):
            self._add(IDENTITIES, one, _nothing_in(one.id))
        await self._judge_roles(self._judge_grants())
        self._judge_groups()
        judges = {
            VAULTS: (self._judge_vault,),
            ACCOUNTS: (self._judge_account, self._judge_caches),
            APPS: (self._judge_app,),
        }
        await side_by_side(
            [
                partial(judge, one)
                for kind, every in judges.items()
                for judge in every
                for one in self.lists[kind] or ()
            ]
        )

    async def _every(self, kind: Kind, *inside: str) -> list[Any] | None:
        """List all of a kind, or what is `inside` of one of another."""
        whole: dict[str, Any] = {}
        if kind is ROLES:  # those of a group are below
            whole = {"scope": _subscription(self.site), "filter": "atScopeAndBelow()"}
        pages = await kind.call(self.site, kind.every)
        what = f"{kind.title}s" + (f" of {inside[-1]}" if inside else "")
        return await self._listed(what, lambda: pages(*inside, **whole, **READING))

    async def _listed(self, what: str, pages: Callable[[], Any]) -> list[Any] | None:
        async def every() -> list[Any]:
            try:
                with strictly(f"list the {what}"):
                    return [one async for one in pages()]
            except errors.ApiDisabled:
                return []

        return await self._or_say(what, every)

    async def _or_say(self, what: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return what a look gives; None where it fails or takes too long, and that is said."""
        try:
            with in_time("Azure", f"list the {what}", _LOOK_SECONDS, fix="Ask again later."):
                return await work()
        except errors.NotAuthenticated:
            raise
        except errors.OpsError as exc:
            self.not_seen.append(f"The {what}: {exc.summary} {exc.cause}".strip())
            return None

    def _count(self, kind: Kind) -> None:
        whole = f"{_subscription(self.site)}/"
        for one in self.lists[kind] or ():
            title, ours = (
                (str(one.type), False) if kind is _REST else (kind.title, kind.is_ours(one))
            )
            known = kind is _REST and title.lower() in _LISTED
            built_in = kind is ROLES and one.role_type != "CustomRole"
            above = kind is GRANTS and not f"{one.scope}/".lower().startswith(whole)
            if not (known or built_in or above):
                self._note(str(one.id), title, ours=ours)

    def _note(self, id_: str, title: str, *, ours: bool) -> None:
        self.ids[id_.lower()] = ours
        self.others[title] += not ours

    def _ours(self, kind: Kind) -> list[Any]:
        return [one for one in self.lists[kind] or () if kind.is_ours(one) and not is_going(one)]

    def _add(
        self,
        kind: Kind,
        one: Any,
        why: str,
        *more: Resource,
        usd: float | None = 0.0,
        name: str = "",
    ) -> None:
        """Name a thing; `more` goes with it, `name` is the deployment that it was made for."""
        resources = (_resource(self.site, kind, one), *more)
        self._add_row(str(one.id), kind.title, _region(one), why, resources, usd, name)

    def _add_row(
        self,
        id_: str,
        title: str,
        where: str,
        why: str,
        resources: Sequence[Resource],
        usd: float | None = 0.0,
        name: str = "",
    ) -> None:
        found = Leftover(
            id=id_, kind=title, where=where, why=why, usd_per_month=usd, deployment=name
        )
        self.rows[id_.lower()] = found, resources

    def _use(self) -> None:
        """Note what apps and jobs stand on, and which jobs have no app any more."""
        for one in self.site.waiting():
            if one.failure is None:
                self.names.add((_group(one.where), one.spec.name))
                self.used.add(one.where.lower())
                self.groups.add(_group(one.where))
        apps = self.lists[APPS] or ()
        self.names |= {(_group(app.id), str(app.name)) for app in apps}
        for app in apps:
            self._stands_on(app)
        for one in self.lists[JOBS] or ():
            name = tags_in(one.tags).get(DEPLOYMENT_TAG, "")
            made = one.system_data.created_at if one.system_data else None
            if is_ours(one) and name and self._is_dead(_group(one.id), name, made, str(one.name)):
                if not is_going(one):
                    self._add(JOBS, one, f"no app {name} is in {_group_name(one.id)}", name=name)
            else:
                self._stands_on(one)

    def _stands_on(self, one: Any) -> None:
        """Note what an app or a job stands on, and its group where it is ours."""
        needs = _needs(one)
        self.used |= needs
        self.groups |= {_group(each) for each in needs if each.startswith("/")}
        self.groups |= {_group(one.id)} if is_ours(one) else set()

    def _is_dead(self, group: str, name: str, made: datetime | None, what: str) -> bool:
        """Whether a deployment is gone for sure: what is made before its app may be new."""
        here = group == self.site.ground.resource_group.lower()
        if (group, name) in self.names or (here and name in self.kept):
            return False
        if made and not _is_old(made):
            minutes = secrets.EFFECT_TIME.total_seconds() / 60
            self.not_seen.append(
                f"{what} was made less than {minutes:.0f} minutes ago: its deployment {name} may"
                " be on its way."
            )
            return False
        return True

    def _is_free(self, one: Any) -> bool:
        """Whether nothing in its group, and nothing of others, stands on a shared thing."""
        return _group(one.id) not in self.groups and str(one.id).lower() not in self.used

    def _judge_environments(self) -> None:
        """Name those without an app, and the workspaces that none but these write to."""
        if self.lists[ENVIRONMENTS] is None:
            return
        written = set()
        for one in self.lists[ENVIRONMENTS] or ():
            if not is_ours(one) or str(one.id).lower() in self.used:
                written.add(_log_of(one))
            elif not is_going(one):
                inside = [
                    job for job in self.lists[JOBS] or () if str(one.id).lower() in _needs(job)
                ]
                jobs = [_resource(self.site, JOBS, job) for job in inside]
                why = f"no app is in it{'; its jobs go with it' if jobs else ''}"
                self._add(ENVIRONMENTS, one, why, *jobs, usd=_usd_of_environment(one))
        for one in filter(self._is_free, self._ours(WORKSPACES)):
            if (one.properties.customer_id or "").lower() not in written:
                usd = 0.0 if (one.properties.retention_in_days or 0) <= _FREE_DAYS else None
                self._add(
                    WORKSPACES, one, "no environment with apps writes its logs to it", usd=usd
                )

    def _judge_deleted_vaults(self) -> None:
        """Name those of no living group, but for what is protected: nobody can remove that."""
        for one in self._ours(DELETED_VAULTS):
            inside = one.properties
            if not inside.purge_protection_enabled and _group(inside.vault_id) not in self.groups:
                self._add(DELETED_VAULTS, one, "it was deleted, and keeps its name taken")

    def _judge_grants(self) -> Mapping[str, list[Resource]]:
        """Name assignments whose identity is gone; return them by their roles."""
        given: defaultdict[str, list[Resource]] = defaultdict(list)
        if self.lists[IDENTITIES] is None:
            return given
        machines = [*(self.lists[APPS] or ()), *(self.lists[JOBS] or ())]
        known = {one.principal_id for one in self.lists[IDENTITIES] or ()}
        known |= {one.identity.principal_id for one in machines if one.identity}
        # Only these are of identities alone: the others are of whoever has deployed.
        roles = {secrets.READS_SECRETS.id, *(str(one.name) for one in self._ours(ROLES))}
        for one in self._ours(GRANTS):
            role = (one.role_definition_id or "").rpartition("/")[2]
            old = one.created_on and _is_old(one.created_on)
            if role in roles and one.principal_id not in known and old:
                self._add(GRANTS, one, "whoever it was given to is gone")
                given[role].append(_resource(self.site, GRANTS, one))
        return given

    async def _judge_roles(self, dead: Mapping[str, list[Resource]]) -> None:
        grants = self.lists[GRANTS]
        for one in self._ours(ROLES) if grants is not None else ():
            [scope, *more], end = one.assignable_scopes or [""], f"/{one.name}".lower()
            grant = dead.get(one.name, [])
            used = [
                each for each in grants or () if str(each.role_definition_id).lower().endswith(end)
            ]
            if more or len(used) > len(grant) or _group(scope) in {"", *self.groups}:
                continue
            role = ground.stopping_right(
                await self.site.at(azure_resource_group=_group_name(scope))
            )
            if str(role.body["id"]).endswith(f"/{one.name}"):
                why = _nothing_in(scope)
                self._add_row(str(one.id), ROLES.title, "global", why, (role, *grant))

    def _judge_groups(self) -> None:
        if self.lists[_REST] is None:
            return
        every = ((kind, one) for kind, found in self.lists.items() for one in found or ())
        inside = {_group(one.id) for kind, one in every if kind not in {GROUPS, GRANTS}}
        for one in self._ours(GROUPS):
            if not one.managed_by and _group(one.id) not in inside | self.groups:
                self._add(GROUPS, one, "nothing is in it")

    async def _judge_vault(self, vault: Any) -> None:
        """Name keys of deployments that are gone, and the vault if nothing else is in it."""
        if not is_ours(vault) and str(vault.id).lower() != self.site.ground.vault_id.lower():
            return
        name, group = str(vault.name), _group_name(vault.id)
        there = await self.site.at(azure_resource_group=group, azure_keyvault_name=name)
        client = await there.clients.secrets()
        pages = partial(client.list_properties_of_secrets, **READING)
        held = await self._listed(f"secrets of {name}", pages)
        if held is None:
            return
        needed = [await self._judge_secret(vault, one) for one in held]
        free = self._is_free(vault) and name.lower() not in self.used and not any(needed)
        if free and is_ours(vault) and not is_going(vault):
            self._add(VAULTS, vault, f"{_nothing_in(vault.id)}; all secrets in it go with it")

    async def _judge_secret(self, vault: Any, secret: Any) -> bool:
        """Name a key whose deployment is gone; return whether its vault is needed for it."""
        tags, name = secret.tags or {}, str(secret.name)
        own = self.site.clients.subscription
        subscription, _, group = tags.get(GROUP_TAG, f"{own}/{_group_name(vault.id)}").rpartition(
            "/"
        )
        ours = tags.get("managed-by") == MANAGED_BY and subscription.lower() == own.lower()
        id_ = f"{vault.properties.vault_uri.rstrip('/')}/secrets/{name}"
        self._note(id_, "secret", ours=ours)
        by_name = _KEY.fullmatch(name)
        deployment = tags.get(DEPLOYMENT_TAG) or (by_name[1] if by_name else "")
        if not (ours and deployment):  # a token of ours goes with its vault
            return not ours
        if not self._is_dead(group.lower(), deployment, secret.created_on, name):
            return True
        there = await self.site.at(azure_resource_group=group, azure_keyvault_name=str(vault.name))

        async def get() -> bool | None:
            return await secrets.exists(there, name) or None

        key = Resource(
            name=name,
            title=f"the secret {name} of {vault.name}",
            get=get,
            delete=partial(secrets.remove, there, name),
        )
        why = f"no app {deployment} is in {group}"
        self._add_row(id_, "secret", _region(vault), why, (key,), name=deployment)
        return False

    async def _judge_account(self, account: Any) -> None:
        """Name the account and its share where no deployment of its group can read it."""
        if not is_ours(account) or is_going(account) or not self._is_free(account):
            return
        shares = await self._every(FILE_SHARES, *ACCOUNTS.names(account.id))
        if shares is None:
            return
        whose, why = {str(one.name): one for one in shares}, _nothing_in(account.id)
        for one in shares:
            self._note(str(one.id), FILE_SHARES.title, ours=one.name == SHARE)
        if own := whose.pop(SHARE, None):
            usd = storage.usd_per_month(own.share_quota or rules().share.quota_gib)
            share = replace(_resource(self.site, FILE_SHARES, own), is_ours=None)
            said = f"{why}; with it all weights in it go"
            self._add_row(str(own.id), FILE_SHARES.title, _region(account), said, (share,), usd)
        if not whose and account.kind == "FileStorage":
            self._add(ACCOUNTS, account, f"{why}; its share goes with it")

    async def _judge_caches(self, account: Any) -> None:
        """Name what deployments compiled that are gone, as far as the login sees into the share."""
        own = str(account.id).lower() == self.site.ground.storage_id.lower()
        if not (own or is_ours(account)) or is_going(account) or account.kind != "FileStorage":
            return
        group, name = _group_name(account.id), str(account.name)
        there = await self.site.at(azure_resource_group=group, azure_storage_account=name)

        async def sizes() -> dict[str, Mapping[str, int]]:
            try:
                every = await cache.names(there)
            except errors.PermissionDenied:
                if self._is_free(account):  # its share is named, with all that is in it
                    return {}
                raise
            seen = await side_by_side([partial(cache.files, there, one) for one in every])
            return {name: one for name, one in zip(every, seen, strict=True) if one}

        found = await self._or_say(f"compile caches of {name}", sizes)
        for name, files in (found or {}).items():
            left, id_ = cache.owned(there, name), cache.id_of(there, name)
            self._note(id_, CACHE, ours=True)
            if left.bill and self._is_dead(group.lower(), name, None, CACHE):
                usd, why = left.bill(files)[1], f"no app {name} is in {group}"
                self._add_row(id_, CACHE, _region(account), why, (left,), usd, name)

    async def _judge_app(self, app: ContainerApp) -> None:
        """Name one that runs where no target looks."""
        name, group = str(app.name), _group_name(app.id)
        looked_at = group.lower() == self.site.ground.resource_group.lower()
        if not is_ours(app) or looked_at or is_going(app):
            return
        there = await self.site.at(azure_resource_group=group)
        for vault in _vaults(app):
            there = await there.at(azure_keyvault_name=vault)
        usd = await self._or_say(f"replicas of {name} in {group}", partial(_usd_of_app, there, app))
        why = f"no target looks in the resource group {group} ({_region(app)})"
        self._add_row(
            str(app.id), APPS.title, _region(app), why, self.owned(there, name), usd, name
        )


async def find_leftovers(
    site: Site, kept: Collection[str], owned: Callable[[Site, str], Sequence[Resource]]
) -> Leftovers:
    """Look through the whole subscription; `owned` returns what a deployment of a place has."""
    look = _Look(site=site, kept=kept, owned=owned)
    await look.all()
    ours = [row for row, _ in look.rows.values()]
    return Leftovers(
        ours=tuple(sorted(ours, key=lambda one: (one.kind, one.where, one.id))),
        others={kind: look.others[kind] for kind in sorted(look.others) if look.others[kind]},
        not_seen=tuple(sorted(look.not_seen)),
    )


async def remove_leftover(
    site: Site,
    resource: str,
    kept: Collection[str],
    owned: Callable[[Site, str], Sequence[Resource]],
) -> bool:
    """Look anew, and delete one that still is one; whether it was seen to be gone.

    Raises:
        NotOurs, InvalidArgument, NotFound: It is none.
    """
    look = _Look(site=site, kept=kept, owned=owned)
    await look.all()
    if row := look.rows.get(resource.lower()):
        return (await remove(row[1], seconds=_REMOVE_SECONDS)).gone
    ours = look.ids.get(resource.lower())
    raise no_leftover(resource, "the subscription", ours=ours, not_seen=look.not_seen)


def _resource(site: Site, kind: Kind, one: Any) -> Resource:
    """Return a thing that was found, to be looked at by itself and deleted."""
    title = f"the {kind.title} {one.name}"
    return Resource(
        name=str(one.id),
        title=title,
        get=partial(kind.find, site, str(one.id)),
        delete=partial(kind.send, site, kind.delete, f"delete {title}", str(one.id)),
        status=presence,
        is_ours=kind.is_ours,
    )


def _is_old(made: datetime) -> bool:
    return datetime.now(UTC) - made.astimezone(UTC) > secrets.EFFECT_TIME


def _subscription(site: Site) -> str:
    return f"/subscriptions/{site.clients.subscription}".lower()


def _group_name(id_: Any) -> str:
    """Return the name of the resource group in an id; nothing where it is in none."""
    parts = str(id_ or "").split("/")
    return parts[4] if len(parts) > 4 and parts[3].lower() == "resourcegroups" else ""


def _group(id_: Any) -> str:
    return _group_name(id_).lower()


def _nothing_in(id_: Any) -> str:
    return f"no deployment is in the resource group {_group_name(id_)}"


def _region(one: Any) -> str:
    named = getattr(one, "location", None)
    if named is None:
        named = getattr(getattr(one, "properties", None), "location", None)
    return str(named or "global").lower().replace(" ", "")


def _needs(one: Any) -> set[str]:
    """Return what an app or a job stands on: environment, identities, and vaults by their names."""
    inside, runs_as = one.properties, one.identity
    ids = {
        inside.environment_id,
        getattr(inside, "managed_environment_id", None),
        *((runs_as.user_assigned_identities if runs_as else None) or ()),
    }
    return {each.lower() for each in ids if each} | _vaults(one)


def _vaults(one: Any) -> set[str]:
    configuration = one.properties.configuration
    kept = (configuration.secrets if configuration else None) or ()
    found = (_VAULT_NAME.search(each.key_vault_url or "") for each in kept)
    return {each[1].lower() for each in found if each}


def _log_of(environment: ManagedEnvironment) -> str:
    inside = environment.properties
    logs = inside.app_logs_configuration if inside else None
    linked = logs.log_analytics_configuration if logs else None
    return str((linked.customer_id if linked else None) or "").lower()


def _usd_of_environment(one: ManagedEnvironment) -> float | None:
    """Return nothing to pay, unless it keeps nodes of its own, whose price nobody has said."""
    profiles = (one.properties.workload_profiles if one.properties else None) or ()
    own = [each for each in profiles if not each.workload_profile_type.startswith("Consumption")]
    return None if any(each.minimum_count for each in own) else 0.0


async def _usd_of_app(there: Site, app: ContainerApp) -> float | None:
    if is_stopped(app):
        return 0.0
    profile = app.properties.workload_profile_name if app.properties else None
    gpus = [name for name, gpu in rules().gpus.items() if gpu.profile == profile]
    if not gpus:
        return None
    target = there.target.model_copy(update={"accelerator": gpus[0], "usd_per_hour": None})
    place = await there.at(target)
    hourly = replicas.usd_per_hour(place, app)
    count = replicas.count_replicas(await replicas.read_revisions(place, str(app.name)))
    return None if hourly is None else round(count * hourly * HOURS_PER_MONTH, 2)
