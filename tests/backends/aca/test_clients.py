"""Clients and logins are opened once, whoever asks first, and each is closed."""

from functools import partial

import pytest

from backends.aca.site import object_id
from backends.common.concurrency import side_by_side
from core.errors import OpsError
from core.settings import AzurePlane
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio


async def test_two_who_ask_at_once_get_one_login(azure: AzurePlane, subscription: str) -> None:
    """The first of two would never be closed."""
    async with opened(azure, subscription) as site:
        one, other = await side_by_side([site.clients.credential] * 2)
        assert one is other


@pytest.mark.parametrize("name", ["apps", "files", "secrets"])
async def test_two_who_ask_at_once_get_one_client(
    azure: AzurePlane, subscription: str, name: str
) -> None:
    async with opened(azure, subscription) as site:
        one, other = await side_by_side([partial(getattr(site.clients, name))] * 2)
        assert one is other


async def test_whoever_asks_is_named_by_their_token(azure: AzurePlane, subscription: str) -> None:
    """By an id that roles are given to, the same each time."""
    async with opened(azure, subscription) as site:
        assert await site.clients.caller() == await site.clients.caller()


@pytest.mark.parametrize("token", ["", "a.b", "a.!!.c", "a.e30.c", "a.bnVsbA.c"])
def test_a_token_that_names_nobody_is_said_to(token: str) -> None:
    """It is no bug of ours, whatever it holds."""
    with pytest.raises(OpsError, match="does not say who asks"):
        object_id(token)
