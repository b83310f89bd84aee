"""A deployment that exists, as commands and YAML for a person."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from backends.tpu import plan
from backends.tpu.compute import ComputePlane
from backends.tpu.queued_resources import QueuedPlane
from backends.tpu.site import ControlPlane, Place, PlaneKind, Request, Search
from core.errors import NotFound
from tests.backends.discovery import faults
from tests.backends.tpu.chips import Chips
from tests.backends.tpu.stage import HERE, Stage, staged

pytestmark = pytest.mark.anyio

_PINNED = "vllm/vllm-tpu@sha256:" + "0" * 64
_NODE = Place("europe-west4-a", "queued")


class _Worded(Chips):
    """Shows what a test has put there, and says requests as the real one does."""

    def __init__(self, shown: Chips, plane: ControlPlane) -> None:
        super().__init__(shown.kind)
        self.chips, self._plane = shown.chips, plane

    def bodies(self, request: Request) -> Mapping[str, object]:
        return self._plane.bodies(request)


@pytest.fixture(params=["tpu-v6e-1"])
async def there(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(tmp_path, request.param) as stage:
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


async def test_it_is_written_as_it_runs(there: Stage) -> None:
    """With the image that it was pinned to, where it was given a chip."""
    spec = there.spec(max_num_seqs=8)
    there.chip(spec=spec)
    _pin(there, there.kept(spec=spec, placed=HERE))
    config = await plan.config_of(there.site, "gemma")
    body = yaml.safe_load(config.yaml)
    assert faults("compute.v1", "Instance", body) == []
    (script,) = [
        row["value"] for row in body["metadata"]["items"] if row["key"] != "vllm-devops-spec"
    ]
    assert f"readonly IMAGE='{_PINNED}'" in script
    assert "'--max-num-seqs' '8'" in script
    assert _PINNED in config.docker_run
    assert "gcloud compute instances create vllm-devops-gemma" in config.command
    assert f"--zone={HERE.zone}" in config.command
    assert any("vllm-devops-gemma.sh" in note for note in config.notes)


async def test_on_the_queue_it_is_written_as_a_queued_resource(there: Stage) -> None:
    """Where its chip is, whatever was asked for first."""
    there.chip(place=_NODE)
    there.kept(placed=_NODE)
    config = await plan.config_of(there.site, "gemma")
    body = yaml.safe_load(config.yaml)
    assert faults("tpu.v2", "QueuedResource", body) == []
    assert "queued-resources create vllm-devops-gemma" in config.command
    assert f"--zone={_NODE.zone}" in config.command


async def test_what_another_machine_made_is_written_too(there: Stage) -> None:
    """By what its VM's metadata says was asked for."""
    there.chip(spec=there.spec(max_num_seqs=8))
    config = await plan.config_of(there.site, "gemma")
    assert "--max-num-seqs 8" in config.docker_run


async def test_a_search_is_written_as_its_first_place(there: Stage) -> None:
    """Before anything was asked for."""
    there.kept()
    config = await plan.config_of(there.site, "gemma")
    assert "--zone=us-east5-b" in config.command
    assert "instances create" in config.command


@pytest.mark.parametrize("there", ["tpu-v6e-1-flex"], indirect=True)
async def test_what_gcloud_has_no_words_for_is_said(there: Stage) -> None:
    """The size of a node's disk."""
    there.kept(placed=_NODE)
    there.chip(place=_NODE, provisioning="flex-start")
    config = await plan.config_of(there.site, "gemma")
    assert any("disk" in note for note in config.notes)
    assert yaml.safe_load(config.yaml)["provisioningModel"] == "FLEX_START"


async def test_what_nobody_can_read_any_more_is_said(there: Stage) -> None:
    """Somebody took the metadata away; the VM is still there to be read."""
    there.chip(spec_json="")
    with pytest.raises(NotFound) as caught:
        await plan.config_of(there.site, "gemma")
    assert "gcloud compute instances list" in caught.value.fix
