"""What deployments stand on, as `az` commands for a person; no key is in any argument."""

import shlex
from typing import Final, Literal

from backends.aca.bodies import DELETED_DAYS
from backends.aca.names import MANAGED_BY, SHARE, Ground
from backends.aca.rules import rules
from backends.aca.tags import MANAGED_TAG

TAGS: Final = ("--tags", f"{MANAGED_TAG}={MANAGED_BY}")
_TEXT: Final = ("--output", "tsv")
_LOGS: Final = ("az", "monitor", "log-analytics", "workspace")
_ENVIRONMENT: Final = ("az", "containerapp", "env")
_KEPT: Final = ("az", "keyvault", "secret")
ME: Final = "$(az ad signed-in-user show --query id --output tsv)"
"""The object id of whoever is logged in, for a shell; it knows people, not service principals."""


def unless(*seen: str, made: str) -> str:
    """Do `made` where `seen` finds nothing.

    `az … create` puts a whole new body: an environment of somebody's would lose its other profiles,
    a group its tags, and a share that was enlarged its size.
    """
    return f"{shlex.join((*seen, '--output', 'none'))} 2>/dev/null || {made}"


def providers(ground: Ground, names: tuple[str, ...]) -> str:
    """Register resource providers; ends when they are."""
    made = ("az", "provider", "register", *_of(ground), "--wait", "--namespace")
    return "\n".join(shlex.join((*made, name)) for name in names)


def group(ground: Ground) -> str:
    """Make the resource group."""
    named = ("--name", ground.resource_group, *_of(ground))
    made = shlex.join(("az", "group", "create", *named, "--location", ground.region, *TAGS))
    return unless("az", "group", "show", *named, made=made)


def workspace(ground: Ground) -> str:
    """Make the workspace for logs."""
    named = ("--workspace-name", ground.workspace)
    made = shlex.join((*_LOGS, "create", *_there(ground), *named, *TAGS))
    return unless(*_LOGS, "show", *_in(ground), *named, made=made)


def environment(ground: Ground, profile: str, kind: str, guid: str | None = None) -> str:
    """Make the environment with the GPU's profile; `guid` is of a workspace of somebody's own."""
    named = ("--name", ground.environment, *_in(ground))
    logs = (*_in(ground), "--workspace-name", ground.workspace)
    key = (*_LOGS, "get-shared-keys", *logs, "--query", "primarySharedKey", *_TEXT)
    found = shlex.join((*_LOGS, "show", *logs, "--query", "customerId", *_TEXT))
    made = (*_ENVIRONMENT, "create", *named, "--location", ground.region, *TAGS)
    flags = ("--enable-workload-profiles", "true", "--logs-workspace-key", "@-")
    said = shlex.quote(guid) if guid else f'"$({found})"'
    source = "printenv WORKSPACE_KEY" if guid else shlex.join(key)
    created = f"{source} | {shlex.join((*made, *flags))} --logs-workspace-id {said}"
    profiles, one = (*_ENVIRONMENT, "workload-profile"), ("--workload-profile-name", profile)
    added = shlex.join((*profiles, "add", *named, *one, "--workload-profile-type", kind))
    return "\n".join(
        (
            unless(*_ENVIRONMENT, "show", *named, made=created),
            unless(*profiles, "show", *named, *one, made=added),
        )
    )


def identity(ground: Ground) -> str:
    """Make the identity that apps read the vault with."""
    named = ("--name", ground.identity)
    made = shlex.join(("az", "identity", "create", *named, *_there(ground), *TAGS))
    return unless("az", "identity", "show", *named, *_in(ground), made=made)


def vault(ground: Ground) -> str:
    """Make the vault, read by roles."""
    named = ("--name", ground.vault)
    flags = ("--enable-rbac-authorization", "true", "--retention-days", str(DELETED_DAYS))
    made = shlex.join(("az", "keyvault", "create", *named, *_there(ground), *flags, *TAGS))
    return unless("az", "keyvault", "show", *named, *_in(ground), made=made)


def by_roles(ground: Ground) -> str:
    """Let a vault go by roles."""
    changed = ("az", "keyvault", "update", "--name", ground.vault, *_in(ground))
    return shlex.join((*changed, "--enable-rbac-authorization", "true"))


def role(role: str, scope: str, whose: str, *, kind: Literal["User", "ServicePrincipal"]) -> str:
    """Give a role to `whose`, which a shell reads, on a scope; twice is harmless."""
    made = ("az", "role", "assignment", "create", "--role", role, "--scope", scope)
    more = ("--assignee-principal-type", kind, "--subscription", scope.split("/")[2])
    return f'{shlex.join((*made, *more))} --assignee-object-id "{whose}"'


def principal(ground: Ground) -> str:
    """Give the identity's principal, for a shell."""
    found = ("az", "identity", "show", "--name", ground.identity, *_in(ground))
    return f"$({shlex.join((*found, '--query', 'principalId', *_TEXT))})"


