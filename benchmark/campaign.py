"""Models x targets x flags, each measured as a run of its own, under one budget for all of them."""

import itertools
import operator
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream
from pydantic import Field, SecretStr, ValidationError

from benchmark import profiles, server
from benchmark.compare import Loaded, break_evens, load
from benchmark.folder import RunFolder, replace
from benchmark.records import Above0, CellState, Positive, Provenance, RunPlan, RunState, figure
from benchmark.run import Ending, state_of, used_up
from benchmark.tables import METRICS, environment, escaped, table
from core.environment import ROOT, inherited_environment
from core.errors import DiskFull, InvalidArgument, OpsError
from core.records import Access, Record, valid
from core.settings import Settings
from core.waiting import wait_until
from planner.advise import host_gib, host_too_small
from planner.flags import Flags, engine_flags, engine_words
from planner.layouts import SHORTEST
from planner.memory import plan_memory
from planner.model import full_name, is_path, read_model
from planner.places import places, unserved
from planner.price import price

_FILE: Final = "campaign.json"
_REPORT: Final = "campaign.md"
_TICK_SECONDS: Final = 0.5
_BUSY_SECONDS: Final = 60.0
"""For a run whose campaign was killed to end by itself."""
_NOT_RUN: Final = {"refused": "not run, refused by the planner", "missing": "not run, no endpoint"}
Say = Callable[[str], None]


class Combination(NamedTuple):
    """What one run measures."""

    model: str
    target: str
    flags: str

    def __str__(self) -> str:
        flags = f" with {self.flags}" if self.flags else ""
        return f"{self.model.rsplit('/', 1)[-1]} on {self.target}{flags}"


class Door(Record):
    """An endpoint that exists, of one combination."""

    model: str
    target: str
    flags: str = ""
    url: str
    key_env: str | None = Field(default=None, pattern=r"^[A-Za-z_]\w*$")
    """The variable of the environment that holds its key."""
    served_model: str | None = None
    """Where it serves the model by another name than the Hub's."""
    replicas: Positive = 1
    usd_per_hour: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Of all replicas together; left out, the planner's price of the target, if it has one."""
    accelerator: str | None = None
    """Of a target that the planner does not know."""
    accelerator_count: Positive | None = None

    @property
    def combination(self) -> Combination:
        return Combination(self.model, self.target, self.flags)


class Campaign(Record):
    """What its file says."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    models: tuple[str, ...] = Field(min_length=1)
    """As the catalog or the Hub calls them."""
    targets: tuple[str, ...] = Field(min_length=1)
    """Places that the planner knows, or names of your own."""
    flags: dict[str, str] = {"": ""}
    """Of the engine, by a name for each set."""
    endpoints: tuple[Door, ...] = ()
    plan: dict[str, Any] = {}
    """What a run takes, such as profile, contexts and concurrencies."""
    max_cost_usd: Above0 | None = None
    """Of all runs together, however often it goes on."""
    max_minutes: Above0 | None = None
    together: Positive | None = None
    """Runs at once on a cluster, which has a node for each; left out, all."""

    @property
    def combinations(self) -> Iterator[Combination]:
        every = itertools.product(self.models, self.targets, self.flags)
        return itertools.starmap(Combination, every)


class Member(Record):
    """What became of one combination; of one with a run, that run's own folder says it."""

    combination: Combination
    state: Literal["refused", "missing", "waiting", "begun", "failed"] = "waiting"
    why: str | None = None
    run: str | None = None
    usd_per_hour: float | None = None
    seconds: float = 0.0
    """That its process took, however often it went on."""


class Standing(Record):
    """All that is known of a campaign; its file is replaced about every second."""

    campaign: Campaign
    plan: RunPlan
    created_at: datetime
    seconds: float = 0.0
    """That somebody was at it."""
    members: tuple[Member, ...]

    @property
    def usd(self) -> float:
        return sum((each.usd_per_hour or 0.0) * each.seconds / 3600 for each in self.members)

    def with_budget(self, said: Mapping[str, Any]) -> "Standing":
        budget = {name: said[name] for name in ("max_cost_usd", "max_minutes") if name in said}
        campaign = valid(Campaign, {**self.campaign.model_dump(), **budget})
        free = [m for m in self.members if m.state not in _NOT_RUN and m.usd_per_hour is None]
        if campaign.max_cost_usd is not None and free:
            names = ", ".join(str(member.combination) for member in free)
            raise InvalidArgument(
                f"A campaign cannot stop at a cost where no price is known: {names}.",
                fix="Give usd_per_hour of these endpoints, or max_minutes instead.",
            )
        return self.model_copy(update={"campaign": campaign})


