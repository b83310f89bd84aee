"""Single TPUs of a simulated Google Cloud that is a process of its own, and their logs."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import pytest

from core.settings import GooglePlane
from tests.google_plane import Controls
from tests.simulators.google.compute import SCOPE, ZONE, Compute, compute_of, instance
from tests.simulators.google.conftest import Google
from tests.simulators.google.run_services import account_of, keep_key
from tests.simulators.google.vms import docker, proxy, script

pytestmark = pytest.mark.anyio

NAME = "vllm-devops-one"


@pytest.fixture
async def compute(
    plane: GooglePlane, project: str, controls: Controls, google: Google
) -> AsyncIterator[Compute]:
    """A project whose key is kept, and whose clock is fast."""
    controls.set(project, tpu_clock=2000, boot_seconds=0.05)
    secrets = google.client(
        "google.cloud.secretmanager_v1", "secret_manager_service", "SecretManagerServiceAsyncClient"
    )
    await keep_key(secrets, project)
    async with compute_of(plane, project) as compute:
        yield compute


def _asked(project: str, model: str = "STANDARD") -> dict[str, Any]:
    text = script(
        PROJECT=project,
        **proxy(tls=False),
        DOCKER=[word.replace("p-vm", project) for word in docker()],
    )
    return instance(
        NAME,
        model=model,
        metadata={"items": [{"key": "startup-script", "value": text}]},
        service_accounts=[{"email": account_of(project), "scopes": [SCOPE]}],
    )


async def _entries(google: Google, project: str, words: str) -> list[Any]:
    client = google.client(
        "google.cloud.logging_v2", "logging_service_v2", "LoggingServiceV2AsyncClient"
    )
    asked = {"resource_names": [f"projects/{project}"], "filter": words, "page_size": 1000}
    return [entry async for entry in await client.list_log_entries(request=asked)]


async def _told(google: Google, project: str, phase: str, times: int = 1) -> Any:
    """Wait for an entry of the script's; gives the newest."""
    words = f'log_id("vllm-devops") AND labels.deployment="one" AND labels.phase="{phase}"'
    with anyio.fail_after(60):
        while True:
            found = await _entries(google, project, words)
            if len(found) >= times:
                return found[-1]
            await anyio.sleep(0.05)


async def test_an_instance_boots_and_its_log_is_found(
    compute: Compute, project: str, google: Google
) -> None:
    """By labels, by fields of JSON, by resource and by log."""
    await compute.inserted(_asked(project))
    ready = await _told(google, project, "ready")
    assert dict(ready.json_payload)["phase"] == "ready"
    assert dict(ready.labels) == {"deployment": "one", "phase": "ready"}
    assert ready.resource.type == "global"
    assert not ready.text_payload
    own = 'jsonPayload.container.metadata.deployment="one"'
    both = f'(log_id("vllm-devops") AND labels.deployment="one") OR ({own})'
    script_lines, output, every, other = [
        await _entries(google, project, words)
        for words in (
            'resource.type="global"',
            f'resource.type="gce_instance" AND {own} AND resource.labels.zone="{ZONE}"',
            both,
            own.replace("one", "two"),
        )
    ]
    assert (len(script_lines) + len(output), other) == (len(every), [])
    assert dict(output[0].json_payload)["container"]["name"] == f"/{NAME}"
    for words in ('jsonPayload.message:"Init mesh"', '"Init mesh"'):
        assert len(await _entries(google, project, words)) == 1
    assert await _entries(google, project, 'textPayload:"Init mesh"') == []
    serial = await compute.act("get_serial_port_output", NAME)
    assert "startup-script: vllm-devops: ready:" in serial.contents


async def test_an_engine_can_be_let_crash(
    compute: Compute, project: str, google: Google, controls: Controls
) -> None:
    """Docker starts it again, since it had served."""
    await compute.inserted(_asked(project))
    await _told(google, project, "ready")
    controls.stop_engine(project, "compute", ZONE, NAME)
    await _told(google, project, "ready", times=2)


async def test_a_chip_can_be_taken_back(
    compute: Compute, project: str, google: Google, controls: Controls
) -> None:
    """The VM is gone, and what it wrote is not."""
    await compute.inserted(_asked(project, "SPOT"))
    await _told(google, project, "ready")
    controls.preempt(project, "compute", ZONE, NAME)
    await compute.until_gone(NAME)
    assert await _told(google, project, "ready")


async def test_what_is_not_there_is_said(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Neither is anything else done than what is known."""
    base = f"{plane.http}/rehearsal/projects/{project}/tpus"
    async with httpx2.AsyncClient(trust_env=False) as client:
        for kind in ("queued", "compute"):
            for do, status in (("preempt", 404), ("stop-engine", 404), ("dance", 400)):
                reply = await client.post(f"{base}/{kind}/{ZONE}/none", json={"do": do})
                assert reply.status_code == status
    assert controls.address() == "127.0.0.1"
