"""What every call to Azure Resource Manager goes through: who asks, and what goes wrong."""

import ssl
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceResponseError,
)
from azure.mgmt.resource.resources import models as M  # noqa: N812  as Microsoft writes it

from backends.aca.site import SCOPE, Clients
from core.settings import AzurePlane
from tests.azure_plane import Controls
from tests.backends.aca.sites import fault, opened
from tests.simulators.azure.container_apps import code_of

pytestmark = pytest.mark.anyio
GROUPS = "/subscriptions/{}/resourcegroups"
VERSION = {"api-version": "2026-07-01"}


@pytest.fixture
async def raw(azure: AzurePlane) -> AsyncIterator[httpx2.AsyncClient]:
    """Whoever asks without Microsoft's client."""
    trust = ssl.create_default_context(cafile=azure.ca)
    async with httpx2.AsyncClient(base_url=azure.arm, verify=trust, trust_env=False) as client:
        yield client


async def authorized(clients: Clients) -> dict[str, str]:
    token = await (await clients.credential()).get_token(SCOPE)
    return {"Authorization": f"Bearer {token.token}"}


async def test_nobody_is_let_in_without_a_token(
    raw: httpx2.AsyncClient, bare_subscription: str
) -> None:
    path = GROUPS.format(bare_subscription)
    for header, code in (
        ({}, "AuthenticationFailed"),
        ({"Authorization": "Bearer a.b.c"}, "InvalidAuthenticationToken"),
    ):
        reply = await raw.get(path, params=VERSION, headers=header)
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, code)
        assert "Bearer" in reply.headers["www-authenticate"]


async def test_a_token_runs_out(controls: Controls, bare: Clients, raw: httpx2.AsyncClient) -> None:
    controls.set(bare.subscription, token_seconds=0.01)
    header = await authorized(bare)
    reply = await raw.get(GROUPS.format(bare.subscription), params=VERSION, headers=header)
    assert (reply.status_code, reply.json()["error"]["code"]) == (401, "ExpiredAuthenticationToken")


async def test_a_token_for_something_else_is_no_use(bare: Clients, raw: httpx2.AsyncClient) -> None:
    credential = await bare.credential()
    token = await credential.get_token("https://vault.azure.net/.default")
    header = {"Authorization": f"Bearer {token.token}"}
    reply = await raw.get(GROUPS.format(bare.subscription), params=VERSION, headers=header)
    assert reply.json()["error"]["code"] == "InvalidAuthenticationTokenAudience"


async def test_a_token_of_another_subscription_is_refused(
    bare: Clients, raw: httpx2.AsyncClient
) -> None:
    path = GROUPS.format("00000000-1111-4000-8000-000000000000")
    reply = await raw.get(path, params=VERSION, headers=await authorized(bare))
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "AuthorizationFailed")


async def test_a_version_is_asked_for(bare: Clients, raw: httpx2.AsyncClient) -> None:
    path, header = GROUPS.format(bare.subscription), await authorized(bare)
    reply = await raw.get(path, headers=header)
    assert reply.json()["error"]["code"] == "MissingApiVersionParameter"
    reply = await raw.get(path, params={"api-version": "new"}, headers=header)
    assert reply.json()["error"]["code"] == "InvalidApiVersionParameter"


async def test_bodies_that_are_no_objects_are_refused(
    bare: Clients, raw: httpx2.AsyncClient
) -> None:
    path = f"{GROUPS.format(bare.subscription)}/g"
    for content in (b"{", b"[]"):
        reply = await raw.put(path, params=VERSION, headers=await authorized(bare), content=content)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "InvalidRequestContent")


async def test_what_is_not_served_says_so(raw: httpx2.AsyncClient) -> None:
    reply = await raw.get("/nothing", params=VERSION)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "InvalidResourceType")
    reply = await raw.post(GROUPS.format("s"), params=VERSION)
    assert (reply.status_code, reply.json()["error"]["code"]) == (405, "HttpMethodNotAllowed")


@pytest.mark.parametrize(("login", "words"), [("expired", "AADSTS700082"), ("none", "az login")])
async def test_a_login_that_is_gone_gives_no_token(
    controls: Controls, bare: Clients, login: str, words: str
) -> None:
    controls.set(bare.subscription, login=login)
    groups = (await bare.resources()).resource_groups
    with pytest.raises(ClientAuthenticationError, match=words):
        await groups.check_existence("g")


