"""The nouns of a run: what is measured, by which plan, how far it is, what it means."""

from datetime import datetime
from enum import StrEnum
from typing import Literal

from benchmark.records import SCHEMA, Limits, Load, Positive, Share, StopRule, Workload
from core.metrics import CacheConfig
from core.records import Record


class Subject(Record):
    """What is measured, as it says of itself at the start."""

    model: str
    max_model_len: int | None = None
    vllm_version: str | None = None
    cache: CacheConfig | None = None
    process_start_time: float | None = None
    simulated: bool = False


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
    price_source: str | None = None


class Host(Record):
    """The client's machine and program."""

    system: str
    cpu: str
    cores: int
    memory_gib: float
    python: str
    versions: dict[str, str]
    """Of this program and of the libraries that measure."""


Profile = Literal["quick", "standard", "full", "article", "find-capacity"]


class RunPlan(Record):
    """Everything a sweep does, known before it begins."""

    profile: Profile = "quick"
    contexts: tuple[Positive, ...]
    loads: tuple[Load, ...]
    """Crossed with the contexts; find-capacity begins at the first one."""
    workload: Workload = Workload()
    stop: StopRule = StopRule()
    limits: Limits = Limits()
    attainment: Share = 0.95
    """Find-capacity: the share of requests that must be within the limits."""
    stop_saturated: bool = True
    """Whether a row that gains no more throughput is measured no further."""
    workers: Positive | None = None
    """Client processes; None: one for every 512 connections, at most one per core."""
    max_cost_usd: float | None = None
    max_minutes: float | None = None


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

    kind: Literal["limit", "saturation", "operating_point", "flag", "distrust", "cost", "compare"]
    text: str
    """One sentence with its figures and units."""
    cells: tuple[str, ...]
    """The ids it was computed from."""
