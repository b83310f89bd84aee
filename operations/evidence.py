"""What runs that are kept here measured of a model on some hardware, in valid cells alone."""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from benchmark.advice import find_accelerator
from benchmark.folder import RunFolder
from benchmark.records import CellResult, Manifest, RunState, figure, seconds, usd
from benchmark.run import state_of
from core.errors import Busy, InvalidArgument, NextStep, NotFound
from core.records import Record
from operations.resolve import Found
from operations.runtime import Runtime
from planner.catalog import find
from planner.places import Place, places
from planner.price import Load

_REPORTS: Final = frozenset(
    {"benchmark_report.md", "benchmark_results.csv", "benchmark_chart.png", "report.html"}
)
"""What a run's folder holds for people to read, and to ask about."""


def folder_of_runs(runtime: Runtime) -> Path:
    """Give where the runs of this stage are kept."""
    return runtime.stage.folder / "benchmarks"


def folders(runtime: Runtime) -> list[RunFolder]:
    """Give every run's folder, newest first."""
    manifests = folder_of_runs(runtime).glob("*/manifest.json")
    ages = [(path.stat().st_mtime, path.parent.name, path.parent) for path in manifests]
    return [RunFolder(path) for *_, path in sorted(ages, reverse=True)]


def folder_of(runtime: Runtime, run: str | None, *, running: bool = False) -> RunFolder:
    """Give a run by its id, or the newest one (`running`: that is being measured).

    A report's name is understood as well: `benchmark_report.md`, `ID/benchmark_report.md`.

    Raises:
        NotFound: There is no such run.
    """
    known, path = folders(runtime), PurePath(run or "")
    if path.name in _REPORTS:
        run = path.parent.name or None
    fitting = [one for one in known if run is None or one.path.name == run]
    if running and run is None:
        fitting = [one for one in fitting if one.is_measured_now()]
    if fitting:
        return fitting[0]
    names = ", ".join(one.path.name for one in known[:5])
    none = "No benchmark runs now." if running else "There is no benchmark yet."
    raise NotFound(
        f"There is no benchmark {run[:120]!r}." if run else none,
        fix=f"There are: {names}." if names else "Call run_benchmark to make one.",
        next_steps=(NextStep("list_benchmarks" if names else "run_benchmark"),),
    )


def require_idle(runtime: Runtime, found: Found) -> None:
    """Two runs at once would measure each other.

    Raises:
        Busy: One is under way.
    """
    for folder in folders(runtime):
        if not folder.is_measured_now():
            continue
        manifest, run = folder.manifest(), folder.path.name
        known = manifest.provenance.target, manifest.provenance.deployment
        mine = found.deployment.target, found.name
        if known == mine or manifest.base_url == found.deployment.url:
            raise Busy(
                f"{found.name} on {found.deployment.target} is being measured by {run}.",
                fix="Wait for it with get_benchmark, or end it with stop_benchmark.",
            )


def file_of(text: str) -> Path:
    """Give the file that a call names.

    Raises:
        InvalidArgument: There is none, or it is a folder, a pipe or a device.
    """
    try:
        path = Path(text).expanduser().resolve()
        found = path.is_file()
    except (OSError, RuntimeError, ValueError):  # no such user; a name that no file can have
        found = False
    if not found:
        raise InvalidArgument(
            f"There is no file {text[:200]!r}.", fix="Give its full path on this machine."
        )
    return path


_LOOKED: Final = 60
"""Runs, the newest: what is older was measured on older engines."""
SIMULATED_RUN: Final = "What is called measured is of the simulated engine: no hardware was there."


class Evidence(NamedTuple):
    """One run that is over."""

    folder: RunFolder
    manifest: Manifest

    @property
    def run(self) -> str:
        """Its id."""
        return self.folder.path.name

    @property
    def model(self) -> str:
        """The model's own name, whatever it is served as."""
        spec = self.manifest.provenance.deployment_spec or {}
        return model_called(str(spec.get("model") or self.manifest.subject.model))

    @property
    def place(self) -> Place | None:
        """Where it was measured, if that is a place that is known."""
        return places().get(self.manifest.provenance.target or "")

    @property
    def hardware(self) -> tuple[str, int] | None:
        """Its accelerators: the kind and how many."""
        owner, where = self.manifest.provenance, self.place
        device = find_accelerator(owner.accelerator or (where.accelerator if where else None))
        count = owner.accelerator_count or (where.count if where else 1)
        return (device.name, count) if device else None

    @property
    def imported(self) -> bool:
        """Whether another tool measured it."""
        return self.manifest.imported_from is not None

    @property
    def replicas(self) -> int | None:
        """How many it measured; None where they came and went with the load."""
        spec = self.manifest.provenance.deployment_spec or {}
        few, most = (max(1, int(str(spec.get(f"{end}_replicas", 1)))) for end in ("min", "max"))
        return few if few == most else None

    def elsewhere(self, where: Place) -> str | None:
        """Name where it was measured, by its hardware if need be, unless it was there."""
        target = self.manifest.provenance.target
        if target:
            return None if target == where.name else target
        device, count = self.hardware or ("unknown hardware", 1)
        return device if count == 1 else f"{count} x {device}"

    def is_of(self, model: str, where: Place) -> bool:
        """Whether it measured this model there: spot and on demand are the same hardware."""
        if self.model != model:
            return False
        mine = self.place
        if mine is None or mine.name == "local" or where.name == "local":
            named = self.manifest.provenance.target
            return named == where.name or (
                named is None and self.hardware == (where.accelerator, where.count)
            )
        same = (where.provider, where.accelerator, where.count)
        return (mine.provider, mine.accelerator, mine.count) == same

    def valid_cells(self) -> tuple[CellResult, ...]:
        """Give those that nothing is said against."""
        return tuple(
            cell
            for cell in self.folder.cells()
            if cell.valid and cell.request_throughput and cell.spec.context
        )


