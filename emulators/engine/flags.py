"""The command line of `vllm serve`, refused and accepted as vLLM does."""

import argparse
import json
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Final, NoReturn

_DECIMAL: Final = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ENTRY_USAGE: Final = (
    "usage: vllm [-h] [-v]\n            {chat,complete,serve,launch,bench,collect-env,"
    "download-kernels,preload,run-batch,snapshot}\n            ...\n"
)
_DEFAULTS: Final[dict[str, Any]] = {
    "host": None,
    "port": 8000,
    "gpu_memory_utilization": 0.92,
    "kv_cache_dtype": "auto",
    "dtype": "auto",
    "tensor_parallel_size": 1,
    "cpu_offload_gb": 0.0,
    "seed": 0,
    "load_format": "auto",
    "max_logprobs": 20,
    "uvicorn_log_level": "info",
    "enforce_eager": False,
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
}
"""source: vllm 0.32.0, defaults of its own parser, read 2026-11-20; all others are None here."""


@cache
def flag_names() -> dict[str, Any]:
    """The flags by kind, from `flags.toml`."""
    text = files("emulators.engine").joinpath("flags.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


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
    """Like `human_readable_int`, with -1 for `auto`."""
    return -1 if text.strip().lower() in {"-1", "auto"} else human_readable_int(text)


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
    names = flag_names()
    short: dict[str, list[str]] = {}
    for alias, name in names["aliases"].items():
        short.setdefault(name, []).append(alias)
    for kind, how in _KINDS.items():
        for name in names[kind]:
            options = dict(how)
            if name in names["choices"]:
                options["choices"] = names["choices"][name]
            if name == "max-model-len":
                options["type"] = human_readable_int_or_auto
            parser.add_argument(f"--{name}", *short.get(name, []), **options)
    parser.set_defaults(**_DEFAULTS)
    return parser


def _dashed(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The flags of one `vllm serve`; leaves with status 2 on what vLLM refuses."""
    flags = make_parser().parse_args([_dashed(argument) for argument in argv])
    flags.model = flags.model_tag or flags.model or "Qwen/Qwen3-0.6B"
    return flags


def non_default(flags: argparse.Namespace) -> dict[str, Any]:
    """What the operator asked for, as vLLM logs it: the key is stars."""
    untouched = vars(parse([]))
    asked = {key: value for key, value in vars(flags).items() if value != untouched[key]}
    if "api_key" in asked:
        asked["api_key"] = "***"
    return asked
