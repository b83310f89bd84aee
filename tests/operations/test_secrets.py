"""A token of the Hub: where it is read, what the Hub says, and that it is never told."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import close_session  # type: ignore[attr-defined]  # found lazily
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from backends.base import KeptSecret
from backends.cloud_run.backend import CloudRunBackend
from core.errors import InvalidArgument
from core.redaction import redact
from core.settings import Settings
from operations import models
from operations.models import Known, SavedToken, ask_the_hub, read_token
from operations.runtime import Runtime
from tests.webserver import listening

pytestmark = pytest.mark.anyio

GOOD: Final = "hf_" + "g" * 34
BAD: Final = "hf_" + "b" * 34
ODD: Final = "hf_" + "o" * 34
NAMELESS: Final = "hf_" + "n" * 34


class Hub:
    """Knows one token, refuses another, and is out of order for the rest."""

    def __init__(self) -> None:
        self.asked = 0
        self.app = Starlette(routes=[Route("/api/whoami-v2", self._whoami)])

    async def _whoami(self, request: Request) -> Response:
        self.asked += 1
        token = request.headers["authorization"].removeprefix("Bearer ")
        if token == BAD:
            return JSONResponse({"error": "Invalid credentials"}, status_code=401)
        if token == NAMELESS:
            return JSONResponse({"type": "org"})
        if token == ODD:
            return JSONResponse({"error": "later"}, status_code=503)
        access = {"accessToken": {"displayName": "ours", "role": "write"}}
        return JSONResponse({"type": "user", "name": "somebody", "auth": access})


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    """A Hub on this machine, that the Hub's library asks."""
    made = Hub()
    async with listening(made.app) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        yield made
        close_session()


@pytest.mark.parametrize(
    ("token", "known"),
    [
        (GOOD, Known(account="somebody", role="write")),
        (ODD, Known(why_not="the Hub answered 503")),
        (NAMELESS, Known(why_not="the Hub's answer names no account")),
    ],
    ids=["good", "the Hub is ill", "it may be no Hub at all"],
)
async def test_the_hub_says_whose_a_token_is_and_what_it_may(
    hub: Hub, token: str, known: Known
) -> None:
    assert await ask_the_hub(Settings(), SecretStr(token)) == known


async def test_a_token_that_the_hub_refuses_is_an_error(hub: Hub) -> None:
    with pytest.raises(InvalidArgument, match="refuses") as caught:
        await ask_the_hub(Settings(), SecretStr(BAD))
    assert BAD not in f"{caught.value} {caught.value.fix} {caught.value.cause}"


async def test_a_hub_that_is_not_reached_validates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    known = await ask_the_hub(Settings(), SecretStr(GOOD))
    assert known.account is None
    assert "could not be asked" in str(known.why_not)
    close_session()


async def test_a_hub_that_may_not_be_asked_validates_nothing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_session()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    known = await ask_the_hub(Settings(), SecretStr(GOOD))
    assert "HF_HUB_OFFLINE" in str(known.why_not)
    assert hub.asked == 0


async def test_a_hub_that_does_not_answer_is_not_waited_for(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "_ASK_SECONDS", 0.0)
    known = await ask_the_hub(Settings(), SecretStr(GOOD))
    assert "did not answer" in str(known.why_not)


