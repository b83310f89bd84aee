"""Where an app answers, the key that it wants and whom its ingress lets in."""

from typing import Final

from azure.mgmt.appcontainers.models import ContainerApp, Ingress

from backends.aca import app, secrets
from backends.aca.app import is_open
from backends.aca.site import KEY, Site, key_secret
from backends.common.preflight import ECHO, caller_ranges, own_address
from core.address import KEY_HEADER
from core.errors import NextStep, NotReady
from core.records import Access

SETTING: Final = "AZURE_ALLOWED_ADDRESSES"
_IPV4_ALONE: Final = "an ingress of Container Apps knows no IPv6"
"""Source: learn.microsoft.com/azure/container-apps/ip-restrictions (2026-11-21)."""


async def callers(site: Site) -> tuple[str, ...]:
    """Return whom a private deployment lets in, as CIDR ranges in the order of the setting.

    Raises:
        InvalidArgument: A range that is set is none.
        CloudUnavailable: None is set, and nobody says which address this machine has.
    """
    said = site.settings.azure_allowed_addresses
    if said:
        return caller_ranges(said, SETTING, _IPV4_ALONE)
    plane = await site.clients.plane()
    url = f"{plane.http}/rehearsal/address" if plane else ECHO
    return (await own_address(url, SETTING, own=plane is not None),)


_WITH_KEY: Final = (
    "a proxy lets through those with the engine's key alone, and everybody to /health and /ping"
)
_OPEN: Final = (
    "the engine's key protects /v1 alone, and POST /invocations computes for whoever gets in:"
    " deploy_vllm again puts a proxy before it"
)


async def access(site: Site, name: str) -> Access:
    """Return the address and the engine's key.

    Raises:
        DeploymentNotFound, NotOurs: Nothing of that name was made here.
        NotReady: Azure has not given it an address yet.
        NotFound: Its key is missing.
    """
    return await access_of(site, await app.get_app(site, name))


async def access_of(site: Site, app: ContainerApp) -> Access:
    """Return address and key of an app that was read already.

    Raises:
        NotReady, NotFound, CloudError: As `access` does.
    """
    name, url = str(app.name), url_of(site, app)
    if url is None:
        raise NotReady(
            f"{name} has no address yet.",
            fix="Call status_vllm until it has one.",
            next_steps=(NextStep("status_vllm", {"target": site.target.name, "name": name}),),
        )
    keyed = _keyed(app)
    return Access(
        base_url=url,
        api_key=await secrets.read(site, key_secret(name)) if keyed else None,
        header_commands={KEY_HEADER: secrets.read_command(site, key_secret(name))} if keyed else {},
        protection=_protection(app, keyed=keyed),
    )


def url_of(site: Site, app: ContainerApp) -> str | None:
    """Return its base URL, None before it has a name in the world."""
    ingress = _ingress(app)
    if ingress is None or not ingress.fqdn:
        return None
    return f"{'http' if site.rehearsed else 'https'}://{ingress.fqdn}"


def is_external(app: ContainerApp) -> bool:
    """Whether it answers outside its environment's network."""
    ingress = _ingress(app)
    return bool(ingress and ingress.external)


def allowed(app: ContainerApp) -> tuple[str, ...]:
    """Return the ranges of addresses that its ingress lets in; none is everybody."""
    ingress = _ingress(app)
    rules = (ingress.ip_security_restrictions if ingress else None) or []
    return tuple(rule.ip_address_range for rule in rules if rule.action == "Allow")


def _ingress(app: ContainerApp) -> Ingress | None:
    return app.configuration.ingress if app.configuration else None


def _keyed(app: ContainerApp) -> bool:
    """Whether its engine asks for a key, as its own template says."""
    containers = (app.template.containers if app.template else None) or []
    return any(
        variable.secret_ref == KEY for container in containers for variable in container.env or []
    )


def _protection(app: ContainerApp, *, keyed: bool) -> str:
    ranges = ", ".join(allowed(app))
    key = _WITH_KEY if keyed else "the engine behind it has no key"
    if keyed and is_open(app):
        key = _OPEN
    if not is_external(app):
        return f"HTTPS; it answers only inside its environment's network; {key}."
    if ranges:
        return f"HTTPS; Azure lets in {ranges} and nobody else; {key}."
    waking = "; each request may start a paid replica"
    return f"HTTPS; open to the internet: {key}{waking}."
