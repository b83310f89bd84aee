"""Only those are let in whom the setting names, or whoever is seen to ask."""

import pytest

from backends.aca import access
from backends.common import preflight
from core.errors import CloudUnavailable, InvalidArgument
from core.settings import AzurePlane
from tests.backends.aca.planned import site as offline
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio


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
