"""What is ours in a whole subscription and has no deployment any more: found, and removed."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from azure.mgmt.appcontainers.aio import ContainerAppsAPIClient
from azure.mgmt.appcontainers.models import ContainerApp, ManagedEnvironment
from azure.mgmt.authorization.v2022_04_01.aio import AuthorizationManagementClient
from azure.mgmt.keyvault.aio import KeyVaultManagementClient
from azure.mgmt.loganalytics.aio import LogAnalyticsManagementClient
from azure.mgmt.msi.v2024_11_30.aio import ManagedServiceIdentityClient
from azure.mgmt.resource.resources.aio import ResourceManagementClient
from azure.mgmt.storage.aio import StorageManagementClient

from backends.aca import cache, ground, replicas, secrets, storage
from backends.aca.container import rules
from backends.aca.deployment import is_stopped
from backends.aca.site import (
    DEPLOYMENT_TAG,
    GROUP_TAG,
    MANAGED_BY,
    READING,
    SHARE,
    Kind,
    Site,
    find,
    is_ours,
    key_secret,
    strictly,
    tags_in,
)
from backends.base import Leftover, Leftovers
from backends.common.concurrency import in_time, side_by_side
from backends.lifecycle import CACHE, Resource, Status
from backends.lifecycle import remove as remove_resources
from core.errors import (
    ApiDisabled,
    InvalidArgument,
    NotAuthenticated,
    NotFound,
    NotOurs,
    OpsError,
    PermissionDenied,
)
from planner.price import HOURS_PER_MONTH

T = TypeVar("T")
_LOOK_SECONDS: Final = 8.0
"""For each list; what needs a list looks once more, for as long."""
_REMOVE_SECONDS: Final = 7.0
"""After a look: a client waits for both."""
_FREE_DAYS: Final = 31
"""A workspace keeps its lines for so long at no cost; source: Azure Monitor's prices, 2026-11."""


class _Sort(NamedTuple):
    """One sort of thing, and how the SDK lists all of a subscription."""

    title: str
    kind: Kind
    every: str
    """The method that lists them."""
    ours: Callable[[Any], bool] = is_ours


