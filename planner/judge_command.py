"""`judge`: whether a claimed speed of one request is possible at all."""

import argparse
import sys
from typing import Any

from core.errors import InvalidArgument
from core.records import valid
from planner.accelerators import accelerator, accelerators
from planner.claims import judge
from planner.flags import Flags
from planner.model import read_model


def add_to(commands: Any) -> None:
    """Say what the command takes."""
    parser = commands.add_parser("judge", help=__doc__, description=__doc__)
    parser.add_argument("model", help="a folder, a catalog name such as `12b qat`, or its Hub id")
    parser.add_argument("--accelerator", required=True, choices=list(accelerators()))
    parser.add_argument("--tokens-per-second", type=float, required=True, help="what is claimed")
    parser.add_argument("--count", type=int, default=1, help="accelerators that share the model")
    parser.add_argument("--quantization", help="as vLLM's flag: fp8 quantizes while loading")
    parser.add_argument("--cpu-offload-gb", type=float, help="of weights in the host's memory")
    parser.add_argument("--json", action="store_true", help="every figure, for a program")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the verdict; 1 if the claim is impossible, else 0."""
    claimed = arguments.tokens_per_second
    if not 0 < claimed < float("inf"):
        raise InvalidArgument(f"{claimed} tokens/s is no speed.", fix="Give a positive number.")
    values = {name: getattr(arguments, name) for name in ("quantization", "cpu_offload_gb")}
    flags = valid(Flags, {**values, "tensor_parallel_size": arguments.count})
    found = judge(claimed, read_model(arguments.model), accelerator(arguments.accelerator), flags)
    lines = "\n  ".join((found.reason, *found.derivation))
    sys.stdout.write((found.model_dump_json(indent=2) if arguments.json else lines) + "\n")
    return 1 if found.verdict == "impossible" else 0
