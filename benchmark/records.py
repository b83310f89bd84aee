"""The nouns of a benchmark: what is asked, how it arrives, what is measured and worth."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from benchmark.samples import SCHEMA, Samples, load
from core.metrics import CacheConfig
from core.records import Record

PRICED: Final = "million tokens (prompts and answers together)"
"""What every price of tokens is for, as in the planner."""


def figure(value: float) -> str:
    """Give three digits that count.

    >>> figure(1600.4), figure(0.6372), figure(25.04)
    ('1,600', '0.637', '25')
    """
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def seconds(value: float) -> str:
    """Give a time in the unit in which it is read.

    >>> seconds(0.0351), seconds(9.72)
    ('35.1 ms', '9.72 s')
    """
    return f"{figure(value * 1000)} ms" if abs(value) < 1 else f"{figure(value)} s"


def percent(share: float) -> str:
    """Give a share of one.

    >>> percent(0.431)
    '43.1 %'
    """
    return f"{figure(share * 100)} %"


def usd(value: float) -> str:
    """Give money.

    >>> usd(0.0421), usd(20.39)
    ('$0.0421', '$20.39')
    """
    return f"${value:,.2f}" if abs(value) >= 1 else f"${value:.3g}"


Positive = Annotated[int, Field(ge=1)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Known = Annotated[float, BeforeValidator(lambda value: float("nan") if value is None else value)]
"""NaN, which JSON has as null, where another tool's file does not give it; never of our runs."""


class Workload(Record):
    """What one request asks for."""

    api: Literal["completion", "chat"] = "completion"
    output_tokens: Positive = 64
    """Asked for with `max_tokens`, unless `Subject.refuses` names it."""
    fixed_output: bool = True
    """With `ignore_eos` and `min_tokens`, so that every answer is exactly that long."""
    prefix_share: Share = 0.0
    """How much of every prompt is the same for all; 1 is one prompt for all. Of a dataset: how much
    of its prompts begins as another of them does, counted in bytes."""
    dataset: str | None = None
    """A JSONL or ShareGPT file whose prompts are asked in turn, instead of made ones."""
    seed: int = 1

    @property
    def shared_words(self) -> str:
        """What a prefix cache may know of the prompts, to follow their length; nothing below 1 %.

        >>> Workload(prefix_share=0.9).shared_words, Workload().shared_words
        (' (90 % shared)', '')
        """
        return f" ({percent(self.prefix_share)} shared)" if self.prefix_share >= 0.01 else ""


class Arrivals(StrEnum):
    """How requests come."""

    CLOSED = "closed"
    """So many at once; each that ends makes room for the next."""
    CONSTANT = "constant"
    POISSON = "poisson"
    BURSTS = "bursts"
    """`concurrency` at one moment, then nothing until the next burst; the mean rate holds."""
    ONCE = "once"
    """One burst of `concurrency` requests, and their drain: the articles' method."""


OPEN_LOOPS: Final = (Arrivals.POISSON, Arrivals.CONSTANT, Arrivals.BURSTS)
"""Requests come at a rate, whatever became of those before."""
LATENCIES: Final = ("ttft", "tpot", "e2el")
"""That can be limited, and that runs are compared by."""
SPREADS: Final = ("ttft", "tpot", "itl", "e2el", "connect")
"""Figures of a cell that are a `Distribution`."""
POINTS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
"""Of a `Distribution`."""


class Load(Record):
    """How many requests come, and when."""

    arrivals: Arrivals = Arrivals.CLOSED
    concurrency: Positive | None = None
    """Of closed loops and of one burst, in requests."""
    requests_per_second: Above0 | None = None
    """Mean rate of open loops."""

    @property
    def size(self) -> float:
        return self.requests_per_second or float(self.concurrency or 0)

    @property
    def order(self) -> tuple[str, float, int]:
        return self.arrivals.value, self.requests_per_second or 0.0, self.concurrency or 0

    @property
    def label(self) -> str:
        """Its size in a column's heading.

        >>> Load(concurrency=64).label, Load(requests_per_second=2).label
        ('64', '2/s')
        """
        rate = f"{self.requests_per_second:g}/s" if self.requests_per_second else ""
        return " at ".join(part for part in (str(self.concurrency or ""), rate) if part)

    @property
    def words(self) -> str:
        """Its size with its unit.

        >>> Load(concurrency=32).words, Load(arrivals="poisson", requests_per_second=2).words
        ('32 in flight', '2 requests/s')
        """
        if self.requests_per_second:
            return f"{figure(self.requests_per_second)} requests/s"
        how = "at once" if self.arrivals is Arrivals.ONCE else "in flight"
        return f"{self.concurrency} {how}"