async def test_a_rehearsal_asks_nobody(hub: Hub) -> None:
    known = await ask_the_hub(Settings(rehearsal=True), SecretStr(GOOD))
    assert "rehearsal" in str(known.why_not)
    assert hub.asked == 0


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What comes to the place where it would be kept, in a cloud that is not asked here."""
    values: list[str] = []

    async def keep(_self: CloudRunBackend, name: str, value: SecretStr) -> KeptSecret:
        values.append(value.get_secret_value())
        return KeptSecret(name=name, version="1", readable_by=())

    monkeypatch.setattr(CloudRunBackend, "keep_secret", keep)
    return values


@pytest.fixture
def real(tmp_path: Path) -> Runtime:
    """A server for real clouds."""
    return Runtime(Settings(vllm_devops_state_dir=tmp_path), frozenset())


async def test_a_token_that_the_hub_refuses_is_not_kept(
    hub: Hub, real: Runtime, kept: list[str]
) -> None:
    with pytest.raises(InvalidArgument, match="refuses"):
        await models.save(real, token=BAD, target="cloud-run-l4")
    assert kept == []
    saved = await models.save(real, token=GOOD, target="cloud-run-l4")
    assert kept == [GOOD]
    assert saved.summary().endswith("it is somebody's.")


async def test_a_token_is_masked_from_the_moment_it_is_read(
    hub: Hub, real: Runtime, kept: list[str]
) -> None:
    """Also one of a shape that redaction does not know by itself."""
    other = "api_org_" + "x" * 34
    await models.save(real, token=other, target="cloud-run-l4")
    assert redact(f"so {other} it is", real.secrets) == "so [redacted] it is"


async def test_what_is_no_token_is_not_masked(real: Runtime) -> None:
    """Else a word that was given by mistake would be gone from every answer."""
    with pytest.raises(InvalidArgument):
        await models.save(real, token="ready", target="cloud-run-l4")
    assert redact("ready", real.secrets) == "ready"


def test_a_token_is_read_from_where_it_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument, a variable, a file; left out, HF_TOKEN."""
    file = tmp_path / "token"
    file.write_text(f"{BAD}\n")
    monkeypatch.setenv("OTHER_TOKEN", ODD)
    settings = Settings(hf_token=SecretStr(GOOD))
    assert read_token(settings, token=f" {ODD}\n")[0].get_secret_value() == ODD
    assert read_token(settings, env="OTHER_TOKEN")[1] == "the variable OTHER_TOKEN"
    assert read_token(settings, env="OTHER_TOKEN")[0].get_secret_value() == ODD
    assert read_token(settings, file=str(file))[0].get_secret_value() == BAD
    assert read_token(settings)[0].get_secret_value() == GOOD
    assert read_token(settings, env="HF_TOKEN")[0].get_secret_value() == GOOD


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"token": GOOD, "env": "X"}, "one place"),
        ({"token": "no-token-at-all"}, "no token"),
        ({"token": f"{GOOD} {GOOD}"}, "no token"),
        ({"env": "NOBODY_SET_THIS"}, "no NOBODY_SET_THIS"),
        ({}, "no HF_TOKEN"),
        ({"file": "/no/such/file"}, "no file"),
        ({"file": "/"}, "no file"),
    ],
)
def test_what_is_no_token_is_refused(said: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        read_token(Settings(), **said)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * 5000, b"root:x:0:0", b""])
def test_no_other_file_goes_to_the_hub(tmp_path: Path, content: bytes) -> None:
    """A caller may name any file: what is no token stays here, and is not told."""
    file = tmp_path / "other"
    file.write_bytes(content)
    with pytest.raises(InvalidArgument) as caught:
        read_token(Settings(), file=str(file))
    assert "root:x" not in f"{caught.value} {caught.value.fix}"


def test_no_other_variable_goes_to_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-for-the-hub")
    with pytest.raises(InvalidArgument) as caught:
        read_token(Settings(), env="AWS_SECRET_ACCESS_KEY")
    assert "not-for-the-hub" not in str(caught.value)


def saved(**more: Any) -> SavedToken:
    rows: dict[str, Any] = {
        "target": "cloud-run-l4", "secret": "hf-token", "version": "3", "source": "the file f",
        "validated": True, "account": "somebody", "role": "read", "why_not_validated": None,
        "readable_by": ("runtime@project",),
    }  # fmt: skip
    return SavedToken(**{**rows, **more})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"validated": False, "why_not_validated": "the Hub answered 503"}, "Nobody has asked"),
        ({"role": "write"}, "may also write"),
        ({"readable_by": ()}, "setup_target"),
        ({"source": "the argument"}, "went through this conversation"),
    ],
)
def test_what_is_less_than_good_is_warned_of(more: dict[str, Any], words: str) -> None:
    assert saved().warnings() == ()
    (warning,) = saved(**more).warnings()
    assert words in warning
