"""A login is asked once for each kind of token, however many clients want one."""

import time
from typing import Any, Self

import anyio.lowlevel
import pytest
from azure.core.credentials import AccessToken

from backends.aca.site import RememberedCredential
from backends.common.concurrency import side_by_side

pytestmark = pytest.mark.anyio


class Login:
    """Counts what it is asked for."""

    def __init__(self, lasts_seconds: float = 3600) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.closed = False
        self._lasts = lasts_seconds

    async def get_token(self, *scopes: str, **_more: Any) -> AccessToken:
        await anyio.lowlevel.checkpoint()
        self.asked.append(scopes)
        return AccessToken(f"token {len(self.asked)}", int(time.time() + self._lasts))

    async def close(self) -> None:
        self.closed = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


async def test_those_who_ask_at_once_get_one_token_for_each_scope() -> None:
    """Each question may be a process of its own."""
    login = Login()
    credential = RememberedCredential(login)
    tokens = await side_by_side([lambda: credential.get_token("arm")] * 5)
    assert {one.token for one in tokens} == {"token 1"}
    assert (await credential.get_token("vault")).token == "token 2"
    assert (await credential.get_token("vault", tenant_id="other")).token == "token 3"
    assert (await credential.get_token("arm")).token == "token 1"
    async with credential:
        pass
    assert login.closed


async def test_a_token_that_ends_soon_or_was_refused_is_fetched_anew() -> None:
    """The SDK keeps none for shorter either; what it was refused for is in the claims."""
    soon = Login(lasts_seconds=200)
    credential = RememberedCredential(soon)
    assert (await credential.get_token("arm")) != (await credential.get_token("arm"))
    login = Login()
    credential = RememberedCredential(login)
    for _ in range(2):
        await credential.get_token("arm", claims="again")
    assert len(login.asked) == 2
