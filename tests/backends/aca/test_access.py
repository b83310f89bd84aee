"""Where an app answers, and who is let in."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.aca import access
from core.endpoint import Endpoint
from core.errors import AddressNotAllowed, DeploymentNotFound, NotFound, NotReady, Unauthorized
from tests.backends.aca.planted import Planted, planting

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
    found = await access.access(there.site, "gemma")
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
        found = await access.access(there.site, "gemma")
    assert found.base_url == "https://gemma.red.swedencentral.azurecontainerapps.io"


async def test_a_person_is_told_how_to_fetch_the_key(there: Planted) -> None:
    """It is in no answer."""
    there.app()
    found = await access.access(there.site, "gemma")
    command = found.header_commands["Authorization"]
    assert command.startswith(f"az keyvault secret show --vault-name {there.site.ground.vault} ")
    assert "--name vllm-devops-gemma-api-key " in command
    assert "the-key" not in repr(found)


async def test_the_addresses_that_are_let_in_are_named(there: Planted) -> None:
    """And what the key does not protect, where an older version put no proxy before the engine."""
    there.app(ingress={"ipSecurityRestrictions": [allow("203.0.113.7/32"), allow("10.0.0.0/8")]})
    said = (await access.access(there.site, "gemma")).protection
    assert "lets in 203.0.113.7/32, 10.0.0.0/8 and nobody else" in said
    assert "POST /invocations computes" in said


async def test_what_is_open_to_everybody_says_so(there: Planted) -> None:
    """Whoever asks may start a paid replica."""
    there.app()
    said = (await access.access(there.site, "gemma")).protection
    assert "open to the internet" in said
    assert "paid replica" in said


async def test_an_internal_one_says_from_where_it_can_be_asked(there: Planted) -> None:
    """Its name is known only there."""
    there.app(ingress={"external": False})
    said = (await access.access(there.site, "gemma")).protection
    assert "only inside its environment's network" in said


async def test_an_engine_without_a_key_is_not_said_to_have_one(there: Planted) -> None:
    """Somebody may have changed the app by hand."""
    body = there.app()
    body["properties"]["template"]["containers"][0]["env"] = []
    found = await access.access(there.site, "gemma")
    assert found.api_key is None
    assert found.header_commands == {}
    assert "has no key" in found.protection


async def test_before_it_has_an_address_it_is_not_ready(there: Planted) -> None:
    """Azure names it while it makes it."""
    there.app(ingress={"fqdn": None})
    with pytest.raises(NotReady) as caught:
        await access.access(there.site, "gemma")
    assert caught.value.next_steps[0].tool == "status_vllm"


async def test_a_key_that_is_gone_says_what_brings_it_back(there: Planted) -> None:
    """Somebody deleted it."""
    there.app()
    there.arm.refuse("GET .*vault.example/secrets/.*", 404, "SecretNotFound")
    with pytest.raises(NotFound, match="vllm-devops-gemma-api-key is missing"):
        await access.access(there.site, "gemma")


async def test_nothing_of_that_name_has_no_access(there: Planted) -> None:
    """It is not found."""
    with pytest.raises(DeploymentNotFound):
        await access.access(there.site, "nobody")


@pytest.mark.parametrize(
    ("words", "kind"), [("RBAC: access denied", AddressNotAllowed), ("no", Unauthorized)]
)
async def test_the_ingress_and_the_engine_refuse_differently(
    there: Planted, words: str, kind: type[Exception]
) -> None:
    """One wants another address, the other another key."""
    there.app()
    there.healthy, there.refusal = False, (403, words)
    endpoint = Endpoint(await access.access(there.site, "gemma"))
    with pytest.raises(kind):
        await endpoint.models()
    await endpoint.aclose()
