"""`python -m benchmark`: measure an endpoint from a terminal; `server.py call` does the rest.

The exit status is 0 when a run is done, 3 when it was stopped, 130 when it was ended at once and 1
when it, or anything else, failed, or when a run that is done has measured no cell.
"""

import argparse
import logging
import os
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

import anyio
import platformdirs
from pydantic import SecretStr

from benchmark import campaign, profiles, report, server
from benchmark.advice import headline
from benchmark.folder import RunFolder
from benchmark.profiles import PROFILES, plan_of
from benchmark.records import (
    LATENCIES,
    OPEN_LOOPS,
    CellResult,
    CellState,
    Progress,
    Provenance,
    RunPlan,
    RunState,
    Worth,
    figure,
    seconds,
)
from benchmark.run import PATIENCE_SECONDS, End, conclude, state_of
from benchmark.tables import at, known
from core import PRODUCT
from core.errors import Busy, InvalidArgument, NotFound, OpsError
from core.records import Access
from core.settings import Settings

N = TypeVar("N", int, float)


def _several(kind: Callable[[str], N]) -> Callable[[str], tuple[N, ...]]:
    def read(text: str) -> tuple[N, ...]:
        return tuple(kind(part) for part in text.split(",") if part.strip())

    read.__name__ = "list of numbers"
    return read


Options = dict[str, dict[str, Any]]
_CLUSTER: Final[Options] = {
    "cluster": {
        "metavar": "ray://HOST:10001",
        "help": "machines that put the load on, a Ray cluster; auto: the one of this machine",
    },
    "nodes": {"type": int, "help": "of it (all that are free; 1 for each run of a campaign)"},
    "insecure-cluster": {"action": "store_true", "help": "take one that asks nobody for a token"},
}
_BUDGET: Final[Options] = {"max-cost-usd": {"type": float}, "max-minutes": {"type": float}}
_PLAN: Final[Options] = {
    "contexts": {"type": _several(int), "metavar": "8,512", "help": "prompt tokens"},
    "concurrencies": {"type": _several(int), "metavar": "1,8", "help": "users at once"},
    "requests-per-second": {
        "type": _several(float),
        "metavar": "2,4",
        "help": "open loop instead",
    },
    "arrivals": {"choices": OPEN_LOOPS, "help": "how requests come at a rate (poisson)"},
    "output-tokens": {"type": int},
    "dataset": {"help": "a JSONL or ShareGPT file of prompts"},
    "api": {"choices": ("completion", "chat"), "help": "(completion; chat for a dataset of chats)"},
    "prefix-share": {
        "type": float,
        "help": "how much of every prompt is the same, 0 to 1 (0)",
    },
    "seed": {"type": int},
    "cell-seconds": {"type": float, "help": "the longest window of a cell"},
    "workers": {"type": int, "help": "processes that put the load on"},
    **_CLUSTER,
    **_BUDGET,
}
_GROUND: Final[Options] = {
    "accelerator": {"help": "what it runs on, for the record"},
    "accelerator-count": {"type": int},
    "usd-per-hour": {"type": float, "help": "of all replicas together"},
}
_FOLDER: Final[Options] = {
    "folder": {"type": Path, "help": "where runs are kept (the user's state)"}
}
_RUN: Final[Options] = {
    "url": {"required": True, "help": "such as http://127.0.0.1:8000"},
    "model": {"help": "left out: the first one that is served"},
    "profile": {"default": "quick", "choices": PROFILES},
    **_PLAN,
    **{
        f"{name}-ms": {"type": float, "help": f"the longest {name.upper()} that is good enough"}
        for name in LATENCIES
    },
    **_GROUND,
    **_FOLDER,
}
_ONE: Final[Options] = {"run": {"help": "its folder, or its id"}}
_LED: Final[Options] = {
    "led": {"action": "store_true", "help": "read the key from stdin, and stop when that ends"}
}
_COMMANDS: Final[dict[str, tuple[str, Options, Options]]] = {
    "run": ("measure an endpoint", {}, _RUN),
    "resume": ("go on with a run, or with a campaign", _ONE, {**_FOLDER, **_LED}),
    "stop": ("ask a run to end with what there is", _ONE, _FOLDER),
    "show": ("print how far a run is, and its findings", _ONE, _FOLDER),
    "campaign": (
        "measure models x targets x flags, a run each",
        {"run": {"metavar": "FILE.toml", "help": "what to measure, or the folder to go on with"}},
        {**_CLUSTER, **_BUDGET, **_FOLDER},
    ),
}
"""What each does, what it takes by place and what by name."""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m benchmark",
        description="Measure an OpenAI-compatible endpoint; VLLM_API_KEY holds its key.",
    )
    commands = top.add_subparsers(dest="command", required=True)
    for name, (what, places, options) in _COMMANDS.items():
        command = commands.add_parser(name, help=what)
        for word, form in places.items():
            command.add_argument(word, **form)
        for word, form in options.items():
            command.add_argument(f"--{word}", **form)
    return top


