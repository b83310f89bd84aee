"""A quantization_config, read into bytes per parameter and what stays as it is."""

import re
from typing import Final, NamedTuple

from planner.sections import MOST, Section

_IGNORING: Final = ("ignore", "modules_to_not_convert", "ignored_layers")
MXFP4: Final = "mxfp4"
"""Four bits and a scale of eight for every 32; vLLM reads experts so, and nothing else."""
_WIDEST: Final = 64
"""Bits of a stored number."""


class Quantization(NamedTuple):
    """How the linear layers of a checkpoint are stored."""

    method: str
    bits: int | None
    bytes_per_parameter: float | None
    """With scales and zero points; None where the config does not tell."""
    ignored: tuple[str, ...]

    def applies(self, module: str) -> bool:
        """Whether a linear layer of this name is quantized."""
        if self.method == MXFP4:
            return module.endswith(".experts")
        return not any(_matches(pattern, module) for pattern in self.ignored)


def read_quantization(config: Section) -> Quantization | None:
    """Read a quantization_config; None means there is none."""
    if not config:
        return None
    method = config.word("quant_method") or "unknown"
    ignored = tuple(name for key in _IGNORING for name in config.words(key))
    broken = [name for name in ignored if name.startswith("re:") and not _compiles(name[3:])]
    config.unknown += [f"{name} is no pattern: it was passed over." for name in broken]
    bits, size = _stored(method, config)
    return Quantization(method, bits, size, tuple(name for name in ignored if name not in broken))


def _stored(method: str, config: Section) -> tuple[int | None, float | None]:
    match method:
        case "compressed-tensors":
            groups = config.section("config_groups").sections()
            weights = next((found for group in groups if (found := group.section("weights"))), None)
            return _compressed(weights) if weights else (None, None)
        case "awq" | "gptq":
            bits = config.number("bits", default=4, least=1, most=_WIDEST)
            group = config.number("group_size", default=128, least=-MOST)
            return bits, bits / 8 + _scales(group, bits=bits, zeros=True)
        case method if method == MXFP4:
            return 4, 0.5 + 1 / 32
        case "fp8":
            block = config.numbers("weight_block_size", 2)
            return 8, 1 + (4 / (block[0] * block[1]) if block else 0)
        case _:
            return None, None


def _compressed(weights: Section) -> tuple[int, float]:
    bits = weights.number("num_bits", default=8, least=1, most=_WIDEST)
    group = weights.number("group_size", least=-MOST)
    zeros = not weights.on("symmetric", default=True)
    return bits, bits / 8 + _scales(group, bits=bits, zeros=zeros)


def _scales(group: int, *, bits: int, zeros: bool) -> float:
    if group <= 0:
        return 0.0
    return (2 + (bits / 8 if zeros else 0)) / group


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return module == pattern or f".{module}.".find(f".{pattern}.") >= 0


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True
