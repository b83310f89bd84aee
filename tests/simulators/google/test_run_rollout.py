"""How rollouts of the simulated Cloud Run go, and how they fail."""

from typing import Final

import pytest
from google.api_core import exceptions
from google.cloud.run_v2.types import Condition, EnvVar, Service

from tests.simulators.google.conftest import Google
from tests.simulators.google.run_services import Services, finished, keep_key, wanted

pytestmark = pytest.mark.anyio

_SECRETS: Final = (
    "google.cloud.secretmanager_v1",
    "secret_manager_service",
    "SecretManagerServiceAsyncClient",
)

_COMMON = Condition.CommonReason
_REVISION = Condition.RevisionReason


async def test_an_image_that_is_missing_is_said_so(services: Services) -> None:
    """The service is there, and says what it lacks."""
    service = wanted(services.project)
    service.template.containers[0].image = "vllm/vllm-openai:no-such-tag"
    failed, code = await services.fails(service)
    assert failed.terminal_condition.reason == _COMMON.CONTAINER_MISSING
    assert "'vllm/vllm-openai:no-such-tag' not found" in failed.terminal_condition.message
    assert code == 5


async def test_an_image_of_another_project_is_not_readable(services: Services) -> None:
    """Google's own agent has to be allowed to read it."""
    service = wanted(services.project)
    service.template.containers[0].image = "us-central1-docker.pkg.dev/another/r/i:1"
    failed, code = await services.fails(service)
    assert failed.terminal_condition.reason == _COMMON.CONTAINER_IMAGE_UNAUTHORIZED
    assert code == 7


async def test_a_secret_nobody_granted_stops_the_rollout(
    google: Google, services: Services
) -> None:
    """The secret is there, but the runtime account may not read it."""
    key = await keep_key(google.client(*_SECRETS), services.project, readable=False)
    failed, code = await services.fails(wanted(services.project, env=(key,)))
    assert failed.terminal_condition.reason == _COMMON.SECRETS_ACCESS_CHECK_FAILED
    assert "Permission denied on secret" in failed.terminal_condition.message
    assert code == 7


async def test_a_secret_that_is_not_there_stops_the_rollout(services: Services) -> None:
    """A reference to nothing is not readable either."""
    service = wanted(services.project)
    reference = {"secret": "nothing", "version": "latest"}
    variable = EnvVar(name="HF_TOKEN", value_source={"secret_key_ref": reference})
    service.template.containers[0].env = [variable]
    failed, _ = await services.fails(service)
    assert failed.terminal_condition.reason == _COMMON.SECRETS_ACCESS_CHECK_FAILED
    assert "secrets/nothing/versions/latest was not found" in failed.terminal_condition.message


@pytest.mark.parametrize("words", [("--port", "8001"), ("--host", "127.0.0.1")])
async def test_a_container_that_listens_elsewhere_is_never_healthy(
    services: Services, words: tuple[str, str]
) -> None:
    """It has to listen on every address, on the port that was named."""
    service = wanted(services.project)
    args = service.template.containers[0].args
    args[args.index(words[0]) + 1] = words[1]
    service.template.containers[0].startup_probe.failure_threshold = 3
    failed, code = await services.fails(service)
    assert failed.terminal_condition.revision_reason == _REVISION.HEALTH_CHECK_CONTAINER_ERROR
    assert "PORT=8000" in failed.terminal_condition.message
    assert code == 9


async def test_a_model_that_does_not_fit_ends_as_vllm_does(services: Services) -> None:
    """The engine's own reason is in the log; Google's sentence is the general one."""
    service = wanted(services.project)
    service.template.containers[0].args[0] = "google/gemma-4-31B-it"
    failed, _ = await services.fails(service)
    assert failed.terminal_condition.revision_reason == _REVISION.HEALTH_CHECK_CONTAINER_ERROR
    log = services.controls.get(services.project)["log"]
    assert any("OutOfMemoryError" in line for line in log)
    assert any(line.startswith("Container called exit(") for line in log)
    assert services.controls.get(services.project)["instances"] == []