def plan_from(words: argparse.Namespace) -> RunPlan:
    """Make the plan that the words of `run` ask for; limits come in milliseconds.

    Raises:
        InvalidArgument: It cannot be measured so.
    """
    given = {f"{name}_seconds": getattr(words, f"{name}_ms") for name in LATENCIES}
    limits = {name: value / 1000 for name, value in given.items() if value is not None}
    asked = (word.replace("-", "_") for word in _PLAN)
    return plan_of(words.profile, limits=limits, **{name: getattr(words, name) for name in asked})


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


_WORDS: Final = {Worth.SPOILED: "SPOILED", Worth.RELATIVE: "relative only"}


def line(cell: CellResult) -> str:
    first = sorted(cell.verdicts, key=lambda verdict: not verdict.spoils)
    codes = "; ".join(f"{'' if v.spoils else 'mark '}{v.code} ({v.because})" for v in first)
    if cell.state is CellState.SKIPPED:
        return f"{cell.id}: skipped. {cell.reason}"
    if cell.state is CellState.FAILED:
        return f"{cell.id}: failed. {cell.reason} {codes}".rstrip()
    shown: tuple[tuple[str, Callable[[float], str]], ...] = (
        ("output_token_throughput", lambda tokens: f"{figure(tokens)} tok/s"),
        ("ttft.p50", lambda middle: f"TTFT p50 {seconds(middle)}"),
        ("tpot.p50", lambda middle: f"TPOT p50 {seconds(middle)}"),
        ("goodput_share", lambda share: f"{share:.1%} within the limits"),
    )
    figures = [
        words(value) for path, words in shown if (value := known(at(path)(cell))) is not None
    ]
    worth = _WORDS.get(cell.worth, "valid")
    return f"{cell.id}: {'; '.join(figures)}; {worth}{f': {codes}' if codes else ''}"


def counted(progress: Progress) -> str:
    total = "" if progress.cells_total is None else f"/{progress.cells_total}"
    return f"[{progress.cells_done}{total}] "


_STATUS: Final = {RunState.DONE: 0, RunState.STOPPED: 3, RunState.INTERRUPTED: 130}


def main(argv: Sequence[str]) -> int:
    words = parser().parse_args(argv)
    try:
        if words.command != "run" and campaign.found(words.run, _runs(words)):
            return _campaign(words)
        return _ACTIONS[words.command](words)
    except OpsError as exc:
        return _complain(exc)
    except KeyboardInterrupt:  # before the sweep listens for it
        return _STATUS[RunState.INTERRUPTED]


def _run(words: Namespace) -> int:
    plan = plan_from(words)
    url = server.base_url_from(words.url)
    _require_idle(_runs(words), url)
    key = Settings().vllm_api_key
    access = Access(base_url=url, api_key=key, protection="its key")
    seen = anyio.run(server.look_at, access, words.model)
    for said in seen.notes:
        print(said, file=sys.stderr)
    folder = profiles.make(
        _runs(words),
        base_url=url,
        plan=plan,
        subject=seen.subject,
        provenance=provenance_from(words),
    )
    return _measure(folder, key)


def _require_idle(runs: Path, url: str) -> None:
    """Two runs at once would measure each other.

    Raises:
        Busy: Another run here measures that endpoint.
    """
    for folder in (RunFolder(file.parent) for file in runs.glob("*/manifest.json")):
        if folder.is_measured_now() and folder.manifest().base_url == url:
            raise Busy(
                f"{url} is being measured by {folder.path.name}.",
                fix="`show` says how far it is; `stop` ends it.",
            )


def _resume(words: Namespace) -> int:
    folder = _found(words)
    if folder.is_measured_now():
        raise Busy(
            f"{folder.path.name} is being measured.",
            fix="`show` says how far it is; `stop` ends it.",
        )
    _require_idle(folder.path.parent, folder.manifest().base_url)
    folder.stop_file.unlink(missing_ok=True)
    if words.led:
        return _measure(folder, _led(folder))
    own = folder.manifest().provenance.deployment is None
    # A deployment's key is left there by whoever started this; the environment's is another's.
    key = Settings().vllm_api_key if own and folder.credential() is None else None
    return _measure(folder, key)


