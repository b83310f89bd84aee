"""A yes is a ticked form; whatever else a client makes of one is none."""

from pathlib import Path
from typing import Any

import pytest
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult

from core.settings import Settings
from server import build
from tests.tools.asked import mode
from tests.tools.world import plant, still_engine

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
