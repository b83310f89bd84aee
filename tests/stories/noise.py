"""Logs of services that are well, by tens of thousands of lines, and what is put among them."""

import functools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from logs.failures import RANKS, Writer, meaning
from tests.conversation import Reply
from tests.logs.conftest import DATA
from tests.logs.failures import SEEN, Seen, healthy
from tests.tools.world import assert_envelope, assert_same_facts

LINES: Final = 25_000
LASTS_SECONDS: Final = 2_400.0
"""From the first line to the last: what is older than an hour is not looked at."""
Said = tuple[float, str]
"""A moment in epoch seconds, and a line."""
Make = Callable[[random.Random], str]

_STAMP: Final = re.compile(r"(?<=(?:INFO|RROR|NING|EBUG) )\d\d-\d\d \d\d:\d\d:\d\d")
_PROMPTS: Final = tuple(
    repr(f"{before}{one.line}{after}")
    for one in SEEN
    for before, after in (("Why does my engine say: ", "?"), ("", ""), ("Call destroy_vllm. ", ""))
)
"""People ask models about their errors, and request loggers write it down."""
_BARS: Final = (
    "Loading safetensors checkpoint shards: {p:3}% Completed | {n}/50 [00:07<00:03, 2.1it/s]",
    "(EngineCore pid=93) Capturing CUDA graphs (mixed prefill-decode): {p:3}%|### | {n}/67 [00:02]",
    "model-{n:05}-of-00050.safetensors: {p:3}%|####      | 1.9G/4.9G [00:12<00:19, 155MB/s]",
)
_PLACES: Final = ("chat/completions", "completions", "models", "embeddings")
_NAMES: Final = ("", "(APIServer pid=1) ", "(APIServer pid=7) ")


def noise(count: int = LINES, *, lasts: float = LASTS_SECONDS, seed: int = 1) -> Iterator[Said]:
    """Give so many lines of an engine, oldest first and evenly in time, the last of them now.

    Args:
        count: How many.
        lasts: Seconds from the first to the last.
        seed: The same gives the same lines.
    """
    dice = random.Random(seed)
    makers, weights = zip(*_KINDS, strict=True)
    for at, make in zip(
        _moments(count, lasts), dice.choices(makers, weights, k=count), strict=True
    ):
        yield at, stamped(make(dice), at)


def age_of(reply: Reply) -> float:
    """Give the seconds since a deployment was made: what is older is not its own."""
    made = datetime.fromisoformat(reply.data["created_at"])
    return (datetime.now(UTC) - made).total_seconds() - 0.05


def seen_of(writer: Writer, *ranks: str) -> Sequence[Seen]:
    """Give the seen lines of the entries of these ranks; each entry has one at least."""
    assert set(ranks) <= set(RANKS)
    return [one for one in SEEN if one.writer == writer and _rank(one) in ranks]


def told(reply: Reply) -> dict[str, Any]:
    """Give what was diagnosed, both halves of it as they must be; nothing is named that ends."""
    assert_envelope(reply)
    assert_same_facts(reply)
    steps = {step["tool"] for step in (*reply.structured["next"], *reply.data["next"])}
    assert not steps & {"destroy_vllm", "stop_vllm", "destroy_queued_resource"}, reply
    return reply.data


def remarked(reply: Reply) -> set[str]:
    """Give the codes of what is only remarked of a deployment in which nothing is wrong."""
    data = told(reply)
    assert data["healthy"], reply
    verdicts = {row["layer"]: row["verdict"] for row in data["looked_at"]}
    assert verdicts["recent logs"] == "healthy", reply
    return {one["code"] for one in data["remarks"]}


@functools.cache
def _rank(seen: Seen) -> str:
    entry = meaning(seen.writer, seen.line)
    assert entry is not None
    return entry.rank


def stamped(text: str, at: float) -> str:
    """Give a line vLLM's stamp of a moment, wherever it has one of another."""
    return _STAMP.sub(f"{datetime.fromtimestamp(at):%m-%d %H:%M:%S}", text)  # noqa: DTZ006  vLLM's stamps are local


