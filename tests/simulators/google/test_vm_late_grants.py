"""A grant that is known everywhere only minutes after a VM has begun to boot."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from google.iam.v1.policy_pb2 import Policy

from tests.simulators.google.vms import Vms, docker, script, vms_in

pytestmark = pytest.mark.anyio


@pytest.fixture
async def vms(tmp_path: Path) -> AsyncIterator[Vms]:
    async with vms_in(tmp_path) as made:
        yield made


async def test_what_may_not_be_logged_yet_is_tried_again(vms: Vms) -> None:
    """Docker refuses a container until then, and a certificate that was lost is told again."""
    vms.knobs(tpu_clock=200.0)
    granted, vms.project.policy = vms.project.policy, Policy()
    vm = vms.start()
    await vms.seen(lambda: " starting engine: Try 2 of 6, for: docker: Error" in vm.serial)
    vms.project.policy = granted
    await vms.until("ready")
    assert vms.phases()[-2:] == ["certificate", "ready"]
    assert "-----END CERTIFICATE-----" in vms.told("certificate")[0]


async def test_a_serial_port_shows_the_whole_certificate(vms: Vms) -> None:
    """Whoever cannot read the log finds it there."""
    vm = vms.start()
    await vms.until("ready")
    (pem,) = vms.told("certificate")
    shown = [line.partition("startup-script: ")[2] for line in vm.serial.splitlines()]
    begin = shown.index(f"vllm-devops: certificate: {pem.splitlines()[0]}")
    assert shown[begin + 1 :][: len(pem.splitlines()) - 1] == pem.splitlines()[1:]


async def test_why_docker_refuses_is_told_and_not_where_its_help_is(vms: Vms) -> None:
    vms.start(script(DOCKER=docker(more=("--gpu", "1"))))
    assert await vms.until("failed") == "The container cannot be started: unknown flag: --gpu"
