"""What is sent is what Google takes: by its own documents, and by a cloud that refuses alike."""

from typing import Any

import pytest
from google.cloud import run_v2

from backends.cloud_run.service import blueprint, service_of
from core.settings import GooglePlane
from planner.model import read_model
from tests.backends.cloud_run.planned import BUCKET, L4, RTX, site, spec
from tests.backends.cloud_run.sites import opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

_WISHES: dict[str, dict[str, Any]] = {
    "hub": {},
    "bucket": {"weights": BUCKET, "network": "default/default"},
    "public": {"access": "public"},
    "ollama": {"engine": "ollama", "model": "gemma3:4b", "image": "ollama/ollama:0.40.0"},
}


@pytest.mark.parametrize("target", [L4, RTX])
@pytest.mark.parametrize("wish", _WISHES)
async def test_every_plan_passes_a_dry_run(
    plane: GooglePlane, project: str, controls: Controls, target: str, wish: str
) -> None:
    """Probes, sizes, limits and names are within what is taken; nothing is made by asking."""
    controls.set(project, quotas={"l4": 3, "rtx-pro-6000": 1})
    async with opened(plane, project, target=site(target).target) as there:
        wanted = spec(**_WISHES[wish])
        made = blueprint(there, wanted, read_model(wanted.model))
        container = made.container.model_copy(update={"secrets": {}})
        typed = service_of(made.model_copy(update={"container": container}))
        client = await there.clients.run()
        request = run_v2.CreateServiceRequest(
            parent=made.parent, service_id=made.name, service=typed, validate_only=True
        )
        await client.create_service(request, timeout=20)
    assert not controls.get(project)["services"]
