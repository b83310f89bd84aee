"""The startup script that is planned for a VM boots a simulated one: both keep to one contract."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.tpu.site import Blueprint
from backends.tpu.vm import startup_script
from tests.backends.tpu.planned import E4B, EIGHT, FOUR, ONE, drawn
from tests.backends.tpu.sites import offline
from tests.simulators.google.vms import KEY, Vms, keep, vms_in

pytestmark = pytest.mark.anyio


@pytest.fixture
async def vms(tmp_path: Path) -> AsyncIterator[Vms]:
    async with vms_in(tmp_path) as vms:
        yield vms


def _placed(vms: Vms, made: Blueprint, plane: str) -> None:
    keep(vms.project, "vllm-devops-tpu-gemma-api-key", KEY)
    vms.start(
        startup_script(made, image=made.container.image),
        plane=plane,
        id=made.id,
        accelerator=made.accelerator,
        tags=(made.id,),
        has_docker=plane == "queued",
        disk_gb=made.disk_gb if plane == "compute" else 100,
    )


@pytest.mark.parametrize("plane", ["queued", "compute"])
@pytest.mark.parametrize("target", [ONE, FOUR, EIGHT])
async def test_a_planned_vm_serves(vms: Vms, target: str, plane: str) -> None:
    """On either plane, on one chip and on several."""
    made = drawn(offline(target, "p-vm"), model=E4B)
    _placed(vms, made, plane)
    await vms.until("ready")
    assert f"'model': {made.chips}," in "\n".join(vms.output())


async def test_one_that_is_reached_by_a_tunnel_alone_serves_without_tls(vms: Vms) -> None:
    """Nobody but who is on it hears it."""
    _placed(vms, drawn(offline(ONE, "p-vm"), access="internal"), "compute")
    await vms.until("ready")
    assert "certificate" not in vms.phases()
