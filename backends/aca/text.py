"""A blueprint in words for a person: az commands, a docker line, and the app as YAML."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import anyio

from backends import container
from backends.aca import az, engines, looking, whole
from backends.aca.app import app_of
from backends.aca.blueprint import Blueprint, blueprint
from backends.aca.bodies import (
    PROVIDERS,
    SECRETS_OFFICER,
    SECRETS_USER,
    STORAGE_PROVIDER,
    as_sent,
)
from backends.aca.names import HF_SECRET, KEY, REGISTRY_SECRET, Ground
from backends.aca.weights import Mount
from backends.base import DeploymentConfig
from backends.container import as_assignments, as_yaml
from core.errors import NotFound
from planner.model import read_model

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

    from backends.aca.site import Site

NOBODY: Final = ("YOUR_ADDRESS/32",)
"""Stands for the callers' addresses until the deployment is made."""
_SAVE: Final = (
    "yaml is the app for Container Apps: save it as app.yaml, then"
    " `az containerapp create --name NAME --resource-group GROUP --yaml app.yaml`."
)
_ONCE: Final = (
    "The first commands make what every deployment of the region stands on, and are needed once;"
    " a new role takes minutes to have effect. `az ad signed-in-user show` knows people: a service"
    " principal puts its own object id there, and ServicePrincipal for User."
)
_KEY: Final = "The key is made in a pipe and kept in Key Vault; it is in no file and no argument."
_END: Final = "APP_YAML"


def commands(
    made: Blueprint, *, guid: str | None = None, addresses: tuple[str, ...] = NOBODY
) -> str:
    """Give every command that makes the deployment, one after the other, to be pasted."""
    return "\n".join((*ground(made, guid), *kept(made), deploy(made, addresses)))


def ground(made: Blueprint, guid: str | None = None) -> Iterator[str]:
    """Make what it stands on; `guid` is of a workspace of somebody's own."""
    where, mount = made.ground, made.mount
    yield az.providers(where, providers(made))
    yield az.group(where)
    if guid is None:
        yield az.workspace(where)
    yield az.environment(where, made.profile, made.profile_type, guid)
    yield az.identity(where)
    yield az.vault(where)
    yield reader(where)
    yield writer(where)
    if mount:
        yield az.storage_account(where)
        yield az.share(where, mount.share)
        yield link(where, mount)


def providers(made: Blueprint) -> tuple[str, ...]:
    """Give the resource providers that a deployment needs."""
    return (*PROVIDERS, *((STORAGE_PROVIDER,) if made.mount else ()))


def reader(where: Ground) -> str:
    """Let the identity that apps run as read the vault's secrets."""
    whose = az.principal(where)
    return az.role(SECRETS_USER, where.vault_id, whose, kind="ServicePrincipal")


def writer(where: Ground) -> str:
    """Let whoever deploys keep secrets in the vault."""
    return az.role(SECRETS_OFFICER, where.vault_id, az.ME, kind="User")


def link(where: Ground, mount: Mount) -> str:
    """Link the environment to the share of a mount."""
    return az.link(where, mount.link, mount.share, read_only=mount.read_only)


def kept(made: Blueprint) -> Iterator[str]:
    """Keep what the app reads from the vault."""
    yield key(made)
    if made.needs_token:
        yield token(made)
    if made.account:
        yield password(made)


def token(made: Blueprint) -> str:
    """Keep the Hub's token of whoever pastes it, unless one is kept."""
    return az.secret_if_none(made.ground, made.kept[HF_SECRET], 'printf %s "$HF_TOKEN"')


def password(made: Blueprint) -> str:
    """Keep the registry's password of whoever pastes it, unless one is kept."""
    read = 'printf %s "$REGISTRY_PASSWORD"'
    return az.secret_if_none(made.ground, REGISTRY_SECRET, read)


def key(made: Blueprint) -> str:
    """Make a random key and keep it, unless one is kept: callers have that one."""
    random, tags = r"openssl rand -hex 32 | tr -d '\n'", made.ground.key_tags(made.name)
    return az.secret_if_none(made.ground, made.kept[KEY], random, *as_assignments(tags))


def deploy(made: Blueprint, addresses: tuple[str, ...] = NOBODY) -> str:
    """Create or replace the app in one command, its YAML between two words."""
    return f"{az.app(made.ground, made.name)} <<'{_END}'\n{yaml(made, addresses)}{_END}"


def yaml(made: Blueprint, addresses: tuple[str, ...] = NOBODY, vault: str | None = None) -> str:
    """Write the app, every value as it is typed for the API."""
    return as_yaml(
        {
            "name": made.name,
            "type": "Microsoft.App/containerApps",
            **body(made, addresses, vault),
        }
    )


def body(
    made: Blueprint, addresses: tuple[str, ...] = NOBODY, vault: str | None = None
) -> dict[str, object]:
    """Give the app as it is sent."""
    url = vault or vault_url(made.ground)
    return as_sent(app_of(made, vault_url=url, addresses=addresses))


def vault_url(where: Ground) -> str:
    """Give the address of the vault in the real cloud."""
    return f"https://{where.vault}.vault.azure.net"


def docker(made: Blueprint) -> str:
    """Run the same container on a machine with a GPU of one's own."""
    mount = made.mount
    how = ":ro" if mount and mount.read_only else ""
    mounted = (f"/mnt/{mount.share}:{mount.path}{how}",) if mount else ()
    return container.docker_command(made.name, made.container, *mounted)


async def config(site: "Site", name: str) -> DeploymentConfig:
    """Write what runs under a name as commands and YAML, with the image that it runs.

    Raises:
        DeploymentNotFound: Nothing of that name was made here.
        NotFound: What was asked for cannot be read any more.
    """
    app = await looking.app_named(site, name)
    spec = whole.spec_as_running(app)
    if spec is None:
        raise NotFound(
            f"What was asked for when {name} was made cannot be read any more.",
            fix=f"Read the app itself: `{az.shown(site.ground, name)}`.",
        )
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    made = _as_running(blueprint(site, spec, model, hf_token=_reads_hub(app)), app)
    guid, let_in = site.settings.azure_log_analytics_workspace_id, _addresses(app) or NOBODY
    return DeploymentConfig(
        command=commands(made, guid=guid, addresses=let_in),
        docker_run=docker(made),
        yaml=yaml(made, let_in, await site.clients.vault_url()),
        notes=(_SAVE, _ONCE, _KEY),
    )


def _configured(app: "ContainerApp") -> "tuple[list[str], list[str]]":
    configuration = app.properties.configuration if app.properties else None
    if configuration is None:
        return [], []
    restrictions = configuration.ingress.ip_security_restrictions if configuration.ingress else None
    return (
        [secret.name or "" for secret in configuration.secrets or ()],
        [rule.ip_address_range for rule in restrictions or ()],
    )


def _reads_hub(app: "ContainerApp") -> bool:
    return HF_SECRET in _configured(app)[0]


def _addresses(app: "ContainerApp") -> tuple[str, ...]:
    return tuple(_configured(app)[1])


def _as_running(made: Blueprint, app: "ContainerApp") -> Blueprint:
    """Give it the image that runs, pinned as it may be."""
    containers = {"container": made.container, "guard": made.guard}
    running = zip(containers.items(), engines.images_of(app), strict=False)
    changed = {name: one.model_copy(update={"image": image}) for (name, one), image in running}
    return made.model_copy(update=changed)
