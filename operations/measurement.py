"""Runs of a benchmark: wished for, agreed to, begun, and what those that are kept here measured."""

import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import anyio

from backends.base import Predicts, RemembersSpec
from benchmark.advice import NOT_SPEED, find_accelerator
from benchmark.folder import RunFolder, beginning
from benchmark.records import (
    BootTimes,
    CellResult,
    Manifest,
    Provenance,
    RunPlan,
    RunState,
    Subject,
    figure,
    seconds,
    usd,
)
from benchmark.run import state_of
from benchmark.server import Seen
from core.environment import ROOT, inherited_environment
from core.errors import (
    Busy,
    InvalidArgument,
    NextStep,
    NotFound,
    OpsError,
    Unsupported,
    WaitedTooLong,
)
from core.processes import detach
from core.records import Access, Deployment, DeploymentSpec, Record, listed, moment, valid
from core.redaction import redact
from core.waiting import wait_until
from operations import boots
from operations.agreement import Preview, preview
from operations.ask import require_ready
from operations.resolve import Found, find
from operations.runtime import Runtime
from planner.catalog import find as find_model
from planner.places import Place, places
from planner.price import Load, price

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

    def is_at(self, where: Place) -> bool:
        """Whether it measured something there: spot and on demand are the same hardware."""
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
    entry = find_model(name)
    return entry.model if entry else name