class StopRule(Record):
    """When a cell has been measured for long enough."""

    min_seconds: float = 3.0
    max_seconds: float = 20.0
    """Of the window; requests that began in it are waited for beyond."""
    min_requests: Positive = 30
    relative_half_width: float = 0.05
    """Of the 95 % confidence interval of throughput and mean E2EL, by batch means."""
    warmup_max_seconds: float = 10.0
    request_timeout_seconds: float = 600.0

    @property
    def ramp_seconds(self) -> float:
        """Say over how long the slots of a closed loop begin."""
        return min(1.0, 0.1 * self.max_seconds)


class Limits(Record):
    """What a user would call good enough; goodput counts the requests within all of them."""

    ttft_seconds: Above0 | None = None
    tpot_seconds: Above0 | None = None
    e2el_seconds: Above0 | None = None

    @property
    def words(self) -> str:
        said = {name.upper(): getattr(self, f"{name}_seconds") for name in LATENCIES}
        return ", ".join(f"{name} ≤ {seconds(value)}" for name, value in said.items() if value)


class CellSpec(Record):
    """One point of the grid."""

    context: Annotated[int, Field(ge=0, le=10**9)]
    """Prompt tokens of each request; 0 where another tool's file does not say."""
    load: Load
    output_tokens: Positive | None = None
    """Asked for, only where the cells of an imported run differ in it."""

    @property
    def id(self) -> str:
        """Name it in files and tables: 1024x64 (closed), 1024x64-once, 1024-poisson-12.5.

        Of bursts: 1024x64-bursts-12.5. Of imports also: unknownx4-out16.
        """
        load = self.load
        prompt = str(self.context or "unknown")
        head = f"{prompt}x{load.concurrency}" if load.concurrency else prompt
        how = "" if load.arrivals is Arrivals.CLOSED else f"-{load.arrivals}"
        rate = f"-{load.requests_per_second:g}" if load.requests_per_second else ""
        answer = f"-out{self.output_tokens}" if self.output_tokens else ""
        return f"{head}{how}{rate}{answer}"

    @property
    def lengths(self) -> tuple[int, int]:
        """What rows of tables are ordered and told apart by."""
        return self.context, self.output_tokens or 0

    @property
    def length_label(self) -> str:
        """Say the lengths at the head of a row: 1,024, or 1,024 → 16, or unknown."""
        prompt = f"{self.context:,}" if self.context else "unknown"
        return f"{prompt} → {self.output_tokens:,}" if self.output_tokens else prompt

    @property
    def prompt_words(self) -> str:
        """Say the length of the prompts in a sentence."""
        known = f"{self.context:,} prompt tokens" if self.context else "prompts of unknown length"
        return f"{known}, {self.output_tokens:,} output tokens" if self.output_tokens else known


class Distribution(Record):
    """Of one figure over the measured requests, in seconds."""

    count: int
    mean: Known
    p50: Known
    p90: Known
    p95: Known
    p99: Known
    max: Known
    percentile_error: float | None = None
    """Relative, at most, where a histogram found them; None: percentiles are measured values."""


class Counts(Record):
    """Requests of one cell."""

    sent: int
    """All, warm-up and ramps among them."""
    measured: int
    """Begun in the window and ended, well or badly."""
    succeeded: int
    """Measured ones whose whole answer came."""
    cut: int = 0
    """Ended by us when the cell was over; measured in nothing."""
    errors: dict[str, int] = {}
    """Measured ones that failed, by class: see `benchmark.samples`."""


class ServerView(Record):
    """What the engine's own /metrics say of the cell's window; None where it does not say."""

    looks: int
    """How often the page was read."""
    requests_running_mean: float | None = None
    requests_running_max: float | None = None
    requests_waiting_mean: float | None = None
    requests_waiting_max: float | None = None
    kv_cache_usage_max: float | None = None
    prefix_cache_hit_rate: float | None = None
    """Tokens found over tokens looked up, in the window."""
    preemptions: int | None = None
    prompt_tokens: int | None = None
    generation_tokens: int | None = None
    requests_finished: int | None = None
    ttft_mean: float | None = None
    """Seconds, like all that follow."""
    ttft_p50: float | None = None
    itl_mean: float | None = None
    queue_mean: float | None = None
    prefill_mean: float | None = None
    e2el_mean: float | None = None
    process_start_time: float | None = None
    """Unix seconds; another one in the next cell is another engine."""
    other_requests: int | None = None
    """Finished there but not sent by us: somebody else's load."""


