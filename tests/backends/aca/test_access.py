"""Where an app answers, and who is let in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.aca import app as access
from backends.common import preflight
from core.endpoint import Endpoint
from core.errors import CloudUnavailable, InvalidArgument, NotFound, NotReady
from core.settings import AzurePlane
from tests.backends.aca.planned import site as offline
from tests.backends.aca.planted import Planted, planting
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


def allow(address: str) -> dict[str, str]:
    return {"name": "caller", "ipAddressRange": address, "action": "Allow"}


async def test_address_and_key_open_the_door(there: Planted) -> None:
    """The key is the one of the vault."""
    there.app()
    found = await there.backend.access("gemma")
    assert found.base_url == there.url
    assert found.headers == {"Authorization": "Bearer the-key"}
    endpoint = Endpoint(found)
    assert await endpoint.models()
    await endpoint.aclose()


async def test_outside_a_rehearsal_it_is_always_https(tmp_path: Path) -> None:
    """A redirect would turn a POST into a GET."""
    async with planting(tmp_path) as there:
        there.app(ingress={"fqdn": "gemma.red.swedencentral.azurecontainerapps.io"})
        real = there.site.settings.model_copy(update={"rehearsal": False})
        object.__setattr__(there.site, "settings", real)
        found = await there.backend.access("gemma")
    assert found.base_url == "https://gemma.red.swedencentral.azurecontainerapps.io"


async def test_a_person_is_told_how_to_fetch_the_key(there: Planted) -> None:
    """It is in no answer."""
    there.app()
    found = await there.backend.access("gemma")
    command = found.header_commands["Authorization"]
    assert command.startswith(f"az keyvault secret show --vault-name {there.site.ground.vault} ")
    assert "--name vllm-devops-gemma-api-key " in command
    assert "the-key" not in repr(found)


async def test_the_addresses_that_are_let_in_are_named(there: Planted) -> None:
    """And what the key does not protect, where an older version put no proxy before the engine."""
    there.app(ingress={"ipSecurityRestrictions": [allow("203.0.113.7/32"), allow("10.0.0.0/8")]})
    said = (await there.backend.access("gemma")).protection
    assert "lets in 203.0.113.7/32, 10.0.0.0/8 and nobody else" in said
    assert "protects /v1 alone" in said


async def test_what_is_open_to_everybody_says_so(there: Planted) -> None:
    """Whoever asks may start a paid replica."""
    there.app()
    said = (await there.backend.access("gemma")).protection
    assert "open to the internet" in said
    assert "paid replica" in said


async def test_an_internal_one_says_from_where_it_can_be_asked(there: Planted) -> None:
    """Its name is known only there."""
    there.app(ingress={"external": False})
    said = (await there.backend.access("gemma")).protection
    assert "only inside its environment's network" in said


async def test_an_engine_without_a_key_is_not_said_to_have_one(there: Planted) -> None:
    """Somebody may have changed the app by hand."""
    body = there.app()
    body["properties"]["template"]["containers"][0]["env"] = []
    found = await there.backend.access("gemma")
    assert found.api_key is None
    assert found.header_commands == {}
    assert "has no key" in found.protection


async def test_before_it_has_an_address_it_is_not_ready(there: Planted) -> None:
    """Azure names it while it makes it."""
    there.app(ingress={"fqdn": None})
    with pytest.raises(NotReady) as caught:
        await there.backend.access("gemma")
    assert caught.value.next_steps[0].tool == "status_vllm"


async def test_a_key_that_is_gone_says_what_brings_it_back(there: Planted) -> None:
    """Somebody deleted it."""
    there.app()
    there.arm.refuse("GET .*vault.example/secrets/.*", 404, "SecretNotFound")
    with pytest.raises(NotFound, match="vllm-devops-gemma-api-key is missing"):
        await there.backend.access("gemma")


async def test_whoever_asks_is_let_in_where_nobody_is_named(
    azure: AzurePlane, bare_subscription: str
) -> None:
    async with opened(azure, bare_subscription) as site:
        assert await access.callers(site) == ("127.0.0.1/32",)


async def test_those_that_are_named_are_let_in_once_each() -> None:
    site = offline(azure_allowed_addresses="203.0.113.7, 198.51.100.0/24,203.0.113.7")
    assert await access.callers(site) == ("203.0.113.7/32", "198.51.100.0/24")


@pytest.mark.parametrize(
    "said", ["home", "203.0.113.7/24", "203.0.113.0/33", "1.2.3", "2001:db8::1"]
)
async def test_what_is_no_range_is_refused_before_anything_is_made(said: str) -> None:
    site = offline(azure_allowed_addresses=said)
    with pytest.raises(InvalidArgument) as caught:
        await access.callers(site)
    assert said in caught.value.summary
    assert "203.0.113.0/24" in caught.value.fix


@pytest.mark.parametrize("path", ["/rehearsal/nothing", "/rehearsal/alive"])
async def test_an_echo_that_tells_no_address_names_the_setting(
    azure: AzurePlane, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(access, "ECHO", f"{azure.http}{path}")
    with pytest.raises(CloudUnavailable) as caught:
        await access.callers(offline())
    assert "AZURE_ALLOWED_ADDRESSES" in caught.value.fix


async def test_outside_a_rehearsal_the_address_is_asked_of_a_public_echo(
    azure: AzurePlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preflight.ECHO == "https://api.ipify.org"
    monkeypatch.setattr(access, "ECHO", f"{azure.http}/rehearsal/address")
    assert await access.callers(offline()) == ("127.0.0.1/32",)
