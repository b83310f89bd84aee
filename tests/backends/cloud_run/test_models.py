"""Models in buckets, in a registry and on the Hub: whole or not, and told in our words."""

import json
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from google.api_core.exceptions import NotFound
from google.cloud.storage import Blob
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backends.cloud_run import storage
from backends.cloud_run.site import Site
from backends.common.models import (
    CONFIG,
    INDEX,
    ask_hub,
    header_length,
    judge_files,
    model_of,
    parts,
    whole_size,
)
from core.errors import ApiDisabled, CloudRefused, NotConfigured
from core.reply import collecting_notes
from core.settings import GooglePlane
from operations.models import require_on_hub
from tests.backends.cloud_run import planned
from tests.backends.cloud_run.shelf import below, model, store
from tests.backends.cloud_run.sites import opened
from tests.google_plane import Controls
from tests.webserver import serving

anyio = pytest.mark.anyio
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
WHOLE = {CONFIG: 700, INDEX: 900, "tokenizer.json": 4000, ONE: 1100, TWO: 1100}
KEY, STRANGER = SecretStr("hf_right"), SecretStr("hf_stranger")


def index(total: int = 2000) -> dict[str, Any]:
    return {"metadata": {"total_size": total}, "weight_map": {"a": ONE, "b": TWO, "c": TWO}}


def without(name: str) -> dict[str, int]:
    return {one: size for one, size in WHOLE.items() if one != name}


@pytest.mark.parametrize(
    ("files", "said", "complete", "words"),
    [
        (WHOLE, index(), True, ""),
        (without(CONFIG), index(), False, "config"),
        (without("tokenizer.json"), index(), False, "tokenizer"),
        (without(ONE), index(), False, ONE),
        ({**WHOLE, TWO: 800}, index(), False, "2,000"),
        ({**WHOLE, TWO: 0}, index(0), False, f"Empty: {TWO}."),
        ({"model.gguf": 5}, None, None, ""),
        ({"m-00001-of-00003.gguf": 5, "m-00003-of-00003.gguf": 5}, None, False, "m-00002-of-00003"),
        (without(ONE), None, False, f"Not there: {ONE}"),
        ({CONFIG: 1, "tokenizer.model": 1}, None, False, "No weights"),
        (WHOLE, {"weight_map": {}}, False, ""),
        (WHOLE, {"weight_map": ["wrong"]}, False, ""),
    ],
)
def test_a_folder_is_judged_by_its_files(
    files: dict[str, int], said: dict[str, Any] | None, *, complete: bool | None, words: str
) -> None:
    """It is a whole model, or the sentence says what is missing."""
    judged = judge_files(files, said)
    assert judged[0] is complete
    assert words in judged[1]


