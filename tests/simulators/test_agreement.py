"""The simulated engine beside a real vLLM: the same flags, the same requests, the same answers."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import anyio
import httpx2
import pytest

from simulators.engine.app import NOT_SIMULATED
from tests.simulators.agreement_cases import (
    ANSWERED,
    GREEDY,
    HELLO,
    IDS,
    INVOKED,
    KEY,
    LOOKED_AT,
    REFUSED,
    STREAMED,
    TEXT,
)
from tests.simulators.pair import MODEL, REAL, SIMULATED, Pair, both_running, environment

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

VARIES: Final = frozenset({"id", "created", "text", "content", "system_fingerprint"})
OF_TEXT: Final = frozenset(
    {"prompt_tokens", "total_tokens", "cached_tokens", "created_cache_tokens", "prompt_token_ids"}
)
"""What differs by the tokenizer, where a prompt is a text: the simulated one counts bytes."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def _environment() -> Iterator[None]:
    with environment():
        yield


@pytest.fixture(scope="module")
async def pair(_environment: None) -> AsyncIterator[Pair]:
    async with both_running() as pair:
        yield pair


def alike(body: Any, name: str = "", *, text: bool = True) -> Any:
    """The body, with the type in place of a value that may differ."""
    if isinstance(body, Mapping):
        return {key: alike(value, key, text=text) for key, value in body.items()}
    if name in VARIES or (text and name in OF_TEXT) or (name == "token_ids" and body):
        return type(body).__name__
    return [alike(value, name, text=text) for value in body] if isinstance(body, list) else body


def chunks_alike(text: str) -> list[Any]:
    """The events, with runs of the same kind told once: how many tokens one carries varies."""
    kinds: list[Any] = []
    for line in text.splitlines():
        if not line:
            continue
        data = line.removeprefix("data: ")
        kind = data if data == "[DONE]" else alike(json.loads(data))
        if isinstance(kind, dict) and kind["choices"] and "usage" in kind:
            kind["usage"] = {key: type(value).__name__ for key, value in kind["usage"].items()}
        if not kinds or kinds[-1] != kind:
            kinds.append(kind)
    return kinds


def headers_alike(reply: httpx2.Response) -> dict[str, str]:
    skipped = {"date", "content-length", "transfer-encoding"}
    return {name: value for name, value in reply.headers.items() if name not in skipped}


@pytest.mark.parametrize(("method", "path", "headers"), LOOKED_AT)
async def test_looks_are_answered_alike(
    pair: Pair, method: str, path: str, headers: Mapping[str, str]
) -> None:
    """Status, headers and body, with and without a key."""
    real, simulated = await pair.both(method, path, headers=headers)
    assert simulated.status_code == real.status_code
    assert headers_alike(simulated) == headers_alike(real)
    if real.headers.get("content-type") == "application/json" and real.text:
        assert alike(simulated.json()) == alike(real.json())
    else:
        assert simulated.text == real.text


@pytest.mark.parametrize(("path", "body"), ANSWERED)
async def test_requests_are_answered_alike(pair: Pair, path: str, body: dict[str, Any]) -> None:
    """All keys, all values that the words do not decide: usage, reasons."""
    asked, text = {**GREEDY, **body}, not isinstance(body.get("prompt"), list)
    real, simulated = await pair.both("POST", path, json=asked, headers=KEY)
    assert (simulated.status_code, real.status_code) == (200, 200)
    assert headers_alike(simulated) == headers_alike(real)
    assert list(simulated.json()) == list(real.json())
    text = text or any(isinstance(one, str) for one in body["prompt"])
    assert alike(simulated.json(), text=text) == alike(real.json(), text=text)


@pytest.mark.parametrize(("path", "body"), STREAMED)
async def test_streams_have_the_same_chunks(pair: Pair, path: str, body: dict[str, Any]) -> None:
    """The first, the middle, the last, the usage and DONE."""
    asked = {**GREEDY, **body, "stream": True}
    real, simulated = await pair.both("POST", path, json=asked, headers=KEY)
    assert headers_alike(simulated) == headers_alike(real)
    assert chunks_alike(simulated.text) == chunks_alike(real.text)


@pytest.mark.parametrize(("path", "body"), REFUSED)
async def test_refusals_are_worded_alike(pair: Pair, path: str, body: Any) -> None:
    """The whole error object."""
    asked = {"max_tokens": 24, **body} if isinstance(body, dict) and path == TEXT else body
    real, simulated = await pair.both("POST", path, json=asked, headers=KEY)
    assert (simulated.status_code, simulated.json()) == (real.status_code, real.json())


@pytest.mark.parametrize("body", INVOKED)
async def test_invocations_answers_without_a_key_alike(pair: Pair, body: dict[str, Any]) -> None:
    """A chat, a completion, or the refusal of either."""
    real, simulated = await pair.both("POST", "/invocations", json={**GREEDY, **body})
    assert (simulated.status_code, headers_alike(simulated)) == (
        real.status_code,
        headers_alike(real),
    )
    assert alike(simulated.json()) == alike(real.json())


