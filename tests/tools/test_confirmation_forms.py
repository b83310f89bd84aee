"""A yes is a ticked form; whatever else a client makes of one is none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from mcp.types import ClientCapabilities, ElicitationCapability

from core.settings import Settings
from server import build
from tests.tools.asked import mode
from tests.tools.world import plant, still_engine
from tools import confirming

__all__ = ["mode"]

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "form",
    [None, {}, {"confirm": False}, {"confirm": "perhaps"}, {"value": True}, {"confirm": ["1"]}],
)
async def test_an_accepted_form_that_is_not_ticked_is_a_no(
    form: dict[str, Any] | None, mode: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some clients send back an empty form at once: nothing is deleted, and nothing is a bug."""
    still_engine(monkeypatch)
    folder = plant(state_dir)

    async def answer(_message: str, *_rest: Any) -> ElicitResult[dict[str, Any]]:
        return ElicitResult(action="accept", content=form)

    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated")
    async with Client(build(settings), mode=mode, elicitation_handler=answer) as client:
        reply = await client.call_tool("destroy_vllm", {"name": "one"}, raise_on_error=False)
    assert reply.structured_content
    assert reply.structured_content["code"] == "CANCELLED"
    assert folder.path.exists()


async def test_a_client_that_cannot_ask_after_all_is_given_a_token(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error to the question is no bug of ours, and nobody is locked out by it."""
    still_engine(monkeypatch)
    folder = plant(state_dir)

    async def answer(_message: str, *_rest: Any) -> ElicitResult[dict[str, Any]]:
        raise RuntimeError("no window")

    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated")
    async with Client(build(settings), mode="legacy", elicitation_handler=answer) as client:
        reply = await client.call_tool("destroy_vllm", {"name": "one"}, raise_on_error=False)
        told = reply.structured_content
        assert told
        assert told["code"] == "CONFIRMATION_REQUIRED", told
        assert "Nobody could be asked" in str(told["warnings"])
        assert folder.path.exists()
        again = told["next"][0]["arguments"]
        assert not (await client.call_tool("destroy_vllm", again)).is_error
    assert not folder.path.exists()


@pytest.mark.parametrize(
    ("modes", "asks"),
    [({}, True), ({"form": {}}, True), ({"form": {}, "url": {}}, True), ({"url": {}}, False)],
)
def test_a_client_that_shows_addresses_alone_is_asked_no_form(
    modes: dict[str, Any], *, asks: bool
) -> None:
    """It would refuse; who names no mode means forms."""
    params = SimpleNamespace(
        capabilities=ClientCapabilities(elicitation=ElicitationCapability.model_validate(modes))
    )
    context: Any = SimpleNamespace(session=SimpleNamespace(client_params=params))
    assert confirming._can_ask(context) is asks


async def test_a_ticked_form_is_a_yes(
    mode: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One field, `confirm`, in both eras."""
    still_engine(monkeypatch)
    folder = plant(state_dir)

    async def answer(_message: str, *_rest: Any) -> ElicitResult[dict[str, Any]]:
        return ElicitResult(action="accept", content={"confirm": True})

    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated")
    async with Client(build(settings), mode=mode, elicitation_handler=answer) as client:
        reply = await client.call_tool("destroy_vllm", {"name": "one"}, raise_on_error=False)
    assert not reply.is_error
    assert not folder.path.exists()