class ClientView(Record):
    """How well the client itself was, in the window."""

    workers: int
    cpu_share: float
    """Of one core, of the busiest worker, 0 to 1."""
    error_bounds: dict[str, float] = {}
    """Seconds that late sends and stalls may have moved a figure, such as `ttft_p50`, worst worker;
    older runs have none."""
    loop_lag_p99_5_seconds: float | None = None
    """How late a timer fired: later in 0.5 % of the time, worst worker."""
    loop_lag_p99_seconds: float | None = None
    """The same of one timer in 100, every 10 ms: only in older runs."""
    send_lateness_p99_seconds: float
    """Written after it was meant to be."""
    cpu_wait_p99_5_seconds: float | None = None
    """How long it was ready to run and others had the CPU, between two timers 4 ms apart: longer
    in 0.5 % of the time, worst worker; Linux."""
    cpu_wait_p99_seconds: float | None = None
    """The same of one timer in 100, every 10 ms: only in older runs."""
    memory_mib: float
    """Resident, all workers."""
    clock_step_seconds: float = 0.0
    """How far wall clock and monotonic clock came apart."""


class NodeView(Record):
    """One machine of a cluster over a cell; figures are of the requests that it sent."""

    node: str
    """Its address, such as 10.0.0.7; with digits of its id where several share one."""
    workers: tuple[int, ...]
    """Of the load, as `worker` in the samples."""
    lost: str | None = None
    """Why nothing more was heard of it, and how long after it was last heard."""
    round_trip_seconds: float | None = None
    """The shortest between it and whoever gave the orders."""
    clock_bound_seconds: float | None = None
    """How far its times may be from where they were put among the others'."""
    client: ClientView | None = None
    """How well its workers were; None where they could not say."""
    requests: int | None = None
    """Measured, as `Counts.measured`."""
    failed: int | None = None
    ttft: Distribution | None = None
    ttft_half_width_seconds: float | None = None
    """Of the 95 % interval of its mean TTFT, by batch means; None where a batch has no request."""


class Code(StrEnum):
    """What can be said against, or about, a cell."""

    PREFIX_CACHED = "PREFIX_CACHED"
    CLIENT_SATURATED = "CLIENT_SATURATED"
    CLIENT_NOISE = "CLIENT_NOISE"
    COLD = "COLD"
    SHORT_OUTPUT = "SHORT_OUTPUT"
    PROMPT_CUT = "PROMPT_CUT"
    LENGTH_CAPPED = "LENGTH_CAPPED"
    KV_QUEUED = "KV_QUEUED"
    TIMEOUTS = "TIMEOUTS"
    TOO_FEW_SAMPLES = "TOO_FEW_SAMPLES"
    SERVER_CHANGED = "SERVER_CHANGED"
    CLOCK_STEPPED = "CLOCK_STEPPED"
    THROTTLED = "THROTTLED"
    ERRORS = "ERRORS"
    WIDE_INTERVAL = "WIDE_INTERVAL"
    OTHER_LOAD = "OTHER_LOAD"
    ARTICLE_METHOD = "ARTICLE_METHOD"
    SIMULATED = "SIMULATED"
    SATURATED_ROW = "SATURATED_ROW"
    IMPOSSIBLE_SPEED = "IMPOSSIBLE_SPEED"
    DUPLICATED_GRID = "DUPLICATED_GRID"
    CONTRADICTORY = "CONTRADICTORY"
    TOOL_WARNING = "TOOL_WARNING"
    NODE_LOST = "NODE_LOST"
    NODE_UNEVEN = "NODE_UNEVEN"
    CLOCK_UNSURE = "CLOCK_UNSURE"


MARKS: Final = frozenset(
    {
        Code.CLIENT_NOISE,
        Code.KV_QUEUED,
        Code.WIDE_INTERVAL,
        Code.SIMULATED,
        Code.SATURATED_ROW,
        Code.LENGTH_CAPPED,
        Code.TOOL_WARNING,
    }
)
"""Codes that describe; every other one says that the figures are not what they seem."""
OF_BURSTS: Final = frozenset({Code.ARTICLE_METHOD, Code.TOO_FEW_SAMPLES, Code.PREFIX_CACHED})
"""What one burst of one prompt always is: it compares with other bursts, and with nothing else."""


class Worth(StrEnum):
    """What may be done with a cell's figures."""

    VALID = "valid"
    MARKED = "marked"
    """Valid, with something to know."""
    RELATIVE = "relative only"
    """To be compared with runs of the same method, never to be decided by."""
    SPOILED = "spoiled"
    UNMEASURED = "unmeasured"


