"""What every part is handed: clients and logins, each opened once, and refusals with what helps."""

import time
from typing import Any, Self

import anyio.lowlevel
import pytest
from azure.core.credentials import AccessToken

from backends.aca.site import RememberedCredential, classed, object_id
from backends.common.concurrency import side_by_side
from core.errors import CloudRefused, OpsError, PermissionDenied, QuotaExceeded
from core.settings import AzurePlane
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio


async def test_two_who_ask_at_once_get_one_login(azure: AzurePlane, subscription: str) -> None:
    """The first of two would never be closed."""
    async with opened(azure, subscription) as site:
        one, other = await side_by_side([site.clients.credential] * 2)
        assert one is other


@pytest.mark.parametrize("token", ["", "a.b", "a.!!.c", "a.e30.c", "a.bnVsbA.c"])
def test_a_token_that_names_nobody_is_said_to(token: str) -> None:
    """It is no bug of ours, whatever it holds."""
    with pytest.raises(OpsError, match="does not say who asks"):
        object_id(token)


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


_RULES = "Client address is not authorized and caller is not a trusted service."
_CLOSED = "Public network access is disabled and request is not from a trusted service."


@pytest.mark.parametrize(
    ("code", "status", "words", "fix"),
    [
        ("RequestDisallowedByPolicy", 403, "Shared keys are disallowed.", "AZURE_STORAGE_ACCOUNT"),
        ("ScopeLocked", 409, "The scope cannot perform delete.", "az lock list"),
        ("ReadOnlyDisabledSubscription", 409, "It is marked as read only.", "payment"),
        ("Forbidden", 403, _RULES, "az keyvault network-rule add"),
        ("Forbidden", 403, _CLOSED, "AZURE_KEYVAULT_NAME"),
    ],
)
def test_what_neither_a_role_nor_time_puts_right_is_not_tried_again(
    code: str, status: int, words: str, fix: str
) -> None:
    """By their status alone they are lacking roles, or changes that end by themselves."""
    error = classed(code, words, "make it", status=status)
    assert type(error) is CloudRefused
    assert fix in error.fix
    assert not error.retryable


def test_a_vault_that_lacks_a_role_still_says_so() -> None:
    """The code is the same as where its network keeps somebody out."""
    words = "Caller is not authorized to perform action on resource."
    assert type(classed("Forbidden", words, "read it", status=403)) is PermissionDenied


@pytest.mark.parametrize("status", [200, 400, 409])
def test_a_quota_is_told_by_its_words_where_the_code_is_of_any_refusal(status: int) -> None:
    """It is neither a wrong request nor a change that ends by itself."""
    words = "Maximum Allowed Cores exceeded for the Managed Environment."
    assert type(classed("Failed", words, "make it", status=status)) is QuotaExceeded
