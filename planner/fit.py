"""`fit`: whether a model fits an accelerator, and what its KV cache would hold."""

import argparse
import json
import sys
from typing import Any, Final, get_args

from core.errors import InvalidArgument
from core.records import KvPlan, MemoryPlan, ModelShape, valid
from core.settings import Settings
from planner.accelerators import Accelerator, accelerator, accelerators
from planner.bars import table
from planner.flags import Flags, size_in_bytes
from planner.hub import read_hub_model
from planner.memory import plan_memory
from planner.model import read_model

_GIB: Final = 2**30
_OWN: Final = frozenset({"kv_cache_memory_bytes", "tensor_parallel_size", "hf_overrides"})
"""Flags with an argument of their own below, or none."""


def add_to(commands: Any) -> None:
    """Say what the command takes."""
    parser = commands.add_parser("fit", help=__doc__, description=__doc__)
    parser.add_argument("model", help="a folder, a catalog name such as `12b qat`, or its Hub id")
    parser.add_argument("--accelerator", required=True, choices=list(accelerators()))
    parser.add_argument("--count", type=int, default=1, help="accelerators of that kind")
    parser.add_argument("--accelerator-memory-gib", type=float, help="instead of the usual")
    parser.add_argument("--kv-cache-memory-gib", type=float, help="instead of what would be left")
    parser.add_argument("--kv-cache-memory-bytes", help="the same in bytes, or with K, M or G")
    parser.add_argument("--tensor-parallel-size", type=int, help="left out, the count")
    parser.add_argument("--json", action="store_true", help="every figure, for a program")
    parser.add_argument(
        "--from-hub", action="store_true", help="read a few kB of the model's headers on the Hub"
    )
    parser.set_defaults(run=run)
    for name, field in Flags.model_fields.items():
        if name in _OWN:
            continue
        flag = f"--{name.replace('_', '-')}"
        if field.annotation is bool:
            parser.add_argument(flag, action="store_true", default=None)
        elif bool in get_args(field.annotation):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction)
        else:
            parser.add_argument(flag, type=_kind(field.annotation))


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; 0 if it fits, 1 if not."""
    plan = plan_memory(_model(arguments), _hardware(arguments), _flags(arguments))
    text = json.dumps(as_json(plan), indent=2) if arguments.json else "\n".join(table(plan))
    sys.stdout.write(f"{text}\n")
    return 0 if plan.fits else 1


def as_json(plan: MemoryPlan) -> dict[str, Any]:
    """Give a plan with the names that programs rely on; figures of the expected estimate."""
    kv: KvPlan = plan.kv_expected
    return {
        "model": plan.model,
        "accelerator": plan.accelerator,
        "count": plan.count,
        "fits": plan.fits,
        "reasons": list(plan.reasons),
        "warnings": list(plan.warnings),
        "weights_gib": round(plan.weights_gib, 3),
        "load_peak_gib": round(plan.load_peak_gib, 3),
        "kv_cache_gib": {
            "low": round(plan.kv_cache_gib.low, 3),
            "expected": round(plan.kv_cache_gib.expected, 3),
            "high": round(plan.kv_cache_gib.high, 3),
        },
        "num_blocks": kv.num_blocks,
        "block_size": kv.block_size,
        "kv_tokens": kv.kv_tokens,
        "max_concurrency": round(kv.max_concurrency, 4),
        "max_len_that_fits": plan.kv_low.max_len_that_fits,
        **{name: getattr(plan, name) for name in _MORE},
        "parts": [part.model_dump() for part in plan.parts],
        "derivation": [*plan.derivation, *kv.derivation],
    }


_MORE: Final = (
    "vllm_version",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "visible_gib",
    "requested_gib",
)


def _kind(annotation: Any) -> Any:
    return next((kind for kind in (int, float) if kind in get_args(annotation)), str)


def _model(arguments: argparse.Namespace) -> ModelShape:
    if arguments.from_hub:
        return read_hub_model(arguments.model, token=Settings().hf_token)
    return read_model(arguments.model)


def _hardware(arguments: argparse.Namespace) -> Accelerator:
    found = accelerator(arguments.accelerator)
    if arguments.accelerator_memory_gib is None:
        return found
    return found.model_copy(update={"memory_gib": arguments.accelerator_memory_gib})


def _flags(arguments: argparse.Namespace) -> Flags:
    ways = arguments.tensor_parallel_size or arguments.count
    if ways > arguments.count > 1:
        raise InvalidArgument(
            f"{ways} ways need {ways} accelerators, not {arguments.count}.",
            fix="Give --count at least --tensor-parallel-size.",
        )
    given = size_in_bytes(arguments.kv_cache_memory_bytes)
    if arguments.kv_cache_memory_gib is not None:
        given = int(arguments.kv_cache_memory_gib * _GIB)
    values = {name: getattr(arguments, name) for name in Flags.model_fields if name not in _OWN}
    wanted = {name: value for name, value in values.items() if value is not None}
    own = {"tensor_parallel_size": ways, "kv_cache_memory_bytes": given}
    return valid(Flags, {**wanted, **own})