def test_a_header_tells_how_long_its_file_is() -> None:
    """Of those that the index names; what is no header, as a pointer of Git LFS, has no length."""
    entry = {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": entry}).encode()
    assert whole_size(header) == 8 + len(header) + 8
    assert header_length(len(header).to_bytes(8, "little")) == len(header)
    for other in (b"", b"[]", b'{"w": 1}', b'{"w": {"data_offsets": [0]}}'):
        assert whole_size(other) is None
    assert header_length(b"version ") is None
    assert header_length(b"\x01") is None
    files = {**WHOLE, "consolidated.safetensors": 9}
    assert parts(files, index()) == [ONE, TWO]
    assert "consolidated.safetensors" in parts(files, None)


@pytest.mark.parametrize(
    ("named", "found"),
    [("google/gemma-3-4b-it", "google/gemma-3-4b-it"), ("/srv/out/x", None), ("", None), (3, None)],
)
def test_a_config_names_a_model_of_the_hub_or_none(named: object, found: str | None) -> None:
    assert model_of({"_name_or_path": named}) == found


@anyio
async def test_models_are_found_at_any_depth_and_other_files_are_not_models(site: Site) -> None:
    """With size and name where they can be read."""
    project, files = site.clients.project, model("google/gemma-3-4b-it")
    shelf = {
        **files,
        **below("a/b/c/d", model()),
        **below("e", {**model(), "config.json": b"\xff{", INDEX: b"[]"}),
        "notes/readme.txt": b"x",
        "data/train.json": b"{}",
        "quantized/m.gguf": b"GGUF",
    }
    await store(site, project, shelf)
    found = await storage.models_in_bucket(site, f"gs://{project}/")
    first, _deep, odd, _gguf = found
    assert [(one.location, one.complete) for one in (first, *found[1:2], found[3])] == [
        (f"gs://{project}", True),
        (f"gs://{project}/a/b/c/d", True),
        (f"gs://{project}/quantized", None),
    ]
    assert (first.model, first.files) == ("google/gemma-3-4b-it", len(files))
    assert first.size_bytes == sum(map(len, files.values()))
    assert (odd.model, odd.files) == (None, len(files))


@anyio
async def test_a_folder_can_be_asked_for_and_the_bucket_of_the_settings_is_meant_otherwise(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project) as site:
        await store(site, project, {**below("one", model()), **below("ones", model())})
        (found,) = await storage.models_in_bucket(site, f"gs://{project}/one")
        with pytest.raises(NotConfigured, match="Which bucket"):
            await storage.models_in_bucket(site, None)
        with pytest.raises(CloudRefused) as refused:
            await storage.models_in_bucket(site, f"{project}-nothing")
    assert found.location == f"gs://{project}/one"
    assert f"gcloud storage buckets create gs://{project}-nothing" in refused.value.fix
    async with opened(plane, project, bucket_name=project) as site:
        assert len(await storage.models_in_bucket(site, None)) == 2


@anyio
async def test_a_file_that_goes_away_while_it_is_read_is_told(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may be copying: that is no bug of ours."""

    def gone(*_arguments: object, **_more: object) -> bytes:
        raise NotFound("config.json")

    monkeypatch.setattr(Blob, "download_as_bytes", gone)
    await store(site, site.clients.project, below("gemma", model()))
    with pytest.raises(CloudRefused) as refused:
        await storage.models_in_bucket(site, site.clients.project)
    assert "config.json" in refused.value.cause


@anyio
async def test_a_registered_model_tells_where_its_files_are(
    plane: GooglePlane, site: Site, bare_project: str, controls: Controls
) -> None:
    """Every page is read, and nothing of other regions."""
    row = {
        "display_name": "gemma",
        "artifact_uri": "gs://b/gemma",
        "version_id": "4",
        "version_create_time": {"seconds": 1_790_000_000},
    }
    elsewhere = {"display_name": "m", "region": "europe-west4"}
    rows = [{"display_name": f"m{n}"} for n in range(130)]
    controls.set(site.clients.project, vertex_models=[row, elsewhere, *rows])
    found, *others = await storage.models_in_registry(site)
    assert (found.display_name, found.version, found.artifact) == ("gemma", "4", "gs://b/gemma")
    assert found.created_at.startswith("2026-09-21T")
    assert "/locations/us-east4/models/" in found.name
    assert len(others) == 130
    async with opened(plane, f"{bare_project}-off") as off:
        with pytest.raises(ApiDisabled) as refused:
            await storage.models_in_registry(off)
    assert "setup_target" in refused.value.fix


async def check(request: Request) -> Response:
    """Answer as the Hub does: 401 without a token, 403 or 404 with one."""
    asked, shown = request.path_params["model"], request.headers.get("authorization")
    if asked == "open/model" or (shown == "Bearer hf_right" and asked != "nobody/none"):
        return JSONResponse({})
    if asked == "broken/hub":
        return Response(status_code=HTTPStatus.SERVICE_UNAVAILABLE)
    known, unknown = (HTTPStatus.FORBIDDEN, "GatedRepo"), (HTTPStatus.NOT_FOUND, "RepoNotFound")
    status, word = known if asked == "gated/model" else unknown
    status = status if shown else HTTPStatus.UNAUTHORIZED
    return Response(status_code=status, headers={"X-Error-Code": word})


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    route = Route("/api/models/{model:path}/auth-check", check)
    with serving(Starlette(routes=[route])) as url:
        yield url


@pytest.mark.parametrize(
    ("asked", "token", "passed", "words"),
    [
        ("open/model", None, True, ""),
        ("gated/model", KEY, True, "gated"),
        ("gated/model", None, False, "https://huggingface.co/gated/model"),
        ("gated/model", STRANGER, False, "gated"),
        ("nobody/none", None, False, "no model nobody/none"),
        ("nobody/none", KEY, False, "no model nobody/none"),
        ("broken/hub", STRANGER, None, ""),
        ("no such name", None, False, "no model"),
    ],
)
def test_the_hub_says_whether_a_model_can_be_fetched(
    hub: str, asked: str, token: SecretStr | None, *, passed: bool | None, words: str
) -> None:
    """A licence that was not accepted is not called a missing model; no token is ever told."""
    verdict = ask_hub(asked, token, hub)
    assert verdict.passed is passed
    assert words in f"{verdict.detail} {verdict.fix}"
    assert STRANGER.get_secret_value() not in repr(verdict)
    assert ask_hub("open/model", None, "http://127.0.0.1:9").passed is None


@anyio
@pytest.mark.parametrize(
    ("model", "said"),
    [("nobody/none", "no model nobody/none"), ("gated/model", "gated"), ("open/model", "")],
)
async def test_a_name_that_the_hub_does_not_show_is_said_before_anything_is_paid(
    hub: str, monkeypatch: pytest.MonkeyPatch, model: str, said: str
) -> None:
    """No refusal: a private model is shown only to whoever may read it."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub)
    opened = planned.site()
    with collecting_notes() as notes:
        await require_on_hub(opened.settings, opened.target, planned.spec(model))
    assert [said in one for one in notes] == [True] * bool(said)
