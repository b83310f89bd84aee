"""Models in a bucket and in Vertex AI's registry, told in our words."""

import pytest
from google.api_core.exceptions import NotFound
from google.cloud.storage import Blob

from backends.cloud_run import storage
from core.errors import ApiDisabled, CloudRefused, NotConfigured
from core.settings import GooglePlane
from tests.backends.cloud_run.shelf import INDEX, below, model, store
from tests.backends.cloud_run.sites import opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio


async def test_a_whole_model_is_found_with_its_size_and_name(
    plane: GooglePlane, project: str
) -> None:
    files = model("google/gemma-3-4b-it")
    async with opened(plane, project) as site:
        await store(site, project, below("models/gemma", files))
        (found,) = await storage.models_in_bucket(site, project)
    assert found.location == f"gs://{project}/models/gemma"
    assert found.model == "google/gemma-3-4b-it"
    assert found.files == len(files)
    assert found.size_bytes == sum(map(len, files.values()))
    assert found.complete is True


async def test_models_are_found_at_any_depth_and_other_files_are_not_models(
    plane: GooglePlane, project: str
) -> None:
    files = {
        **model(),
        **below("a/b/c/d", model()),
        "notes/readme.txt": b"x",
        "data/train.json": b"{}",
        "quantized/m.gguf": b"GGUF",
    }
    async with opened(plane, project) as site:
        await store(site, project, files)
        found = await storage.models_in_bucket(site, f"gs://{project}/")
    assert [(one.location, one.complete) for one in found] == [
        (f"gs://{project}", True),
        (f"gs://{project}/a/b/c/d", True),
        (f"gs://{project}/quantized", None),
    ]


async def test_a_folder_can_be_asked_for_and_the_bucket_of_the_settings_is_meant_otherwise(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        await store(site, project, {**below("one", model()), **below("ones", model())})
        (found,) = await storage.models_in_bucket(site, f"gs://{project}/one")
        with pytest.raises(NotConfigured, match="Which bucket"):
            await storage.models_in_bucket(site, None)
    assert found.location == f"gs://{project}/one"
    async with opened(plane, project, bucket_name=project) as site:
        assert len(await storage.models_in_bucket(site, None)) == 2


async def test_files_that_hold_no_json_do_not_hide_a_model(
    plane: GooglePlane, project: str
) -> None:
    files = {**model(), "config.json": b"\xff{", INDEX: b"[]"}
    async with opened(plane, project) as site:
        await store(site, project, below("gemma", files))
        (found,) = await storage.models_in_bucket(site, project)
    assert found.model is None
    assert found.files == len(files)


async def test_a_bucket_that_is_missing_says_how_to_make_it(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        with pytest.raises(CloudRefused) as refused:
            await storage.models_in_bucket(site, f"{project}-nothing")
    assert f"gcloud storage buckets create gs://{project}-nothing" in refused.value.fix


async def test_a_file_that_goes_away_while_it_is_read_is_told(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may be copying: that is no bug of ours."""

    def gone(*_arguments: object, **_more: object) -> bytes:
        raise NotFound("config.json")

    monkeypatch.setattr(Blob, "download_as_bytes", gone)
    async with opened(plane, project) as site:
        await store(site, project, below("gemma", model()))
        with pytest.raises(CloudRefused) as refused:
            await storage.models_in_bucket(site, project)
    assert "config.json" in refused.value.cause


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


async def test_an_api_that_is_off_says_how_to_enable_it(
    plane: GooglePlane, bare_project: str
) -> None:
    async with opened(plane, bare_project) as site:
        with pytest.raises(ApiDisabled) as refused:
            await storage.models_in_registry(site)
    assert "setup_target" in refused.value.fix
