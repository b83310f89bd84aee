"""The nouns: closed, immutable records that every room speaks in."""

import hashlib
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from json import JSONDecoder
from typing import Annotated, Any, Final, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    field_validator,
)

from core.address import HTTP, IDENTITY_HEADER, KEY_HEADER, socket_of
from core.errors import InvalidArgument, NextStep
from core.redaction import redact
from core.schedule import Schedule, parse

_SEVERAL: Final = re.compile(
    r"--?[A-Za-z][^=\s]*\s|--?[A-Za-z].*\s-(?:-[A-Za-z]|[a-z]+\s)", re.DOTALL
)
"""A flag with a blank before any `=`, or with another flag behind it."""
_JOINED: Final = re.compile(r"--?[A-Za-z][\w.+-]*=")
_BLANKS: Final = re.compile(r"\s*")
_TOKEN: Final = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*"|['"\\])+""", re.DOTALL)
_JSON: Final = JSONDecoder()


def apart(said: str) -> tuple[str, ...]:
    """Give flags and values one by one; a value with blanks of its own, such as JSON, stays.

    >>> apart('--limit-mm-per-prompt {"image": 1} --seed=4')
    ('--limit-mm-per-prompt', '{"image": 1}', '--seed=4')
    """
    end = _end_of_json(said, 0)
    several = _SEVERAL.match(said.lstrip()) if end is None else said[end:].strip()
    return tuple(_parts(said)) if several else (said,)


def _parts(said: str) -> Iterator[str]:
    at, awaited = _after_blanks(said, 0), True
    while at < len(said):
        flag = said[at] == "-"
        end = _end_of_json(said, at) if flag or awaited else None
        if end is None:
            token = _TOKEN.match(said, at)
            end = token.end() if token else len(said)
            yield from _unquoted(said[at:end])
        else:
            yield said[at:end]
        at, awaited = _after_blanks(said, end), flag


def _after_blanks(said: str, at: int) -> int:
    found = _BLANKS.match(said, at)
    return found.end() if found else at


def _end_of_json(said: str, at: int) -> int | None:
    """Where the JSON ends that begins here, or behind a flag's `=`; None if there is none."""
    joined = _JOINED.match(said, at)
    start = joined.end() if joined else at
    if said[start : start + 1] not in {"{", "["}:
        return None
    try:
        _, end = _JSON.raw_decode(said, start)
    except (ValueError, RecursionError):
        return None
    return end if not said[end : end + 1].strip() else None


def _unquoted(token: str) -> tuple[str, ...]:
    """Take a shell's quotes off; a value that then has blanks leaves its flag."""
    try:
        (word,) = shlex.split(token)
    except ValueError:
        return (token,)
    joined = _JOINED.match(word)
    if joined and re.search(r"\s", word):
        return word[: joined.end() - 1], word[joined.end() :]
    # What would come apart once more, as a flag with an escaped blank, stays as it was written.
    return (word,) if joined or apart(word) == (word,) else (token,)


class Record(BaseModel):
    """A closed, immutable record; the sentence under a field is for whoever reads it here.

    No schema that a client gets holds a record, so none is made its description: to look for them
    in the source took a seventh of the server's start.
    """

    # What no call needs is not built at start-up.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


Provenance = Literal["safetensors headers", "config.json", "catalog"]
Attention = Literal["full", "sliding"]
GroupName = Literal[
    "linear", "experts", "embedding", "per_layer_embedding", "per_layer_linear", "lm_head",
    "vision", "audio", "shared_kv", "draft", "other",
]  # fmt: skip


class LayerShape(Record):
    """One decoder layer, as its attention sees it."""

    attention: Attention
    window: int | None = None
    """Tokens that a sliding layer looks back on."""
    kv_heads: int
    head_size: int
    shares_kv: bool = False
    """It reads an earlier layer's cache and has none of its own."""


class ParameterGroup(Record):
    """Parameters that are treated alike: quantized together, sharded together."""

    name: GroupName
    parameters: int
    stored_bytes: int
    """In the files."""
    resident_bytes: int
    """On one accelerator that holds all of it; 0 for what vLLM ties to something else."""
    provenance: Provenance