_APP: Final = _Sort(
    "container app", Kind(ContainerAppsAPIClient, "container_apps"), "list_by_subscription"
)
_JOB: Final = _Sort("scheduled job", Kind(ContainerAppsAPIClient, "jobs"), "list_by_subscription")
_ENVIRONMENT: Final = _Sort(
    "environment", Kind(ContainerAppsAPIClient, "managed_environments"), "list_by_subscription"
)
_WORKSPACE: Final = _Sort(
    "Log Analytics workspace", Kind(LogAnalyticsManagementClient, "workspaces"), "list"
)
_IDENTITY: Final = _Sort(
    "managed identity",
    Kind(ManagedServiceIdentityClient, "user_assigned_identities", delete="delete"),
    "list_by_subscription",
)
_VAULT: Final = _Sort(
    "Key Vault", Kind(KeyVaultManagementClient, "vaults", delete="delete"), "list_by_subscription"
)
_DELETED: Final = _Sort(
    "deleted Key Vault",
    Kind(KeyVaultManagementClient, "vaults", "get_deleted", delete="begin_purge_deleted"),
    "list_deleted",
    lambda one: is_ours(one.properties),
)
_ACCOUNT: Final = _Sort(
    "storage account",
    Kind(StorageManagementClient, "storage_accounts", "get_properties", delete="delete"),
    "list",
)
_SHARE: Final = _Sort(
    "file share", Kind(StorageManagementClient, "file_shares", delete="delete"), "list"
)
_GROUP: Final = _Sort("resource group", Kind(ResourceManagementClient, "resource_groups"), "list")
_ROLE: Final = _Sort(
    "role",
    Kind(AuthorizationManagementClient, "role_definitions"),
    "list",
    lambda one: MANAGED_BY in (one.description or ""),
)
_GRANT: Final = _Sort(
    "role assignment",
    Kind(AuthorizationManagementClient, "role_assignments", "get_by_id", delete="delete_by_id"),
    "list_for_subscription",
    ground.is_own_assignment,
)
_REST: Final = _Sort("resource", Kind(ResourceManagementClient, "resources"), "list")
"""Everything with a location, of whatever type."""
_SORTS: Final = (
    _APP, _JOB, _ENVIRONMENT, _WORKSPACE, _IDENTITY, _VAULT, _DELETED, _ACCOUNT, _GROUP, _ROLE,
    _GRANT, _REST,
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


class _Row(NamedTuple):
    """A leftover, and what its removal deletes, the last one first."""

    leftover: Leftover
    resources: tuple[Resource, ...]


@dataclass(kw_only=True)
class _Look:
    """One look through the subscription."""

    site: Site
    kept: Collection[str]
    """Deployments of the target's own resource group."""
    owned: Callable[[Site, str], Sequence[Resource]]
    """Returns what a deployment of a place has."""
    lists: dict[_Sort, Sequence[Any] | None] = field(default_factory=dict)
    """None: it may not be seen."""
    rows: dict[str, _Row] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)
    not_seen: list[str] = field(default_factory=list)
    ids: dict[str, bool] = field(default_factory=dict)
    """Whatever was seen, and whether it is ours; ids are in lower case here and below."""
    names: set[tuple[str, str]] = field(default_factory=set)
    """Group and name of every app."""
    used: set[str] = field(default_factory=set)
    """Environments, identities (ids) and vaults (names) that something stands on."""
    groups: set[str] = field(default_factory=set)
    """Those in which somebody may stand on what is shared."""

    async def all(self) -> None:
        """Look at everything."""
        works = [partial(self._every, one) for one in _SORTS]
        self.lists = dict(zip(_SORTS, await side_by_side(works), strict=True))
        for sort, found in self.lists.items():
            self._count(sort, found or ())
        if self.lists[_APP] is None or self.lists[_JOB] is None:
            self.not_seen.append("Without these it is not known what is a leftover: none is named.")
            return
        self._use()
        self._judge_environments()
        self._judge_identities()
        self._judge_deleted_vaults()
        grants = self._judge_grants()
        await self._judge_roles(grants)
        self._judge_groups()
        await side_by_side(
            [
                *(partial(self._judge_vault, one) for one in self._seen(_VAULT)),
                *(partial(self._judge_account, one) for one in self._seen(_ACCOUNT)),
                *(partial(self._judge_caches, one) for one in self._seen(_ACCOUNT)),
                *(partial(self._judge_app, one) for one in self._seen(_APP)),
            ]
        )

    async def _every(self, sort: _Sort) -> Sequence[Any] | None:
        client = await self.site.clients.arm(sort.kind.client)
        method = getattr(getattr(client, sort.kind.operations), sort.every)
        whole: dict[str, Any] = {}
        if sort is _ROLE:  # those of a group are below
            whole = {"scope": _subscription(self.site), "filter": "atScopeAndBelow()"}
        return await self._listed(f"{sort.title}s", lambda: method(**whole, **READING))

    async def _listed(self, what: str, pages: Callable[[], Any]) -> list[Any] | None:
        async def every() -> list[Any]:
            try:
                with strictly(f"list the {what}"):
                    return [one async for one in pages()]
            except ApiDisabled:
                return []

        return await self._or_say(what, every)

    async def _or_say(self, what: str, work: Callable[[], Awaitable[T]]) -> T | None:
        """Return what a look gives; None where it fails or takes too long, and that is said."""
        try:
            with in_time("Azure", f"list the {what}", _LOOK_SECONDS, fix="Ask again later."):
                return await work()
        except NotAuthenticated:
            raise
        except OpsError as exc:
            self.not_seen.append(f"The {what}: {exc.summary} {exc.cause}".strip())
            return None

    def _count(self, sort: _Sort, found: Iterable[Any]) -> None:
        whole = f"{_subscription(self.site)}/"
        for one in found:
            kind, ours = sort.title, sort.ours(one)
            if sort is _REST:
                kind, ours = str(one.type), False
            known = sort is _REST and kind.lower() in _LISTED
            built_in = sort is _ROLE and one.role_type != "CustomRole"
            above = sort is _GRANT and not f"{one.scope}/".lower().startswith(whole)
            if not (known or built_in or above):
                self._note(str(one.id), kind, ours=ours)

    def _note(self, id_: str, kind: str, *, ours: bool) -> None:
        self.ids[id_.lower()] = ours
        self.others[kind] += not ours

    def _seen(self, sort: _Sort) -> Sequence[Any]:
        return self.lists[sort] or ()

    def _ours(self, sort: _Sort) -> list[Any]:
        """Return ours that nobody deletes already."""
        return [one for one in self._seen(sort) if sort.ours(one) and not _is_going(one)]

    def _add(
        self,
        sort: _Sort,
        one: Any,
        why: str,
        *more: Resource,
        usd: float | None = 0.0,
        deployment: str = "",
    ) -> None:
        self._add_row(
            str(one.id),
            sort.title,
            _region(one),
            why,
            (_resource(self.site, sort, one), *more),
            usd_per_month=usd,
            deployment=deployment,
        )

    def _add_row(
        self,
        id_: str,
        kind: str,
        where: str,
        why: str,
        resources: tuple[Resource, ...],
        **said: Any,
    ) -> None:
        found = Leftover(id=id_, kind=kind, where=where, why=why, **said)
        self.rows[id_.lower()] = _Row(found, resources)

    def _use(self) -> None:
        """Note what apps and jobs stand on, and which jobs have no app any more."""
        for one in self.site.waiting():
            if one.failure is None:
                self.names.add((_group(one.where), one.spec.name))
                self._stands_on({one.where.lower()})
        for app in self._seen(_APP):
            self.names.add((_group(app.id), str(app.name)))
            self._stands_on(_needs(app), _group(app.id) if is_ours(app) else "")
        for job in self._seen(_JOB):
            name = tags_in(job.tags).get(DEPLOYMENT_TAG, "")
            made = job.system_data.created_at if job.system_data else None
            if is_ours(job) and name and self._is_dead(_group(job.id), name, made, str(job.name)):
                if not _is_going(job):
                    why = f"no app {name} is in {_called(job.id)}"
                    self._add(_JOB, job, why, deployment=name)
            else:
                self._stands_on(_needs(job), _group(job.id) if is_ours(job) else "")

    def _stands_on(self, needs: set[str], group: str = "") -> None:
        self.used |= needs
        self.groups |= {_group(one) for one in needs if one.startswith("/")}
        self.groups |= {group} - {""}

    def _is_dead(self, group: str, name: str, made: datetime | None, what: str) -> bool:
        """Whether a deployment is gone for sure: what is made before its app may be new."""
        here = group == self.site.ground.resource_group.lower()
        if (group, name) in self.names or (here and name in self.kept):
            return False
        if made and datetime.now(UTC) - made.astimezone(UTC) < secrets.EFFECT_TIME:
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
        if self.lists[_ENVIRONMENT] is None:
            return
        written = set()
        for one in self._seen(_ENVIRONMENT):
            if is_ours(one) and str(one.id).lower() not in self.used:
                if not _is_going(one):
                    inside = [job for job in self._seen(_JOB) if str(one.id).lower() in _needs(job)]
                    jobs = [_resource(self.site, _JOB, job) for job in inside]
                    why = f"no app is in it{'; its jobs go with it' if jobs else ''}"
                    self._add(_ENVIRONMENT, one, why, *jobs, usd=_usd_of_environment(one))
            else:
                written.add(_log_of(one))
        for one in self._ours(_WORKSPACE):
            if self._is_free(one) and (one.properties.customer_id or "").lower() not in written:
                usd = 0.0 if (one.properties.retention_in_days or 0) <= _FREE_DAYS else None
                why = "no environment with apps writes its logs to it"
                self._add(_WORKSPACE, one, why, usd=usd)

    def _judge_identities(self) -> None:
        for one in self._ours(_IDENTITY):
            if self._is_free(one):
                self._add(_IDENTITY, one, _nothing_in(one.id))

    def _judge_deleted_vaults(self) -> None:
        for one in self._ours(_DELETED):
            if _group(one.properties.vault_id) in self.groups:
                continue
            if one.properties.purge_protection_enabled:
                until = one.properties.scheduled_purge_date
                self.not_seen.append(
                    f"The deleted Key Vault {one.name} is protected, and goes by itself"
                    f"{f' on {until:%Y-%m-%d}' if until else ''}."
                )
                continue
            self._add(_DELETED, one, "it was deleted, and keeps its name taken")

    def _judge_grants(self) -> dict[str, list[Resource]]:
        """Name assignments whose identity is gone; return them by their roles."""
        identities = self.lists[_IDENTITY]
        machines = [*self._seen(_APP), *self._seen(_JOB)]
        known = {one.principal_id for one in identities or ()}
        known |= {one.identity.principal_id for one in machines if one.identity}
        given: dict[str, list[Resource]] = {}
        # Only these are of identities alone: the others are of whoever has deployed.
        roles = {secrets.READS_SECRETS.id, *(str(one.name) for one in self._ours(_ROLE))}
        for one in self._ours(_GRANT) if identities is not None else ():
            role = (one.role_definition_id or "").rpartition("/")[2]
            old = one.created_on and datetime.now(UTC) - one.created_on > secrets.EFFECT_TIME
            if role in roles and one.principal_id not in known and old:
                self._add(_GRANT, one, "whoever it was given to is gone")
                given.setdefault(role, []).append(_resource(self.site, _GRANT, one))
        return given

    async def _judge_roles(self, dead: dict[str, list[Resource]]) -> None:
        for one in self._ours(_ROLE):
            [scope, *more] = one.assignable_scopes or [""]
            used = [
                each
                for each in self._seen(_GRANT)
                if (each.role_definition_id or "").lower().endswith(f"/{one.name}".lower())
            ]
            unused = len(used) == len(dead.get(one.name, ())) and self.lists[_GRANT] is not None
            if more or not unused or not _group(scope) or _group(scope) in self.groups:
                continue
            there = await self.site.at(azure_resource_group=_called(scope))
            role = ground.stopping_right(there)
            if str(role.body["id"]).endswith(f"/{one.name}"):
                resources = (role, *dead.get(one.name, ()))
                why = _nothing_in(scope)
                self._add_row(str(one.id), _ROLE.title, "global", why, resources, usd_per_month=0.0)

    def _judge_groups(self) -> None:
        if self.lists[_REST] is None:
            return
        inside = {
            _group(one.id)
            for sort, found in self.lists.items()
            for one in found or ()
            if sort is not _GROUP and sort is not _GRANT
        }
        for one in self._ours(_GROUP):
            group = _group(one.id)
            if not one.managed_by and group not in inside | self.groups:
                self._add(_GROUP, one, "nothing is in it")

    async def _judge_vault(self, vault: Any) -> None:
        """Name keys of deployments that are gone, and the vault if nothing else is in it."""
        if not is_ours(vault) and str(vault.id).lower() != self.site.ground.vault_id.lower():
            return
        name, group = str(vault.name), _called(vault.id)
        there = await self.site.at(azure_resource_group=group, azure_keyvault_name=name)
        client = await there.clients.secrets()
        held = await self._listed(
            f"secrets of {name}", lambda: client.list_properties_of_secrets(**READING)
        )
        if held is None:
            return
        needed = [await self._judge_secret(vault, one) for one in held]
        free = self._is_free(vault) and name.lower() not in self.used and not any(needed)
        if free and is_ours(vault) and not _is_going(vault):
            self._add(_VAULT, vault, f"{_nothing_in(vault.id)}; all secrets in it go with it")

    async def _judge_secret(self, vault: Any, secret: Any) -> bool:
        """Name a key whose deployment is gone; return whether its vault is needed for it."""
        tags, name = secret.tags or {}, str(secret.name)
        owner = tags.get(GROUP_TAG, f"{self.site.clients.subscription}/{_called(vault.id)}")
        subscription, _, group = owner.rpartition("/")
        ours = tags.get("managed-by") == MANAGED_BY
        ours = ours and subscription.lower() == self.site.clients.subscription.lower()
        id_ = f"{vault.properties.vault_uri.rstrip('/')}/secrets/{name}"
        self._note(id_, "secret", ours=ours)
        by_name = _KEY.fullmatch(name)
        deployment = tags.get(DEPLOYMENT_TAG) or (by_name[1] if by_name else "")
        if not ours:
            return True
        if not deployment:  # a token, which goes with its vault
            return False
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
        said = {"usd_per_month": 0.0, "deployment": deployment}
        self._add_row(id_, "secret", _region(vault), why, (key,), **said)
        return False

    async def _judge_account(self, account: Any) -> None:
        """Name the account and its share where no deployment of its group can read it."""
        if not is_ours(account) or _is_going(account) or not self._is_free(account):
            return
        client = await self.site.clients.arm(StorageManagementClient)
        named = _called(account.id), str(account.name)
        shares = await self._listed(
            f"shares of {account.name}", lambda: client.file_shares.list(*named, **READING)
        )
        if shares is None:
            return
        whose = {str(one.name): one for one in shares}
        for one in shares:
            self._note(str(one.id), _SHARE.title, ours=one.name == SHARE)
        if own := whose.pop(SHARE, None):
            usd = storage.usd_per_month(own.share_quota or rules().share.quota_gib)
            why = f"{_nothing_in(account.id)}; with it all weights in it go"
            resources = (_resource(self.site, _SHARE, own),)
            where = _region(account)
            self._add_row(str(own.id), _SHARE.title, where, why, resources, usd_per_month=usd)
        if not whose and account.kind == "FileStorage":
            self._add(_ACCOUNT, account, f"{_nothing_in(account.id)}; its share goes with it")

    async def _judge_caches(self, account: Any) -> None:
        """Name what deployments compiled that are gone, as far as the login sees into the share."""
        own = str(account.id).lower() == self.site.ground.storage_id.lower()
        if not (own or is_ours(account)) or _is_going(account) or account.kind != "FileStorage":
            return
        group, name = _called(account.id), str(account.name)
        there = await self.site.at(azure_resource_group=group, azure_storage_account=name)

        async def sizes() -> dict[str, Mapping[str, int]]:
            try:
                every = await cache.names(there)
            except PermissionDenied:
                if self._is_free(account):  # its share is named, with all that is in it
                    return {}
                raise
            seen = await side_by_side([partial(cache.files, there, one) for one in every])
            return {name: one for name, one in zip(every, seen, strict=True) if one}

        found = await self._or_say(f"compile caches of {name}", sizes)
        for name, files in (found or {}).items():
            left, id_ = cache.left(there, name), cache.id_of(there, name)
            self._note(id_, CACHE, ours=True)
            if left.bill and self._is_dead(group.lower(), name, None, CACHE):
                usd = left.bill(files)[1]
                why = f"no app {name} is in {group}"
                said = {"usd_per_month": usd, "deployment": name}
                self._add_row(id_, CACHE, _region(account), why, (left,), **said)

    async def _judge_app(self, app: ContainerApp) -> None:
        """Name one that runs where no target looks."""
        name, group = str(app.name), _called(app.id)
        seen = group.lower() == self.site.ground.resource_group.lower()
        if not is_ours(app) or seen or _is_going(app):
            return
        there = await self.site.at(azure_resource_group=group)
        for vault in _vaults(app):
            there = await there.at(azure_keyvault_name=vault)
        usd = await self._or_say(f"replicas of {name} in {group}", partial(_usd_of_app, there, app))
        why = f"no target looks in the resource group {group} ({_region(app)})"
        resources = tuple(self.owned(there, name))
        said = {"usd_per_month": usd, "deployment": name}
        self._add_row(str(app.id), _APP.title, _region(app), why, resources, **said)


