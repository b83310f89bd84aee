"""The simulated engine beside a real vLLM: the same flags, the same requests, the same answers."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import pytest

from simulators.engine.app import NOT_SIMULATED
from tests.simulators.agreement_cases import (
    ANSWERED,
    GREEDY,
    KEY,
    LOOKED_AT,
    MISREAD,
    REFUSED,
    STREAMED,
    TEXT,
)
from tests.simulators.pair import MODEL, REAL, SIMULATED, Pair, both_running, environment

pytestmark = [pytest.mark.anyio, pytest.mark.vllm, pytest.mark.xdist_group("pair")]

VARIES: Final = frozenset({"id", "created", "text", "content", "tokens", "token_strs"})
OF_TEXT: Final = frozenset({"prompt_tokens", "total_tokens", "count"})
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


def alike(body: Any, real: Any, name: str = "", *, text: bool = True) -> bool:
    """Whether all that is in the body is in the real one, which says more."""
    if isinstance(body, Mapping) and isinstance(real, Mapping):
        return all(
            key in real and alike(value, real[key], key, text=text) for key, value in body.items()
        )
    if name in VARIES or (text and name in OF_TEXT):
        return type(body) is type(real)
    if isinstance(body, list) and isinstance(real, list):
        pairs = zip(body, real, strict=False)
        return len(body) == len(real) and all(alike(*pair, name, text=text) for pair in pairs)
    return bool(body == real)


def chunks(text: str) -> list[Any]:
    """The events, with runs of the same kind told once: how many tokens one carries varies."""
    kinds: list[Any] = []
    for line in filter(None, text.splitlines()):
        data = line.removeprefix("data: ")
        kind = data if data == "[DONE]" else json.loads(data)
        if isinstance(kind, dict) and kind["choices"] and "usage" in kind:
            kind["usage"] = dict.fromkeys(kind["usage"])
        if not kinds or not alike(kinds[-1], kind):
            kinds.append(kind)
    return kinds


def headers_alike(reply: httpx2.Response, real: httpx2.Response) -> bool:
    """Whether all headers are among the real one's, which speaks to other origins as well."""
    skipped = {"date", "content-length", "transfer-encoding", "allow"}
    own = {name: value for name, value in reply.headers.items() if name not in skipped}
    return own.items() <= dict(real.headers).items()


@pytest.mark.parametrize(("method", "path", "headers"), LOOKED_AT)
async def test_looks_are_answered_alike(
    pair: Pair, method: str, path: str, headers: Mapping[str, str]
) -> None:
    """Status, headers and body, with and without a key."""
    real, simulated = await pair.both(method, path, headers=headers)
    assert simulated.status_code == real.status_code
    assert headers_alike(simulated, real)
    if real.headers.get("content-type") == "application/json" and real.text:
        assert alike(simulated.json(), real.json())
    else:
        assert simulated.text == real.text


@pytest.mark.parametrize(("path", "body"), ANSWERED)
async def test_requests_are_answered_alike(pair: Pair, path: str, body: dict[str, Any]) -> None:
    """Whatever it says, but for the words, the real one says as well."""
    asked, text = {**GREEDY, **body}, not isinstance(body.get("prompt"), list)
    real, simulated = await pair.both("POST", path, json=asked, headers=KEY)
    assert (simulated.status_code, real.status_code) == (200, 200)
    assert headers_alike(simulated, real)
    assert alike(simulated.json(), real.json(), text=text)


@pytest.mark.parametrize(("path", "body"), STREAMED)
async def test_streams_have_the_same_chunks(pair: Pair, path: str, body: dict[str, Any]) -> None:
    """The first, the middle, the last, the usage and DONE."""
    asked = {**GREEDY, **body, "stream": True}
    real, simulated = await pair.both("POST", path, json=asked, headers=KEY)
    assert headers_alike(simulated, real)
    assert alike(chunks(simulated.text), chunks(real.text))


