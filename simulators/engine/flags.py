"""What the engine is told: the flags of `vllm serve`, its environment, and how it is to fail."""

import argparse
import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from pydantic import Field, NonNegativeFloat
from pydantic_settings import BaseSettings, SettingsConfigDict

Process = Literal["APIServer", "EngineCore"]
_HERE: Final = Path(__file__).parent
FLAGS: Final[dict[str, Any]] = tomllib.loads((_HERE / "flags.toml").read_text("utf-8"))
"""Those of `vllm serve` by kind."""
FAILURES: Final[dict[str, Any]] = tomllib.loads((_HERE / "failures.toml").read_text("utf-8"))
"""Ways to fail, and what is refused."""


class BootError(Exception):
    """The engine cannot start; the text is the last line of vLLM's traceback."""

    def __init__(
        self, text: str, *, process: Process = "APIServer", code: int = 1, traceback: bool = True
    ) -> None:
        super().__init__(text)
        self.process: Process = process
        self.code = code
        self.traceback = traceback


Phase = Literal[
    "config", "engine", "loading", "compiling", "profiling", "kv-cache", "graphs", "serving"
]
SHARE_OF_BOOT: Final[dict[Phase, float]] = {
    "config": 0.10,
    "engine": 0.10,
    "loading": 0.35,
    "compiling": 0.20,
    "profiling": 0.05,
    "kv-cache": 0.05,
    "graphs": 0.10,
    "serving": 0.05,
}
"""Roughly how a warm boot of a 12B model on an L4 divides its time; in the order of a boot, whose
`serving` is the moment before the port listens."""


_CACHED: Final = 0.1
"""Of the time to compile, where it is loaded. source: public logs, 20-60 s to 1-5 s, 2026-11."""
_QUICK_PACE: Final = 0.05
"""Of an engine that stands for no accelerator: nobody waits for its speed."""


class Knobs(BaseSettings):
    """Everything about the simulation that `vllm serve` has no flag for."""

    model_config = SettingsConfigDict(env_prefix="SIMULATED_ENGINE_", frozen=True)

    boot_seconds: float = Field(default=2.0, ge=0)
    """How long the whole boot takes."""
    boot_phases: dict[Phase, NonNegativeFloat] = {}
    """Seconds of single phases as JSON, in place of their share of `boot_seconds`."""
    cached: bool = False
    """Whether it finds compiled what it would compile."""
    fail: str = ""
    """`mode`, `mode:argument` or `mode@phase`; the modes are listed in `failures.toml`."""
    reply: str = ""
    """What every answer says, in place of generated words."""
    time_scale: float | None = Field(default=None, ge=0)
    """Wall-clock seconds per simulated second of a step; 0 is as fast as it goes. Left out it is 1
    on a named `accelerator`, whose speeds are those of the plan, and 0.05 on the knobs' own."""
    step_ms: float | None = Field(default=None, ge=0)
    """Fixed wall-clock milliseconds per step, in place of the device model and `time_scale`."""
    accelerator: str = ""
    """A name of `planner/accelerators.toml`: memory and time are then those that the planner
    foresees for it, and the knobs of memory say nothing. Of a CPU they still say what the planner
    does not know: its memory."""
    count: int | None = Field(default=None, ge=1)
    """How many of that accelerator there are; left out, as many as `--tensor-parallel-size`."""
    device_memory_gib: float = Field(default=21.96, gt=0)
    """What CUDA sees of one accelerator; the default is an L4."""
    device_free_gib: float | None = Field(default=None, ge=0)
    """What is free of it when the engine starts; left out, all of it."""
    api_key: str = Field(default="", validation_alias="VLLM_API_KEY")
    """Taken where `--api-key` is not given, as by the real engine."""

    @property
    def pace(self) -> float:
        """Wall-clock seconds per simulated second of a step."""
        if self.time_scale is not None:
            return self.time_scale
        foreseen = self.accelerator not in {"", "cpu"}  # nobody foresees a CPU's speed
        return 1.0 if foreseen else _QUICK_PACE

    @property
    def free_gib(self) -> float:
        """What is free of one accelerator's memory when the engine starts."""
        if self.device_free_gib is None:
            return self.device_memory_gib
        return min(self.device_free_gib, self.device_memory_gib)

    def seconds_of(self, phase: Phase) -> float:
        """How long this phase of the boot takes."""
        seconds = self.boot_phases.get(phase, self.boot_seconds * SHARE_OF_BOOT[phase])
        return seconds * _CACHED if self.cached and phase == "compiling" else seconds


_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ENTRY_USAGE: Final = (
    "usage: vllm [-h] [-v]\n            {chat,complete,serve,launch,bench,collect-env,"
    "download-kernels,preload,run-batch,snapshot}\n            ...\n"
)