def read(file: Path, said: Mapping[str, Any]) -> Standing:
    """Read a campaign's file, and ask the planner about each combination.

    What is `said` of cluster and budget replaces what the file says.

    Raises:
        InvalidArgument: It is none, or holds what cannot be measured so.
    """
    try:
        written = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        fix = "Give a TOML file such as that in docs/scale.md, or a campaign's folder."
        raise InvalidArgument(f"{file} cannot be read.", fix=fix, cause=str(exc)) from exc
    campaign = _with_doors(valid(Campaign, written))
    plan = _plan(campaign.plan, said)
    if plan.max_cost_usd is not None or plan.max_minutes is not None:
        raise InvalidArgument(
            "A campaign has one budget, not one for each run.",
            fix="Move max_cost_usd and max_minutes out of [plan].",
        )
    doors = {door.combination: door for door in campaign.endpoints}
    longest = max(plan.contexts) + plan.workload.output_tokens
    members = tuple(
        _member(one, campaign.flags[one.flags], doors.get(one), longest)
        for one in campaign.combinations
    )
    now = datetime.now(UTC)
    standing = Standing(campaign=campaign, plan=plan, created_at=now, members=members)
    return standing.with_budget(said)


_PLACED: Final = ("cluster", "nodes", "insecure_cluster")


def _plan(written: Mapping[str, Any], said: Mapping[str, Any]) -> RunPlan:
    """Make the plan of each run, which has one node where nobody says how many."""
    asked = {**written, **{name: said[name] for name in _PLACED if name in said}}
    return profiles.plan_of(**({"nodes": 1, **asked} if asked.get("cluster") else asked))


def _with_doors(campaign: Campaign) -> Campaign:
    """Check flags and endpoints, and give addresses their usual form."""
    for words in campaign.flags.values():
        engine_words((words,))
    doors, urls = dict[Combination, Door](), dict[str, Combination]()
    for door in campaign.endpoints:
        one, url = door.combination, server.base_url_from(door.url)
        if one not in set(campaign.combinations):
            raise InvalidArgument(
                f"{one} is an endpoint of no combination.",
                fix="Its model, target and flags must be among those that the file lists.",
            )
        if one in doors or url in urls:
            raise InvalidArgument(
                f"{one} has no endpoint of its own: {url} is that of {urls.get(url, one)}.",
                fix="Give each combination one endpoint; runs that share one measure each other.",
            )
        doors[one], urls[url] = door.model_copy(update={"url": url}), one
    return campaign.model_copy(update={"endpoints": tuple(doors.values())})


def _member(one: Combination, words: str, door: Door | None, longest: int) -> Member:
    why, hourly = _planned(one, words, longest)
    if why:
        return Member(combination=one, state="refused", why=why)
    if door is None:
        return Member(combination=one, state="missing", why="the file gives it none")
    hourly = None if hourly is None else hourly * door.replicas
    said = door.usd_per_hour
    return Member(combination=one, usd_per_hour=hourly if said is None else said)


def _planned(one: Combination, words: str, longest: int) -> tuple[str | None, float | None]:
    """Say why the planner refuses it, and what an hour of a replica costs, as far as it knows.

    Flags that say no length are planned with the `longest` request, in tokens.
    """
    where = places().get(one.target)
    shape = None if is_path(one.model) else read_model(full_name(one.model))
    if where is None or shape is None or not (where.device.memory_gib and shape.groups):
        return None, price(where).usd_per_hour if where else None
    usual = {"tensor_parallel_size": where.count, "vllm_version": where.vllm_version}
    try:
        said = engine_flags(engine_words((words,)))
        flags = valid(Flags, {**usual, "max_model_len": max(longest, SHORTEST), **said})
        plan = plan_memory(shape, where.device, flags)
    except OpsError as exc:
        return f"{exc.summary} {exc.cause}".strip(), None
    needed = host_gib(shape, where, flags)
    size = where.size_for(needed)
    why = " ".join(plan.reasons) or unserved(shape, where.device)
    if flags.tensor_parallel_size > where.count:
        why = f"It is split over {flags.tensor_parallel_size}, and {one.target} has {where.count}."
    elif not why and where.sizes and size is None:
        why = host_too_small(shape, where, needed).reason
    return why, price(where, size).usd_per_hour