async def find_leftovers(
    site: Site, kept: Collection[str], owned: Callable[[Site, str], Sequence[Resource]]
) -> Leftovers:
    """Look through the whole subscription; `owned` returns what a deployment of a place has."""
    look = _Look(site=site, kept=kept, owned=owned)
    await look.all()
    ours = [row.leftover for row in look.rows.values()]
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
        return (await remove_resources(row.resources, seconds=_REMOVE_SECONDS)).gone
    said, fix = resource[:300], "Call get_system_status(leftovers=true) for those that there are."
    ours = look.ids.get(resource.lower())
    if ours is None:
        cause = " ".join(look.not_seen)
        raise NotFound(f"There is no {said} to be seen in the subscription.", cause=cause, fix=fix)
    if not ours:
        raise NotOurs(f"{said} was not made here: it is left alone.", fix=fix)
    raise InvalidArgument(
        f"{said} is no leftover: a deployment needs it, or it is not known that none does.", fix=fix
    )


def _resource(site: Site, sort: _Sort, one: Any) -> Resource:
    """Return a thing that was found, to be looked at by itself and deleted."""
    parts = str(one.id).split("/")
    named = tuple(parts[4::4])
    if sort is _GRANT:
        named = (str(one.id),)
    elif sort is _DELETED:
        named = (str(one.name), _region(one))
    elif sort is _SHARE:
        named = parts[4], parts[8], parts[12]
    title = f"the {sort.title} {one.name}"
    return Resource(
        name=str(one.id),
        title=title,
        get=partial(find, site, sort.kind, title, *named),
        delete=partial(sort.kind.send, site, sort.kind.delete, f"delete {title}", *named),
        status=lambda found: Status.DELETING if _is_going(found) else Status.READY,
        is_ours=None if sort is _SHARE else sort.ours,
    )


def _is_going(one: Any) -> bool:
    inside = getattr(one, "properties", None)
    state = getattr(inside, "provisioning_state", None) or ""
    return state.lower() in {"deleting", "scheduledfordelete"}


def _subscription(site: Site) -> str:
    return f"/subscriptions/{site.clients.subscription}".lower()


def _called(id_: Any) -> str:
    """Return the name of the resource group in an id; nothing where it is in none."""
    parts = str(id_ or "").split("/")
    return parts[4] if len(parts) > 4 and parts[3].lower() == "resourcegroups" else ""


def _group(id_: Any) -> str:
    return _called(id_).lower()


def _nothing_in(id_: Any) -> str:
    return f"no deployment is in the resource group {_called(id_)}"


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
    """Return the id by which the workspace of an environment knows itself."""
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
    """Return what a month of the replicas costs that are there now."""
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
