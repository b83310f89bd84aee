"""The words of `python -m benchmark`, and the plan that they ask for."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from benchmark.records import Arrivals
from benchmark.running.profiles import PROFILES, plan_of
from benchmark.runs import Provenance, RunPlan
from core.errors import InvalidArgument

N = TypeVar("N", int, float)
_LIMITS: Final = ("ttft", "tpot", "e2el")
_OPEN: Final = (Arrivals.POISSON, Arrivals.CONSTANT, Arrivals.BURSTS)
_PLAN: Final = (
    "contexts",
    "concurrencies",
    "requests_per_second",
    "arrivals",
    "output_tokens",
    "dataset",
    "cell_seconds",
    "seed",
    "prefix_share",
    "api",
    "workers",
    "max_cost_usd",
    "max_minutes",
)


def parser() -> argparse.ArgumentParser:
    """Make the parser; each command has its name in `command`."""
    top = argparse.ArgumentParser(
        prog="python -m benchmark",
        description="Measure an OpenAI-compatible endpoint; VLLM_API_KEY holds its key.",
    )
    commands = top.add_subparsers(dest="command", required=True)
    _add_run(commands.add_parser("run", help="measure an endpoint"))
    one = (
        ("resume", "go on with a run"),
        ("stop", "ask a run to end with what there is"),
        ("show", "print how far a run is, and its findings"),
        ("report", "write a run's reports again"),
    )
    for name, what in one:
        command = commands.add_parser(name, help=what)
        command.add_argument("run", help="its folder, or its id")
        _add_folder(command)
    _add_folder(commands.add_parser("list", help="list the runs that are kept"))
    compared = commands.add_parser("compare", help="set runs side by side; the first is the base")
    compared.add_argument("runs", nargs="+")
    compared.add_argument("--file", type=Path, help="the Markdown file to write")
    _add_folder(compared)
    _add_import(commands.add_parser("import", help="read and audit another tool's results"))
    return top


def _add_folder(command: argparse.ArgumentParser) -> None:
    command.add_argument("--folder", type=Path, help="where runs are kept (the user's state)")


def _add_run(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--url", required=True, help="such as http://127.0.0.1:8000")
    add("--model", help="left out: the first one that is served")
    add("--profile", default="quick", choices=PROFILES)
    add("--contexts", type=_several(int), metavar="8,512", help="prompt tokens")
    add("--concurrencies", type=_several(int), metavar="1,8", help="users at once")
    add("--requests-per-second", type=_several(float), metavar="2,4", help="open loop instead")
    add("--arrivals", choices=_OPEN, help="how requests come at a rate (poisson)")
    add("--output-tokens", type=int)
    add("--dataset", help="a JSONL or ShareGPT file of prompts")
    add("--api", choices=("completion", "chat"))
    add("--prefix-share", type=float, help="how much of every prompt is the same, 0 to 1 (0)")
    add("--seed", type=int)
    for name in _LIMITS:
        add(f"--{name}-ms", type=float, help=f"the longest {name.upper()} that is good enough")
    add("--cell-seconds", type=float, help="the longest window of a cell")
    add("--workers", type=int, help="processes that put the load on")
    add("--max-cost-usd", type=float)
    add("--max-minutes", type=float)
    _add_ground(command)
    _add_folder(command)


def _add_import(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path)
    command.add_argument("--model")
    command.add_argument("--max-model-len", type=int)
    command.add_argument("--output-tokens", type=int)
    command.add_argument("--timeout-seconds", type=float)
    _add_ground(command)
    _add_folder(command)


def _add_ground(command: argparse.ArgumentParser) -> None:
    command.add_argument("--accelerator", help="what it runs on, for the record")
    command.add_argument("--accelerator-count", type=int)
    command.add_argument("--usd-per-hour", type=float, help="of all replicas together")


def _several(kind: Callable[[str], N]) -> Callable[[str], tuple[N, ...]]:
    def read(text: str) -> tuple[N, ...]:
        return tuple(kind(part) for part in text.split(",") if part.strip())

    read.__name__ = "list of numbers"
    return read


def plan_from(words: argparse.Namespace) -> RunPlan:
    """Make the plan that the words of `run` ask for; limits come in milliseconds.

    Raises:
        InvalidArgument: It cannot be measured so.
    """
    given = {f"{name}_seconds": getattr(words, f"{name}_ms") for name in _LIMITS}
    limits = {name: value / 1000 for name, value in given.items() if value is not None}
    wanted: dict[str, Any] = {name: getattr(words, name) for name in _PLAN}
    return plan_of(words.profile, limits=limits, **wanted)


def provenance_from(words: argparse.Namespace) -> Provenance:
    """Give what the words say of hardware and price.

    Raises:
        InvalidArgument: The price is below 0.
    """
    price = words.usd_per_hour
    if price is not None and not price >= 0:
        raise InvalidArgument(f"An hour cannot cost {price}.", fix="Give 0 or more.")
    return Provenance(
        accelerator=words.accelerator,
        accelerator_count=words.accelerator_count,
        usd_per_hour=price,
        price_source="said on the command line" if price is not None else None,
    )


def base_url_from(text: str) -> str:
    """Give an endpoint's address without /v1 and without a slash at its end.

    >>> base_url_from("http://127.0.0.1:8000/v1/")
    'http://127.0.0.1:8000'

    Raises:
        InvalidArgument: It is no address, or holds a password.
    """
    fix = "Give http(s)://host:port, and a key in VLLM_API_KEY."
    try:
        parts = urlsplit(text)
        known = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError as exc:
        raise InvalidArgument("The URL is no address.", fix=fix, cause=str(exc)) from exc
    if not known or parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidArgument("The URL is no address of an endpoint.", fix=fix)
    return text.rstrip("/").removesuffix("/v1").rstrip("/")
