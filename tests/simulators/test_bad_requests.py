"""A real vLLM and the simulated engine refuse the same requests."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import anyio
import httpx2
import pytest

from tests.simulators.agreement_cases import CHAT, KEY
from tests.simulators.bad_requests import REQUESTS, Asked, held_back
from tests.simulators.pair import REAL, SIMULATED, Pair, environment, running

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

PARSERS: Final = (
    "--enable-auto-tool-choice", "--tool-call-parser", "gemma4", "--reasoning-parser", "gemma4",
)  # fmt: skip
AT_ONCE: Final = 16


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def _environment() -> Iterator[None]:
    with environment():
        yield


@pytest.fixture(scope="module", params=[(), PARSERS], ids=["plain", "parsers"])
async def pair(request: pytest.FixtureRequest, _environment: None) -> AsyncIterator[Pair]:
    flags: Sequence[str] = request.param
    async with (
        running(*REAL, flags=flags) as real,
        running(*SIMULATED, flags=flags) as simulated,
    ):
        yield Pair(real, simulated)


async def statuses(client: httpx2.AsyncClient, asked: Sequence[Asked]) -> list[int]:
    """Ask everything; a 500 of vLLM ends its connection, so none is used twice."""
    found = [0] * len(asked)
    room = anyio.CapacityLimiter(AT_ONCE)

    async def ask(number: int, path: str, body: object) -> None:
        async with room:
            headers = {**KEY, "connection": "close"}
            found[number] = (await client.post(path, json=body, headers=headers)).status_code

    async with anyio.create_task_group() as tasks:
        for number, (path, body) in enumerate(asked):
            tasks.start_soon(ask, number, path, body)
    return found


@pytest.mark.parametrize("third", [False, True], ids=["open", "held back"])
async def test_what_vllm_refuses_is_refused(pair: Pair, third: bool) -> None:  # noqa: FBT001
    """Every field with values of every kind, with the parsers of Gemma 4 and without."""
    asked = [one for one in REQUESTS if held_back(one) is third]
    if "--tool-call-parser" in " ".join(pair.simulated.log):
        asked = [one for one in asked if one[0] == CHAT]
    real = await statuses(pair.real.client, asked)
    simulated = await statuses(pair.simulated.client, asked)
    unlike = [
        (path, body, theirs, ours)
        for (path, body), theirs, ours in zip(asked, real, simulated, strict=True)
        if theirs != ours
    ]
    assert unlike == []
    assert len(asked) > 500