@pytest.mark.parametrize(
    ("rollout", "reason"),
    [
        ("probe-fails", "HEALTH_CHECK_CONTAINER_ERROR"),
        ("no-capacity", "MIN_INSTANCES_NOT_PROVISIONED"),
        ("image-missing", "CONTAINER_MISSING"),
    ],
)
async def test_a_rollout_fails_as_it_was_set_to(
    services: Services, rollout: str, reason: str
) -> None:
    """What a test may set comes out as Google's own reasons."""
    services.controls.set(services.project, rollout=rollout)
    service = wanted(services.project)
    service.template.containers[0].startup_probe.failure_threshold = 2
    failed, _ = await services.fails(service)
    told = failed.terminal_condition
    assert reason in {told.reason.name, told.revision_reason.name}


async def test_the_log_tells_the_boot(services: Services) -> None:
    """System lines stand beside the engine's own; the port is the container's."""
    await services.created()
    log = "\n".join(services.controls.get(services.project)["log"])
    assert "Starting new instance. Reason: DEPLOYMENT_ROLLOUT" in log
    assert "STARTUP HTTP probe succeeded after" in log
    assert 'on port 8000 path "/health"' in log
    assert "Starting vLLM server on http://" in log
    assert ":8000" in log


async def test_a_newer_change_ends_an_older_rollout(services: Services) -> None:
    """The newest wins; the older operation says that it was ended."""
    services.controls.set(services.project, boot_seconds=20)
    first = await services.create()
    services.controls.set(services.project, boot_seconds=0.05)
    service = wanted(services.project, "--max-num-seqs", "4")
    service.name = services.name()
    second = await services.client.update_service(service=service)
    done = await finished(second)
    assert done.terminal_condition.state == Condition.State.CONDITION_SUCCEEDED
    with pytest.raises(exceptions.GoogleAPICallError, match="newer change"):
        await finished(first)
    await services.until_instances(1)


async def test_a_label_that_is_changed_meanwhile_waits_for_the_rollout(services: Services) -> None:
    """One instance comes up for both; both operations end well."""
    services.controls.set(services.project, boot_seconds=0.5)
    first = await services.create()
    labelled = await services.get()
    labelled.labels["a"] = "b"
    second = await services.client.update_service(service=labelled)
    assert (await finished(second)).labels["a"] == "b"
    assert (await finished(first)).labels["a"] == "b"
    assert len(services.controls.get(services.project)["revisions"]) == 1
    log = services.controls.get(services.project)["log"]
    assert sum(line.startswith("Starting new instance") for line in log) == 1


async def test_a_service_can_be_deleted_while_it_rolls_out(services: Services) -> None:
    """The rollout's operation says that it was ended; once more there is nothing to delete."""
    services.controls.set(services.project, boot_seconds=20)
    rollout = await services.create()
    await services.until_instances(1)
    await finished(await services.client.delete_service(name=services.name()))
    with pytest.raises(exceptions.NotFound):
        await services.client.delete_service(name=services.name())
    with pytest.raises(exceptions.GoogleAPICallError, match="newer change"):
        await finished(rollout)
    seen = services.controls.get(services.project)
    assert (seen["services"], seen["instances"]) == ([], [])


async def test_a_failed_update_leaves_what_served_before(services: Services) -> None:
    """The service is failed, its earlier revision still answers."""
    first = await services.created()
    broken = Service(first)
    broken.template.containers[0].image = "vllm/vllm-openai:no-such-tag"
    operation = await services.client.update_service(service=broken)
    with pytest.raises(exceptions.GoogleAPICallError, match="not found"):
        await finished(operation)
    now = await services.get()
    assert now.terminal_condition.state == Condition.State.CONDITION_FAILED
    assert now.latest_ready_revision == first.latest_ready_revision
    assert now.latest_created_revision != first.latest_created_revision