class Verdict(Record):
    """One code with the figures that earned it."""

    code: Code
    because: str
    """Such as «hit rate 43.1 %, limit 1 %»."""

    @property
    def spoils(self) -> bool:
        """Whether the cell's figures must not be used for decisions."""
        return self.code not in MARKS


class CellState(StrEnum):
    """What became of a cell."""

    MEASURED = "measured"
    SKIPPED = "skipped"
    FAILED = "failed"


class CellResult(Record):
    """One cell, measured or not; a figure that does not exist is None, never 0."""

    spec: CellSpec
    state: CellState
    reason: str | None = None
    """Why it was skipped or failed."""
    started_at: datetime | None = None
    window_seconds: float | None = None
    """Steady state: ramps are cut off."""
    wall_seconds: float | None = None
    """With warm-up, ramps and drain: what was paid for."""
    counts: Counts | None = None
    ttft: Distribution | None = None
    """From the intended start to the first token; connecting is not in it."""
    tpot: Distribution | None = None
    """(E2EL - TTFT) / (output tokens - 1) of each request with two tokens or more."""
    itl: Distribution | None = None
    """Gaps between streamed events that carry tokens, as vLLM's bench has it."""
    tokens_per_event: float | None = None
    """Above 1 the engine sends several at once: then TPOT, not ITL, is the time of a token."""
    e2el: Distribution | None = None
    """From the intended start to the last token."""
    connect: Distribution | None = None
    """TCP and TLS, of connections opened in the window."""
    request_throughput: float | None = None
    """Successful requests per second of the window."""
    input_token_throughput: float | None = None
    output_token_throughput: float | None = None
    """Tokens that arrived in the window, per second."""
    reasoning_tokens: int | None = None
    """Among the output tokens of measured requests."""
    goodput: float | None = None
    """Requests per second within all limits; None without limits."""
    goodput_share: float | None = None
    concurrency_mean: float | None = None
    """In flight, seen, over the window."""
    relative_half_width: float | None = None
    """Of the 95 % interval of output throughput."""
    e2el_relative_half_width: float | None = None
    """The same of mean E2EL; older runs have none."""
    server: ServerView | None = None
    client: ClientView | None = None
    nodes: tuple[NodeView, ...] = ()
    """Of a cluster, in the order of their addresses; none where one machine put the load on."""
    usd_per_1000_requests: float | None = None
    usd_per_million_output_tokens: float | None = None
    usd_per_million_tokens: float | None = None
    """Input and output together."""
    verdicts: tuple[Verdict, ...] = ()

    @property
    def id(self) -> str:
        return self.spec.id

    @property
    def worth(self) -> Worth:
        """Say what its figures may be used for."""
        if self.state is not CellState.MEASURED:
            return Worth.UNMEASURED
        against = {verdict.code for verdict in self.verdicts if verdict.spoils}
        if not against:
            return Worth.MARKED if self.verdicts else Worth.VALID
        relative = Code.ARTICLE_METHOD in against and against <= OF_BURSTS
        return Worth.RELATIVE if relative else Worth.SPOILED

    @property
    def valid(self) -> bool:
        return self.worth in {Worth.VALID, Worth.MARKED}


class Subject(Record):
    """What is measured, as it says of itself at the start."""

    model: str
    max_model_len: int | None = None
    vllm_version: str | None = None
    cache: CacheConfig | None = None
    process_start_time: float | None = None
    template_tokens: int = 0
    """That its chat template adds to each chat, an estimate without /tokenize; 0 in older runs."""
    refuses: tuple[str, ...] | None = None
    """Fields of a request that it does not take, as it said before the first cell: `max_tokens` is
    then asked for as `max_completion_tokens`, others are left out. None: not known."""
    simulated: bool = False


class BootTimes(Record):
    """What one boot of the deployment took."""

    at: datetime
    """When it began to warm up."""
    seconds: dict[str, float]
    """By phase, in the order of a boot."""


class Provenance(Record):
    """What only the owner of the endpoint knows; all of it optional."""

    target: str | None = None
    deployment: str | None = None
    deployment_spec: dict[str, object] | None = None
    """With the engine's flags; never a secret."""
    revision: str | None = None
    """The fingerprint of the plan that it runs."""
    accelerator: str | None = None
    accelerator_count: int | None = None
    usd_per_hour: float | None = None
    """Of all replicas together."""
    usd_per_hour_highest: float | None = None
    """By the dearest source, where they disagree: a budget is kept by it."""
    price_source: str | None = None
    boots: tuple[BootTimes, ...] = ()
    """The newest that were followed, the last one last."""


class Host(Record):
    """The client's machine and program; nobody wrote down what machine an import is from."""

    system: str = "not known"
    cpu: str = "not known"
    cores: int = 0
    memory_gib: float = 0.0
    python: str = "not known"
    versions: dict[str, str]
    """Of this program and of the libraries that measure."""