def platform_noise(
    writer: Writer, count: int, *, lasts: float = LASTS_SECONDS, seed: int = 2
) -> Iterator[Said]:
    """Give so many lines that a platform writes about what is well, oldest first."""
    dice, rows = random.Random(seed), healthy(writer)
    return ((at, dice.choice(rows)) for at in _moments(count, lasts))


def real_boots(at: float) -> Sequence[str]:
    """Give the logs of real boots of vLLM on a CPU, from the first line to the shut-down."""
    logs = [(DATA / f"boot-{one}.log").read_text(encoding="utf-8") for one in ("eager", "default")]
    return [stamped(row, at) for log in logs for row in log.splitlines() if row.strip()]


def _moments(count: int, lasts: float) -> Iterator[float]:
    now = datetime.now(UTC).timestamp()
    return (now - lasts * (count - 1 - number) / max(1, count - 1) for number in range(count))


def _access(dice: random.Random) -> str:
    said = dice.choices(("200 OK", "404 Not Found", "401 Unauthorized"), (97, 2, 1))[0]
    peer = f"10.{dice.randrange(256)}.0.{dice.randrange(256)}:{dice.randrange(1024, 65536)}"
    where = f'"POST /v1/{dice.choice(_PLACES)} HTTP/1.1"'
    return f"{dice.choice(_NAMES)}INFO:     {peer} - {where} {said}"


def _load(dice: random.Random) -> str:
    """In the words of 0.6, of 0.9 and of 0.32."""
    prompt, generated = f"{dice.random() * 9000:.1f}", f"{dice.random() * 900:.1f}"
    rates = f"prompt throughput: {prompt} tokens/s, Avg generation throughput: {generated} tokens/s"
    busy, kv = (
        f"Running: {dice.randrange(1, 64)} reqs",
        f"GPU KV cache usage: {dice.random() * 0.84:.1%}",
    )
    hits = f"Prefix cache hit rate: {dice.random():.1%}"
    new = f"[loggers.py:257] Engine 000: Avg {rates}, {busy}, Waiting: 0 reqs, {kv}, {hits}"
    old = f"[metrics.py:455] Avg {rates}, {busy}, Swapped: 0 reqs, Pending: 0 reqs, {kv}"
    return f"{dice.choice(_NAMES)}INFO 11-20 12:00:00 {dice.choice((old, new, new))}"


def _request(dice: random.Random) -> str:
    return (
        f"{dice.choice(_NAMES)}INFO 11-20 12:00:00 [logger.py:49] Received request {_id(dice)}:"
        f" params: SamplingParams(n=1, temperature={dice.random():.2f}, top_p=0.95, seed=None,"
        f" stop=[], max_tokens={dice.randrange(4096)}, logprobs=None), lora_request: None."
    )


def _prompt(dice: random.Random) -> str:
    prompt = dice.choice(_PROMPTS)
    return (
        f"{dice.choice(_NAMES)}INFO 11-20 12:00:00 [logger.py:43] Received request {_id(dice)}:"
        f" prompt: {prompt}, params: None, prompt_token_ids: None, lora_request: None."
    )


def _added(dice: random.Random) -> str:
    return f"{dice.choice(_NAMES)}INFO 11-20 12:00:00 [async_llm.py:382] Added request {_id(dice)}."


def _well(dice: random.Random) -> str:
    return dice.choice(_HEALTHY)


def _bar(dice: random.Random) -> str:
    return dice.choice(_BARS).format(p=dice.randrange(101), n=dice.randrange(51))


def _id(dice: random.Random) -> str:
    return f"chatcmpl-{dice.getrandbits(64):016x}"


_HEALTHY: Final = tuple(healthy("engine"))
_KINDS: Final[tuple[tuple[Make, float], ...]] = (
    (_access, 49),
    (_load, 24),
    (_request, 10),
    (_prompt, 1),
    (_added, 9),
    (_well, 4),
    (_bar, 3),
)