def _led(folder: RunFolder) -> SecretStr | None:
    """Read the key that a campaign says, whose end is this run's as well, however it comes."""
    key = sys.stdin.readline().strip()

    def wait() -> None:
        os.read(0, 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # who reads it may be gone
        folder.stop_file.touch()

    threading.Thread(target=wait, daemon=True).start()
    return SecretStr(key) if key else None


def _campaign(words: Namespace) -> int:
    """Begin a campaign, or do with one what is done with a run."""
    runs, say = _runs(words), partial(print, flush=True)
    path = campaign.found(words.run, runs)
    if path and words.command == "show":
        print(campaign.report(campaign.standing_of(path), path.parent))
        return 0
    if path and words.command == "stop":
        return _ask_to_stop(RunFolder(path), "interrupted, or over")
    asked = {**_CLUSTER, **_BUDGET} if words.command == "campaign" else {}
    given = ((word.replace("-", "_"), getattr(words, word.replace("-", "_"))) for word in asked)
    return campaign.run(words.run, runs, {name: value for name, value in given if value}, say)


def _measure(folder: RunFolder, key: SecretStr | None) -> int:
    _log_to(folder.log_file)
    print(folder.path, file=sys.stderr)
    patience = PATIENCE_SECONDS * Settings().patience_scale

    def show(cell: CellResult, progress: Progress) -> None:
        print(f"{counted(progress)}{line(cell)}", flush=True)

    async def measured() -> End:
        said = partial(print, file=sys.stderr, flush=True)
        return await conclude(folder, show=show, say=said, key=key, patience_seconds=patience)

    end = anyio.run(measured)
    if end.error:
        return _complain(end.error)
    if end.reason:
        print(end.reason, file=sys.stderr)
    if end.state in {RunState.DONE, RunState.STOPPED}:
        _tell(folder)
    states = {cell.state for cell in folder.cells()}
    done_for_nothing = end.state is RunState.DONE and CellState.MEASURED not in states
    return 1 if done_for_nothing else _STATUS[end.state]


def _tell(folder: RunFolder) -> None:
    print(f"Best: {headline(folder.manifest(), folder.cells()).sentence}")
    print(folder.page_file)


def _log_to(file: Path) -> None:
    """Keep what is said, a traceback above all: a sweep may have no terminal."""
    logging.basicConfig(filename=file, format="%(asctime)s %(levelname)s %(message)s", force=True)

    def broke(
        kind: type[BaseException], exc: BaseException, traceback: TracebackType | None
    ) -> None:
        logging.getLogger(__name__).critical("It broke.", exc_info=(kind, exc, traceback))
        sys.__excepthook__(kind, exc, traceback)

    sys.excepthook = broke


def _stop(words: Namespace) -> int:
    folder = _found(words)
    return _ask_to_stop(folder, state_of(folder).state)


def _ask_to_stop(folder: RunFolder, state: str) -> int:
    if folder.is_measured_now():
        folder.stop_file.touch()
        print(f"{folder.path.name} was asked to stop.")
    else:
        print(f"{folder.path.name} is not being measured: it is {state}.")
    return 0


def _show(words: Namespace) -> int:
    folder = _found(words)
    folder.forget_credential()
    progress = state_of(folder)
    why = f" {progress.reason}" if progress.reason else ""
    far = f"{counted(progress)}{timedelta(seconds=round(progress.elapsed_seconds))}"
    print(f"{folder.path.name} {progress.state} {far}{why}")
    print(report.main_tables(folder.cells()))
    _tell(folder)
    return 0


def _found(words: Namespace) -> RunFolder:
    for path in (Path(words.run).expanduser(), _runs(words) / words.run):
        if (path / "manifest.json").exists():
            return RunFolder(path)
    raise NotFound(f"There is no run {words.run}.", fix="Give its folder, or its name there.")


def _runs(words: Namespace) -> Path:
    """Give the folder of all runs: the server's own, unless another was named."""
    if words.folder:
        return Path(words.folder).expanduser()
    state = Settings().vllm_devops_state_dir or platformdirs.user_state_path(PRODUCT)
    return state / "real" / "benchmarks"


def _complain(error: OpsError) -> int:
    for part in (error.summary, error.cause, error.fix):
        if part:
            print(part, file=sys.stderr)
    return 1


_ACTIONS: Final[Mapping[str, Callable[[Namespace], int]]] = {
    "run": _run,
    "resume": _resume,
    "stop": _stop,
    "show": _show,
    "campaign": _campaign,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
