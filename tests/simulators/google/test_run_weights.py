"""Weights that a simulated service reads from a mounted bucket."""

import json
from pathlib import Path

import httpx2
import pytest
from google.cloud.run_v2.types import Service, Volume, VolumeMount

from core.settings import GooglePlane
from tests.simulators.google.run_services import Services, wanted
from tests.simulators.models import write_tiny_model

pytestmark = pytest.mark.anyio


def _mounting(project: str, bucket: str) -> Service:
    service = wanted(project)
    container = service.template.containers[0]
    container.args[0] = "/weights/tiny"
    container.volume_mounts = [VolumeMount(name="w", mount_path="/weights")]
    service.template.volumes = [Volume(name="w", gcs={"bucket": bucket, "read_only": True})]
    return service


def _upload(plane: GooglePlane, bucket: str, folder: Path) -> None:
    with httpx2.Client(base_url=plane.storage, trust_env=False) as storage:
        storage.post("/storage/v1/b", json={"name": bucket}).raise_for_status()
        for file in folder.iterdir():
            storage.post(
                f"/upload/storage/v1/b/{bucket}/o",
                params={"uploadType": "media", "name": f"tiny/{file.name}"},
                content=file.read_bytes(),
            ).raise_for_status()


async def test_a_mounted_folder_is_what_the_engine_serves(
    plane: GooglePlane, services: Services, http: httpx2.AsyncClient, tmp_path: Path
) -> None:
    """Its config is read: the context is as long as the model's own."""
    settings = {"SIMULATED_ENGINE_ACCELERATOR": ""}  # the planner wants weights that weigh
    services.controls.set(services.project, engine_environment=settings)
    folder = write_tiny_model(tmp_path / "tiny")
    longest = json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    bucket = f"b-{services.project}"
    _upload(plane, bucket, folder)
    service = _mounting(services.project, bucket)
    args = service.template.containers[0].args
    args[args.index("--max-model-len") + 1] = str(longest)
    url = (await services.created(service)).uri
    log = "\n".join(services.controls.get(services.project)["log"])
    assert "model   /weights/tiny" in log
    assert ".cloudstorage" not in log
    reply = await http.get(f"{url}/v1/models", headers=services.token(url))
    assert reply.json()["data"][0]["max_model_len"] == longest


async def test_a_bucket_that_is_not_there_stops_the_container(services: Services) -> None:
    """The log says which."""
    bucket = f"b-{services.project}-missing"
    await services.fails(_mounting(services.project, bucket))
    log = services.controls.get(services.project)["log"]
    assert any(f"mounting bucket {bucket} failed" in line for line in log)
