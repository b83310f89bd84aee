"""The endpoint that claims are held against, and that false claims show."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import orjson
import pytest
from anyio.abc import ByteStream
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmark.records import ClientView, Measured
from benchmark.samples import Outcome
from core.errors import CommandNotFound
from tests.benchmark.made import some_samples
from tests.truth.build import built
from tests.truth.claims import Errors, compare
from tests.truth.recorded import Floats, Truth
from tests.truth.serving import Mock, serving

pytestmark = pytest.mark.anyio

FAST: dict[str, Any] = {"ttft_ms": 5, "itl_ms": 1}
PATH = {"prompt": "/v1/completions", "messages": "/v1/chat/completions"}


async def asked(mock: Mock, **body: Any) -> ByteStream:
    """Ask on a connection of its own."""
    path = next(path for field, path in PATH.items() if field in body)
    data = orjson.dumps({"model": "truth", "stream": True, **body})
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode()
    tcp = await anyio.connect_tcp("127.0.0.1", int(mock.base_url.rsplit(":")[-1]))
    await tcp.send(head + data)
    return tcp


async def answer(mock: Mock, **body: Any) -> tuple[bytes, list[bytes]]:
    """Ask once; give the head and the data of every event, each of which is a chunk."""
    with anyio.fail_after(10):
        return await _read(await asked(mock, **body))


async def _read(tcp: ByteStream) -> tuple[bytes, list[bytes]]:
    async with tcp:
        stream = BufferedByteReceiveStream(tcp)
        got = await stream.receive_until(b"\r\n\r\n", 1000)
        events: list[bytes] = []
        while size := int(await stream.receive_until(b"\r\n", 10), 16):
            chunk = await stream.receive_exactly(size + 2)
            assert chunk.startswith(b"data: ")
            assert chunk.endswith(b"\n\n\r\n")
            events.append(chunk[6:-4])
    return got, events


async def test_a_stream_is_vllms(tmp_path: Path) -> None:
    """Events, usage and end come as vLLM 0.32 sends them."""
    async with serving(tmp_path, **FAST) as mock:
        head, events = await answer(mock, prompt=[7, 8, 9], max_tokens=3)
    first, _, last, usage = (orjson.loads(event) for event in events[:-1])
    assert b"text/event-stream" in head
    assert events[-1] == b"[DONE]"
    assert list(first) == ["id", "object", "created", "model", "choices"]
    assert first["choices"][0]["finish_reason"] is None
    assert last["choices"][0]["finish_reason"] == "length"
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3}


async def test_a_chat_begins_with_a_role_that_is_no_token(tmp_path: Path) -> None:
    """So a client that counts chunks counts one too many."""
    messages = [{"role": "user", "content": "What is this?"}]
    async with serving(tmp_path, **FAST) as mock:
        _, events = await answer(mock, messages=messages, max_completion_tokens=2)
        truth = await mock.truth()
    role, *rest = (orjson.loads(event) for event in events[:-1])
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [bool(event["choices"]) for event in rest] == [True, True, False]
    assert (truth.tokens.tolist(), truth.events.tolist()) == ([2], [2])
    assert truth.head == (b'"What is this?"}],"max_completion_tokens":2}',)


async def test_tokens_may_come_several_at_once(tmp_path: Path) -> None:
    """As vLLM sends them under load; the last event has what is left."""
    async with serving(tmp_path, tokens_per_event=4, **FAST) as mock:
        _, events = await answer(mock, prompt=[7, 8], max_tokens=10)
        truth = await mock.truth()
    texts = [orjson.loads(event)["choices"][0]["text"] for event in events[:-2]]
    assert [text.count("word") for text in texts] == [4, 4, 2]
    assert (truth.tokens.tolist(), truth.events.tolist()) == ([10], [3])


async def test_it_keeps_its_own_time(tmp_path: Path) -> None:
    """No token is written before it is due, and every one is in the record."""
    async with serving(tmp_path, **FAST) as mock:

        async def ask(number: int) -> None:
            await answer(mock, prompt=[number], max_tokens=5)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(ask, number)
        truth = await mock.truth()
    assert sorted(truth.head) == sorted(b"[%d]" % n + b',"max_tokens":5}' for n in range(8))
    assert (truth.first_token - truth.received >= 0.005).all()
    assert (truth.last_token - truth.received >= 0.009).all()
    assert all(len(truth.token_times(row)) == 5 for row in range(8))


async def test_without_delay_a_long_answer_comes_whole(tmp_path: Path) -> None:
    """It is more than the socket takes at once."""
    async with serving(tmp_path, ttft_ms=0, itl_ms=0) as mock:
        _, events = await answer(mock, prompt=[1], max_tokens=20_000)
        truth = await mock.truth()
    assert len(events) == 20_002
    assert (truth.tokens.tolist(), truth.events.tolist()) == ([20_000], [20_000])


async def test_an_answer_that_nobody_waits_for_has_no_end(tmp_path: Path) -> None:
    """A client that goes is no reason to end, and its request counts as unfinished."""
    async with serving(tmp_path, ttft_ms=0, itl_ms=1000) as mock:
        async with await asked(mock, prompt=[1], max_tokens=2) as tcp:
            await tcp.receive()
        await answer(mock, prompt=[2], max_tokens=1)
        truth = await mock.truth()
    assert np.isnan(truth.last_token).tolist() == [True, False]


async def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    """Nothing is compiled, nothing is left."""
    with pytest.raises(CommandNotFound) as told:
        await built(tmp_path, compiler="no-such-compiler")
    assert "gcc" in told.value.fix
    assert [path async for path in anyio.Path(tmp_path).iterdir()] == []


def a_truth(requests: int = 200) -> Truth:
    """What an endpoint did that was asked every 10 ms, for four tokens each time."""
    begin: Floats = np.asarray(100 + 0.01 * np.arange(requests), dtype=np.float64)
    times = (begin[:, None] + 0.05 + 0.01 * np.arange(4)).ravel()
    sends = np.zeros(len(times), dtype=[("ns", "i8"), ("request", "u4"), ("events", "u4")])
    sends["ns"] = np.round(times * 1e9)
    sends["request"] = np.repeat(np.arange(requests), 4)
    sends["events"] = 1
    whole = np.zeros(requests, dtype=np.int64)
    return Truth(
        received=begin,
        first_token=begin + 0.05,
        last_token=begin + 0.08,
        prompt_tokens=whole + 1,
        tokens=whole + 4,
        events=whole + 4,
        head=tuple(body(number).removeprefix(b'{"prompt":') for number in range(requests)),
        sends=sends,
    )


def body(number: int) -> bytes:
    return b'{"prompt":[%d]}' % number


def told_by(**claimed: Any) -> Errors:
    """Hold a client's claims against that truth; honest ones, but for what is given."""
    honest = some_samples(200, ttft=0.05, gap=0.01, tokens=4, every=0.01)
    made = Measured(
        samples=replace(honest, **claimed),
        window_begin=100.2,
        window_end=101.8,
        settled=True,
        client=ClientView(
            workers=1,
            cpu_share=0.1,
            loop_lag_p99_5_seconds=0,
            send_lateness_p99_seconds=0,
            memory_mib=1,
        ),
        slices=(),
        started_at=datetime(2026, 11, 21, tzinfo=UTC),
        wall_seconds=2,
    )
    return compare(made, a_truth(), body)


