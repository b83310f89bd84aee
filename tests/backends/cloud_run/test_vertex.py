"""Vertex AI's registry of models, told in our words."""

import pytest

from backends.cloud_run import storage
from core.errors import ApiDisabled, CloudError
from core.reply import collecting_notes
from core.settings import GooglePlane
from tests.backends.cloud_run.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that Google does not answer is not repeated for seconds."""
    monkeypatch.setattr("backends.google.errors.patient", lambda: None)


LIST = "ModelService/ListModels"


async def test_a_registered_model_tells_where_its_files_are(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    row = {
        "display_name": "gemma",
        "artifact_uri": "gs://b/gemma",
        "version_id": "4",
        "version_create_time": {"seconds": 1_790_000_000},
    }
    controls.set(project, vertex_models=[row])
    async with opened(plane, project) as site:
        (found,) = await storage.models_in_registry(site)
    assert (found.display_name, found.version, found.artifact) == ("gemma", "4", "gs://b/gemma")
    assert found.created_at.startswith("2026-09-21T")
    assert "/locations/us-east4/models/" in found.name


async def test_every_page_is_read(plane: GooglePlane, project: str, controls: Controls) -> None:
    controls.set(project, vertex_models=[{"display_name": f"m{n}"} for n in range(150)])
    async with opened(plane, project) as site:
        assert len(await storage.models_in_registry(site)) == 150


async def test_models_beyond_a_number_are_left_out_and_said_to_be(
    plane: GooglePlane, project: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_MOST", 2)
    controls.set(project, vertex_models=[{"display_name": f"m{n}"} for n in range(3)])
    async with opened(plane, project) as site:
        with collecting_notes() as notes:
            assert len(await storage.models_in_registry(site)) == 2
    assert "more models" in notes[0]


async def test_models_of_other_regions_are_not_shown(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, vertex_models=[{"display_name": "m", "region": "europe-west4"}])
    async with opened(plane, project) as site:
        assert await storage.models_in_registry(site) == []


async def test_an_api_that_is_off_says_how_to_enable_it(
    plane: GooglePlane, bare_project: str
) -> None:
    async with opened(plane, bare_project) as site:
        with pytest.raises(ApiDisabled) as refused:
            await storage.models_in_registry(site)
    assert "setup_target" in refused.value.fix


@pytest.mark.parametrize("status", ["UNAVAILABLE", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"])
async def test_a_failure_of_google_is_a_coded_error(
    plane: GooglePlane, project: str, controls: Controls, status: str
) -> None:
    controls.set(project, faults=[fault(LIST, status, times=-1)])
    async with opened(plane, project) as site:
        with pytest.raises(CloudError) as refused:
            await storage.models_in_registry(site)
    assert refused.value.code != "CLOUD_ERROR"
    assert refused.value.fix
