"""A yes is a ticked form; whatever else a client makes of one is none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    REQUEST_TIMEOUT,
    ClientCapabilities,
    ElicitationCapability,
    ErrorData,
)

from backends.local.process import Folder
from core.settings import Settings
from server import build
from tests.tools.asked import mode
from tests.tools.world import plant, still_engine
from tools import confirm

__all__ = ["mode"]

pytestmark = pytest.mark.anyio

_SAID: Final = "User rejected the request"


@pytest.mark.parametrize(
    "form",
    [None, {}, {"confirm": False}, {"confirm": "perhaps"}, {"value": True}, {"confirm": ["1"]}],
)
async def test_an_accepted_form_that_is_not_ticked_is_a_no(
    form: dict[str, Any] | None, mode: str, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some clients send back an empty form at once: nothing is deleted, and nothing is a bug.

    A client that looks at its own answers refuses to send one that does not fit the question.
    """
    still_engine(monkeypatch)
    folder = plant(state_dir)

    async def answer(_message: str, *_rest: Any) -> ElicitResult[dict[str, Any]]:
        return ElicitResult(action="accept", content=form)

    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated")
    async with Client(build(settings), mode=mode, elicitation_handler=answer) as client:
        with pytest.raises((ToolError, MCPError), match=r"Not confirmed|confirm"):
            await client.call_tool("destroy_vllm", {"name": "one"})
    assert folder.path.exists()


@asynccontextmanager
async def _erring(state_dir: Path, code: int) -> AsyncIterator[Client[Any]]:
    """Connect a client that can ask, and answers each question with this error as it is."""

    async def answer(context: object, params: object) -> ErrorData:
        return ErrorData(code=code, message=_SAID)

    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated")
    client = Client(build(settings), mode="legacy", elicitation_handler=_unreached)
    client._session_kwargs["elicitation_callback"] = answer
    async with client:
        yield client


@pytest.fixture
def folder(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """What a stopped deployment leaves."""
    still_engine(monkeypatch)
    return plant(state_dir)


async def _unreached(*_question: object) -> None:
    """Only say that this client can ask."""


@pytest.mark.parametrize("code", [INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS])
async def test_a_client_that_cannot_ask_after_all_is_given_a_token(
    code: int, state_dir: Path, folder: Folder
) -> None:
    """It refused the question itself: no bug of ours, and nobody is locked out by it."""
    async with _erring(state_dir, code) as client:
        reply = await client.call_tool("destroy_vllm", {"name": "one"}, raise_on_error=False)
        told = reply.structured_content
        assert told
        assert told["code"] == "CONFIRMATION_REQUIRED", told
        assert "Nobody could be asked" in str(told["warnings"])
        assert folder.path.exists()
        again = told["next"][0]["arguments"]
        assert not (await client.call_tool("destroy_vllm", again)).is_error
    assert not folder.path.exists()


def _is_a_no(told: dict[str, Any] | None, said: str) -> None:
    """Nothing in it lets a model go on, and the way out is named."""
    assert told
    assert told["code"] == "CANCELLED", told
    assert said in told["summary"]
    assert "CONFIRM=token" in told["fix"]
    assert told["next"] == []
    assert "confirm" not in (told["data"] or {})


@pytest.mark.parametrize("code", [-1, 0, 4001, CONNECTION_CLOSED, REQUEST_TIMEOUT, INTERNAL_ERROR])
async def test_any_other_error_to_the_question_is_a_no(
    code: int, state_dir: Path, folder: Folder
) -> None:
    """Somebody may have been asked: nothing is done, and no token is given."""
    async with _erring(state_dir, code) as client:
        reply = await client.call_tool("destroy_vllm", {"name": "one"}, raise_on_error=False)
    _is_a_no(reply.structured_content, _SAID)
    assert folder.path.exists()


@pytest.mark.parametrize(
    "raised",
    [
        MCPError(-1, "User rejected the request"),
        MCPError(REQUEST_TIMEOUT, "Request timed out"),
        RuntimeError("no window"),
    ],
)
async def test_a_no_that_a_handler_raises_is_a_no(
    raised: Exception, state_dir: Path, folder: Folder
) -> None:
    """FastMCP sends INTERNAL_ERROR for whatever a handler raises: a no looks like a bug."""

    async def answer(_message: str, *_rest: Any) -> ElicitResult[dict[str, Any]]:
        raise raised

    settings = Settings(vllm_devops_state_dir=state_dir, engine="simulated")
    async with Client(build(settings), mode="legacy", elicitation_handler=answer) as client:
        reply = await client.call_tool("destroy_vllm", {"name": "one"}, raise_on_error=False)
    _is_a_no(reply.structured_content, str(raised))
    assert folder.path.exists()


@pytest.mark.parametrize(
    ("modes", "asks"),
    [({}, True), ({"form": {}}, True), ({"form": {}, "url": {}}, True), ({"url": {}}, False)],
)
def test_a_client_that_shows_addresses_alone_is_asked_no_form(
    modes: dict[str, Any], *, asks: bool
) -> None:
    params = SimpleNamespace(
        capabilities=ClientCapabilities(elicitation=ElicitationCapability.model_validate(modes))
    )
    context: Any = SimpleNamespace(session=SimpleNamespace(client_params=params))
    assert confirm._can_ask(context) is asks