def human_readable_int(text: str) -> int:
    """Read 64M, 1k or 2048; a capital suffix counts in powers of 1024.

    >>> human_readable_int("64M"), human_readable_int("25.6k"), human_readable_int("2048")
    (67108864, 25600, 2048)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if not match:
        return int(text)
    number, suffix = match.groups()
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    return int(number) * _BINARY[suffix]


def human_readable_int_or_auto(text: str) -> int:
    return -1 if text.strip().lower() == "auto" else human_readable_int(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(
            f"Value {text} cannot be converted to <function loads at 0x7f0000000000>."
        ) from error


class _Parser(argparse.ArgumentParser):
    """Takes `--max_model_len` for `--max-model-len` and says vLLM's words on errors."""

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments"):
            self.exit(2, f"{_ENTRY_USAGE}vllm: error: {message}\n")
        self.exit(2, f"usage: vllm serve [model_tag] [options]\nvllm serve: error: {message}\n")


_KINDS: Final[dict[str, dict[str, Any]]] = {
    "switches": {"action": argparse.BooleanOptionalAction},
    "store_true": {"action": "store_true"},
    "integers": {"type": int},
    "floats": {"type": float},
    "human_integers": {"type": human_readable_int},
    "auto_integers": {"type": human_readable_int_or_auto},
    "json": {"type": _json},
    "texts": {},
    "lists": {"nargs": "+"},
    "optional": {"nargs": "?"},
    "repeated": {"action": "append"},
}


def make_parser() -> argparse.ArgumentParser:
    """A parser that knows every flag of `vllm serve`."""
    parser = _Parser(prog="vllm serve")
    parser.add_argument("model_tag", nargs="?")
    short: dict[str, list[str]] = {}
    for alias, name in FLAGS["aliases"].items():
        short.setdefault(name, []).append(alias)
    for kind, how in _KINDS.items():
        for name in FLAGS[kind]:
            choices = {"choices": FLAGS["choices"][name]} if name in FLAGS["choices"] else {}
            parser.add_argument(f"--{name}", *short.get(name, []), **how, **choices)
    parser.set_defaults(**FLAGS["defaults"])
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The flags of one `vllm serve`; leaves with status 2 on what vLLM refuses."""
    words = [re.sub("^--[^=]+", lambda name: name[0].replace("_", "-"), one) for one in argv]
    flags = make_parser().parse_args(words)
    flags.model = flags.model_tag or flags.model or "Qwen/Qwen3-0.6B"
    return flags


def non_default(flags: argparse.Namespace) -> dict[str, Any]:
    """What the operator asked for, as vLLM logs it: the key is stars."""
    untouched = vars(parse([]))
    asked = {key: value for key, value in vars(flags).items() if value != untouched[key]}
    if "api_key" in asked:
        asked["api_key"] = "***"
    return asked


def refused(name: str, /, *, process: Process = "EngineCore", **figures: object) -> BootError:
    """Return one of the refusals of `failures.toml`, with its figures filled in."""
    return BootError(FAILURES["refused"][name].format(**figures), process=process)


@dataclass(frozen=True, slots=True)
class Failure:
    """One way of failing; an empty mode is none."""

    mode: str = ""
    argument: str = ""
    phase: Phase | None = None

    @property
    def count(self) -> int:
        """The number of requests in `crash-after:N`."""
        return int(self.argument or 1)

    def error(self) -> BootError:
        """What this failure says when the boot comes to its phase."""
        facts = FAILURES["boot"][self.mode]
        return BootError(
            facts["text"],
            process=facts["process"],
            code=facts.get("exit_code", 1),
            traceback=facts.get("traceback", True),
        )


def read_failure(text: str) -> Failure:
    """Read `mode`, `mode:argument` or `mode@phase`.

    >>> read_failure("oom").phase, read_failure("crash-after:3").count
    ('loading', 3)
    """
    if not text:
        return Failure()
    head, _, place = text.partition("@")
    mode, _, argument = head.partition(":")
    known = FAILURES
    if mode in known["serving"]:
        return Failure(mode, argument)
    usual = {**dict.fromkeys(known["silent"], "loading"),
             **{name: facts["phase"] for name, facts in known["boot"].items()}}  # fmt: skip
    if mode not in usual:
        modes = sorted([*known["serving"], *usual])
        raise ValueError(f"No failure mode {mode!r}. There are: {', '.join(modes)}.")
    wanted = place or (argument if mode in known["silent"] else "") or usual[mode]
    for phase in SHARE_OF_BOOT:
        if phase == wanted:
            return Failure(mode, phase=phase)
    raise ValueError(f"No phase {wanted!r}. There are: {', '.join(SHARE_OF_BOOT)}.")
