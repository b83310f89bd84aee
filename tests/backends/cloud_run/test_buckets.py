"""Models in a bucket: found wherever they lie, and each said to be whole or what it misses."""

import anyio
import pytest
from google.api_core.exceptions import NotFound
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backends.cloud_run import storage
from backends.common import models
from core.errors import (
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    NotAuthenticated,
    NotConfigured,
    OpsError,
    PermissionDenied,
)
from core.reply import collecting_notes
from core.settings import GooglePlane
from tests.backends.cloud_run.shelf import INDEX, ONE, TWO, below, model, store
from tests.backends.cloud_run.sites import opened
from tests.webserver import serving

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


async def test_a_model_without_a_file_that_its_index_names_is_incomplete(
    plane: GooglePlane, project: str
) -> None:
    files = model()
    del files[TWO]
    async with opened(plane, project) as site:
        await store(site, project, below("gemma", files))
        (found,) = await storage.models_in_bucket(site, project)
    assert found.complete is False
    assert TWO in found.detail


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


async def test_a_folder_of_a_bucket_can_be_asked_for(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        await store(site, project, {**below("one", model()), **below("ones", model())})
        (found,) = await storage.models_in_bucket(site, f"gs://{project}/one")
    assert found.location == f"gs://{project}/one"


async def test_the_bucket_of_the_settings_is_meant_where_none_is_named(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project, bucket_name=project) as site:
        await store(site, project, below("gemma", model()))
        assert len(await storage.models_in_bucket(site, None)) == 1


async def test_files_that_hold_no_json_do_not_hide_a_model(
    plane: GooglePlane, project: str
) -> None:
    files = {**model(), "config.json": b"\xff{", INDEX: b"[]"}
    async with opened(plane, project) as site:
        await store(site, project, below("gemma", files))
        (found,) = await storage.models_in_bucket(site, project)
    assert found.model is None
    assert found.files == len(files)


async def test_models_beyond_a_number_are_counted_and_not_shown(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_MOST_MODELS", 1)
    async with opened(plane, project) as site:
        await store(site, project, {"a/config.json": b"{}", "b/config.json": b"{}"})
        with collecting_notes() as notes:
            assert len(await storage.models_in_bucket(site, project)) == 1
    assert "2 models" in notes[0]


async def test_files_beyond_a_number_are_said_not_to_be_looked_at(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "MOST_FILES", 3)
    monkeypatch.setattr(models, "MOST_FILES", 3)
    async with opened(plane, project) as site:
        await store(site, project, below("gemma", model()))
        with collecting_notes() as notes:
            (found,) = await storage.models_in_bucket(site, project)
    assert found.files == 3
    assert "more than 3" in notes[0]


async def test_an_empty_bucket_holds_no_model(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        await store(site, project, {})
        assert await storage.models_in_bucket(site, project) == []


async def test_a_bucket_that_is_missing_says_how_to_make_it(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        with pytest.raises(CloudRefused) as refused:
            await storage.models_in_bucket(site, f"{project}-nothing")
    assert f"gcloud storage buckets create gs://{project}-nothing" in refused.value.fix


async def test_no_bucket_is_asked_for_by_its_setting(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project) as site:
        with pytest.raises(NotConfigured, match="Which bucket"):
            await storage.models_in_bucket(site, None)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (403, PermissionDenied),
        (401, NotAuthenticated),
        (503, CloudUnavailable),
        (429, CloudUnavailable),
        (404, CloudRefused),
    ],
)
async def test_what_cloud_storage_refuses_is_a_coded_error(
    plane: GooglePlane, project: str, status: int, error: type[OpsError]
) -> None:
    async def refuse(_request: Request) -> Response:
        words = {"error": {"code": status, "message": f"{project} may not."}}
        return JSONResponse(words, status_code=status)

    with serving(Starlette(routes=[Route("/{path:path}", refuse)])) as url:
        async with opened(plane.model_copy(update={"storage": url}), project) as site:
            with pytest.raises(error) as refused:
                await storage.models_in_bucket(site, "b")
    assert refused.value.fix
    assert refused.value.cause


async def test_a_cloud_storage_that_is_not_there_is_said_to_be_unavailable(
    plane: GooglePlane, project: str
) -> None:
    silent = plane.model_copy(update={"storage": "http://127.0.0.1:9"})
    async with opened(silent, project) as site:
        with pytest.raises(CloudUnavailable):
            await storage.models_in_bucket(site, "b")


async def test_a_bucket_that_takes_too_long_is_given_up(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_arguments: object) -> None:
        await anyio.sleep_forever()

    monkeypatch.setattr(storage, "_DEADLINE", 0.05)
    monkeypatch.setattr(storage, "list_objects", slow)
    async with opened(plane, project) as site:
        with pytest.raises(CloudTimeout, match="read the bucket b"):
            await storage.models_in_bucket(site, "b")


async def test_a_part_that_counts_less_than_the_index_is_incomplete(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        await store(site, project, below("gemma", {**model(), ONE: b"x"}))
        (found,) = await storage.models_in_bucket(site, project)
    assert found.complete is False


async def test_a_file_that_goes_away_while_it_is_read_is_told(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may be copying: that is no bug of ours."""

    def gone(*_arguments: object) -> bytes:
        raise NotFound("config.json")

    monkeypatch.setattr(storage, "_bytes_of", gone)
    async with opened(plane, project) as site:
        await store(site, project, below("gemma", model()))
        with pytest.raises(CloudRefused) as refused:
            await storage.models_in_bucket(site, project)
    assert "config.json" in refused.value.cause