def storage_account(ground: Ground) -> str:
    """Make the storage account for shares on SSD."""
    named = ("--name", ground.storage_account)
    kind = ("--kind", "FileStorage", "--sku", rules().share.sku, "--https-only", "true")
    safe = ("--min-tls-version", "TLS1_2", "--allow-blob-public-access", "false")
    flags = (*kind, *safe, "--allow-shared-key-access", "true", *TAGS)
    made = shlex.join(("az", "storage", "account", "create", *named, *_there(ground), *flags))
    return unless("az", "storage", "account", "show", *named, *_in(ground), made=made)


def share(ground: Ground, name: str = SHARE) -> str:
    """Make the share for weights."""
    chosen, shares = rules().share, ("az", "storage", "share-rm")
    named = ("--name", name, *_in(ground), "--storage-account", ground.storage_account)
    size = ("--quota", str(chosen.quota_gib), "--enabled-protocols", "SMB")
    fast = ("--provisioned-bandwidth-mibps", str(chosen.mib_per_second))
    made = shlex.join((*shares, "create", *named, *size, *fast))
    return unless(*shares, "show", *named, made=made)


def larger(ground: Ground, gib: int) -> str:
    """Enlarge the share for weights."""
    named = ("--name", SHARE, *_in(ground), "--storage-account", ground.storage_account)
    return shlex.join(("az", "storage", "share-rm", "update", *named, "--quota", str(gib)))


def unlink(ground: Ground, name: str) -> str:
    """Take a link of the environment away; it asks first."""
    named = ("--name", ground.environment, *_in(ground), "--storage-name", name)
    return shlex.join((*_ENVIRONMENT, "storage", "remove", *named))


def link(ground: Ground, name: str, share: str, *, read_only: bool) -> str:
    """Link the environment to the share; the account's key goes through a pipe."""
    account = ("--account-name", ground.storage_account)
    keys = ("az", "storage", "account", "keys", "list", *account, *_in(ground))
    made = (*_ENVIRONMENT, "storage", "set", "--name", ground.environment)
    named = ("--storage-name", name, "--azure-file-account-name", ground.storage_account)
    how = ("--access-mode", "ReadOnly" if read_only else "ReadWrite")
    files = ("--azure-file-share-name", share, "--azure-file-account-key", "@-")
    return (
        f"{shlex.join((*keys, '--query', '[0].value', *_TEXT))}"
        f" | {shlex.join((*made, *_in(ground), *named, *files, *how))}"
    )


def secret(ground: Ground, name: str, *tags: str) -> str:
    """Keep what comes through a pipe as a secret; it is in no file, argument or variable."""
    kept = (*_KEPT, "set", *_secret(ground, name))
    given = ("--file", "/dev/stdin", "--encoding", "utf-8", "--output", "none")
    return shlex.join((*kept, *given, *TAGS, *tags))


def secret_if_none(ground: Ground, name: str, source: str, *tags: str) -> str:
    """Keep what `source` writes as a secret unless one of that name is kept."""
    seen = (*_KEPT, "show", *_secret(ground, name))
    return unless(*seen, made=f"{source} | {secret(ground, name, *tags)}")


def app(ground: Ground, name: str) -> str:
    """Create or replace an app from the YAML that is written to it."""
    made = ("az", "containerapp", "create", "--name", name, *_in(ground))
    return shlex.join((*made, "--yaml", "/dev/stdin"))


def shown(ground: Ground, name: str) -> str:
    """Show an app."""
    named = ("--name", name, *_in(ground))
    return shlex.join(("az", "containerapp", "show", *named, "--output", "yaml"))


def value_of(ground: Ground, name: str) -> str:
    """Write what a secret holds."""
    return shlex.join((*_KEPT, "show", *_secret(ground, name), "--query", "value", *_TEXT))


def tags_of(ground: Ground, name: str) -> str:
    """Show a secret's tags."""
    return shlex.join((*_KEPT, "show", *_secret(ground, name), "--query", "tags"))


def no_secret(ground: Ground, name: str) -> str:
    """Delete a secret."""
    return shlex.join((*_KEPT, "delete", *_secret(ground, name)))


def secrets(ground: Ground) -> str:
    """List the vault's secrets, without what they hold."""
    return shlex.join((*_KEPT, "list", "--vault-name", ground.vault, *_of(ground)))


def _secret(ground: Ground, name: str) -> tuple[str, ...]:
    return "--vault-name", ground.vault, "--name", name, *_of(ground)


def _of(ground: Ground) -> tuple[str, ...]:
    """Name the subscription: whoever pastes a command may have chosen another one."""
    return "--subscription", ground.subscription


def _in(ground: Ground) -> tuple[str, ...]:
    return "--resource-group", ground.resource_group, *_of(ground)


def _there(ground: Ground) -> tuple[str, ...]:
    return (*_in(ground), "--location", ground.region)