Profile = Literal["quick", "standard", "full", "article", "find-capacity"]


class Cluster(Record):
    """Machines that put the load on together: nodes of a Ray cluster that exists."""

    address: str
    """`auto` for the one that this machine belongs to, or ray://HOST:10001."""
    nodes: Positive | None = None
    """How many take part; None: all that are free when a cell begins."""
    insecure: bool = False
    """Whether one without token authentication is taken."""


class RunPlan(Record):
    """Everything a sweep does, known before it begins."""

    profile: Profile = "quick"
    contexts: tuple[Positive, ...]
    loads: tuple[Load, ...]
    """Crossed with the contexts; find-capacity begins at the first one."""
    workload: Workload = Workload()
    dataset_sha256: str | None = None
    """Of the dataset's prompts, wherever the file is; older runs do not say."""
    stop: StopRule = StopRule()
    limits: Limits = Limits()
    attainment: Share = 0.95
    """Find-capacity: the share of requests that must be within the limits."""
    stop_saturated: bool = True
    """Whether a row that gains no more throughput is measured no further."""
    workers: Positive | None = None
    """Client processes; None: one for every 512 connections, at most one per core."""
    cluster: Cluster | None = None
    """None: this machine puts the load on."""
    max_cost_usd: Above0 | None = None
    max_minutes: Above0 | None = None


class Manifest(Record):
    """Everything to run it again; written once, when the sweep begins."""

    schema_version: int = SCHEMA
    run_id: str
    created_at: datetime
    base_url: str
    """Without credentials."""
    plan: RunPlan
    subject: Subject
    provenance: Provenance = Provenance()
    host: Host

    @property
    def imported_from(self) -> str | None:
        """The tool whose results these are; None where we measured."""
        return self.host.versions.get("tool")

    @property
    def caveats(self) -> str:
        """What must be known before any figure is read; nothing of a run like any other."""
        kinds = (
            (self.imported_from, f"imported from {self.imported_from}, not measured here"),
            (self.subject.simulated, "SIMULATED ENGINE, no hardware was measured"),
            (self.plan.profile == "article", "THE ARTICLES' METHOD, which no decision can rest on"),
        )
        return "; ".join(words for holds, words in kinds if holds)


class RunState(StrEnum):
    """What a run does now."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """Asked to, or by its budget; there is a report."""
    INTERRUPTED = "interrupted"
    """Its process is gone; `resume` goes on."""
    FAILED = "failed"


class Progress(Record):
    """How far a run is; replaced about every second."""

    state: RunState
    reason: str | None = None
    """Why it stopped or failed."""
    cells_done: int
    cells_total: int | None = None
    """None where the next cell depends on the last."""
    cell: str | None = None
    """The one being measured."""
    doing: str | None = None
    """warming up, measuring, draining, reporting."""
    elapsed_seconds: float
    eta_seconds: float | None = None
    usd_so_far: float | None = None
    updated_at: datetime


class Finding(Record):
    """One decision that a person can act on."""

    kind: Literal["limit", "saturation", "operating_point", "flag", "distrust", "compare"]
    text: str
    """One sentence with its figures and units."""
    cells: tuple[str, ...] = ()
    """The ids it was computed from."""


class Slice(NamedTuple):
    """What ended in one short stretch of the window, all workers together."""

    begin: float
    """On the monotonic clock, as every time of `Samples`."""
    seconds: float
    requests: int
    """Whole answers."""
    failed: int
    output_tokens: int
    """That arrived, of whichever request."""
    ttft_sum: float
    e2el_sum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One cell as it was measured, before anything is computed from it."""

    samples: Samples
    """Every request, those of warm-up and ramps among them; measured ones are those with
    `window_begin <= intended < window_end`."""
    window_begin: float
    window_end: float
    """When load was steady no more by our own doing: measured requests were waited for under load
    beyond it."""
    settled: bool
    """Whether warm-up ended because latency had settled, and not because its time was over."""
    client: ClientView
    slices: tuple[Slice, ...]
    started_at: datetime
    wall_seconds: float
    failed: str | None = None
    """Why it was given up, such as an endpoint that is gone."""
    nodes: tuple[NodeView, ...] = ()
    """Of a cluster, without figures of requests."""
    files: tuple[Path, ...] = ()
    """Further samples, each of one worker, of a cell that has more than fit into memory."""

    def parts(self) -> Iterator[Samples]:
        """Give all samples, of which there is never more than one part in memory."""
        yield self.samples
        yield from map(load, self.files)
