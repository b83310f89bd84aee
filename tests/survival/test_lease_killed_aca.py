"""kill -9 on the way to a lease of Container Apps: another machine says so, and Azure ends it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import anyio
import pytest

from core.settings import AzurePlane, Settings
from operations.runtime import Stage
from tests.azure_plane import Controls
from tests.conversation import agent_of
from tests.soon import until
from tests.survival import leasing
from tests.survival.leasing import deploy_if_alive, sees
from tests.survival.servers import server

pytestmark = pytest.mark.anyio

OWN: Final = "7b0e3c52-4f57-4d0e-8f0c-6a1f2d9c5e11"
ONE: Final = {"target": "aca-a100", "name": "one"}
WISH: Final = {**leasing.WISH, **ONE, "ttl_minutes": 90}
JOB: Final = "/microsoft.app/jobs/lease-one"
APP: Final = "/microsoft.app/containerapps/one"
GRANT: Final = f"{APP}/providers/microsoft.authorization/roleassignments/"
NOTHING_ENDS: Final = "Nothing in the cloud ends one: its job lease-one may not stop it"
STEPS: Final = {
    "its role": ("Microsoft.Authorization/roleDefinitions", "/roledefinitions/", "No deployment"),
    "its job": ("Microsoft.App/jobs", JOB, "Its job lease-one is left: destroy_vllm"),
    "its app": ("Microsoft.App/containerApps", APP, NOTHING_ENDS),
    "its grant": ("Microsoft.Authorization/roleAssignments", GRANT, ""),
}
"""After which the server is killed: the type, what is there then, what another machine is told."""


@pytest.fixture
def clouds(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Controls]]:
    """The simulated Azure that a server has started, for every machine; it ends here."""
    file = state_dir / "rehearsal" / "azure" / "plane.json"

    def controls() -> Controls:
        return Controls(AzurePlane.model_validate_json(file.read_bytes()))

    async def azure(_self: Stage) -> AzurePlane:
        return controls().plane

    monkeypatch.setattr(Stage, "azure", azure)
    yield controls
    Stage(Settings(vllm_devops_state_dir=state_dir, rehearsal=True)).forget_rehearsal()


@pytest.mark.parametrize("step", STEPS)
async def test_whoever_is_killed_after_a_step_of_a_lease_leaves_nothing_that_bills_unsaid(
    state_dir: Path, tmp_path: Path, clouds: Callable[[], Controls], step: str
) -> None:
    """What a fresh machine makes whole, or finds whole, Azure ends in time."""
    method, made, says = STEPS[step]
    clouds_of = {"REHEARSAL": "1", "AZURE_SUBSCRIPTION_ID": OWN, "PAUSE_SCALE": "0.05"}
    async with server(state_dir, **clouds_of) as first:
        await first.call("list_deployments", target="aca-a100")
        azure = clouds()
        fault = {"method": f"PUT {method}", "when": "hang-after"}
        at_once = {"environment_seconds": 0, "registration_seconds": 0, "boot_seconds": 0.1}
        azure.set(OWN, prepared=step != "its role", faults=[fault], **at_once)
        before = _named(azure, made)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deploy_if_alive, first, WISH)
            await until(lambda: _named(azure, made) > before)
            await first.kill()
    azure.set(OWN, faults=[])
    elsewhere = leasing.elsewhere(tmp_path, azure_subscription_id=OWN, pause_scale=0.05)
    async with agent_of(elsewhere) as agent:
        found = await agent.call("status_vllm", **ONE)
        assert says in found.text, found
        assert ("Nothing in the cloud" in found.text) == (says == NOTHING_ENDS)
        if says:
            assert not (await agent.call("deploy_vllm", **WISH)).failed
        await sees(agent, "aca-a100", "ready")
        assert (await agent.call("status_vllm", **ONE)).data["lease"] == "cloud"
    azure.set(OWN, clock_ahead_seconds=92 * 60)
    await until(lambda: not azure.get(OWN)["replicas"])
    async with agent_of(elsewhere) as agent:
        await sees(agent, "aca-a100", "stopped")
        assert (await agent.call("destroy_vllm", **ONE)).data["gone"]
    assert _named(azure, JOB) == _named(azure, APP) == 0


def _named(azure: Controls, path: str) -> int:
    """Count the resources whose id holds this."""
    return sum(path in one for one in azure.get(OWN)["resources"])
