"""Lines as vLLM, uvicorn and platforms write them, made up by a seed: as many as are wanted."""

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

BEGAN: Final = datetime(2026, 11, 20, tzinfo=UTC)
_PATHS: Final = ("chat/completions", "completions", "models", "embeddings")
_WORDS: Final = (
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "said",
    "that",
    "it",
    "would",
    "rain",
)
_PLACES: Final = (
    ("core.py", "Initializing a V1 LLM engine (v0.32.0) with config: seed={n}, size={n}"),
    ("model.py", "Using max model len {n}"),
    ("kv_cache_utils.py", "GPU KV cache size: {n} tokens"),
    (
        "weight_utils.py",
        "Time spent downloading weights for google/gemma-4-E4B-it: {n}.{n} seconds",
    ),
    ("cuda.py", "Using FLASH_ATTN attention backend out of potential backends: FLASH_ATTN, {n}"),
    ("scheduler.py", "Request {id} was preempted; {n} tokens will be computed again"),
    ("serving_chat.py", "Using default chat sampling params from model: temperature {n}"),
)
_FAULTS: Final = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {n}.{n} GiB.",
    "RuntimeError: Worker failed with error 'device-side assert', see the stack trace above",
    "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See above.",
)
Make = Callable[[random.Random], str]


def lines(count: int, seed: int = 8) -> Iterator[str]:
    """Give so many lines, always the same ones for a seed."""
    dice = random.Random(seed)
    for number in range(count):
        stamp = BEGAN + timedelta(milliseconds=50 * number)
        make = dice.choices(_MAKERS, _WEIGHTS)[0]
        yield make(dice).replace("{at}", f"{stamp:%m-%d %H:%M:%S}")


def _filled(text: str, dice: random.Random) -> str:
    while "{n}" in text:
        text = text.replace("{n}", str(dice.randrange(10 ** dice.randrange(1, 6))), 1)
    return text.replace("{id}", _id(dice))


def _id(dice: random.Random) -> str:
    return f"chatcmpl-{dice.getrandbits(64):016x}"


def _peer(dice: random.Random) -> str:
    return f"{dice.choice((10, 34, 169))}.{dice.randrange(256)}.0.{dice.randrange(256)}"


def _access(dice: random.Random) -> str:
    said = dice.choices(("200 OK", "404 Not Found", "500 Internal Server Error"), (97, 2, 1))[0]
    return (
        f"(APIServer pid=1) INFO:     {_peer(dice)}:{dice.randrange(1024, 65536)} -"
        f' "POST /v1/{dice.choice(_PATHS)} HTTP/1.1" {said}'
    )


def _load(dice: random.Random) -> str:
    return (
        "(APIServer pid=1) INFO {at} [loggers.py:257] Engine 000:"
        f" Avg prompt throughput: {dice.random() * 9000:.1f} tokens/s,"
        f" Avg generation throughput: {dice.random() * 900:.1f} tokens/s,"
        f" Running: {dice.randrange(256)} reqs, Waiting: {dice.randrange(30)} reqs,"
        f" GPU KV cache usage: {dice.random() * 100:.1f}%,"
        f" Prefix cache hit rate: {dice.random() * 100:.1f}%"
    )


def _request(dice: random.Random) -> str:
    return (
        f"(APIServer pid=1) INFO {{at}} [logger.py:49] Received request {_id(dice)}:"
        f" params: SamplingParams(n=1, temperature={dice.random():.2f}, top_p=0.95, seed=None,"
        f" stop=[], stop_token_ids=[], bad_words=[], ignore_eos=False,"
        f" max_tokens={dice.randrange(4096)}, min_tokens=0, logprobs=None, truncate=None),"
        " lora_request: None."
    )


def _prompt(dice: random.Random) -> str:
    words = " ".join(dice.choices(_WORDS, k=dice.randrange(5, 60)))
    return (
        f"(APIServer pid=1) INFO {{at}} [logger.py:43] Received request {_id(dice)}:"
        f" prompt: '{words}', params: None, prompt_token_ids: None, lora_request: None."
    )


def _added(dice: random.Random) -> str:
    return f"(APIServer pid=1) INFO {{at}} [async_llm.py:382] Added request {_id(dice)}."


def _platform(dice: random.Random) -> str:
    return (
        f'{{"severity":"INFO","revision":"gemma-{dice.randrange(99):05d}-abc","latency":'
        f'"{dice.random():.6f}s","remoteIp":"{_peer(dice)}","status":200,"trace":'
        f'"projects/p/traces/{dice.getrandbits(128):032x}"}}'
    )


def _engine(dice: random.Random) -> str:
    place, text = dice.choice(_PLACES)
    level = dice.choices(("INFO", "WARNING"), (9, 1))[0]
    text = _filled(text, dice)
    return f"(EngineCore pid={dice.randrange(90, 400)}) {level} {{at}} [{place}:257] {text}"


def _shards(dice: random.Random) -> str:
    done = dice.randrange(101)
    return f"Loading safetensors checkpoint shards: {done:3}% Completed | {done}/100 [00:07<00:03]"


def _frame(dice: random.Random) -> str:
    return (
        f"(EngineCore pid=90) ERROR {{at}} [core.py:1001]   File"
        f' "/usr/lib/python3.12/vllm/v1/{dice.choice(_WORDS)}.py", line {dice.randrange(2000)},'
        f" in {dice.choice(_WORDS)}"
    )


def _fault(dice: random.Random) -> str:
    text = _filled(dice.choice(_FAULTS), dice)
    return f"(EngineCore pid=90) ERROR {{at}} [core.py:1001] {text}"


_KINDS: Final[tuple[tuple[Make, float], ...]] = (
    (_access, 40),
    (_load, 24),
    (_request, 10),
    (_prompt, 3),
    (_added, 8),
    (_platform, 7),
    (_engine, 5),
    (_shards, 2),
    (_frame, 0.9),
    (_fault, 0.1),
)
_MAKERS: Final = [make for make, _ in _KINDS]
_WEIGHTS: Final = [weight for _, weight in _KINDS]
