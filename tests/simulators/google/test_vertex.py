"""The simulated registry of Vertex AI, asked by Google's own client."""

from typing import Any

import pytest
from google.api_core import exceptions

from tests.google_plane import Controls
from tests.simulators.google.conftest import Google

pytestmark = pytest.mark.anyio

_MODELS = [
    {"display_name": "gemma", "artifact_uri": "gs://models/gemma", "version_id": "3"},
    {"display_name": "qwen", "region": "europe-west4"},
    {"display_name": "llama", "region": "us-central1"},
]


@pytest.fixture
def models(google: Google) -> Any:
    return google.client("google.cloud.aiplatform_v1", "model_service", "ModelServiceAsyncClient")


async def _listed(models: Any, project: str, region: str, **more: Any) -> list[Any]:
    request = {"parent": f"projects/{project}/locations/{region}", **more}
    return [one async for one in await models.list_models(request=request)]


async def test_a_region_has_its_own_models(models: Any, project: str, controls: Controls) -> None:
    """Those without a region are in each; they come page by page."""
    controls.set(project, vertex_models=_MODELS)
    found = await _listed(models, project, "us-central1", page_size=1)
    assert [one.display_name for one in found] == ["gemma", "llama"]
    assert (found[0].artifact_uri, found[0].version_id) == ("gs://models/gemma", "3")
    assert "/locations/us-central1/models/" in found[0].name
    names = [one.display_name for one in await _listed(models, project, "europe-west4")]
    assert names == ["gemma", "qwen"]


async def test_a_fresh_project_has_no_model(models: Any, project: str) -> None:
    """There is nothing to list."""
    assert await _listed(models, project, "us-central1") == []


async def test_what_is_not_understood_is_refused(models: Any, project: str) -> None:
    """A filter, or a parent that is no region."""
    with pytest.raises(exceptions.InvalidArgument):
        await _listed(models, project, "us-central1", filter="labels.x=y")
    with pytest.raises(exceptions.InvalidArgument):
        await _listed(models, project, "us-central1/models")