def found(words: str, runs: Path) -> Path | None:
    """Give the folder of a campaign that has begun, by its path or its name below `runs`."""
    paths = (Path(words).expanduser(), runs / words)
    return next((path for path in paths if (path / _FILE).exists()), None)


def runs_of(name: str, runs: Path) -> tuple[str, ...]:
    """Give the ids of the runs of a campaign below `runs`; none where none has that name."""
    path = next((each.parent for each in runs.glob(f"*/{_FILE}") if each.parent.name == name), None)
    return tuple(m.run for m in standing_of(path).members if m.run) if path else ()


def standing_of(path: Path) -> Standing:
    """Read what is known of a campaign.

    Raises:
        InvalidArgument: Another version wrote its file, or none of ours.
    """
    try:
        return Standing.model_validate_json((path / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValidationError) as exc:
        raise InvalidArgument(
            f"{path.name} is no campaign that can go on.", fix="Begin it again from its TOML file."
        ) from exc


def run(words: str, runs: Path, said: Mapping[str, Any], say: Say) -> int:
    """Begin a campaign of a file, or go on with that of a folder, until it ends; tell how.

    It is 0 when every run that could be is done, 3 when it was stopped, 130 when it was ended at
    once, and 1 when a run failed. What is `said` of the budget replaces what the file says.

    Raises:
        InvalidArgument: It cannot be measured so, or the environment lacks a key.
        Busy: Another process is at it.
        DiskFull: Its folder cannot be written.
    """
    path = found(words, runs)
    if path is None:
        made = read(Path(words).expanduser(), said)
        _keys(made.campaign)
        path = profiles.claim(runs, f"{made.created_at:%Y%m%d-%H%M%S}-{made.campaign.name}")
        path.chmod(0o700)
        replace(path / _FILE, made.model_dump_json(indent=1))
    with RunFolder(path).locked():
        standing = standing_of(path).with_budget(said)
        if _plan({}, said).cluster not in {None, standing.plan.cluster}:
            fix = "Leave --cluster and --nodes out."
            raise InvalidArgument(f"{path.name} goes on where it was begun.", fix=fix)
        return anyio.run(_Sitting(path, standing, say).end)


def _keys(campaign: Campaign) -> dict[Combination, SecretStr]:
    """Read the keys of all endpoints from the environment.

    Raises:
        InvalidArgument: One of the variables is not there.
    """
    ours, there = Settings().vllm_api_key, inherited_environment()
    keys = {name: SecretStr(value) for name, value in there.items() if value}
    keys |= {"VLLM_API_KEY": ours} if ours else {}
    wanted = {door.combination: door.key_env for door in campaign.endpoints if door.key_env}
    if missing := sorted(set(wanted.values()) - keys.keys()):
        raise InvalidArgument(
            f"The environment has no {', '.join(missing)}, which the file names for a key.",
            fix="Export it, and start again.",
        )
    return {one: keys[name] for one, name in wanted.items()}


class _Child(NamedTuple):
    process: Process
    began: float
    """As if what its run took before had been just now."""


class _Sitting:
    """One process that works at a campaign: starts its runs, watches them and the budget."""

    def __init__(self, path: Path, standing: Standing, say: Say) -> None:
        self._path, self._runs, self._say = path, path.parent, say
        self._folder = RunFolder(path)
        self._standing, self._keys = standing, _keys(standing.campaign)
        self._members = {member.combination: member for member in standing.members}
        self._doors = {door.combination: door for door in standing.campaign.endpoints}
        self._children: dict[Combination, _Child] = {}
        self._began = time.monotonic() - standing.seconds
        self._ending = Ending(self._folder, self._over_budget)

    async def end(self) -> int:
        self._folder.stop_file.unlink(missing_ok=True)
        self._say(f"{self._path}: {_how(self._standing)}")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ending.listen, self._kill)
            tasks.start_soon(self._watch)
            await self._measure_all()
            tasks.cancel_scope.cancel()
        self._keep()
        text = report(self._standing, self._runs, self._ending.reason)
        replace(self._path / _REPORT, text)
        self._say(f"{text}\n{self._path / _REPORT}")
        if self._ending.reason:
            return 130 if self._ending.at_once else 3
        return int(any(_outcome(member, self._runs).failed for member in self._members.values()))

    def _over_budget(self) -> str | None:
        known, budget = self._standing, self._standing.campaign
        spent = used_up(budget.max_minutes, known.seconds, budget.max_cost_usd, known.usd)
        return spent and f"The campaign's budget of {spent} is used up."

    async def _measure_all(self) -> None:
        """Side by side on a cluster; from this machine one by one, for they would share it."""
        most = self._standing.campaign.together or len(self._members)
        room = anyio.CapacityLimiter(most if self._standing.plan.cluster else 1)
        async with anyio.create_task_group() as tasks:
            for one, member in self._members.items():
                outcome = _outcome(member, self._runs)
                if member.state in _NOT_RUN:
                    self._say(f"{one}: {outcome.words}")
                elif not outcome.done:
                    tasks.start_soon(self._measure, one, room)

    async def _measure(self, one: Combination, room: anyio.CapacityLimiter) -> None:
        async with room:
            if not self._ending.asked():
                try:
                    await self._child(one, await self._run_of(one))
                except OpsError as exc:
                    self._change(one, state="failed", why=f"{exc.summary} {exc.cause}".strip())
                self._say(f"{one}: {_outcome(self._members[one], self._runs).words}")

    async def _run_of(self, one: Combination) -> RunFolder:
        """Make its run, or wait until the one that it has is nobody's."""
        member, door = self._members[one], self._doors[one]
        if member.run is None:
            access = Access(base_url=door.url, api_key=self._keys.get(one), protection="its key")
            seen = await server.look_at(access, door.served_model or full_name(one.model))
            folder = profiles.make(
                self._runs,
                base_url=door.url,
                plan=self._standing.plan,
                subject=seen.subject,
                provenance=_provenance(self._standing.campaign, door, member.usd_per_hour),
            )
            self._change(one, state="begun", why=None, run=folder.path.name)
            return folder
        folder = RunFolder(self._runs / member.run)
        words = f"{member.run} to be measured by nobody else"
        times = {"every": _TICK_SECONDS, "timeout": _BUSY_SECONDS}
        busy = partial(anyio.to_thread.run_sync, folder.is_measured_now)
        await wait_until(busy, operator.not_, waiting_for=words, **times)
        # Its process may have outlived ours by some seconds.
        spent = max(member.seconds, state_of(folder).elapsed_seconds)
        self._change(one, state="begun", why=None, seconds=spent)
        return folder

    async def _child(self, one: Combination, folder: RunFolder) -> None:
        """Let a process of its own measure it, which ends when what it reads from us does."""
        secret = {door.key_env for door in self._doors.values()}
        with folder.log_file.open("ab") as log:
            process = await anyio.open_process(
                [sys.executable, "-m", "benchmark", "resume", str(folder.path), "--led"],
                stderr=log,
                cwd=ROOT,
                env={n: value for n, value in inherited_environment().items() if n not in secret},
                start_new_session=True,  # Ctrl-C is for us to pass on
            )
        self._children[one] = _Child(process, time.monotonic() - self._members[one].seconds)
        async with process:
            assert process.stdin
            assert process.stdout
            key = self._keys.get(one)
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await process.stdin.send(f"{key.get_secret_value() if key else ''}\n".encode())
            if self._ending.reason:
                await process.stdin.aclose()
            rest = ""
            async for text in TextReceiveStream(process.stdout, errors="replace"):
                *lines, rest = f"{rest}{text}".split("\n")
                for line in lines:
                    self._say(f"{one}: {line}")
            await process.wait()
        self._keep()
        del self._children[one]
        folder.forget_credential()

    async def _watch(self) -> None:
        """Keep what is known; once an end is asked for, ask runs to end with what there is."""
        while True:
            self._keep()
            for child in tuple(self._children.values()) if self._ending.asked() else ():
                if child.process.stdin:
                    await child.process.stdin.aclose()
            await anyio.sleep(_TICK_SECONDS)

    def _kill(self) -> None:
        for child in self._children.values():
            child.process.kill()

    def _change(self, one: Combination, **fields: Any) -> None:
        self._members[one] = self._members[one].model_copy(update=fields)
        self._keep()

    def _keep(self) -> None:
        """Write down what became of each until now, and what that took."""
        now = time.monotonic()
        for one, child in self._children.items():
            spent = {"seconds": now - child.began}
            self._members[one] = self._members[one].model_copy(update=spent)
        new = {"members": tuple(self._members.values()), "seconds": now - self._began}
        self._standing = self._standing.model_copy(update=new)
        with suppress(DiskFull):  # the runs find out as well, and the report
            replace(self._path / _FILE, self._standing.model_dump_json(indent=1))


