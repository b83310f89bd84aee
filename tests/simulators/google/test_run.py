"""What a simulated service does that no story waits for: it fails, changes, wakes, answers."""

from collections.abc import Callable
from typing import Any, Final

import anyio
import httpx2
import pytest
from google.api_core import exceptions
from google.cloud.run_v2.types import (
    Condition,
    CreateServiceRequest,
    EnvVar,
    Service,
    ServiceScaling,
)
from google.protobuf.duration_pb2 import Duration

from tests.simulators.google.run_services import (
    Services,
    finished,
    parent_of,
    wanted,
)

pytestmark = pytest.mark.anyio
Change = Callable[[Any], None]
_SECRETS: Final = (
    *("google.cloud.secretmanager_v1", "secret_manager_service"),
    "SecretManagerServiceAsyncClient",
)
_MODE: Final = ServiceScaling.ScalingMode
_SLOW: Final = {"SIMULATED_ENGINE_STEP_MS": "50"}
_STREAM: Final = {"model": "m", "prompt": "hi", "max_tokens": 1000, "stream": True}


def _image(name: str) -> Change:
    return lambda container: setattr(container, "image", name)


def _argument(flag: str, value: str) -> Change:
    def change(container: Any) -> None:
        container.args[container.args.index(flag) + 1] = value
        container.startup_probe.failure_threshold = 3

    return change


def _as_it_is(container: Any) -> None:
    container.startup_probe.failure_threshold = 2


def _reads_nothing(container: Any) -> None:
    reference = {"secret": "nothing", "version": "latest"}
    container.env = [EnvVar(name="HF_TOKEN", value_source={"secret_key_ref": reference})]


@pytest.mark.parametrize(
    ("change", "rollout", "reason", "code", "words"),
    [
        (_image("vllm/vllm-openai:none"), "ok", "CONTAINER_MISSING", 5, "vllm-openai:none' not"),
        (
            _image("us-central1-docker.pkg.dev/another/r/i:1"),
            *("ok", "CONTAINER_IMAGE_UNAUTHORIZED", 7, "must have permission to read the image"),
        ),
        (
            _reads_nothing,
            *("ok", "SECRETS_ACCESS_CHECK_FAILED", 7, "secrets/nothing/versions/latest was not"),
        ),
        (_argument("--port", "8001"), "ok", "HEALTH_CHECK_CONTAINER_ERROR", 9, "PORT=8000"),
        (_argument("--host", "127.0.0.1"), "ok", "HEALTH_CHECK_CONTAINER_ERROR", 9, "PORT=8000"),
        (_as_it_is, "probe-fails", "HEALTH_CHECK_CONTAINER_ERROR", 9, "failed to start"),
        (_as_it_is, "no-capacity", "MIN_INSTANCES_NOT_PROVISIONED", 8, "no capacity"),
        (_as_it_is, "image-missing", "CONTAINER_MISSING", 5, "not found"),
    ],
)
async def test_a_rollout_fails_with_googles_reasons(
    services: Services, change: Change, rollout: str, reason: str, code: int, words: str
) -> None:
    """The service is there and says what it lacks; no instance stays."""
    services.controls.set(services.project, rollout=rollout)
    service = wanted(services.project)
    change(service.template.containers[0])
    failed, told = await services.fails(service)
    condition = failed.terminal_condition
    assert reason in {condition.reason.name, condition.revision_reason.name}
    assert words in condition.message
    assert told == code
    assert services.controls.get(services.project)["instances"] == []


async def test_a_newer_change_ends_an_older_rollout(services: Services) -> None:
    """The newest wins; the older operation says that it was ended."""
    services.controls.set(services.project, boot_seconds=20)
    first = await services.create()
    services.controls.set(services.project, boot_seconds=0.05)
    service = wanted(services.project, "--max-num-seqs", "4")
    service.name = services.name()
    done = await finished(await services.client.update_service(service=service))
    assert done.terminal_condition.state == Condition.State.CONDITION_SUCCEEDED
    assert done.latest_ready_revision.rpartition("/")[2].startswith("one-00002-")
    with pytest.raises(exceptions.GoogleAPICallError, match="newer change"):
        await finished(first)
    await services.until_instances(1)


