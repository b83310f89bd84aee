"""A model on a Hub, read by the library that people use, from a Hub on this machine."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from core.errors import ModelNotFound
from planner.__main__ import main
from planner.model import read_hub_model, read_model
from tests.planner.folders import packed_folder
from tests.webserver import serving

KEY = "hf_right"


class Hub:
    """Serves the files of one gated model, and remembers what was asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.asked: list[tuple[str, str | None]] = []

    async def resolve(self, request: Request) -> Response:
        """Give a file, or a range of it, to who may read it."""
        name = request.path_params["name"]
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return Response(status_code=401, headers={"X-Error-Code": "GatedRepo"})
        self.asked.append((name, request.headers.get("range")))
        if not (self._folder / name).is_file():
            return Response(status_code=404, headers={"X-Error-Code": "EntryNotFound"})
        return FileResponse(self._folder / name, headers={"X-Repo-Commit": "a" * 40})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    return packed_folder(made)


@pytest.fixture
def served(folder: Path) -> Iterator[tuple[Hub, str]]:
    """A Hub on a free port, gone when the test is over."""
    served = Hub(folder)
    route = Route("/a/b/resolve/main/{name}", served.resolve, methods=["GET", "HEAD"])
    with serving(Starlette(routes=[route])) as url:
        yield served, url


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def test_the_hub_says_the_same_as_the_folder(served: tuple[Hub, str], folder: Path) -> None:
    """And only ranges of the weights are read."""
    store, url = served
    found = read_hub_model("a/b", token=SecretStr(KEY), endpoint=url)
    local = read_model(str(folder))
    assert found.groups == local.groups
    assert found.layers == local.layers
    assert found.model == "a/b"
    ranges = [span for name, span in store.asked if name == "model.safetensors"]
    assert any(span and span.startswith("bytes=0-") for span in ranges)


def test_a_gated_model_says_what_to_do(served: tuple[Hub, str]) -> None:
    """Without a token that may read it, the fix names the token."""
    with pytest.raises(ModelNotFound) as refused:
        read_hub_model("a/b", token=SecretStr("hf_wrong"), endpoint=served[1])
    assert "HF_TOKEN" in refused.value.fix
    assert "hf_wrong" not in f"{refused.value.summary} {refused.value.cause}"


def test_the_command_plans_a_model_of_the_hub(
    served: tuple[Hub, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--from-hub` reads its headers with the token of the settings; no weights are downloaded."""
    hub, url = served
    monkeypatch.setenv("HF_TOKEN", KEY)
    monkeypatch.setattr("planner.__main__.read_hub_model", partial(read_hub_model, endpoint=url))
    words = ["a/b", "--from-hub", "--accelerator", "l4", "--max-model-len", "64", "--json"]
    assert main(words) in {0, 1}
    assert json.loads(capsys.readouterr().out)["weights_gib"] >= 0
    assert {name for name, _ in hub.asked} >= {"config.json"}
