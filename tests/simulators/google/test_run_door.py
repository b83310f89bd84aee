"""The URL of a simulated service: who comes in, what wakes it, how answers come out."""

from typing import Any, Final

import anyio
import httpx2
import pytest
from google.protobuf.duration_pb2 import Duration

from tests.simulators.google.conftest import Google
from tests.simulators.google.run_services import KEY, Services, keep_key, wanted

pytestmark = pytest.mark.anyio

_SECRETS: Final = (
    "google.cloud.secretmanager_v1",
    "secret_manager_service",
    "SecretManagerServiceAsyncClient",
)

_ASKED = {"model": "m", "prompt": "hi", "max_tokens": 8, "ignore_eos": True}


async def test_nobody_comes_in_without_a_token(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """Without one it is forbidden, with one that is not Google's unauthorized."""
    url = (await services.created()).uri
    assert (await http.get(f"{url}/v1/models")).status_code == 403
    forged = {"Authorization": "Bearer a.b.c"}
    refused = await http.get(f"{url}/v1/models", headers=forged)
    assert refused.status_code == 401
    assert "Error: Unauthorized" in refused.text
    assert (await http.get(f"{url}/v1/models", headers=services.token(url))).status_code == 200


async def test_a_token_for_another_audience_does_not_hold(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """The audience is the base URL, without a path."""
    url = (await services.created()).uri
    elsewhere = services.token(f"{url}/v1/models")
    assert (await http.get(f"{url}/v1/models", headers=elsewhere)).status_code == 401


async def test_an_old_token_does_not_hold(services: Services, http: httpx2.AsyncClient) -> None:
    """Tokens run out."""
    url = (await services.created()).uri
    services.controls.set(services.project, token_seconds=1)
    token = services.token(url)
    with anyio.fail_after(10):
        while True:
            if (await http.get(f"{url}/v1/models", headers=token)).status_code == 401:
                return
            await anyio.sleep(0.1)


async def test_a_role_on_the_service_lets_a_stranger_in(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """Who does not own the project needs roles/run.invoker."""
    done = await services.created()
    services.controls.set(services.project, identity="stranger@example.com")
    token = services.token(done.uri)
    services.controls.set(services.project, identity="")
    assert (await http.get(f"{done.uri}/v1/models", headers=token)).status_code == 403
    policy: Any = await services.client.get_iam_policy(request={"resource": done.name})
    policy.bindings.add(role="roles/run.invoker", members=["user:stranger@example.com"])
    await services.client.set_iam_policy(request={"resource": done.name, "policy": policy})
    assert (await http.get(f"{done.uri}/v1/models", headers=token)).status_code == 200


async def test_without_the_check_anybody_comes_in(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """A public service asks for no token of Google's."""
    service = wanted(services.project)
    service.invoker_iam_disabled = True
    url = (await services.created(service)).uri
    assert (await http.get(f"{url}/v1/models")).status_code == 200


async def test_both_credentials_go_their_own_way(
    google: Google, services: Services, http: httpx2.AsyncClient
) -> None:
    """Cloud Run takes its own header off; vLLM gets the other, and its key by the secret."""
    key = await keep_key(google.client(*_SECRETS), services.project)
    url = (await services.created(wanted(services.project, env=(key,)))).uri
    token = services.token(url)
    assert (await http.get(f"{url}/v1/models", headers=token)).status_code == 401
    both = {**token, "Authorization": f"Bearer {KEY}"}
    assert (await http.get(f"{url}/v1/models", headers=both)).status_code == 200
    assert KEY not in str(services.controls.get(services.project))


async def test_an_answer_streams_token_by_token(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """The first piece is here while the instance still works on the rest."""
    settings = {"SIMULATED_ENGINE_STEP_MS": "50"}
    services.controls.set(services.project, engine_environment=settings)
    url = (await services.created()).uri
    body = {**_ASKED, "max_tokens": 30, "stream": True}
    async with http.stream(
        "POST", f"{url}/v1/completions", json=body, headers=services.token(url)
    ) as reply:
        pieces = reply.aiter_raw()
        assert b"data: " in await anext(pieces)
        (instance,) = services.controls.get(services.project)["instances"]
        assert instance["busy"][-1][1] is None
        rest = b"".join([piece async for piece in pieces])
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_a_client_that_leaves_frees_the_instance(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """Nobody is billed for an answer that nobody reads."""
    settings = {"SIMULATED_ENGINE_STEP_MS": "50"}
    services.controls.set(services.project, engine_environment=settings)
    url = (await services.created()).uri
    body = {**_ASKED, "max_tokens": 1000, "stream": True}
    async with http.stream(
        "POST", f"{url}/v1/completions", json=body, headers=services.token(url)
    ) as reply:
        await anext(reply.aiter_raw())
    with anyio.fail_after(10):
        while True:
            (instance,) = services.controls.get(services.project)["instances"]
            if instance["busy"][-1][1] is not None:
                return
            await anyio.sleep(0.02)


async def test_an_idle_instance_ends_and_a_request_wakes_the_next(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """The request that wakes it waits for the boot."""
    url = (await services.created()).uri
    services.controls.set(services.project, idle_seconds=0.1)
    await services.until_instances(0)
    woken = await http.get(f"{url}/v1/models", headers=services.token(url))
    assert woken.status_code == 200
    log = "\n".join(services.controls.get(services.project)["log"])
    assert "Starting new instance. Reason: AUTOSCALING" in log


async def test_a_request_that_takes_too_long_is_ended(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """The cold start counts."""
    service = wanted(services.project)
    service.template.timeout = Duration(seconds=1)
    url = (await services.created(service)).uri
    services.controls.set(services.project, idle_seconds=0.1, boot_seconds=30)
    await services.until_instances(0)
    late = await http.get(f"{url}/v1/models", headers=services.token(url))
    assert (late.status_code, late.text) == (504, "upstream request timeout")


async def test_without_capacity_a_cold_start_is_refused(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """The request does not wait for a GPU that is not there."""
    url = (await services.created()).uri
    services.controls.set(services.project, idle_seconds=0.1, rollout="no-capacity")
    await services.until_instances(0)
    refused = await http.get(f"{url}/v1/models", headers=services.token(url))
    assert refused.status_code == 429
    assert "no available instance" in refused.text


async def test_an_instance_that_cannot_start_is_an_error_of_the_server(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """The request that woke it is not kept waiting."""
    url = (await services.created()).uri
    broken = {"SIMULATED_ENGINE_FAIL": "oom-weights"}
    services.controls.set(services.project, idle_seconds=0.1, engine_environment=broken)
    await services.until_instances(0)
    refused = await http.get(f"{url}/v1/models", headers=services.token(url))
    assert refused.status_code == 503


async def test_a_service_that_never_served_has_no_page(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """Its URL is known before it answers."""
    services.controls.set(services.project, rollout="never")
    await services.create()
    url = (await services.get()).uri
    assert (await http.get(f"{url}/v1/models", headers=services.token(url))).status_code == 404