async def test_a_dry_run_makes_nothing(services: Services) -> None:
    """It is finished at once, has no name, and says what would be."""
    request = CreateServiceRequest(
        parent=parent_of(services.project),
        service=wanted(services.project),
        service_id="one",
        validate_only=True,
    )
    operation = await services.client.create_service(request=request)
    assert operation.operation.done
    assert not operation.operation.name
    assert operation.metadata.name == services.name()  # the type that the method declares
    assert services.controls.get(services.project)["services"] == []


async def _update(services: Services, service: Service) -> Any:
    return await finished(await services.client.update_service(service=service))


async def test_a_failed_update_leaves_what_served_before(services: Services) -> None:
    """The service is failed, its earlier revision still answers."""
    first = await services.created()
    broken = Service(first)
    broken.template.containers[0].image = "vllm/vllm-openai:no-such-tag"
    with pytest.raises(exceptions.GoogleAPICallError, match="not found"):
        await _update(services, broken)
    now = await services.get()
    assert now.terminal_condition.state == Condition.State.CONDITION_FAILED
    assert now.latest_ready_revision == first.latest_ready_revision
    assert now.latest_created_revision != first.latest_created_revision


async def test_a_least_count_keeps_instances_though_nobody_asks(services: Services) -> None:
    """They come up by themselves."""
    first = await services.created()
    services.controls.set(services.project, idle_seconds=0)
    await services.until_instances(0)
    first.scaling = ServiceScaling(min_instance_count=1, max_instance_count=1)
    await _update(services, first)
    await services.until_instances(1)
    log = "\n".join(services.controls.get(services.project)["log"])
    assert "MANUAL_OR_CUSTOMER_MIN_INSTANCE" in log


async def test_a_full_instance_brings_up_another(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """Up to the limit, requests beyond what one takes go to the next."""
    service = wanted(services.project)
    service.template.max_instance_request_concurrency = 1
    service.template.scaling.max_instance_count = 2
    services.controls.set(services.project, engine_environment=_SLOW)
    url = (await services.created(service)).uri
    token = services.token(url)
    statuses = []

    async def ask() -> None:
        body = {**_STREAM, "stream": False, "max_tokens": 60, "ignore_eos": True}
        reply = await http.post(f"{url}/v1/completions", json=body, headers=token)
        statuses.append(reply.status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(ask)
        await services.until_instances(2)
    assert statuses == [200, 200, 200]
    log = services.controls.get(services.project)["log"]
    assert sum(line.startswith("Starting new instance") for line in log) == 2


async def test_whoever_comes_in_shows_a_token_of_google_for_this_url(
    services: Services, http: httpx2.AsyncClient
) -> None:
    """None is forbidden; a forged one, or one for another audience, unauthorized."""
    done = await services.created()
    url = f"{done.uri}/v1/models"
    assert (await http.get(url)).status_code == 403
    for headers in ({"Authorization": "Bearer a.b.c"}, services.token(url)):
        assert (await http.get(url, headers=headers)).status_code == 401
    assert (await http.get(url, headers=services.token(done.uri))).status_code == 200


@pytest.mark.parametrize(
    ("knobs", "status", "words"),
    [
        ({}, 200, "data"),
        ({"boot_seconds": 30}, 504, "upstream request timeout"),
        ({"rollout": "no-capacity"}, 429, "no available instance"),
        ({"engine_environment": {"SIMULATED_ENGINE_FAIL": "oom-weights"}}, 503, "could not start"),
    ],
)
async def test_a_request_wakes_an_instance_or_says_why_not(
    services: Services, http: httpx2.AsyncClient, knobs: Any, status: int, words: str
) -> None:
    """The request that wakes it waits for the boot, which counts for its timeout."""
    service = wanted(services.project)
    service.template.timeout = Duration(seconds=2 if status == 504 else 60)
    url = (await services.created(service)).uri
    services.controls.set(services.project, idle_seconds=0.1, **knobs)
    await services.until_instances(0)
    reply = await http.get(f"{url}/v1/models", headers=services.token(url))
    assert reply.status_code == status
    assert words in reply.text