class Measurement(Record):
    """One cell of a run, as it answers what something does and costs."""

    run: str
    cell: str
    where: str | None
    load: str
    """Of the cell: the nearest to what was asked for that is valid."""
    requests_per_second: float
    output_tokens_per_second: float | None
    tokens_per_second_per_user: float | None
    ttft_seconds: float | None
    """Mean, as all of these."""
    usd_per_hour: float | None
    """That the costs rest on: of all replicas that were measured, and at the place asked about."""
    usd_per_1000_requests: float | None = None
    usd_per_million_tokens: float | None = None
    """Of prompts and answers together."""
    usd_per_million_output_tokens: float | None = None
    usd_per_active_user_hour: float | None = None
    simulated: bool
    imported: bool
    """Another tool measured it."""
    elsewhere: str | None = None
    """Where it was measured, if that is not the place asked about."""

    @property
    def how(self) -> str:
        """Say who measured it, and at whose price it costs what it does."""
        if self.elsewhere is None:
            return "imported" if self.imported else "measured"
        way = "imported from a run on" if self.imported else "measured on"
        price = "" if self.usd_per_million_tokens is None else ", at this target's price"
        return f"{way} {self.elsewhere}{price}"

    def __str__(self) -> str:
        """Say it for a row of a table."""
        rate = self.output_tokens_per_second
        speed = f"{figure(self.requests_per_second)} requests/s"
        speed += f", {figure(rate)} output tokens/s" if rate else ""
        each = self.tokens_per_second_per_user
        speed += f", {figure(each)} for each" if each else ""
        first = f", TTFT {seconds(self.ttft_seconds)}" if self.ttft_seconds else ""
        price = self.usd_per_million_tokens
        cost = f", {usd(price)} per million tokens" if price else ""
        engine = "; simulated engine" if self.simulated else ""
        how = f"; {self.how}" if self.imported or self.elsewhere else ""
        return f"{speed}{first}{cost} with {self.load} ({self.run}{how}{engine})"


def model_called(name: str) -> str:
    """Give the catalog's name of a model, else the name itself."""
    entry = find(name)
    return entry.model if entry else name


def kept(runtime: Runtime) -> tuple[Evidence, ...]:
    """Give the newest runs that are over, those of real hardware first."""
    found: list[Evidence] = []
    for folder in folders(runtime)[:_LOOKED]:
        with suppress(NotFound):
            one = Evidence(folder, folder.manifest())
            if state_of(folder).state is not RunState.RUNNING:
                found.append(one)
    return tuple(sorted(found, key=lambda one: one.manifest.subject.simulated))


def measured(
    runs: Sequence[Evidence], model: str, where: Place, load: Load, usd_per_hour: float | None
) -> Measurement | None:
    """Give the valid cell nearest to a load, of the first run that has one: of ours, if any has.

    Args:
        runs: The ones to prefer first; an import comes after all of our own real ones, and what a
            simulated engine gave after that.
        model: As the catalog calls it.
        where: The place that is asked about.
        load: The load that is asked about.
        usd_per_hour: What an hour of a replica costs there, for a run that was not there or does
            not say.
    """
    for each in sorted(runs, key=lambda run: (run.manifest.subject.simulated, run.imported)):
        if each.is_of(model, where) and (cells := each.valid_cells()):
            elsewhere, own = each.elsewhere(where), each.manifest.provenance.usd_per_hour
            count = each.replicas
            hourly = None if usd_per_hour is None or count is None else usd_per_hour * count
            if own is not None and elsewhere is None:
                hourly = own
            return _told(each, min(cells, key=lambda cell: _far(cell, load)), elsewhere, hourly)
    return None


def _users(cell: CellResult) -> float:
    return float(cell.spec.load.concurrency or cell.concurrency_mean or 1)


def _far(cell: CellResult, load: Load) -> float:
    """Say how many times more or less a cell asks for, as a logarithm."""
    users = math.log(max(_users(cell), 1e-9) / load.concurrency)
    return abs(users) + abs(math.log(cell.spec.context / load.prompt_tokens))


def _told(
    run: Evidence, cell: CellResult, elsewhere: str | None, hourly: float | None
) -> Measurement:
    rate, users = cell.request_throughput or 0.0, _users(cell)
    out, tpot = cell.output_token_throughput, cell.tpot.mean if cell.tpot else None
    owner = run.manifest.provenance
    tokens = cell.spec.context * rate + out if out else None
    each_second = None if hourly is None else hourly / 3600
    answer = run.manifest.plan.workload.output_tokens
    return Measurement(
        run=run.run,
        cell=cell.id,
        where=owner.target,
        load=f"{figure(users)} in flight, {cell.spec.context:,} tokens in, {answer:,} out",
        requests_per_second=round(rate, 4),
        output_tokens_per_second=_rounded(out),
        tokens_per_second_per_user=_rounded(1 / tpot if tpot else None),
        ttft_seconds=_rounded(cell.ttft.mean if cell.ttft else None),
        usd_per_hour=_rounded(hourly),
        usd_per_1000_requests=_per(each_second, rate, 1e3),
        usd_per_million_tokens=_per(each_second, tokens, 1e6),
        usd_per_million_output_tokens=_per(each_second, out, 1e6),
        usd_per_active_user_hour=_per(hourly, users, 1),
        simulated=run.manifest.subject.simulated,
        imported=run.imported,
        elsewhere=elsewhere,
    )


def _per(usd_: float | None, amount: float | None, times: float) -> float | None:
    return None if usd_ is None or not amount else round(usd_ * times / amount, 4)


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, 4)