async def test_the_caller_is_who_the_knob_names(controls: Controls, bare: Clients) -> None:
    mine = await bare.caller()
    assert mine == controls.get(bare.subscription)["caller"]
    somebody = "11111111-2222-4333-8444-555555555555"
    controls.set(bare.subscription, identity=somebody)
    assert await bare.caller() == somebody


async def test_an_action_that_is_denied_is_named(controls: Controls, bare: Clients) -> None:
    action = "Microsoft.Resources/subscriptions/resourceGroups/write"
    controls.set(bare.subscription, denied_actions=[action])
    groups = (await bare.resources()).resource_groups
    assert not await groups.check_existence("g")
    with pytest.raises(HttpResponseError, match=action) as refusal:
        await groups.create_or_update("g", M.ResourceGroup(location="eastus"))
    assert (refusal.value.status_code, code_of(refusal.value)) == (403, "AuthorizationFailed")


async def test_a_provider_must_be_registered_before_anything_is_made(
    bare: Clients, raw: httpx2.AsyncClient
) -> None:
    """Asked without Microsoft's client, which registers by itself and sleeps for ten seconds."""
    groups = (await bare.resources()).resource_groups
    await groups.create_or_update("g", M.ResourceGroup(location="eastus"))
    provider = f"/subscriptions/{bare.subscription}/resourceGroups/g/providers/Microsoft.App"
    region = f"/subscriptions/{bare.subscription}/providers/Microsoft.App/locations/eastus"
    for method, path, code in (
        ("PUT", f"{provider}/managedEnvironments/e", "MissingSubscriptionRegistration"),
        ("GET", f"{region}/usages", "MissingSubscriptionRegistration"),
        ("GET", f"{provider}/managedEnvironments/e", "ResourceNotFound"),
    ):
        header = await authorized(bare)
        reply = await raw.request(method, path, params=VERSION, headers=header)
        assert reply.json()["error"]["code"] == code


async def test_a_fault_happens_as_often_as_it_is_set(controls: Controls, bare: Clients) -> None:
    controls.set(
        bare.subscription,
        faults=[fault("HEAD Microsoft.Resources/*", 429, retry_after=0, times=2)],
    )
    groups = (await bare.resources()).resource_groups
    with pytest.raises(HttpResponseError) as refusal:
        await groups.check_existence("g", retry_total=0)
    assert refusal.value.status_code == 429
    answer: Any = refusal.value.response
    assert answer.headers["retry-after"] == "0"
    assert not await groups.check_existence("g")  # tried twice by the client itself
    calls = controls.get(bare.subscription)["calls"]
    assert calls == ["HEAD Microsoft.Resources/resourceGroups"] * 3


async def test_a_fault_after_its_effect_leaves_what_was_made(
    controls: Controls, bare: Clients
) -> None:
    controls.set(
        bare.subscription, faults=[fault("PUT *", 500, when="after", code="Oops", message="Late.")]
    )
    groups = (await bare.resources()).resource_groups
    with pytest.raises(HttpResponseError, match="Late") as refusal:
        await groups.create_or_update("g", M.ResourceGroup(location="eastus"), retry_total=0)
    assert code_of(refusal.value) == "Oops"
    assert await groups.check_existence("g")


@pytest.mark.parametrize(("when", "there"), [("hang", False), ("hang-after", True)])
async def test_a_call_that_hangs_never_answers(
    controls: Controls, bare: Clients, when: str, *, there: bool
) -> None:
    controls.set(bare.subscription, faults=[fault("PUT *", when=when)])
    groups = (await bare.resources()).resource_groups
    with pytest.raises(ServiceResponseError):
        await groups.create_or_update(
            "g", M.ResourceGroup(location="eastus"), retry_total=0, read_timeout=0.2
        )
    assert await groups.check_existence("g") is there


async def test_lists_are_given_in_pages_with_a_link_to_the_next(bare: Clients) -> None:
    groups = (await bare.resources()).resource_groups
    names = [f"g{number:02}" for number in range(12)]
    for name in names:
        await groups.create_or_update(name, M.ResourceGroup(location="eastus"))
    pages = [[one.name async for one in page] async for page in groups.list().by_page()]
    assert pages == [names[:5], names[5:10], names[10:]]


async def test_subscriptions_know_nothing_of_each_other(
    azure: AzurePlane, controls: Controls, clients: Clients
) -> None:
    another = str(uuid.uuid4())
    async with opened(azure, another) as other:
        theirs = (await other.clients.resources()).resource_groups
        mine = (await clients.resources()).resource_groups
        assert [one.name async for one in mine.list()] == ["vllm-devops"]
        assert [one.name async for one in theirs.list()] == []
    controls.drop(another)
