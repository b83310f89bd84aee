"""A project is set up for TPUs once, by steps that can be done again; nobody else's is touched."""

import pytest

from backends.google.setup import needs
from backends.lifecycle import set_up
from backends.tpu.plan import shared
from core.settings import GooglePlane
from tests.backends.tpu.sites import opened
from tests.google_plane import Controls

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]

TOKEN = "hf_secretword"


async def test_the_account_of_the_vms_gets_its_roles_and_no_secret_of_the_project(
    plane: GooglePlane, bare_project: str, controls: Controls
) -> None:
    """What a VM may read is granted on each secret alone; who ends one may delete it."""
    async with opened(plane, bare_project, hf_token=TOKEN) as site:
        await set_up(shared(site), seconds=30)
    there = controls.get(bare_project)
    account = f"vllm-devops-runtime@{bare_project}.iam.gserviceaccount.com"
    ender = f"vllm-devops-tpu-lease@{bare_project}.iam.gserviceaccount.com"
    role = "vllmDevopsTpuLease"
    assert there["accounts"] == [account, ender]
    assert there["roles"] == {role: ["tpu.nodes.delete"]}
    assert there["bindings"] == {
        f"projects/{bare_project}/roles/{role}": [f"serviceAccount:{ender}"],
        "roles/logging.logWriter": [f"serviceAccount:{account}"],
        "roles/artifactregistry.reader": [f"serviceAccount:{account}"],
    }
    assert there["secrets"]["hf-token"]["bindings"] == {
        "roles/secretmanager.secretAccessor": [f"serviceAccount:{account}"]
    }


async def test_a_project_that_was_set_up_for_cloud_run_needs_nothing(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The account and its roles are the same ones."""
    async with opened(plane, project) as site:
        assert (await set_up(shared(site), seconds=30)).missing == ()
    assert controls.changes(project) == []


def test_the_apis_of_both_control_planes_are_switched_on() -> None:
    """Of one of them that is off, every look at TPUs would tell half of the truth."""
    names = {api.name for api in needs("tpu").apis}
    assert {"tpu.googleapis.com", "compute.googleapis.com"} <= names
    assert len(names) == len(needs("tpu").apis)
