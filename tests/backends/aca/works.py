"""Everything that the backend changes at Azure, and which changing calls each of it makes."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from pydantic import SecretStr

from backends.aca import deployment, secrets
from backends.aca.app import find_app, get_app, spec_in
from backends.aca.site import HF_SECRET, Site
from tests.backends.aca import deployed
from tests.backends.aca.deployed import PATCH, PUT, SERVED, delete, stopped
from tests.backends.aca.sites import opened

Do = Callable[[Site, str], Awaitable[Any]]
Holds = Callable[[Site, str], Awaitable[bool]]

KEY: Final = "PUT secrets"
DELETE: Final = "DELETE Microsoft.App/containerApps"
STOP: Final = f"POST {PUT[4:]}/stop"
START: Final = f"POST {PUT[4:]}/start"
DELETE_KEY: Final = "DELETE secrets"
PURGE_KEY: Final = "DELETE deletedsecrets"


class Work(NamedTuple):
    """Something that is done to a deployment, the calls that change, and how it is afterwards."""

    do: Do
    calls: tuple[str, ...]
    holds: Holds
    begin: Do | None = None
    """What there must be before."""


async def make(site: Site, name: str, **said: Any) -> None:
    """Deploy a model that is really served: one that ends at once is replaced by the next call."""
    await deployed.make(site, name, **SERVED, **said)


async def replace(site: Site, name: str) -> None:
    await make(site, name, max_model_len=2048)


async def make_to_end(site: Site, name: str) -> None:
    await make(site, name, ttl_minutes=5)


async def make_and_stop(site: Site, name: str) -> None:
    await make_to_end(site, name)
    await deployment.stop(site, name)


async def keep_token(site: Site, _name: str) -> None:
    await secrets.keep(site, HF_SECRET, SecretStr("hf_first"))


async def from_elsewhere(site: Site, name: str) -> None:
    """Deploy again where this machine has another address."""
    plane = await site.clients.plane()
    assert plane
    async with opened(
        plane, site.ground.subscription, azure_allowed_addresses=("203.0.113.7",)
    ) as moved:
        await make(moved, name)


async def _there(site: Site, name: str) -> bool:
    return await find_app(site, name) is not None


async def _gone(site: Site, name: str) -> bool:
    return not await _there(site, name)


async def _replaced(site: Site, name: str) -> bool:
    spec = spec_in((await get_app(site, name)).tags)
    return spec is not None and spec.max_model_len == 2048


async def _scaled(site: Site, name: str) -> bool:
    spec = spec_in((await get_app(site, name)).tags)
    return spec is not None and spec.max_replicas == 2


async def _runs(site: Site, name: str) -> bool:
    return not await stopped(site, name)


async def _let_in(site: Site, name: str) -> bool:
    app = await get_app(site, name)
    assert app.properties
    assert app.properties.configuration
    assert app.properties.configuration.ingress
    rules = app.properties.configuration.ingress.ip_security_restrictions or ()
    return [rule.ip_address_range for rule in rules] == ["203.0.113.7/32"]


async def _kept(site: Site, _name: str) -> bool:
    return await secrets.exists(site, HF_SECRET)


async def _scale(site: Site, name: str) -> None:
    await deployment.scale(site, name, 0, 2)


WORKS: Final = {
    "apply": Work(make, (KEY, PUT), _there),
    "replace": Work(replace, (PUT,), _replaced, begin=make),
    "scale": Work(_scale, (PATCH,), _scaled, begin=make),
    "stop": Work(deployment.stop, (STOP,), stopped, begin=make),
    "start": Work(deployment.start, (PATCH, START), _runs, begin=make_and_stop),
    "move": Work(from_elsewhere, (PATCH,), _let_in, begin=make),
    "delete": Work(delete, (DELETE, DELETE_KEY, PURGE_KEY), _gone, begin=make),
    "keep": Work(keep_token, (KEY,), _kept),
}


def cases() -> list[tuple[str, str]]:
    """Give every work with every call that it changes something by."""
    return [(name, call) for name, work in WORKS.items() for call in work.calls]