class ModelShape(Record):
    """What a model's own files say of it; None is not known, never guessed."""

    model: str
    architecture: str | None = None
    max_position_embeddings: int | None = None
    """The longest sequence it was made for, in tokens."""
    rope_factor: float = 1.0
    """How many times its positions the cache of its full layers' rotary embedding covers."""
    dtype: str | None = None
    quantization: str | None = None
    """The method named by its quantization_config."""
    weight_bytes: int | None = None
    """Of its safetensors files together."""
    model_type: str | None = None
    layers: tuple[LayerShape, ...] = ()
    hidden_size: int | None = None
    intermediate_size: int | None = None
    """The widest MLP of any layer."""
    num_attention_heads: int | None = None
    vocab_size: int | None = None
    tied: bool = False
    """The output layer is the token embedding."""
    k_eq_v: bool = False
    """Full layers have no values of their own; both are cached all the same."""
    num_experts: int = 0
    experts_per_token: int = 0
    moe_intermediate_size: int = 0
    per_layer_embedding_size: int = 0
    """Of one layer and token."""
    vision: bool = False
    audio: bool = False
    vision_hidden_size: int = 0
    """0 for a tower without layers."""
    vision_intermediate_size: int = 0
    bidirectional_images: bool = False
    """An image is read in one piece, so a batch must hold all of it."""
    quantization_bits: int | None = None
    """Of a quantized weight."""
    quantization_ignored: tuple[str, ...] = ()
    """Modules that stay as they are."""
    groups: tuple[ParameterGroup, ...] = ()
    unknown: tuple[str, ...] = ()
    """What could not be read, in sentences."""

    @property
    def parameters(self) -> int:
        """All of them, a tied output layer once."""
        return sum(group.parameters for group in self.groups if group.name != "lm_head") + sum(
            group.parameters for group in self.groups if group.name == "lm_head" and not self.tied
        )

    @cached_property
    def layer_kinds(self) -> tuple[tuple[LayerShape, int], ...]:
        """Layers of each kind and how many there are, in the order of the first of each."""
        return tuple(Counter(self.layers).items())

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it; the layers of the copy are counted anew."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("layer_kinds", None)
        return copied

    def group(self, name: GroupName) -> ParameterGroup | None:
        """Give one group of parameters, None if the model has none such."""
        return next((group for group in self.groups if group.name == name), None)


NAME_PATTERN: Final = r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$"
DeploymentName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""Lower-case letters, digits and hyphens, at most 40: what every cloud accepts."""
Word = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""One word of a command line."""
Variable = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*=[^\x00-\x1f]*$")]
"""NAME=value."""
LONGEST_MINUTES: Final = 364 * 24 * 60
"""Of a deployment's time: the jobs that end it are due on a day of the year, and a later end would
come a year too soon."""
_SECRET_NAME: Final = re.compile(r"KEY|TOKEN|SECRET|PASS|PWD|CREDENTIAL|AUTH", re.IGNORECASE)