def _provenance(campaign: Campaign, door: Door, usd_per_hour: float | None) -> Provenance:
    """Say what comparisons, and answers that rest on this run, need to know of it."""
    place, said = places().get(door.target), door.usd_per_hour is not None
    source = "said in the campaign's file" if said else f"the planner's price of {door.target}"
    return Provenance(
        target=door.target,
        deployment_spec={
            "name": "campaign",
            "model": full_name(door.model),
            "engine_args": list(engine_words((campaign.flags[door.flags],))),
            **dict.fromkeys(("min_replicas", "max_replicas"), door.replicas),
        },
        accelerator=door.accelerator or (place.accelerator if place else None),
        accelerator_count=door.accelerator_count or (place.count if place else None),
        usd_per_hour=usd_per_hour,
        price_source=None if usd_per_hour is None else source,
    )


class _Outcome(NamedTuple):
    words: str
    failed: bool
    done: bool = False
    loaded: Loaded | None = None


def _outcome(member: Member, runs: Path) -> _Outcome:
    """Say what became of a combination: first why it was not begun, then what its run says."""
    failed, why = member.state == "failed", member.why
    if member.run is None:
        state = _NOT_RUN.get(member.state, "not begun")
        return _Outcome(f"{state}: {why}" if why else state, failed)
    folder = RunFolder(runs / member.run)
    try:
        told, loaded = state_of(folder), load(folder)
    except OpsError as exc:
        return _Outcome(f"lost: {exc.summary}", failed=True)
    failed = failed or told.state in {RunState.FAILED, RunState.INTERRUPTED}
    done, why = told.state is RunState.DONE, why or told.reason
    if done and not loaded.usable:
        why = "no cell of it can be used"
    return _Outcome(f"{told.state}: {why}" if why else told.state, failed, done, loaded)