@pytest.mark.parametrize("body", [{"prompt": IDS}, {"messages": HELLO}])
async def test_invocations_streams_without_a_key_alike(pair: Pair, body: dict[str, Any]) -> None:
    """The same chunks as behind the key."""
    asked = {**GREEDY, **body, "stream": True}
    real, simulated = await pair.both("POST", "/invocations", json=asked)
    assert chunks_alike(simulated.text) == chunks_alike(real.text)


@pytest.mark.parametrize("content", ["{not json", '{"a": ', "null", ""])
async def test_what_is_no_json_is_refused_alike(pair: Pair, content: str) -> None:
    """The position of the mistake too."""
    for kind in ("application/json", "text/plain"):
        headers = {**KEY, "content-type": kind}
        real, simulated = await pair.both("POST", TEXT, content=content, headers=headers)
        assert (simulated.status_code, simulated.json()) == (real.status_code, real.json())


def families(page: str) -> dict[str, tuple[str, frozenset[frozenset[str]]]]:
    """Of each family its type and the sets of labels of its samples."""
    kinds: dict[str, str] = {}
    labels: dict[str, set[frozenset[str]]] = {}
    name = ""
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kinds_of = line.split()
            kinds[name] = kinds_of
        elif not line.startswith("#"):
            labels.setdefault(name, set()).add(frozenset(re.findall(r'(\w+)="', line)))
    return {name: (kind, frozenset(labels.get(name, ()))) for name, kind in kinds.items()}


async def test_the_metrics_agree(pair: Pair) -> None:
    """Families, types, labels and bucket bounds."""
    real, simulated = await pair.both("GET", "/metrics")
    assert headers_alike(simulated) == headers_alike(real)
    assert families(simulated.text) == families(real.text)
    bounds = [
        set(re.findall(r'^(\S+?)\{.*(le="[^"]+")', p.text, re.MULTILINE)) for p in (real, simulated)
    ]
    assert bounds[0] == bounds[1]


async def test_the_same_routes_are_listed_and_open(pair: Pair) -> None:
    """Asked without a key and a body; 501 is how the simulated one says that it has no such."""
    real, simulated = await pair.both("GET", "/openapi.json")
    routes = {
        (method.upper(), path) for path, does in real.json()["paths"].items() for method in does
    }
    assert routes == {
        (method.upper(), path)
        for path, does in simulated.json()["paths"].items()
        for method in does
    }
    missing = {(method, path) for path, methods in NOT_SIMULATED for method in methods}
    for method, path in sorted(routes):
        there, here = await pair.both(method, path, json={})
        assert here.status_code == there.status_code or (
            here.status_code == 501 and (method, path) in missing
        )


async def test_the_cache_is_sized_alike(pair: Pair) -> None:
    """Every label of `vllm:cache_config_info`, but for one that only the CPU build sets."""
    pages = await pair.both("GET", "/metrics")
    lines = (
        re.search(r"^vllm:cache_config_info\{(.*)\}", page.text, re.MULTILINE) for page in pages
    )
    real, simulated = (dict(re.findall(r'(\w+)="([^"]*)"', line[1])) for line in lines if line)
    del real["mamba_ssm_cache_dtype"], simulated["mamba_ssm_cache_dtype"]
    assert simulated == real


async def test_the_log_tells_the_same_phases(pair: Pair) -> None:
    """In vLLM's line format; the CPU build says CPU where a GPU build says GPU."""
    lines = (
        r"\(APIServer pid=\d+\) INFO \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\] Using max model len",
        r"\(EngineCore pid=\d+\) INFO .* Initializing a V1 LLM engine \(v0.32.0\) with config: ",
        r"\(EngineCore pid=\d+\) INFO .* Starting to load model /",
        r"Loading safetensors checkpoint shards: 100% Completed \| 1/1",
        r"Loading weights took \d+\.\d\d seconds",
        r"[CG]PU KV cache size: 63,550 tokens, Maximum concurrency for 2,048 tokens .*: 31.03x",
        r"init engine \(profile, create kv cache, warmup model\) took \d+\.\d\d s",
        r"Starting vLLM server on http://127.0.0.1:\d+",
        r"INFO:     Application startup complete\.",
        r'INFO:     127.0.0.1:\d+ - "GET /health HTTP/1.1" 200 OK',
    )
    await pair.both("GET", "/health")
    for log in (pair.real.log, pair.simulated.log):
        text = "".join(log)
        assert [line for line in lines if not re.search(line, text)] == []


async def _ending(*argv: str) -> tuple[int | None, str]:
    done = await anyio.run_process(argv, check=False)
    lines = done.stderr.decode().strip().splitlines()
    return done.returncode, re.sub("0x[0-9a-f]+", "0x", lines[-1])


@pytest.mark.usefixtures("_environment")
@pytest.mark.parametrize(
    "flags",
    [
        (str(MODEL), "--bogus-flag", "3"),
        (str(MODEL), "--max-model-len", "abc"),
        (str(MODEL), "--limit-mm-per-prompt", "{image:0}"),
        ("/nowhere/model", "--port", "0"),
    ],
)
async def test_bad_command_lines_end_alike(flags: tuple[str, ...]) -> None:
    """Status and last line. A real vLLM needs seven seconds to refuse."""
    real, simulated = await _ending(*REAL, *flags), await _ending(*SIMULATED, *flags)
    assert simulated == real