@pytest.mark.parametrize(("path", "body"), REFUSED)
async def test_refusals_are_worded_alike(pair: Pair, path: str, body: Any) -> None:
    """The whole error object."""
    asked = {"max_tokens": 24, **body} if isinstance(body, dict) and path == TEXT else body
    real, simulated = await pair.both("POST", path, json=asked, headers=KEY)
    assert (simulated.status_code, simulated.json()) == (real.status_code, real.json())


@pytest.mark.parametrize(("path", "body"), MISREAD)
async def test_what_cannot_be_read_is_refused_alike(pair: Pair, path: str, body: Any) -> None:
    """By the same status; the words differ."""
    real, simulated = await pair.both("POST", path, json=body, headers=KEY)
    assert simulated.status_code == real.status_code == 400


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
    """Every family that is simulated has the real one's type, labels and bucket bounds."""
    real, simulated = await pair.both("GET", "/metrics")
    assert headers_alike(simulated, real)
    there, here = families(real.text), families(simulated.text)
    assert here.pop("vllm:cache_config_info")[0] == there["vllm:cache_config_info"][0]
    assert {name: there.get(name) for name in here} == here
    bounds = [
        set(re.findall(r'^(\S+?)\{.*(le="[^"]+")', p.text, re.MULTILINE)) for p in (real, simulated)
    ]
    assert {one for one in bounds[0] if one[0].removesuffix("_bucket") in here} == bounds[1]


async def test_routes_that_are_not_simulated_are_there(pair: Pair) -> None:
    """501 is how the simulated one says that a real one has it."""
    real = await pair.real.client.get("/openapi.json")
    pages = {"/docs", "/redoc", "/openapi.json"}
    assert set(NOT_SIMULATED) - pages <= set(real.json()["paths"])


async def test_the_cache_is_sized_alike(pair: Pair) -> None:
    """Every label of `vllm:cache_config_info` that is simulated."""
    pages = await pair.both("GET", "/metrics")
    lines = (
        re.search(r"^vllm:cache_config_info\{(.*)\}", page.text, re.MULTILINE) for page in pages
    )
    real, simulated = (dict(re.findall(r'(\w+)="([^"]*)"', line[1])) for line in lines if line)
    assert {name: real.get(name) for name in simulated} == simulated


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


BAD: Final = (
    (str(MODEL), "--bogus-flag", "3"),
    (str(MODEL), "--max-model-len", "abc"),
    (str(MODEL), "--limit-mm-per-prompt", "{image:0}"),
    ("/nowhere/model", "--port", "0"),
)
FORKED: Final = """
import json, os, sys
import vllm.entrypoints.openai.api_server
from vllm.entrypoints.cli.main import main
for number, words in enumerate(json.loads(sys.argv[1])):
    if os.fork():
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
        continue
    sys.argv = words
    os.dup2(os.open(str(number), os.O_CREAT | os.O_WRONLY), 2)
    os.dup2(2, 1)
    sys.exit(main())
"""
"""Runs `vllm` for each list of words, importing once what takes it seven seconds."""


@pytest.mark.usefixtures("_environment")
async def test_bad_command_lines_end_alike(tmp_path: Path) -> None:
    """Status and last line."""

    def last(text: str) -> str:
        return re.sub("0x[0-9a-f]+", "0x", text.strip().splitlines()[-1])

    words = json.dumps([[*REAL, *flags] for flags in BAD])
    python = str(Path(REAL[0]).with_name("python"))
    real = await anyio.run_process((python, "-c", FORKED, words), cwd=tmp_path)
    told = [last((tmp_path / str(number)).read_text()) for number in range(len(BAD))]
    for flags, code, line in zip(BAD, real.stdout.split(), told, strict=True):
        done = await anyio.run_process([*SIMULATED, *flags], check=False)
        assert (done.returncode, last(done.stderr.decode())) == (int(code), line)
