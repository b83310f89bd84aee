"""The live streams, in the forms in which Azure writes them."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import SecretStr

from backends.aca import logs, replicas
from backends.aca.app import get_app
from core.errors import CloudUnavailable, PermissionDenied
from tests.backends.aca.planted import NEWEST, STREAM_TOKEN, Planted, planting

pytestmark = pytest.mark.anyio

TOKEN = SecretStr(STREAM_TOKEN)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        planted.app()
        planted.revision()
        yield planted


async def events(there: Planted, token: SecretStr = TOKEN) -> list[logs.Event]:
    app = await get_app(there.site, "gemma")
    return list(await logs.stream_events(there.site, app, token))


async def test_events_come_oldest_first_whatever_their_order(there: Planted) -> None:
    """Azure's is not reliable."""
    there.event("ContainerStarted", "Started container 'vllm'", age=10)
    there.event("AssigningReplica", "Replica has been scheduled", age=20)
    first, second = await events(there)
    assert (first.reason, second.reason) == ("AssigningReplica", "ContainerStarted")
    assert str(second.line).endswith("[Container Apps] ContainerStarted: Started container 'vllm'")


async def test_what_the_stream_says_of_itself_is_no_event(there: Planted) -> None:
    """It names no app."""
    there.event("ConnectedToEventsServer", "Successfully connected to events server")
    assert await events(there) == []


async def test_lines_of_a_container_lose_the_mark_of_its_runtime(there: Planted) -> None:
    """And a bar that rewrites itself is one line for each step."""
    name = there.replica()
    there.wrote(name, "10%\r20%", "INFO ready")
    own = {"TimeStamp": "2026-11-21T10:00:00Z", "Log": "Connecting to the container 'vllm'..."}
    there.console[name].append(own)
    app = await get_app(there.site, "gemma")
    (held,) = await replicas.read_revisions(there.site, "gemma")
    lines = await logs.stream_console(there.site, app, NEWEST, held.replicas[0], TOKEN)
    assert [line.text for line in lines] == ["10%", "20%", "INFO ready"]
    assert {line.instance for line in lines} == {name}


async def test_the_token_is_fetched_of_the_app(there: Planted) -> None:
    """It shows itself to nobody."""
    token = await logs.token_of(there.site, "gemma")
    assert token.get_secret_value() == STREAM_TOKEN
    assert STREAM_TOKEN not in repr(token)


async def test_a_stream_that_does_not_let_in_names_the_permission(there: Planted) -> None:
    """The token is not in the error."""
    with pytest.raises(PermissionDenied) as caught:
        await events(there, SecretStr("wrong-token"))
    assert "getAuthToken" in caught.value.fix
    assert "wrong-token" not in f"{caught.value.summary} {caught.value.cause}"


async def test_a_stream_that_fails_may_be_asked_again(there: Planted) -> None:
    """So says its class."""
    there.stream_status = 502
    with pytest.raises(CloudUnavailable):
        await events(there)


async def test_a_stream_that_is_not_there_is_unavailable(there: Planted) -> None:
    """Nothing listens."""
    there.app(eventStreamEndpoint="http://127.0.0.1:9/events")
    with pytest.raises(CloudUnavailable):
        await events(there)


@pytest.mark.parametrize(
    "said",
    [
        "2023-10-06T21:41:33Z",
        "2023-10-06 21:41:33 +0000 UTC",
        "2023-10-06T21:41:33+00:00",
        "2023-10-06T23:41:33+02:00",
    ],
)
def test_every_form_of_a_moment_is_read(said: str) -> None:
    """Azure writes several."""
    assert logs.moment(said) == datetime(2023, 10, 6, 21, 41, 33, tzinfo=UTC)


@pytest.mark.parametrize("said", [None, "", "yesterday", 7])
def test_what_is_no_moment_is_none(said: object) -> None:
    """A row without one is left out."""
    assert logs.moment(said) is None
    assert logs.lines_of({"TimeStamp": said, "Log": "F x"}, "r") == ()
    assert logs.event_of({"TimeStamp": said, "Reason": "x"}) is None
