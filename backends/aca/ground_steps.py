"""What deployments stand on, in the order in which it can be made, each with its command."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from backends.aca import (
    az,
    ground_basics,
    ground_environment,
    ground_storage,
    ground_vault,
    roles,
    rules,
)
from backends.aca.names import CONSUMPTION, SHARE
from backends.aca.site import Site
from backends.aca.stands import ENVIRONMENT, REGISTERING, ROLE, Stand, Step

ACCOUNT: Final = "account"


def steps(site: Site, *, share: bool, named: str = SHARE) -> tuple[Step, ...]:
    """Give them; `share` is for weights on a file share, `named` is which.

    Raises:
        NotConfigured: No subscription is named.
    """
    _named = site.clients.subscription
    return (*_always(site, share=share), *(_storage(site, named) if share else ()))


def _always(site: Site, *, share: bool) -> Iterator[Step]:
    names, ground = ground_basics.providers(share=share), site.ground
    yield Step(
        "providers",
        f"Providers: {', '.join(names)}",
        az.providers(ground, names),
        partial(ground_basics.providers_stand, site, names),
        partial(ground_basics.register, site, names),
        phase=REGISTERING,
    )
    yield Step(
        "group",
        f"The resource group {ground.resource_group}",
        az.group(ground),
        partial(ground_basics.group_stand, site),
        partial(ground_basics.make_group, site),
        after=("providers",),
    )
    yield from _environment(site)
    yield from _vault(site)


def _environment(site: Site) -> Iterator[Step]:
    ground, gpu = site.ground, rules.gpu_of(site.target)
    guid = site.settings.azure_log_analytics_workspace_id
    yield Step(
        "workspace",
        f"The workspace {guid or ground.workspace} for logs",
        az.workspace(ground),
        partial(_workspace_stand, site),
        partial(ground_basics.make_workspace, site),
        after=("group",),
    )
    yield Step(
        "environment",
        f"The environment {ground.environment} with {CONSUMPTION} and {gpu.profile_type}",
        az.environment(ground, gpu.profile, gpu.profile_type, guid),
        partial(ground_environment.stand, site),
        partial(ground_environment.make, site),
        after=("workspace",),
        phase=ENVIRONMENT,
    )


def _vault(site: Site) -> Iterator[Step]:
    ground = site.ground
    yield Step(
        "identity",
        f"The identity {ground.identity}, as which apps run",
        az.identity(ground),
        partial(ground_basics.identity_stand, site),
        partial(ground_basics.make_identity, site),
        after=("group",),
    )
    yield Step(
        "vault",
        f"The Key Vault {ground.vault}, read by roles",
        az.vault(ground),
        partial(ground_vault.stand, site),
        partial(ground_vault.make, site),
        after=("identity",),
    )
    reader, writer = roles.SECRETS_USER, roles.SECRETS_OFFICER
    yield _role(site, reader, ground.vault_id, "vault", who=ground.identity)
    yield _role(site, writer, ground.vault_id, "vault")
    yield Step(
        "answer",
        f"The Key Vault {ground.vault} answers you",
        az.secrets(ground),
        partial(ground_vault.answers, site),
        _nothing,
        after=("vault", f"role {reader}", f"role {writer}"),
        phase=ROLE,
    )


def _storage(site: Site, share: str) -> Iterator[Step]:
    ground, size = site.ground, rules.rules().share.quota_gib
    yield Step(
        ACCOUNT,
        f"The storage account {ground.storage_account} for weights, on SSD",
        az.storage_account(ground),
        partial(ground_storage.account_stand, site),
        partial(ground_storage.make_account, site),
        after=("group",),
    )
    yield _role(site, roles.SHARE_READER, ground.storage_id, "account")
    yield Step(
        "share",
        f"The share {share} ({size} GiB)",
        az.share(ground, share),
        partial(ground_storage.share_stand, site, share),
        partial(ground_storage.make_share, site, share),
        after=("account",),
        usd_per_month=rules.rules().share.usd_per_month[-1],
    )
    yield from (_link(site, link) for link in ground_storage.links(share))


def _link(site: Site, link: ground_storage.Link) -> Step:
    return Step(
        f"link {link.name}",
        f"The environment's link {link.name} to the share {link.share} ({link.mode})",
        az.link(site.ground, link.name, link.share, read_only=link.read_only),
        partial(ground_storage.link_stand, site, link),
        partial(ground_storage.make_link, site, link),
        after=("share", "environment"),
    )


def _role(site: Site, role: str, scope: str, needed: str, *, who: str | None = None) -> Step:
    command = (
        az.role(role, scope, az.principal(site.ground), kind="ServicePrincipal")
        if who
        else az.role(role, scope, az.ME, kind="User")
    )
    return Step(
        f"role {role}",
        f"The role {roles.TITLES[role]} of {who or 'yours'} on {scope.rsplit('/', 1)[-1]}",
        command,
        partial(_role_stand, site, scope, role, identity=bool(who)),
        partial(_assign, site, scope, role, identity=bool(who)),
        after=(needed,),
        phase=ROLE,
    )


async def _role_stand(site: Site, scope: str, role: str, *, identity: bool) -> Stand:
    return await roles.stand(site, scope, role, await _principal(site, identity=identity))


async def _assign(site: Site, scope: str, role: str, *, identity: bool) -> None:
    principal = await _principal(site, identity=identity)
    if principal:
        kind = "ServicePrincipal" if identity else None
        await roles.assign(site, scope, role, principal, kind=kind)


async def _principal(site: Site, *, identity: bool) -> str | None:
    if not identity:
        return await site.clients.caller()
    found = await ground_basics.identity(site)
    return found.principal_id if found else None


async def _workspace_stand(site: Site) -> Stand:
    """Say whether it is there; an environment that is there has its own place for logs."""
    stand = await ground_basics.workspace_stand(site)
    if stand is Stand.ABSENT and await ground_environment.environment(site):
        return Stand.THERE
    return stand


async def _nothing() -> None:
    """Let time go by."""
