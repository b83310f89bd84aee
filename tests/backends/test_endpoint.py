"""An endpoint of the owner's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from backends.base import World
from backends.endpoint import EndpointBackend
from core.records import State, Target
from core.settings import Settings
from tests.backends.served import Served

pytestmark = pytest.mark.anyio


@pytest.fixture
def served() -> Iterator[Served]:
    with Served() as served:
        yield served


def backend(url: str, key: str | None = None) -> EndpointBackend:
    settings = Settings(vllm_base_url=url, vllm_api_key=SecretStr(key) if key else None)
    target = Target(name="endpoint", backend="endpoint", description="")
    return EndpointBackend(target, World(settings, Path("nowhere"), ()))


async def test_it_is_ready_once_its_model_answered(served: Served) -> None:
    """One token is asked for, once; later looks cost the model nothing."""
    mine = backend(served.url)
    first, second = await mine.describe("endpoint"), await mine.describe("endpoint")
    assert first.state is second.state is State.READY
    assert (first.served_model_name, first.model, first.engine) == ("m", "/models/m", "vLLM 0.32.0")
    assert first.since == second.since
    assert served.asked.count("/v1/completions") == 1


async def test_a_server_that_is_no_vllm_is_still_looked_at(served: Served) -> None:
    """Its version is not known, its model by its name alone."""
    del served.answers["/version"]
    served.answers["/v1/models"] = (200, {"data": [{"id": "gpt"}]})
    seen = await backend(served.url).describe("endpoint")
    assert (seen.state, seen.engine, seen.model) == (State.READY, "not known", "gpt")


@pytest.mark.parametrize(
    ("path", "answer", "code"),
    [
        ("/v1/models", (200, {"data": []}), "NO_MODEL"),
        ("/v1/models", (200, {}), "BAD_REPLY"),
        ("/v1/models", (401, {"error": "Unauthorized"}), "UNAUTHORIZED"),
        ("/v1/models", (302, {}), "BAD_REPLY"),
        ("/v1/completions", (500, {}), "ENDPOINT_ERROR"),
    ],
)
async def test_what_is_wrong_with_it_is_told(
    served: Served, path: str, answer: tuple[int, Any], code: str
) -> None:
    """Its state is not known, and why is said with a code; looking raises nothing."""
    served.answers[path] = answer
    (seen,) = await backend(served.url).list()
    assert seen.state is State.UNKNOWN
    assert seen.failure is not None
    assert seen.failure.code == code


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://127.0.0.1:port", "127.0.0.1:9", ""])
async def test_an_address_where_nothing_answers_is_told(url: str) -> None:
    """A typing error in a setting breaks no look at everything."""
    seen = await backend(url).describe("endpoint")
    assert seen.failure is not None
    assert seen.failure.code == "ENDPOINT_UNREACHABLE"


@pytest.mark.parametrize(
    ("url", "key", "protection"),
    [
        ("http://host:8000", None, "Asked without a key over plain HTTP."),
        ("https://host/", None, "Asked without a key over TLS."),
        ("host:8000", None, "Asked without a key over plain HTTP."),
    ],
)
async def test_how_it_is_protected_is_said(url: str, key: str | None, protection: str) -> None:
    """Plain HTTP is never called anything else."""
    assert (await backend(url, key).access("endpoint")).protection == protection


async def test_a_key_is_named_and_never_told() -> None:
    """A person's own shell has it."""
    access = await backend("https://host/v1/", "sk-mine").access("endpoint")
    assert access.base_url == "https://host"
    assert access.header_commands == {"Authorization": 'printf %s "$VLLM_API_KEY"'}
    assert "POST /invocations computes for everybody" in access.protection
    assert "sk-mine" not in repr(access)