def test_honest_claims_are_within() -> None:
    """Nothing is wrong with them at all."""
    told = told_by()
    assert told.within(), told.words()
    assert len(told.ttft) == 160
    assert len(told.itl) == 480


LATE = np.asarray(100 + 0.01 * np.arange(200))
FEW = np.arange(200) % 50 == 0


@pytest.mark.parametrize(
    "flaw",
    [
        pytest.param({"first_token": LATE + 0.051}, id="stamped a millisecond late"),
        pytest.param({"first_token": LATE + 0.025}, id="a head taken for a token"),
        pytest.param({"first_token": LATE + 0.05 + 0.1 * FEW}, id="one in fifty late by 100 ms"),
        pytest.param({"last_token": LATE + 0.0805}, id="the end taken for the last token"),
        pytest.param({"intended": LATE + 0.001}, id="its own queue left out"),
        pytest.param({"gaps": np.full(600, 0.0105, np.float32)}, id="gaps too long"),
        pytest.param(
            {"gaps": np.full(800, 0.01, np.float32), "gap_counts": np.full(200, 4)},
            id="a role counted as a token",
        ),
        pytest.param({"output_tokens": np.full(200, 5)}, id="events counted, with the role"),
        pytest.param({"outcome": FEW * Outcome.RESET.value}, id="one answer in fifty lost"),
    ],
)
def test_a_false_claim_is_seen(flaw: dict[str, Any]) -> None:
    """Each flaw alone is beyond the bounds."""
    told = told_by(**flaw)
    assert not told.within(), told.words()


def test_a_cut_answer_is_not_lost() -> None:
    """The client ended it itself, and says so."""
    assert told_by(outcome=FEW * Outcome.RESET.value).lost == 4
    assert told_by(outcome=FEW * Outcome.CUT.value).lost == 0


def test_an_invented_request_is_no_ones() -> None:
    """A claim without a request of its own is an error in itself."""
    with pytest.raises(KeyError):
        told_by(request=1000 + np.arange(200))