def read_evidence(runtime: Runtime) -> tuple[Evidence, ...]:
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
        if each.model == model and each.is_at(where) and (cells := each.valid_cells()):
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
    # The row of a dataset is named by the length that its prompts have by their bytes.
    given = cell.input_token_throughput or cell.spec.context * rate
    tokens = given + out if out else None
    each_second = None if hourly is None else hourly / 3600
    work = run.manifest.plan.workload
    load = f"{figure(users)} in flight, {cell.spec.context:,} tokens in{work.shared_words}"
    return Measurement(
        run=run.run,
        cell=cell.id,
        where=owner.target,
        load=f"{load}, {work.output_tokens:,} out",
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


_SEARCHED_CELLS: Final = 24
"""Of one search for a capacity: a dozen doublings, and halvings as many."""


def with_end(plan: RunPlan, deployment: Deployment) -> RunPlan:
    """Give a plan that ends: where it may cost something, at the latest when it was foreseen to.

    Raises:
        InvalidArgument: It must stop at a cost, and nobody knows the price.
    """
    hourly = usd_per_hour(deployment)
    if plan.max_cost_usd is not None and hourly is None:
        raise InvalidArgument(
            "A run cannot stop at a cost where no price is known.", fix="Give max_minutes instead."
        )
    if hourly == 0 or plan.max_minutes is not None or plan.max_cost_usd is not None:
        return plan
    each = _SEARCHED_CELLS if plan.profile == "find-capacity" else len(plan.loads)
    cell_seconds = plan.stop.warmup_max_seconds + 2 * plan.stop.max_seconds
    minutes = float(-(-len(plan.contexts) * each * cell_seconds // 60))
    return plan.model_copy(update={"max_minutes": minutes})


def spent_minutes(folder: RunFolder, plan: RunPlan) -> float:
    """Give the minutes that a run has taken so far.

    Raises:
        InvalidArgument: That was its whole budget, or leaves too little for one more cell.
    """
    from benchmark.run import Accounts

    manifest = folder.manifest().model_copy(update={"plan": plan})
    cells = folder.cells()
    accounts = Accounts(manifest, cells, folder.progress())
    if said := accounts.over_budget() or accounts.over_budget(accounts.next_cell_seconds(cells)):
        raise InvalidArgument(
            said, fix="Give a greater max_minutes or max_cost_usd together with resume."
        )
    return accounts.elapsed_seconds / 60


def most_minutes(plan: RunPlan, price: float | None) -> float:
    """Give the minutes after which a plan that has an end ends."""
    by_cost = 60 * plan.max_cost_usd / price if plan.max_cost_usd and price else float("inf")
    return min(by_cost, plan.max_minutes or float("inf"))


_BOOTS: Final = 5
"""That a report draws."""


async def provenance(runtime: Runtime, found: Found) -> Provenance:
    """Gather spec, plan, hardware and price of a deployment; no secret is in it."""
    backend, deployment = found.backend, found.deployment
    spec = await backend.spec(found.name) if isinstance(backend, RemembersSpec) else None
    known = backend.hardware_known() if isinstance(backend, Predicts) else None
    named = (backend.target.accelerator, backend.target.accelerator_count or None)
    accelerator, count = (known[0].name, known[1]) if known else named
    return Provenance(
        target=deployment.target,
        deployment=found.name,
        deployment_spec=redact(spec.model_dump(exclude_none=True), runtime.secrets)
        if spec
        else None,
        revision=deployment.revision,
        accelerator=accelerator,
        accelerator_count=count,
        usd_per_hour=usd_per_hour(deployment),
        usd_per_hour_highest=_highest_usd_per_hour(deployment),
        price_source=f"the price of the target {deployment.target}{_each(deployment)}",
        boots=tuple(
            BootTimes(at=one.warm_at, seconds=one.seconds)
            for one in boots.boots_of(runtime.stage.journal, deployment)[-_BOOTS:]
        ),
    )


def usd_per_hour(deployment: Deployment) -> float | None:
    """Give the price of all its replicas together: of all that a load may start."""
    if deployment.usd_per_hour is None:
        return None
    return round(deployment.usd_per_hour * _most_replicas(deployment), 4)


def _highest_usd_per_hour(deployment: Deployment) -> float | None:
    """Give that price by the dearest source of the host that costs so much."""
    total, each = usd_per_hour(deployment), deployment.usd_per_hour
    place = places().get(deployment.target)
    if not total or not each or place is None:
        return total
    known = [price(place, size) for size in place.sizes or (None,)]
    same = (one for one in known if one.usd_per_hour and abs(one.usd_per_hour - each) < 0.001)
    highest = next((one.usd_per_hour_highest for one in same), None)
    return total if highest is None else round(highest * _most_replicas(deployment), 4)


def _most_replicas(deployment: Deployment) -> int:
    return max(1, deployment.replicas, deployment.max_replicas or 1)


def _each(deployment: Deployment) -> str:
    most = _most_replicas(deployment)
    return f", of all {most} replicas that there may be" if most > 1 else ""


_LIMITS: Final = ("ttft", "tpot", "e2el")
_BUDGET: Final = ("max_cost_usd", "max_minutes")
_NOT_SAID: Final = {"profile": "quick", "arrivals": "poisson"}
"""What a call says that says nothing."""


class Wish(NamedTuple):
    """What is to be measured, and how."""

    found: Found
    plan: RunPlan
    folder: RunFolder | None = None
    """The run to go on with."""


async def wish(
    runtime: Runtime, said: Mapping[str, Any], *, target: str | None = None, name: str | None = None
) -> Wish:
    """Read what a call wants measured.

    Raises:
        InvalidArgument: It cannot be measured so.
        NotReady: The deployment does not answer.
        Busy: It is being measured already.
    """
    found = await find(runtime.stage, target, name)
    plan = await anyio.to_thread.run_sync(plan_of, said)
    require_ready(found)
    require_idle(runtime, found)
    return Wish(found, with_end(plan, found.deployment))


async def wish_to_resume(runtime: Runtime, run: str, said: Mapping[str, Any]) -> Wish:
    """Read how a run that was interrupted or stopped is to go on.

    Raises:
        NotFound: There is no such run.
        InvalidArgument: Its plan or its deployment would be another one, or its budget is used up.
        NotReady: The deployment does not answer.
        Busy: It is being measured already.
    """
    folder = folder_of(runtime, run)
    manifest = folder.manifest()
    budget = {name: said[name] for name in _BUDGET if name in said}
    others = [name for name in said if name not in _BUDGET and said[name] != _NOT_SAID.get(name)]
    if others:
        raise InvalidArgument(
            f"{run} goes on as it was begun.", fix=f"With resume, leave out {', '.join(others)}."
        )
    if manifest.provenance.deployment is None:
        command = f"`python -m benchmark resume {shlex.quote(str(folder.path))}` goes on with it."
        raise InvalidArgument(
            f"{run} was not measured by this tool.",
            fix="Begin a new one." if manifest.imported_from else command,
        )
    if state_of(folder).state is RunState.DONE:
        raise InvalidArgument(
            f"{run} is done: nothing of it is left to be measured.",
            fix="Leave out `resume` to measure anew.",
            next_steps=(NextStep("get_benchmark", {"run": run}),),
        )
    known = manifest.provenance
    found = await find(runtime.stage, known.target, known.deployment)
    require_ready(found)
    require_idle(runtime, found)
    await _require_unchanged(run, known, found)
    plan = with_end(manifest.plan.model_copy(update=budget), found.deployment)
    spent_minutes(folder, plan)  # or its budget is used up
    return Wish(found, plan, folder)


async def _require_unchanged(run: str, known: Provenance, found: Found) -> None:
    """Refuse to go on where cells of two deployments would stand in one table.

    Raises:
        InvalidArgument: What is deployed under that name was changed.
    """
    backend = found.backend
    now = await backend.spec(found.name) if isinstance(backend, RemembersSpec) else None
    before = None
    with suppress(OpsError):  # an older server's may have another form
        before = valid(DeploymentSpec, known.deployment_spec or {})
    if now is None or before is None:
        return
    fields = set(DeploymentSpec.model_fields) - NOT_SPEED
    changed = sorted(name for name in fields if getattr(before, name) != getattr(now, name))
    if changed:
        raise InvalidArgument(
            f"{found.name} is not what {run} measured: {listed(changed)} changed.",
            fix="Begin a new run, or set that back before you go on with this one.",
            next_steps=(NextStep("get_benchmark", {"run": run}),),
        )


def plan_of(said: Mapping[str, Any]) -> RunPlan:
    """Make a plan of what a call says; limits come in milliseconds.

    Raises:
        InvalidArgument: It cannot be measured so.
    """
    from benchmark import profiles

    limits = {
        f"{name}_seconds": said[f"{name}_ms"] / 1000 for name in _LIMITS if f"{name}_ms" in said
    }
    rest = {key: value for key, value in said.items() if not key.endswith("_ms")}
    if "dataset" in rest:
        rest["dataset"] = str(file_of(rest["dataset"]))
    return profiles.plan_of(**rest, limits=limits)


def to_measure(wanted: Wish) -> Preview | None:
    """Ask where the time of measuring is paid for, or nobody knows whether it is."""
    one, plan = wanted.found.deployment, wanted.plan
    hourly = _highest_usd_per_hour(one)
    if hourly == 0:
        return None
    spent = spent_minutes(wanted.folder, plan) if wanted.folder else 0.0
    minutes = most_minutes(plan, hourly) - spent
    cost = "price not known" if hourly is None else f"${hourly * minutes / 60:.2f} at most"
    cost += _each(one)
    run = wanted.folder.path.name if wanted.folder else ""
    most = "1 minute" if round(minutes) == 1 else f"{minutes:.0f} minutes"
    what = f"Measure {one.name} on {one.target} for up to {most} ({cost})"
    what += f", going on with {run}" if run else f", profile {plan.profile}"
    what += f", from the Ray cluster {plan.cluster.address}" if plan.cluster else ""
    if one.expires_at and one.expires_at < datetime.now(UTC) + timedelta(minutes=minutes):
        what += f"; its own time is over before, at {moment(one.expires_at)}"
    asked = f"{run}\n{plan.model_dump_json()}"
    return preview("run_benchmark", one.target, one.name, what, hourly, one, asked)


_LOOK_SECONDS: Final = 12.0
_START_SECONDS: Final = 20.0


async def begin(runtime: Runtime, wanted: Wish) -> RunFolder:
    """Start the process that measures; it outlives this server.

    Raises:
        Busy: It is being measured already.
        EndpointError: It does not say what it serves.
        WaitedTooLong: It, or the process, did not come to it in time.
    """
    with beginning(folder_of_runs(runtime)):
        require_idle(runtime, wanted.found)
        access = runtime.remember_credential(await wanted.found.backend.access(wanted.found.name))
        base_url = _without_password(access)
        if folder := wanted.folder:
            folder.stop_file.unlink(missing_ok=True)
            manifest = folder.manifest()
            if manifest.plan != wanted.plan:  # another budget
                folder.create(manifest.model_copy(update={"plan": wanted.plan}))
        else:
            from benchmark import profiles

            seen = await _look(runtime, wanted.found)
            _require_room(wanted.plan, seen.subject)
            simulated = seen.subject.simulated or wanted.found.deployment.simulated
            folder = profiles.make(
                folder_of_runs(runtime),
                base_url=base_url,
                plan=wanted.plan,
                subject=seen.subject.model_copy(update={"simulated": simulated}),
                provenance=await provenance(runtime, wanted.found),
            )
        await _launch(folder, access)
    return folder


async def _look(runtime: Runtime, found: Found) -> Seen:
    from benchmark import server

    try:
        with anyio.fail_after(_LOOK_SECONDS):
            async with runtime.endpoint(found.backend, found.name) as endpoint:
                name = await endpoint.model_meant(found.deployment.served_model_name)
                return await server.look(endpoint, name)
    except TimeoutError as exc:
        raise WaitedTooLong(
            f"{found.name} did not say within {_LOOK_SECONDS:.0f} s what it serves.",
            fix="See with verify_model_health whether it answers, then try again.",
        ) from exc


def _require_room(plan: RunPlan, subject: Subject) -> None:
    """Refuse a plan of which no request is short enough for the engine.

    Raises:
        InvalidArgument: Each would be skipped.
    """
    from benchmark.run import grid_specs, too_long

    if all(too_long(plan, subject, spec) for spec in grid_specs(plan)):
        tokens, longest = plan.workload.output_tokens, subject.max_model_len or 0
        raise InvalidArgument(
            f"No cell can be measured: {min(plan.contexts):,} prompt tokens and {tokens:,} output"
            f" tokens are more than max_model_len {longest:,}.",
            fix=f"Give contexts of {max(1, longest - tokens):,} at most, or fewer output_tokens.",
        )


async def _launch(folder: RunFolder, access: Access) -> None:
    folder.keep_certificate(access.certificate)
    folder.keep_credential(access.api_key, access.identity_token)
    before = folder.progress()
    env = {**inherited_environment(), "PYTHONPATH": str(ROOT)}
    argv = (sys.executable, "-P", "-m", "benchmark", "resume", str(folder.path))
    detach(argv, env=env, own_session=True)

    async def begun() -> bool:
        return folder.is_measured_now() or folder.progress() != before

    try:
        await wait_until(
            begun,
            bool,
            waiting_for="the process that measures to begin",
            every=0.05,
            timeout=_START_SECONDS,
        )
    except WaitedTooLong as exc:
        folder.keep_credential(None)
        exc.fix = f"Try again with resume={folder.path.name!r}; {folder.log_file} may say more."
        raise


def _without_password(access: Access) -> str:
    """Only a key goes with the load, and a manifest is shown to people."""
    if "@" in urlsplit(access.base_url).netloc:
        raise Unsupported(
            "The endpoint's address holds a password, which no benchmark sends.",
            fix="Give an address without one in VLLM_BASE_URL, and a key in VLLM_API_KEY.",
        )
    return access.base_url
