"""The words of `python -m benchmark`, and a run as people watch it."""

import argparse
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TextIO, TypeVar
from urllib.parse import urlsplit

from benchmark.profiles import PROFILES, plan_of
from benchmark.records import (
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Progress,
    Provenance,
    RunPlan,
    Worth,
    figure,
    seconds,
    usd,
)
from benchmark.tables import known
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


T = TypeVar("T")
_WIDTH: Final = 15
_ROW_HEAD: Final = 7
_BAR: Final = 24
_AROUND: Final = 6
"""Lines beside the table's rows."""
_WORDS: Final = {Worth.SPOILED: "SPOILED", Worth.RELATIVE: "relative only"}
_SIGNS: Final = {Worth.MARKED: "*", Worth.RELATIVE: "~", Worth.SPOILED: "!"}
_SHORT: Final = {Code.LENGTH_CAPPED: "too long", Code.SATURATED_ROW: "saturated"}


class Live(Protocol):
    """Shows what a sweep says of itself; never raises."""

    def tell(self, progress: Progress, tokens_per_second: float | None, /) -> None:
        """Show how far it is, and the output rate of the present cell."""

    def decided(self, cell: CellResult, /) -> None:
        """Show a cell that is over."""


class Lines:
    """One line for each cell: for files and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._progress: Progress | None = None

    def tell(self, progress: Progress, _tokens_per_second: float | None, /) -> None:
        """Keep it for the next line."""
        self._progress = progress

    def decided(self, cell: CellResult, /) -> None:
        """Print the cell."""
        far = counted(self._progress, 1) if self._progress else ""
        print(f"{far}{line(cell)}", file=self._stream, flush=True)


class Table:
    """Context against load, redrawn in place: for terminals."""

    def __init__(self, stream: TextIO, plan: RunPlan, cells: Sequence[CellResult] = ()) -> None:
        self._stream = stream
        self._plan = plan
        self._cells = list(cells)
        self._drawn = 0

    def tell(self, progress: Progress, tokens_per_second: float | None, /) -> None:
        """Draw it anew."""
        size = shutil.get_terminal_size()
        head = [line(self._cells[-1])[: size.columns - 1]] if self._cells else []
        rows = [
            *table(self._plan, self._cells, progress, room=(size.columns, size.lines)),
            *head,
            *(text[: size.columns - 1] for text in state_lines(progress, tokens_per_second)),
        ]
        up = f"\x1b[{self._drawn}F" if self._drawn else ""
        self._stream.write(f"{up}\x1b[J" + "".join(f"{row}\n" for row in rows))
        self._stream.flush()
        self._drawn = len(rows)

    def decided(self, cell: CellResult, /) -> None:
        """Keep it for the next drawing."""
        self._cells.append(cell)


def live_on(stream: TextIO, plan: RunPlan, cells: Sequence[CellResult]) -> Live:
    """Give what suits the stream."""
    return Table(stream, plan, cells) if stream.isatty() else Lines(stream)


def line(cell: CellResult) -> str:
    """Say a cell in one line."""
    codes = "; ".join(f"{v.code} ({v.because})" for v in cell.verdicts)
    if cell.state is CellState.SKIPPED:
        return f"{cell.id}: skipped. {cell.reason}"
    if cell.state is CellState.FAILED:
        return f"{cell.id}: failed. {cell.reason} {codes}".rstrip()
    worth = _WORDS.get(cell.worth, "valid")
    return f"{cell.id}: {'; '.join(_figures(cell))}; {worth}{f': {codes}' if codes else ''}"


def _figures(cell: CellResult) -> Iterator[str]:
    if (tokens := known(cell.output_token_throughput)) is not None:
        yield f"{figure(tokens)} tok/s"
    for name in ("ttft", "tpot"):
        spread = getattr(cell, name)
        if spread and (middle := known(spread.p50)) is not None:
            yield f"{name.upper()} p50 {seconds(middle)}"
    if cell.goodput_share is not None:
        yield f"{cell.goodput_share:.1%} within the limits"


def counted(progress: Progress, more: int = 0) -> str:
    """Say how many cells there are of how many."""
    total = "" if progress.cells_total is None else f"/{progress.cells_total}"
    return f"[{progress.cells_done + more}{total}] "


def table(
    plan: RunPlan, cells: Sequence[CellResult], progress: Progress, *, room: tuple[int, int]
) -> list[str]:
    """Draw what has room, in columns and lines, of contexts against loads.

    Where not all has room, it is the part around the present cell.
    """
    contexts = sorted(set(plan.contexts))
    loads = sorted({*plan.loads, *(cell.spec.load for cell in cells)}, key=lambda load: load.order)
    found = {cell.id: _in_table(cell) for cell in cells}
    places = {
        CellSpec(context=context, load=load).id: (row, column)
        for row, context in enumerate(contexts)
        for column, load in enumerate(loads)
    }
    if progress.cell in places:
        found.setdefault(progress.cell, "...")
    row, column = places.get(progress.cell or (cells[-1].id if cells else ""), (0, 0))
    across = _around(loads, column, (room[0] - 1 - _ROW_HEAD) // _WIDTH)
    down = _around(contexts, row, room[1] - _AROUND)
    return [
        f"{'tokens':>{_ROW_HEAD}}" + "".join(f"{load.label:>{_WIDTH}}" for load in across),
        *(
            f"{context:>{_ROW_HEAD},}"
            + "".join(
                f"{found.get(CellSpec(context=context, load=load).id, '.'):>{_WIDTH}}"
                for load in across
            )
            for context in down
        ),
        "output tok/s, TTFT p50; * something to know, ~ relative only, ! spoiled",
    ]


def _around(values: Sequence[T], place: int, number: int) -> Sequence[T]:
    """Give so many neighbours, at least one, with the one at that place among them."""
    number = max(1, number)
    first = max(0, min(place - number // 2, len(values) - number))
    return values[first : first + number]


def _in_table(cell: CellResult) -> str:
    if cell.state is CellState.SKIPPED:
        return next((_SHORT[v.code] for v in cell.verdicts if v.code in _SHORT), "skipped")
    tokens = known(cell.output_token_throughput)
    if cell.state is CellState.FAILED or tokens is None:
        return "failed !"
    first = seconds(cell.ttft.p50).replace(" ", "") if cell.ttft else ""
    mark = _SIGNS.get(cell.worth, "")
    return f"{figure(tokens)} {first}{mark}"


def state_lines(progress: Progress, tokens_per_second: float | None) -> list[str]:
    """Say how far a run is: a bar, then what is being done."""
    total = progress.cells_total
    share = progress.cells_done / total if total else 0.0
    bar = f"[{'#' * int(share * _BAR):-<{_BAR}}] " if total else ""
    eta = "" if progress.eta_seconds is None else f", about {clock(progress.eta_seconds)} to go"
    cost = "" if progress.usd_so_far is None else f", {usd(progress.usd_so_far)}"
    rate = "" if tokens_per_second is None else f", {figure(tokens_per_second)} tok/s"
    doing = " ".join(part for part in (progress.cell, progress.doing) if part)
    return [
        f"{bar}{counted(progress)}{clock(progress.elapsed_seconds)}{eta}{cost}",
        f"{doing}{rate}" if doing else str(progress.state),
    ]


def clock(duration_seconds: float) -> str:
    """Give a duration as people read it.

    >>> clock(75), clock(3 * 3600 + 62)
    ('1:15', '3:01:02')
    """
    minutes, rest = divmod(round(duration_seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