class DeploymentSpec(Record):
    """What is wanted. vLLM's flags have vLLM's names and, left out, vLLM's defaults."""

    name: DeploymentName
    model: str = Field(min_length=1, max_length=4096, pattern=r"^[^-\x00-\x1f][^\x00-\x1f]*$")
    """A Hub id, or the absolute path of a folder."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Tokens of prompt and answer together."""
    gpu_memory_utilization: float | None = Field(default=None, gt=0, le=1)
    kv_cache_dtype: Word | None = None
    kv_cache_memory_bytes: str | None = Field(default=None, pattern=r"^[0-9]+(\.[0-9]+)?[kKmMgG]?$")
    """Bytes, or with K, M or G; replaces gpu_memory_utilization."""
    max_num_seqs: int | None = Field(default=None, ge=1)
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    tensor_parallel_size: int = Field(default=1, ge=1)
    quantization: Word | None = None
    dtype: Word | None = None
    cpu_offload_gb: float | None = Field(default=None, ge=0)
    enforce_eager: bool = False
    engine_args: tuple[Word, ...] = ()
    """Any other flags of `vllm serve`, one word each."""
    port: int | None = Field(default=None, ge=1, le=65535)
    """On this machine only; left out, a free one."""
    min_replicas: int = Field(default=1, ge=0)
    max_replicas: int = Field(default=1, ge=1)
    ttl_minutes: int | None = Field(default=None, ge=0, le=LONGEST_MINUTES)
    """Stop it after so long, so that nobody pays for a forgotten one; 0 never, where the target
    would else."""
    max_usd: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Of one run, from its start to its end: it ends before it may have cost more."""
    max_idle_minutes: int | None = Field(default=None, ge=1, le=LONGEST_MINUTES)
    """Nothing of it runs any more so long after the last request, where its platform can sleep."""
    lease: Literal["cloud", "server"] | None = None
    """Who ends it when its time is over; left out, its cloud where the login may have it do so,
    else a server on this machine."""
    schedule: str | None = Field(default=None, max_length=300)
    """When max(1, min_replicas) are warm, such as Mon-Fri 08:55-18:00 Europe/Berlin; it may sleep
    at other times."""
    engine: Literal["vllm", "ollama"] = "vllm"
    weights: str | None = Field(
        default=None, pattern=r"^(hub(:disk|:share)?|baked|(gs|files)://\w[^\x00-\x20]*)$"
    )
    """`hub` (on Azure also `hub:disk` or `hub:share`: where its files lie), `gs://BUCKET/FOLDER`,
    `files://SHARE/FOLDER`, or `baked` into the image."""
    image: Word | None = None
    """A container image in place of the target's own, best by digest."""
    access: Literal["private", "public", "internal"] = "private"
    """Who may call it: whom the cloud knows, whoever has its key, or its own network."""
    network: Word | None = None
    """NETWORK/SUBNETWORK that a replica is attached to (Direct VPC)."""
    env: tuple[Variable, ...] = ()
    """NAME=value of the engine's environment; never a secret."""
    compile_cache: Literal["carried", "off"] | None = None
    """Whether what vLLM compiles is kept for the next boot; left out, where there is a place."""
    cpu: float | None = Field(default=None, gt=0)
    """vCPUs of a replica; left out, as many as the accelerator needs."""
    memory_gib: float | None = Field(default=None, gt=0)
    """Of a replica; left out, as much as the model needs."""
    launch_stage: Literal["ga", "beta", "alpha"] | None = None
    """Of Cloud Run's API, for what is not yet generally available."""
    build_machine: Word | None = None
    """Cloud Build's machine type for an image of Ollama; left out, its default."""
    boot_disk_gb: int | None = Field(default=None, ge=10, le=65536)
    """Of a TPU VM, in 10^9 bytes."""

    zones: tuple[Word, ...] = ()
    """Where to look for a chip, in this order (Cloud TPU); left out, the target's own."""
    zone_wait_minutes: int | None = Field(default=None, ge=1, le=7 * 24 * 60)
    """How long each zone is waited for, before the next one is tried."""
    control_plane: Literal["auto", "queued", "compute"] = "auto"
    """Who is asked for the chip: the queue of Cloud TPU, or Compute Engine."""

    @field_validator("engine_args")
    @classmethod
    def _one_by_one(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part for word in words for part in apart(word))

    @field_validator("schedule")
    @classmethod
    def _readable(cls, said: str | None) -> str | None:
        if said is not None:
            parse(said)
        return said

    @field_validator("env")
    @classmethod
    def _no_secret(cls, variables: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse secrets: what a spec holds is written in plans, labels and logs."""
        names = [variable.partition("=")[0] for variable in variables]
        for name, variable in zip(names, variables, strict=True):
            if _SECRET_NAME.search(name) or redact(variable) != variable:
                raise ValueError(
                    f"{name} looks like a secret, and env is shown in plans and commands;"
                    " the Hub's token is kept by save_hf_token"
                )
        if len(set(names)) < len(names):
            raise ValueError("env names a variable twice")
        return variables

    @property
    def times(self) -> Schedule | None:
        """`schedule`, read."""
        return parse(self.schedule) if self.schedule else None

    @property
    def warm_replicas(self) -> int:
        """How many never sleep within its schedule, or at any time where it has none."""
        return max(1, self.min_replicas) if self.schedule else self.min_replicas

    @property
    def least_replicas(self) -> int:
        """How many never sleep just now."""
        off = self.times is not None and not self.times.is_on(datetime.now(UTC))
        return 0 if off else self.warm_replicas

    @property
    def from_hub(self) -> bool:
        """Whether its files are fetched from the Hub, wherever they lie then."""
        return self.engine == "vllm" and (self.weights or "hub").startswith("hub")

    @property
    def variables(self) -> dict[str, str]:
        """`env`, by name."""
        return {name: value for name, _, value in (one.partition("=") for one in self.env)}

    @property
    def served_model_name(self) -> str:
        """What the API calls the model: a Hub id as it is, a folder by its own name."""
        return self.model.rstrip("/").rsplit("/", 1)[-1] if self.model[0] in "/~." else self.model

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that change when anything wanted changes."""
        said = self.model_dump_json(exclude_defaults=True)
        return hashlib.sha256(said.encode()).hexdigest()[:12]


R = TypeVar("R", bound=Record)


def valid(kind: type[R], values: Mapping[str, Any]) -> R:
    """Make a record of what a person said.

    Raises:
        InvalidArgument: A value cannot be what it is.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as exc:
        raise InvalidArgument(f"That cannot be: {wrong(exc)}.", fix="Correct the value.") from exc


def wrong(exc: ValidationError) -> str:
    """Say in one line what is wrong with each value, with where it stands."""
    rows = exc.errors(include_url=False)
    return "; ".join(f"{'.'.join(map(str, row['loc']))}: {_said(row)}".lstrip(": ") for row in rows)


def named(kind: type[R], rows: Mapping[str, Mapping[str, Any]]) -> dict[str, R]:
    """Make a record of each row of a table, with its name."""
    return {name: valid(kind, {"name": name, **row}) for name, row in rows.items()}


def _said(row: Mapping[str, Any]) -> str:
    if row["type"] == "string_pattern_mismatch" and row["loc"] == ("name",):
        return "lower-case letters, digits and hyphens, at most 40, a letter first"
    return str(row["msg"])


class Answer(Record):
    """A record that a tool may return: it can say itself in one sentence."""

    def summary(self) -> str:
        """One sentence with the fact that matters most."""
        raise TypeError(f"{type(self).__name__} has no sentence.")

    def facts(self) -> Mapping[str, Any]:
        """Return the few facts that the summary rests on, in at most 15 lines.

        The whole record is what `detail="full"` gives; it is the default where it is short.
        """
        return self.model_dump(mode="json", exclude_none=True)

    def warnings(self) -> tuple[str, ...]:
        """What the reader must not overlook."""
        return ()

    def next_steps(self) -> tuple[NextStep, ...]:
        """What a person would do now."""
        return ()


class State(StrEnum):
    """What a deployment does now, as its platform says; `ready` only once the model answered."""

    QUEUED = "queued"
    CREATING = "creating"
    LOADING = "loading"
    READY = "ready"
    ASLEEP = "asleep"
    STOPPING = "stopping"
    STOPPED = "stopped"
    EXPIRED = "expired"
    """Its ttl ended and its machine is gone; one that can be started again is `stopped`."""
    FAILED = "failed"
    DELETING = "deleting"
    UNKNOWN = "unknown"

    @property
    def settled(self) -> bool:
        """Whether it stays so until somebody does something."""
        return self in {State.READY, State.ASLEEP, State.FAILED} or self.ended

    @property
    def ended(self) -> bool:
        """Whether it was ended as somebody had asked for."""
        return self in {State.STOPPED, State.EXPIRED}


class Target(Record):
    """One place a model can run; a row of `targets.toml`."""

    name: str
    backend: str
    description: str
    accelerator: str | None = None
    """Its name at the provider; none is the CPU."""
    accelerator_count: int = 0
    accelerator_memory_gib: float | None = None
    """Of one accelerator."""
    region: str | None = None
    usd_per_hour: float | None = None
    """Of one running replica; None where nobody has said."""
    min_replicas: int = 1
    """Of a deployment that says nothing of it: none where an idle one is billed by the hour."""
    needs: str | None = None
    """The setting without which it cannot be used; a rehearsal needs none."""
    look_seconds: float = 0.0
    """Between two looks at what changes there, for platforms count them."""


def spent_words(seconds: Mapping[str, float]) -> str:
    """Say what took a second or more.

    >>> spent_words({"start": 12.2, "download": 125.7, "warm-up": 0.3})
    'start 12 s, download 126 s'
    """
    return ", ".join(f"{name} {took:,.0f} s" for name, took in seconds.items() if took >= 1)


class Phase(Record):
    """The step that a deployment's boot is in."""

    name: str
    """queued, starting, loading weights, compiling, capturing graphs, warming …"""
    since: datetime
    detail: str = ""
    """Which of several it is at, or until when."""
    percent: int | None = Field(default=None, ge=0, le=100)
    usual_seconds: float | None = None
    """The median of earlier boots here; None before the first."""
    spent: dict[str, float] = {}
    """Seconds of each phase of the engine's boot so far, where its log tells it from the start."""

    @property
    def takes(self) -> str:
        """Say how long it usually takes, else how much is left at its pace, if that is known."""
        if self.usual_seconds:
            return f" It usually takes about {self.usual_seconds:.0f} s."
        if not self.percent:
            return ""
        elapsed = (datetime.now(UTC) - self.since).total_seconds()
        left = max(0.0, elapsed) * (100 - self.percent) / self.percent
        return f" About {left:.0f} s more at this pace."


class Failure(Record):
    """Why a deployment does not run."""

    code: str
    cause: str
    fix: str
    next: tuple[NextStep, ...] = ()
    """Tools that do what `fix` says; without target and name they are of this deployment."""
    evidence: tuple[str, ...] = ()
    """The last lines its engine wrote."""


class Deployment(Answer):
    """What exists, as its platform says it now."""

    name: str
    target: str
    state: State
    since: datetime
    """When it came into this state, as far as is known."""
    phase: Phase | None = None
    """While it boots."""
    model: str
    served_model_name: str
    engine: str
    """The engine and its version."""
    simulated: bool = False
    url: str | None = None
    revision: str
    """The fingerprint of the spec that it runs."""
    instance: str | None = None
    """What runs it: a process id here, a replica elsewhere."""
    replicas: int = 0
    """Seen running now."""
    min_replicas: int | None = None
    """That always run; None where nobody has said."""
    max_replicas: int | None = None
    """That run under load."""
    awake_until: datetime | None = None
    """About; when it falls asleep if nobody asks, where this server's own question woke it last."""
    last_used: str | None = None
    """As far as is known here: the platform and the engine keep no times."""
    last_boot: str | None = None
    """What it took, if it was seen from here."""
    created_at: datetime
    expires_at: datetime | None = None
    """When its time is over: by its ttl, or because it may not cost more."""
    lease: Literal["cloud", "server"] | None = None
    """Who ends it then, as read back; None where nothing does."""
    lease_lacks: str = ""
    """What is missing of a lease that its cloud was to keep."""
    schedule: str | None = None
    """When it is warm, as it was asked for."""
    schedule_lacks: str = ""
    """What is missing of the jobs that keep its schedule."""
    usd_per_hour: float | None = None
    usd_so_far: float | None = None
    failure: Failure | None = None
    resources: Mapping[str, str] = {}
    """What stands behind it at its provider, in the provider's own words."""

    @property
    def runs(self) -> bool:
        """Whether something of it runs now, or is about to."""
        return self.replicas > 0 or self.state in {State.CREATING, State.LOADING, State.READY}

    @property
    def may_run(self) -> bool:
        """Whether something of it runs and may bill, or could not be seen not to."""
        return self.runs or self.usd_per_hour_now is None

    @property
    def usd_per_hour_now(self) -> float | None:
        """Return what all running replicas cost together.

        None where nobody has said, or where it could not be seen whether any run.
        """
        if not self.replicas:
            return None if self.state is State.UNKNOWN and self.usd_per_hour != 0 else 0.0
        return None if self.usd_per_hour is None else round(self.usd_per_hour * self.replicas, 4)

    @property
    def has_log(self) -> bool:
        """Whether anything can have written one: what was given no machine has none."""
        return self.failure is None or self.failure.code != "NO_CAPACITY"

    def summary(self) -> str:
        """Say state, and what is waited for or wrong."""
        head = f"{self.name} on {self.target} is {self.state}"
        if self.failure:
            return f"{head}: {self.failure.cause}"
        if self.state.ended and self.expires_at and self.expires_at <= datetime.now(UTC):
            return f"{head}: its time was over at {self.expires_at:%F %H:%M} UTC."
        if self.phase:
            percent = "" if self.phase.percent is None else f" {self.phase.percent} %"
            detail = f" ({self.phase.detail})" if self.phase.detail else ""
            took = spent_words(self.phase.spent or {})
            spent = f" So far: {took}." if took else ""
            return f"{head}: {self.phase.name}{percent}{detail}.{self.phase.takes}{spent}"
        if self.state is State.STOPPED:
            request = "no request and no schedule" if self.schedule else "no request"
            return f"{head}: {request} wakes it, start_vllm does."
        if self.state is State.ASLEEP:
            price = f" at {usd(self.usd_per_hour)} an hour" if self.usd_per_hour else ""
            nothing = "nothing runs and nothing is billed; a question wakes it"
            return f"{head}: {nothing}{price}{self._scheduled}."
        where = f": {self.served_model_name} at {self.url}" if self.url else ""
        if self.state is not State.READY:
            return f"{head}{where}."
        bill = f", {usd(self.usd_per_hour_now)} an hour" if self.usd_per_hour_now else ""
        said = "".join(f"; {words}" for words in (self.last_used, self.last_boot) if words)
        said += self._scheduled
        return f"{head}{where}; {self._running}{bill}, since {moment(self.since)}{said}."

    @property
    def _scheduled(self) -> str:
        """Say what its schedule does next."""
        if self.schedule is None:
            return ""
        now, times, ends = datetime.now(UTC), parse(self.schedule), self.expires_at
        changes = times.changes(now)
        if ends and ends <= changes and not times.is_on(now):
            when = f"is over at {moment(ends)}, before its schedule ({self.schedule}) wakes it at"
            return f"; its time {when} {moment(changes)}"
        keeps = "is to keep" if self.state is State.ASLEEP else "keeps"
        does = f"{keeps} it warm until" if times.is_on(now) else "wakes it at"
        then = min(changes, ends) if ends else changes
        return f"; its schedule ({self.schedule}) {does} {moment(then)}"

    @property
    def _running(self) -> str:
        """Say how many replicas run, and between which numbers that may change."""
        low, high = self.min_replicas, self.max_replicas
        plural = "" if self.replicas <= 1 else "s"
        if low is None or high is None or low == high == self.replicas:
            return f"{self.replicas or 1} replica{plural}"
        return f"{self.replicas} replica{plural} of {low}-{high}"

    def facts(self) -> Mapping[str, Any]:
        """Return where it is, what it runs and costs, and what is wrong or waited for."""
        shown = {"name", "target", "state", "since", "model", "engine", "url", "replicas"}
        scales = {"min_replicas", "max_replicas", "last_used", "last_boot", "awake_until"}
        costs = {"usd_per_hour", "usd_so_far", "expires_at", "lease", "schedule"}
        waits = {"name", "percent", "detail", "usual_seconds", "spent"}
        return {
            **self.model_dump(mode="json", include=shown | scales | costs),
            "memory": self.resources.get("memory"),
            "phase": self.phase.model_dump(include=waits) if self.phase else None,
            "failure": self.failure.model_dump(include={"code", "fix"}) if self.failure else None,
        }

    def warnings(self) -> tuple[str, ...]:
        """Warn of what is not real, and of what should have been stopped."""
        said = (SIMULATED,) if self.simulated else random_weights(self.model)
        if self.schedule_lacks and not self.state.ended:
            whole = "Call deploy_vllm again to make it whole."
            said = (*said, f"Its schedule is not kept: {self.schedule_lacks}. {whole}")
        if self.expires_at is None or self.state.ended:
            return said
        if self.lease_lacks:
            fix = "While a server runs here, that ends it; deploy_vllm again makes the rest."
            if self.expires_at < datetime.now(UTC):
                fix = "Call stop_vllm, or give it more time by update_vllm_scaling."
            said = (*said, f"Nothing in the cloud ends {self.name}: {self.lease_lacks}. {fix}")
        if not self.state.settled:
            return said
        late = f"{self.name} is overdue since {self.expires_at:%F %H:%M} UTC."
        return (*said, late) if self.expires_at < datetime.now(UTC) else said

    def next_steps(self) -> tuple[NextStep, ...]:
        """Name the tool that helps in this state, and what makes its lease or schedule whole."""
        here = {"target": self.target, "name": self.name}
        ends_later = self.expires_at is not None and self.expires_at > datetime.now(UTC)
        lacks = self.schedule_lacks or (self.lease_lacks and ends_later)
        there = self.state in {State.CREATING, State.LOADING, State.READY, State.ASLEEP}
        known = self.model != "not known"  # else the call would have to say it
        whole = (NextStep("deploy_vllm", here),) if lacks and there and known else ()
        match self.state:
            case State.READY:
                return (*whole, NextStep("query_gemma4", {**here, "prompt": "What is Gemma?"}))
            case State.FAILED:
                log = ("get_logs",) if self.has_log else ()
                return tuple(NextStep(tool, here) for tool in ("diagnose", *log, "destroy_vllm"))
            case State.UNKNOWN if self.failure:  # looking again sees no more
                return (NextStep("diagnose", here),)
            case State.EXPIRED:
                again = NextStep("deploy_vllm", {**here, "model": self.model})
                return (again, NextStep("destroy_vllm", here))
            case State.STOPPED:
                return (NextStep("start_vllm", here), NextStep("destroy_vllm", here))
            case State.ASLEEP if self.failure:  # it was scaled to none before it ever answered
                return tuple(NextStep(tool, here) for tool in ("diagnose", "get_logs"))
            case State.ASLEEP:  # it stays so until somebody asks, however long one waits
                return (NextStep("verify_model_health", {**here, "wake": True}), *whole)
            case _:
                return (NextStep("status_vllm", {**here, "wait_s": 30}), *whole)


def moment(at: datetime) -> str:
    """Write a time as people say it, with its day unless that is today."""
    at = at.astimezone(UTC)
    today = at.date() == datetime.now(UTC).date()
    return f"{at:%H:%M} UTC" if today else f"{at:%F %H:%M} UTC"


SIMULATED = (
    "This is a simulated engine: its words and figures are made up; "
    "`make vllm` installs a real one."
)


BY_PURGE: Final = "Call destroy_vllm with purge=true."
"""How what a purge takes is removed, word for word."""


def usd(amount: float) -> str:
    """Write dollars as people do.

    >>> usd(0), usd(6.35), usd(25.0), usd(0.002)
    ('$0', '$6.35', '$25', '$0.002')
    """
    return (
        f"${amount:.2f}".removesuffix(".00") if amount >= 0.01 or not amount else f"${amount:.2g}"
    )


def listed(words: Sequence[str], *, most: int = 4) -> str:
    """Put words in a row, the first few of them.

    >>> listed(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = ", ".join(words[:most])
    return f"{shown} and {len(words) - most} more" if len(words) > most else shown


TINY_MODEL: Final = "tiny-gemma-4"
"""Comes with a vLLM that `make vllm` installed."""


def random_weights(model: str) -> tuple[str, ...]:
    """Return the warning that the tiny model needs, by its folder or its served name."""
    if model.rpartition("/")[2] != TINY_MODEL:
        return ()
    why = f"{TINY_MODEL} has random weights, to try things with: its answers make no sense."
    return (f"{why} Deploy another `model` for real ones.",)


class Remainder(Record):
    """Something that a deletion leaves in place."""

    what: str
    usd_per_month: float
    how_to_remove: str


class Deleted(Answer):
    """What a deletion took away, read back."""

    name: str
    target: str
    gone: bool
    """Seen to be gone, not merely asked to go."""
    removed: tuple[str, ...] = ()
    stays: tuple[Remainder, ...] = ()
    again: Mapping[str, bool] = Field(default={}, exclude=True)
    """What was asked for beside: the next call of the same says it as well."""

    def summary(self) -> str:
        """Say whether it is gone."""
        if not self.gone:
            return f"{self.name} on {self.target} is being deleted."
        head = f"{self.name} on {self.target}"
        gone = f"is gone: {', '.join(self.removed)}" if self.removed else "was already gone"
        if not self.paid:
            return f"{head} {gone}."
        what = "; ".join(one.what for one in self.paid)
        total = sum(one.usd_per_month for one in self.paid)
        how = " ".join(dict.fromkeys(one.how_to_remove for one in self.paid))
        if self._purge_helps:
            how = (
                f"destroy_vllm(target='{self.target}', name='{self.name}', purge=True) removes it."
            )
        return f"{head} {gone}. {usd(total)} a month stays: {what}. {how}"

    @property
    def _purge_helps(self) -> bool:
        """Whether something bills that a purge takes, and nothing else keeps it in place."""
        first = any(one.how_to_remove.endswith(f" {BY_PURGE}") for one in self.stays)
        return not first and any(one.how_to_remove == BY_PURGE for one in self.paid)

    @property
    def paid(self) -> tuple[Remainder, ...]:
        """Return what stays and bills a cent a month or more."""
        return tuple(one for one in self.stays if one.usd_per_month >= 0.01)

    def next_steps(self) -> tuple[NextStep, ...]:
        """Offer the proof, or the wait."""
        here = {"target": self.target, "name": self.name}
        if not self.gone:
            return (NextStep("destroy_vllm", {**here, **self.again}),)
        purge = (NextStep("destroy_vllm", {**here, "purge": True}),) if self._purge_helps else ()
        return (*purge, NextStep("list_deployments"))


class Access(Record):
    """Where the model answers, and what to show it; valid for at least five minutes."""

    base_url: str
    """Without /v1 and without a slash at the end; `unix:PATH` for a unix socket."""
    api_key: SecretStr | None = None
    """The engine's own."""
    identity_token: SecretStr | None = None
    """Of whoever asks, where the platform wants to know that as well."""
    certificate: str | None = None
    """Of a server that signs for itself, as PEM: the only one to be trusted for this address."""
    certificate_command: str = ""
    """For a person's own curl: a shell command that prints that certificate."""
    header_commands: Mapping[str, str] = {}
    """For a person's own curl: shell commands that print what follows `Bearer` in a header."""
    protection: str
    """How it is protected, and what stays open, in one sentence."""

    @property
    def socket(self) -> str | None:
        """Return the path of the unix socket through which it is asked."""
        return socket_of(self.base_url)

    @property
    def http_url(self) -> str:
        """Return what an HTTP client asks, through the socket where there is one."""
        return HTTP if self.socket else self.base_url

    @property
    def headers(self) -> dict[str, str]:
        """What every request must carry; Cloud Run reads the second one and leaves the first."""
        given = {KEY_HEADER: self.api_key, IDENTITY_HEADER: self.identity_token}
        return {
            name: f"Bearer {secret.get_secret_value()}" for name, secret in given.items() if secret
        }


def expiry(created_at: datetime, ttl_minutes: int | None) -> datetime | None:
    """When a deployment's time is over."""
    return created_at + timedelta(minutes=ttl_minutes) if ttl_minutes else None


def lease_minutes(spec: DeploymentSpec, usd_per_hour: float | None) -> int | None:
    """Return the minutes after which a deployment ends, by its ttl and by what it may cost.

    >>> one = DeploymentSpec(name="a", model="b", ttl_minutes=90, max_usd=2, max_replicas=2)
    >>> lease_minutes(one, 0.5), lease_minutes(one, 1.0), lease_minutes(one, 0)
    (90, 60, 90)

    Raises:
        InvalidArgument: The price is not known, or the money buys no minute.
    """
    bounds = (spec.ttl_minutes or None, paid_minutes(spec, usd_per_hour))
    return min((one for one in bounds if one is not None), default=None)


def paid_minutes(spec: DeploymentSpec, usd_per_hour: float | None) -> int | None:
    """Return the whole minutes that `max_usd` buys, all replicas running all the time.

    What buys more than `LONGEST_MINUTES` buys so many. None where nothing is billed, or no such
    limit was given. Raises what `lease_minutes` does.
    """
    if spec.max_usd is None or usd_per_hour == 0:
        return None
    if usd_per_hour is None:
        raise InvalidArgument(
            "max_usd cannot be kept: nobody has said what it costs.",
            fix="Give ttl_minutes instead.",
        )
    bought = 60 * spec.max_usd / (usd_per_hour * max(1, spec.max_replicas))
    minutes = math.floor(min(bought, LONGEST_MINUTES))
    if minutes < 1:
        raise InvalidArgument(
            f"max_usd {spec.max_usd:g} buys less than a minute of {spec.max_replicas} replica(s)"
            f" at {usd(usd_per_hour)} an hour each.",
            fix="Give more, or fewer max_replicas.",
        )
    return minutes


def lease_words(
    spec: DeploymentSpec, usd_per_hour: float | None, begins: str = "it is deployed"
) -> str:
    """Say how long after what it ends, and that money says so; nothing where it does not end.

    >>> one = DeploymentSpec(name="a", model="b", ttl_minutes=90, max_usd=2)
    >>> lease_words(one, 1.0)
    '90 minutes after it is deployed, boot included'
    >>> lease_words(one, 4.0)
    '30 minutes after it is deployed, boot included, when it may have cost $2'
    >>> lease_words(DeploymentSpec(name="a", model="b", max_usd=20_000), 1.0)
    '8736 h after it is deployed, boot included'
    """
    minutes = lease_minutes(spec, usd_per_hour)
    if minutes is None:
        return ""
    time = f"{minutes} minutes" if minutes % 60 else f"{minutes // 60} h"
    time += f" after {begins}, boot included"
    paid = paid_minutes(spec, usd_per_hour)
    money = spec.max_usd is not None and minutes == paid and minutes < LONGEST_MINUTES
    return f"{time}, when it may have cost {usd(spec.max_usd)}" if money and spec.max_usd else time


WEEKS_A_MONTH: Final = 730 / 168
"""Of a month as prices count it, of 730 hours."""


def schedule_words(
    spec: DeploymentSpec, usd_per_hour: float | None, highest: float | None = None
) -> str:
    """Say how long a schedule keeps it warm and what that costs; nothing where it has none.

    `highest` is the price an hour of another source, if one says more.

    >>> one = DeploymentSpec(name="a", model="b", schedule="Mon-Fri 08:00-18:00", max_replicas=2)
    >>> schedule_words(one, 1.0)
    'warm Mon-Fri 08:00-18:00: 50 h a week, $50 a week, $217.26 a month'
    >>> schedule_words(one, 1.0, 2.0)
    'warm Mon-Fri 08:00-18:00: 50 h a week, $50 to $100 a week, $217.26 to $434.52 a month'
    """
    if spec.times is None:
        return ""
    hours = spec.times.hours_a_week
    said = f"warm {spec.schedule}: {hours:,.4g} h a week"
    if usd_per_hour is None:
        return said
    weekly = [price * hours * spec.warm_replicas for price in (usd_per_hour, highest or 0)]
    for period, weeks in (("week", 1.0), ("month", WEEKS_A_MONTH)):
        least, most = (usd(weeks * bill) for bill in (weekly[0], max(weekly)))
        said += f", {least if least == most else f'{least} to {most}'} a {period}"
    return said


class PlannedStep(Record):
    """One change that applying a plan would make, three ways."""

    what: str
    request: dict[str, Any]
    """As the platform is asked."""
    command: str
    """As a person would type it."""


class Check(Record):
    """One thing looked at before anything is made."""

    what: str
    outcome: Literal["pass", "fail", "unknown"]
    detail: str
    fix: str = ""


class Preflight(Record):
    """Everything looked at before anything is made."""

    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """What would make the deployment fail."""
        return tuple(check for check in self.checks if check.outcome == "fail")


class Gib(Record):
    """An amount of memory, in GiB, as far as it can be foreseen."""

    low: float
    expected: float
    high: float


class MemoryPart(Record):
    """One thing that takes accelerator memory."""

    name: str
    gib: Gib


class KvPlan(Record):
    """A KV cache of a given size, divided as vLLM divides it."""

    kv_cache_bytes: int
    """On one accelerator; on TPUs, of all of them together."""
    num_blocks: int
    block_size: int
    """Tokens of one block, before vLLM lengthens those of layers with small pages."""
    bytes_per_block: int
    blocks_per_request: int
    """That a request of full length holds."""
    kv_tokens: int
    """As vLLM logs it: concurrency times length."""
    max_concurrency: float
    """Requests of full length that fit at once."""
    max_len_that_fits: int
    """The longest single request, in tokens; 0 if not even one token fits."""
    fits: bool
    """One request of full length fits, beside the block that vLLM keeps for itself."""


class MemoryPlan(Record):
    """Whether a model fits, and what would be left for its KV cache, on each accelerator."""

    model: str
    accelerator: str
    count: int
    vllm_version: str
    """The profile that was reckoned with."""
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    visible_gib: float | None
    """None is not known."""
    requested_gib: float | None
    free_gib: float | None
    """Of what is visible, when vLLM begins."""
    weights_gib: float
    load_peak_gib: float
    kv_cache_gib: Gib
    """On each accelerator; of TPU chips, on all together."""
    kv_is_shared: bool = False
    """The cache's figures are of all accelerators together."""
    parts: tuple[MemoryPart, ...]
    """What is not KV cache, in the order in which it is taken; offloaded weights are among it."""
    kv_low: KvPlan
    kv_expected: KvPlan
    kv_high: KvPlan
    fits: bool
    """Judged on the low estimate."""
    reasons: tuple[str, ...] = ()
    """Why it does not fit."""
    warnings: tuple[str, ...] = ()
    derivation: tuple[str, ...]


class Plan(Record):
    """What applying a spec would do; nothing has been done yet."""

    spec: DeploymentSpec
    target: Target
    model: ModelShape
    steps: tuple[PlannedStep, ...]
    usd_per_hour: float | None = None
    """Of one running replica as planned; None where nobody has said."""
    usd_per_hour_highest: float | None = None
    """By the dearest source, where the price goes by region and the region is not known yet."""
    memory: MemoryPlan | None = None
    """None where model or accelerator are not known well enough to foresee it."""
    warnings: tuple[str, ...] = ()
