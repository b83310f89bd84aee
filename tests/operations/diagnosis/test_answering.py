"""Whether server and model answer, each way in which they may not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.records import Deployment, Failure, State
from operations import diagnose
from tests.operations.diagnosis.made import (
    Engine,
    Somewhere,
    deployment,
    diagnosed,
    page,
    tools,
    verdicts,
)
from tests.webserver import listening

pytestmark = pytest.mark.anyio


def _set(**values: Any) -> Callable[[Engine], None]:
    def do(engine: Engine) -> None:
        for name, value in values.items():
            setattr(engine, name, value)

    return do


class Stoppable(Somewhere):
    """It can be begun anew."""

    async def stop(self, name: str) -> Deployment:
        """Say that it is there."""
        return deployment()

    async def start(self, name: str) -> Deployment:
        """Say that it is there."""
        return deployment()


async def test_a_key_that_was_replaced_leads_to_a_new_start(tmp_path: Path) -> None:
    """Its engine reads the key as it begins; its log would not say so."""
    engine = Engine()
    engine.status, engine.answer = 401, {"error": "no"}
    async with listening(engine.app) as url:
        seen = await diagnosed(Stoppable(url), deployment(), tmp_path)
    assert seen.code == "UNAUTHORIZED"
    assert seen.fix
    assert "another key than is kept now" in seen.fix
    assert tools(seen) == ["stop_vllm", "start_vllm"]


WAYS: dict[str, tuple[Callable[[Engine], None], str, str]] = {
    "unhealthy": (_set(health=503), "health", "UNHEALTHY"),
    "500": (_set(status=500, answer={"error": "boom"}), "model answers", "ENDPOINT_ERROR"),
    "no text": (_set(answer={"choices": []}), "model answers", "BAD_REPLY"),
    "not text": (_set(answer={"choices": [{"text": None}]}), "model answers", "BAD_REPLY"),
    "no choice": (_set(answer={"choices": ["!"]}), "model answers", "BAD_REPLY"),
    "no object": (_set(answer=["!"]), "model answers", "BAD_REPLY"),
    "other model": (_set(served="acme/other"), "model answers", "MODEL_NOT_SERVED"),
    "too many": (_set(status=429, answer={"error": "no"}), "model answers", "THROTTLED"),
    "no key": (_set(status=401, answer={"error": "no"}), "model answers", "UNAUTHORIZED"),
}


@pytest.mark.parametrize("way", WAYS)
async def test_each_way_not_to_answer_has_its_layer_and_code(way: str, tmp_path: Path) -> None:
    """The layers before are well, none after is looked at, and the evidence says what was seen."""
    break_it, layer, code = WAYS[way]
    engine = Engine()
    break_it(engine)
    async with listening(engine.app) as url:
        seen = await diagnosed(Somewhere(url), deployment(), tmp_path)
    assert (seen.healthy, seen.layer, seen.code) == (False, layer, code)
    assert seen.evidence
    assert seen.fix
    if code == "ENDPOINT_ERROR":  # whose own fix knows no deployment
        assert seen.fix.startswith("Look at its own log; if it stays so")
    if code == "THROTTLED":  # nothing is broken that a new start would mend
        assert tools(seen) == ["get_metrics"]
    assert list(verdicts(seen).values()).count("failed") == 1
    assert seen.looked_at[-1].layer == layer


async def test_an_engine_that_answers_is_well(tmp_path: Path) -> None:
    """Nothing is wrong, what was looked at is listed, and it was asked for one token."""
    engine = Engine()
    async with listening(engine.app) as url:
        seen = await diagnosed(Somewhere(url), deployment(), tmp_path)
    assert (seen.healthy, seen.layer, seen.code, seen.fix) == (True, None, None, None)
    assert "Nothing wrong with one on somewhere" in seen.summary()
    assert "model answers" in seen.summary()
    assert verdicts(seen)["recent logs"] == "skipped"
    assert engine.asked == 1


async def test_silence_at_its_address_is_told_as_such(tmp_path: Path) -> None:
    """A ready one that nobody listens for any more is unhealthy at its health."""
    seen = await diagnosed(Somewhere(), deployment(), tmp_path)
    assert (seen.layer, seen.code) == ("health", "ENDPOINT_UNREACHABLE")


async def test_a_model_that_says_nothing_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnose, "_ANSWER_SECONDS", 0.1)
    engine = Engine()
    engine.pages, engine.answer_seconds = [page()], 0.3
    async with listening(engine.app) as url:
        seen = await diagnosed(Somewhere(url), deployment(), tmp_path)
    assert (seen.layer, seen.code) == ("model answers", "MODEL_SILENT")


async def test_what_is_called_ill_and_answers_all_the_same_is_well(tmp_path: Path) -> None:
    failure = Failure(code="ENDPOINT_UNREACHABLE", cause="No answer in time.", fix="Wait.")
    engine = Engine()
    async with listening(engine.app) as url:
        now = deployment(State.UNKNOWN, failure=failure)
        assert (await diagnosed(Somewhere(url), now, tmp_path)).healthy


async def test_an_endpoint_of_ones_own_is_never_to_be_changed(tmp_path: Path) -> None:
    """No tool that changes is named for what was made elsewhere."""
    now = deployment(target="endpoint", name="one")
    engine = Engine()
    engine.served = "acme/other"
    async with listening(engine.app) as url:
        seen = await diagnosed(Somewhere(url), now, tmp_path)
    assert seen.code == "MODEL_NOT_SERVED"
    assert tools(seen) == ["get_model_details"]