def _how(standing: Standing) -> str:
    if (cluster := standing.plan.cluster) is None:
        return "without a cluster, runs follow one another on this machine."
    return (
        f"runs are side by side, each on {cluster.nodes} of the cluster {cluster.address}'s nodes."
    )


def report(standing: Standing, runs: Path, reason: str | None = None) -> str:
    """Write what became of every combination, what it measured, and what is cheaper from where."""
    rows = [(member, _outcome(member, runs)) for member in standing.members]
    loaded = {member.combination: each.loaded for member, each in rows if each.loaded}
    head = ["Combination", "Load", "Prompt tokens", *(metric.heading for metric in _SHOWN)]
    cells = ([escaped(one), *row] for one, run in loaded.items() for row in _figures(run))
    simulated = [str(one) for one, run in loaded.items() if run.manifest.subject.simulated]
    page = environment(html=False).get_template("campaign.md.j2")
    return page.render(
        standing=standing,
        rows=rows,
        done=sum(outcome.done for _, outcome in rows),
        how=_how(standing),
        reason=reason,
        simulated=simulated,
        figures=table(head, cells, texts=2),
        break_evens=[
            str(each)
            for model in standing.campaign.models  # another one is no substitute
            for each in break_evens({str(o): r for o, r in loaded.items() if o.model == model})
        ],
    )


_SHOWN: Final = [METRICS[key] for key in ("output", "requests", "ttft_p50", "ttft_p99", "usd")]


def _figures(run: Loaded) -> Iterator[list[str]]:
    for cell in (each for each in run.cells if each.state is CellState.MEASURED):
        codes = ", ".join(verdict.code for verdict in cell.verdicts if verdict.spoils)
        row = [f"spoiled: {codes}", *("",) * (len(_SHOWN) - 1)]
        if cell.id in run.usable:
            found = (metric.shown(cell) for metric in _SHOWN)
            row = ["" if value is None else figure(value) for value in found]
        yield [cell.spec.load.words, cell.spec.length_label, *row]
