"""A deployment as commands and YAML for a person: what would be sent, and no key."""

import shlex
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from backends.tpu import plan
from backends.tpu.compute import ComputePlane
from backends.tpu.queued_resources import QueuedPlane
from backends.tpu.site import ControlPlane, Place, PlaneKind, Request, Search
from core.errors import NotFound
from tests.backends.discovery import faults
from tests.backends.tpu.chips import Chips
from tests.backends.tpu.planned import EVERY, drawn, planned
from tests.backends.tpu.sites import offline
from tests.backends.tpu.stage import HERE, Stage, staged

anyio = pytest.mark.anyio
_PINNED: Final = "vllm/vllm-tpu@sha256:" + "0" * 64
_NODE: Final = Place("europe-west4-a", "queued")


@pytest.mark.parametrize("target", EVERY)
def test_a_plans_commands_send_each_body_to_its_api_and_hold_no_key(target: str) -> None:
    """What is pasted ends up in a shell's history; the key goes from a pipe into the secret."""
    site = offline(target, hf_token="hf_x", google_allowed_addresses=("203.0.113.7/32",))
    steps = planned(site).steps
    before, ends, after = steps[:3], steps[3:-2], steps[-2:]
    key, grant, rule, instance, queued = [step.command for step in (*before, *after)]
    jobs = "https://cloudscheduler.googleapis.com/v1/projects/proj/locations/us-central1/jobs'"
    assert [step.command.endswith(jobs) for step in ends] == [True] * (not target.endswith("flex"))
    assert key.startswith("openssl rand -hex 32 | tr -d '\\n' | gcloud secrets create ")
    assert key.endswith("--data-file=-")
    assert shlex.split(grant)[3] == "vllm-devops-tpu-gemma-api-key"
    assert yaml.safe_load(rule.split("END_OF_REQUEST")[1].strip("'\n")) == steps[2].request
    assert rule.endswith("/compute/v1/projects/proj/global/firewalls'")
    assert "--data @vllm-devops-gemma.json" in instance
    assert instance.endswith("/compute/v1/projects/proj/zones/us-east5-b/instances'")
    version = "v2alpha1" if target.endswith(("-spot", "-flex")) else "v2"
    path = "projects/proj/locations/us-east5-b/queuedResources?queuedResourceId=vllm-devops-gemma"
    assert queued.endswith(f"https://tpu.googleapis.com/{version}/{path}'")
    for written in (key, grant, rule, instance, queued, plan.docker_command(drawn(site))):
        assert "hf_x" not in written
        assert "VLLM_API_KEY=" not in written


def test_docker_runs_the_same_container() -> None:
    """On a VM with chips, with the key taken from the shell."""
    made = drawn("tpu-v6e-4")
    words = shlex.split(plan.docker_command(made))
    assert words[:3] == ["docker", "run", "--detach"]
    ends = [made.container.image, "vllm", *made.container.args]
    assert words[-len(made.container.args) - 2 :] == ends
    assert words[words.index("VLLM_API_KEY") - 1] == "-e"


class _Worded(Chips):
    """Shows what a test has put there, and says requests as the real one does."""

    def __init__(self, shown: Chips, plane: ControlPlane) -> None:
        super().__init__(shown.kind)
        self.chips, self._plane = shown.chips, plane

    def bodies(self, request: Request) -> Mapping[str, object]:
        return self._plane.bodies(request)

    def address(self, request: Request) -> str:
        return self._plane.address(request)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as stage:
        clients = stage.site.clients
        planes: Mapping[PlaneKind, ControlPlane] = {
            "queued": _Worded(stage.queued, QueuedPlane(clients)),
            "compute": _Worded(stage.compute, ComputePlane(clients)),
        }
        yield replace(stage, site=replace(stage.site, planes=planes))


def _pin(there: Stage, kept: Search) -> None:
    container = kept.blueprint.container.model_copy(update={"image": _PINNED})
    made = kept.blueprint.model_copy(update={"container": container})
    there.site.records.keep(kept.model_copy(update={"blueprint": made}))


async def _written(there: Stage) -> tuple[str, Any]:
    config = await plan.config_of(there.site, "gemma")
    return config.command, yaml.safe_load(config.yaml)


@anyio
async def test_it_is_written_as_it_runs(there: Stage) -> None:
    """With the image that it was pinned to, where it was given a chip."""
    spec = there.spec(max_num_seqs=8)
    there.chip(spec=spec)
    _pin(there, there.kept(spec=spec, placed=HERE))
    command, body = await _written(there)
    assert faults("compute.v1", "Instance", body) == []
    (script,) = [
        row["value"] for row in body["metadata"]["items"] if row["key"] != "vllm-devops-spec"
    ]
    assert f"readonly IMAGE='{_PINNED}'" in script
    assert "'--max-num-seqs' '8'" in script
    config = await plan.config_of(there.site, "gemma")
    assert _PINNED in config.docker_run
    assert f"/zones/{HERE.zone}/instances" in command


@anyio
async def test_where_it_is_decides_what_is_written(there: Stage) -> None:
    """Before anything was asked for, the first place; then where its chip is."""
    there.kept()
    command, _body = await _written(there)
    assert "/zones/us-east5-b/instances" in command
    there.chip(place=_NODE)
    there.kept(placed=_NODE)
    command, body = await _written(there)
    assert faults("tpu.v2", "QueuedResource", body) == []
    assert f"/locations/{_NODE.zone}/queuedResources" in command


@anyio
async def test_what_another_machine_made_is_written_by_its_metadata(there: Stage) -> None:
    """Where somebody took that away, it is said; the VM is still there to be read."""
    there.chip(spec=there.spec(max_num_seqs=8))
    config = await plan.config_of(there.site, "gemma")
    assert "--max-num-seqs 8" in config.docker_run
    there.chip(spec_json="")
    with pytest.raises(NotFound) as caught:
        await plan.config_of(there.site, "gemma")
    assert "gcloud compute instances list" in caught.value.fix
