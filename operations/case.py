"""One deployment while it is being diagnosed: what is known of it, and what is to be called."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

import anyio
from pydantic import Field

from backends.base import RemembersSpec, SetsUp
from backends.endpoint import NAME as ENDPOINT
from core import waiting
from core.endpoint import Endpoint
from core.environment import read_toml
from core.errors import (
    Ambiguous,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    OpsError,
    TargetNotFound,
    WaitedTooLong,
)
from core.metrics import EngineMetrics
from core.records import Answer, Deployment, DeploymentSpec, Failure, Record, State
from core.redaction import shortened
from logs.failures import WRITERS, Finding, Writer, catalogue
from operations.deployments import after_its_log, to_restart, with_usual
from operations.resolve import Found, find
from operations.runtime import Runtime

Layer = Literal[
    "settings and login",
    "cloud resource",
    "revision or VM",
    "container",
    "engine boot",
    "health",
    "metrics",
    "model answers",
    "recent logs",
    "cost",
]
LAYERS: Final[tuple[Layer, ...]] = get_args(Layer)
"""In the order of the walk: each stands on those before it."""

Verdict = Literal["healthy", "failed", "skipped"]

MOST_EVIDENCE: Final = 12
MOST_CHARACTERS: Final = 400
"""Of one piece of evidence."""


_FEW: Final = 3
"""Of a kind, in an answer that was not asked for in full."""


class Evidence(Record):
    """One thing that was seen."""

    kind: Literal["line", "condition", "number"]
    """A line of a log, what a platform or server says of itself, or a figure."""
    text: str = Field(max_length=MOST_CHARACTERS)
    at: datetime | None = None
    """When it was so; None where nobody says."""


class LookedAt(Record):
    """One layer, as it was found."""

    layer: Layer
    verdict: Verdict
    detail: str
    """What was looked at; of a skipped one, why it was not."""


class Remark(Record):
    """What is worth knowing and does not make a deployment unhealthy."""

    code: str
    text: str
    count: int = 1
    first: datetime | None = None
    last: datetime | None = None


class Diagnosis(Answer):
    """The first layer that is unhealthy, and why; or what was found healthy."""

    target: str
    name: str | None
    """None where none was named and its target cannot be looked at."""
    healthy: bool
    """No layer is unhealthy."""
    layer: Layer | None = None
    """The one at fault."""
    code: str | None = None
    cause: str | None = None
    """Of a healthy one, what there is to know of its state."""
    fix: str | None = None
    evidence: tuple[Evidence, ...] = Field(default=(), max_length=MOST_EVIDENCE)
    remarks: tuple[Remark, ...] = ()
    looked_at: tuple[LookedAt, ...]
    """In the order of the walk; what comes after the layer at fault was not looked at."""
    next: tuple[NextStep, ...] = ()
    """Tools that do what `fix` says, with target and name filled in."""
    usd_per_hour: float | None = None
    """Of one running replica."""
    usd_so_far: float | None = None

    def summary(self) -> str:
        where = f"{self.name} on {self.target}" if self.name else self.target
        if not self.healthy:
            return f"{where} is unhealthy ({self.layer}): {self.cause}"
        seen = ", ".join(row.layer for row in self.looked_at if row.verdict == "healthy")
        well = f"Nothing wrong with {where}."
        if self.cause:  # it does not answer, and is not at fault
            well = f"{where}: {self.cause[0].lower()}{self.cause[1:]}"
        return f"{well} Looked at: {seen or 'nothing'}."

    def facts(self) -> Mapping[str, Any]:
        skipped = [
            f"{row.layer}: {row.detail}" for row in self.looked_at if row.verdict != "healthy"
        ]
        return {
            "healthy": self.healthy,
            "code": self.code,
            "fix": self.fix,
            "evidence": [shortened(one.text.strip(), 240) for one in self.evidence[:_FEW]],
            "remarks": [shortened(f"{one.code}: {one.text}", 240) for one in self.remarks[:_FEW]],
            "not_looked_at": [shortened(row, 240) for row in skipped if self.healthy][:_FEW],
            "usd_per_hour": self.usd_per_hour,
            "usd_so_far": self.usd_so_far,
        }

    def next_steps(self) -> tuple[NextStep, ...]:
        return self.next


_CODES: Final[Mapping[Layer, str]] = {
    "settings and login": "ADDRESS_NOT_ALLOWED API_DISABLED API_NOT_ENABLED BILLING_MISSING"
    " CALLER_NOT_ALLOWED NOT_AUTHENTICATED NOT_CONFIGURED PERMISSION_DENIED UNAUTHORIZED",
    "cloud resource": "CLOUD_ERROR CLOUD_REFUSED CLOUD_TIMEOUT CLOUD_UNAVAILABLE CONCURRENT_CHANGE"
    " PROFILE_REFUSED GPU_HOST_NOT_ASSIGNED HOST_ERROR INTERRUPTED NOT_OURS NO_CAPACITY"
    " QUOTA_EXCEEDED TOO_MANY_REVISIONS ZONE_REFUSED",
    "container": "CRASH_LOOP ENGINE_GONE KILLED NEVER_STARTED NOT_STARTED OUT_OF_HOST_MEMORY"
    " PROBE_REFUSED STARTUP_PROBE_FAILED",
    "engine boot": "BOOT_CUT_OFF BOOT_FAILED ENGINE_EXITED UNKNOWN_CAUSE",
}
_LAYER_OF: Final = {code: layer for layer, codes in _CODES.items() for code in codes.split()}
_VAGUE: Final = frozenset(
    (
        *("BOOT_CUT_OFF", "BOOT_FAILED", "CRASH_LOOP", "ENGINE_CORE_DIED", "ENGINE_EXITED"),
        *("ENGINE_GONE", "KILLED", "NEVER_STARTED", "PROGRESS_DEADLINE", "REVISION_FAILED"),
        *("ROLLOUT_FAILED", "STARTUP_PROBE_FAILED", "UNHEALTHY", "UNKNOWN_CAUSE"),
    )
)
"""They say that it ended, not why: the log may know more."""
_BEFORE_BOOT: Final = ("COMPOSE_", "CONTAINER_", "IMAGE_", "REGISTRY_", "SECRET_", "VOLUME_")
"""Who starts the container says these: the engine never began."""


def is_vague(code: str) -> bool:
    """Whether a code says that it ended and not why, so that the log is asked."""
    return code in _VAGUE or code in _codes("engine") - _codes("engine", "cause")


def is_cause(finding: Finding) -> bool:
    """Whether a line of a log says why something ended, and not just that, or how it went."""
    code = finding.failure.code
    return code in _codes(finding.writer, "cause") and not is_vague(code)


def is_end(finding: Finding) -> bool:
    """Whether a line says that something ended, and not why."""
    return finding.failure.code in _codes(finding.writer, "result", "end")


@cache
def _codes(writer: Writer, *ranks: str) -> frozenset[str]:
    return frozenset(one.code for one in catalogue(writer) if not ranks or one.rank in ranks)


def layer_of(code: str, deployment: Deployment, *, cloud: bool) -> Layer | None:
    """Give the layer that is at fault, None where only asking its server tells."""
    named = _LAYER_OF.get(code)
    if named in {"settings and login", "cloud resource"}:
        return named
    if deployment.state is State.UNKNOWN:  # it has booted before, or is somebody else's
        if code.startswith("ENDPOINT_") or code in {"UNHEALTHY", "BAD_REPLY", "NO_MODEL"}:
            return None
        if code in _codes("engine"):
            return "health"
        return "revision or VM" if cloud else None
    if named or (code in _codes("engine") and not code.startswith(_BEFORE_BOOT)):
        return named or "engine boot"
    return "revision or VM" if cloud else "engine boot"


_TAKES: Final[Mapping[str, str]] = {
    "check_gpu_quotas": "target",
    "compare_targets": "models",
    "deploy_vllm": "target name model",
    "get_help": "",
    "get_huggingface_model_copy_instructions": "target model",
    "get_zones_with_available_quota": "target",
    "list_deployments": "target",
    "list_models": "",
    "list_queued_resources": "target",
    "list_targets": "",
    "plan_deployment": "target model",
    "recommend_deployment": "model",
    "save_hf_token": "target",
    "setup_target": "target",
    "update_vllm_scaling": "target name min_replicas max_replicas",
}
"""What each that a failure names takes of a deployment; all others take target and name."""
_OF_OURS: Final = frozenset(
    ("deploy_vllm", "destroy_vllm", "start_vllm", "stop_vllm", "update_vllm_scaling", "get_logs")
)
"""What can be done with a deployment from here, and with no endpoint of the owner's own."""
OF_A_SPEC: Final = frozenset(("deploy_vllm", "update_vllm_scaling"))
"""What is called with what was asked for before."""
_MOST: Final = 4


_FLAG: Final = re.compile(r"--[a-zA-Z][\w-]*")


def calls(
    steps: Sequence[NextStep],
    now: Deployment,
    spec: DeploymentSpec | None = None,
    failure: Failure | None = None,
) -> tuple[NextStep, ...]:
    """Fill target, name and model in; what is somebody else's has neither changes nor a log."""
    once: dict[str, NextStep] = {}
    refused = failure if failure and failure.code == "BAD_ENGINE_ARGUMENT" else None
    for step in steps:
        if now.target == ENDPOINT and step.tool in _OF_OURS:
            continue
        made: NextStep | None = _filled(step, now, spec)
        if made and refused and spec and step == NextStep("deploy_vllm"):
            made = _without_flags(made, refused.cause)
        if made:
            once.setdefault(step.tool, made)
    return tuple(once.values())[:_MOST]


def _filled(step: NextStep, now: Deployment, spec: DeploymentSpec | None) -> NextStep:
    known: dict[str, Any] = {"target": now.target, "name": now.name}
    if now.model != "not known":
        known |= {"model": now.model, "models": (now.model,)}
    if spec:
        more = 0 if step.arguments else 1  # what names no number asks for one replica more
        known |= {"min_replicas": spec.min_replicas, "max_replicas": spec.max_replicas + more}
    takes = _TAKES.get(step.tool, "target name").split()
    given = {name: word for name, word in known.items() if name in takes}
    if step.tool == "deploy_vllm" and spec:
        # The same again: what a call leaves out would be the default, not what it was.
        given |= spec.model_dump(exclude_defaults=True, exclude={"name", "model"})
    filled = {**given, **step.arguments}
    return NextStep(step.tool, {k: said for k, said in filled.items() if said != ""})


def _without_flags(step: NextStep, refusal: str) -> NextStep | None:
    """Leave out the flags that the engine names, else all of `engine_args`; None without either."""
    given, named = dict(step.arguments), set(_FLAG.findall(refusal))
    reset = [name for name in given if f"--{name.replace('_', '-')}" in named]
    words, left, dropped = given.get("engine_args", ()), [], False
    for word in words:
        if _FLAG.match(word):
            dropped = word.partition("=")[0] in named
        if not dropped:
            left.append(word)
    if words and not reset:
        if 0 < len(left) < len(words):
            return NextStep(step.tool, {**given, "engine_args": tuple(left)})
        reset = ["engine_args"]
    kept = {name: said for name, said in given.items() if name not in reset}
    return NextStep(step.tool, {**kept, "reset": tuple(reset)}) if reset else None


FIRST_ANSWER_SECONDS: Final = 120.0
"""For this long a server that is up may be silent: addresses and first requests need time."""
_SILENT: Final = frozenset({"ENDPOINT_UNREACHABLE", "NOT_READY", "THROTTLED"})
_NOT_YET: Final[Mapping[State, str]] = {
    State.QUEUED: "it has no machine yet",
    State.CREATING: "it is still being made",
    State.LOADING: "its model is still being loaded",
    State.ASLEEP: "it sleeps, and asking would wake it",
    State.STOPPING: "it is being stopped",
    State.STOPPED: "it is stopped",
    State.EXPIRED: "its time is over",
    State.FAILED: "it does not run",
    State.DELETING: "it is being deleted",
}


class Looked(NamedTuple):
    """What one layer came to."""

    verdict: Verdict
    detail: str
    failure: Failure | None = None
    """Of an unhealthy one."""
    evidence: tuple[Evidence, ...] = ()
    remarks: tuple[Remark, ...] = ()
    next: tuple[NextStep, ...] = ()
    """Of a healthy one, what there is to do all the same."""


Fault = tuple[Layer, Looked]


class Case:
    """What each layer is given."""

    def __init__(self, runtime: Runtime, found: Found, *, ends: float) -> None:
        """Begin; `ends` is on anyio's clock, in seconds."""
        self.runtime: Final = runtime
        self.backend: Final = found.backend
        self.deployment: Final[Deployment] = with_usual(runtime, found.deployment)
        self.found: Final = found
        self.now: Final = datetime.now(UTC)
        self.fault: Fault | None = None
        """What the platform, or the log, says is wrong before anything was asked."""
        self.seen: EngineMetrics | None = None
        """The newest look at the metrics."""
        self._ends = ends
        self._spec: list[DeploymentSpec | None] = []

    @property
    def left(self) -> float:
        """Seconds until the diagnosis must be told."""
        return max(0.0, self._ends - anyio.current_time())

    @property
    def writer(self) -> Writer | None:
        """Whose words the platform's lines are; None where only the engine writes."""
        kind = self.backend.target.backend
        return next((one for one in WRITERS if one == kind), None)

    @property
    def silent(self) -> str | None:
        """Why nothing is asked of its server now; None where it must answer."""
        now = self.deployment
        if now.state is State.LOADING and now.failure:
            fresh = self.for_seconds < FIRST_ANSWER_SECONDS
            new = now.failure.code in _SILENT and fresh
            return "its server was started and has not answered yet" if new else None
        if now.state is State.READY and now.url is None:
            return "it has no address that is reached from here"
        return _NOT_YET.get(now.state)

    @property
    def since(self) -> datetime:
        """When its phase began, or its state."""
        phase = self.deployment.phase
        return phase.since if phase else self.deployment.since

    @property
    def for_seconds(self) -> float:
        """How long it has been in its phase, or in its state."""
        return max(0.0, (self.now - self.since).total_seconds())

    async def spec(self) -> DeploymentSpec | None:
        """Give what was asked for, None where nobody knows it."""
        if not self._spec:
            spec = None
            if isinstance(self.backend, RemembersSpec):
                with suppress(OpsError):  # its layer has said so, and nothing else needs it
                    spec = await self.backend.spec(self.found.name)
            self._spec.append(spec)
        return self._spec[0]

    def endpoint(self, *, timeout: float) -> AbstractAsyncContextManager[Endpoint]:
        """Open its endpoint; `timeout` is of a look, in seconds."""
        return self.runtime.endpoint(self.backend, self.found.name, timeout=timeout)


_ILLS: Final = Path(__file__).with_name("diagnosis.toml")


def ills() -> Mapping[str, Mapping[str, Any]]:
    """Return what can be found by looking, by code."""
    return read_toml(_ILLS)


def ill(code: str, case: "Case | None" = None, **said: Any) -> Failure:
    """Return a failure that was found by looking, with what was seen filled in."""
    row, steps = ills()[code], dict[str, tuple[NextStep, ...]]()
    if case:
        remedy = to_restart(case.backend)
        said |= {"anew": remedy.words, "again": after_its_log(case.backend)}
        steps = {"anew": remedy.steps, "restarts": restarts(case)}
    found = (steps[one] if one in steps else (_step(one),) for one in row.get("next", ()))
    return Failure(
        code=row.get("code", code),
        cause=row["cause"].format(**said),
        fix=row["fix"].format(**said),
        next=tuple(step for several in found for step in several),
    )


def restarts(case: "Case") -> tuple[NextStep, ...]:
    """Return what `after_its_log` says as calls; what is somebody else's has none."""
    steps = to_restart(case.backend).steps
    return (NextStep("get_logs"), *steps) if steps else ()


def _step(words: str) -> NextStep:
    tool, *pairs = words.split()
    given = dict(pair.split("=") for pair in pairs)
    return NextStep(tool, {k: int(w) if w.isdigit() else w for k, w in given.items()})


def healthy(
    detail: str, *, remarks: Sequence[Remark] = (), steps: Sequence[NextStep] = ()
) -> Looked:
    """Say that a layer is healthy, and what was seen."""
    return Looked("healthy", detail, remarks=tuple(remarks), next=tuple(steps))


def skipped(why: str) -> Looked:
    """Say why a layer was not looked at."""
    return Looked("skipped", why)


def failed(failure: Failure, *evidence: Evidence) -> Looked:
    """Say that a layer is at fault."""
    return Looked("failed", failure.cause, failure, evidence)


def condition(text: str, at: datetime | None = None) -> Evidence:
    """Quote what a platform or a server says of itself."""
    return Evidence(kind="condition", text=text[:MOST_CHARACTERS], at=at)


def number(text: str, at: datetime | None = None) -> Evidence:
    """Quote a figure with its name."""
    return Evidence(kind="number", text=text[:MOST_CHARACTERS], at=at)


def lines(texts: Sequence[str], at: datetime | None = None) -> tuple[Evidence, ...]:
    """Quote lines of a log."""
    return tuple(Evidence(kind="line", text=text[:MOST_CHARACTERS], at=at) for text in texts)


def lasting(seconds: float) -> str:
    """Say a time as a person does.

    >>> lasting(50), lasting(250), lasting(9000)
    ('50 s', '4 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def ago(case: Case, **much: float) -> datetime:
    """Give a moment before the diagnosis began, no earlier than the deployment was made."""
    return max(case.deployment.created_at, case.now - timedelta(**much))


FIND_SECONDS: Final = 26.0
"""An engine that hangs keeps a look at it for 25 s: five for /health, twenty for one token."""


async def find_deployment(
    runtime: Runtime, target: str | None, name: str | None
) -> Found | Diagnosis:
    """Give the deployment, or the diagnosis where it ends there.

    Raises:
        InvalidArgument: The name cannot be one.
        TargetNotFound: The target is not configured.
        DeploymentNotFound: Every target that could have it answered, and none has.
        Ambiguous: Several deployments fit; the message lists them.
    """
    where = target or runtime.settings.vllm_target or "every target"
    limit = waiting.limit(FIND_SECONDS)
    with anyio.move_on_after(limit):
        try:
            return await find(runtime.stage, target, name)
        except (DeploymentNotFound, InvalidArgument, Ambiguous, TargetNotFound):
            raise
        except OpsError as exc:
            return _unseen(runtime, where, name, exc)
    slow = WaitedTooLong(
        f"{where} did not say within {limit:.0f} s what it runs.",
        fix="Call diagnose again with target and name; its cloud or its engine may hang.",
    )
    return _unseen(runtime, where, name, slow)


def _unseen(runtime: Runtime, where: str, name: str | None, exc: OpsError) -> Diagnosis:
    """Tell of one that could not even be found why not."""
    login = _LAYER_OF.get(exc.code) == "settings and login"
    layer: Layer = "settings and login" if login else "cloud resource"
    before = LAYERS[: LAYERS.index(layer)]
    next_steps = exc.next_steps or (NextStep("list_targets"),)
    off = exc.code == "API_DISABLED" and not exc.next_steps and where in runtime.stage.targets
    if off and isinstance(runtime.stage.backend(where), SetsUp):
        next_steps = (NextStep("setup_target", {"target": where}),)  # it has not been set up
    return Diagnosis(
        target=where,
        name=name,
        healthy=False,
        layer=layer,
        code=exc.code,
        cause=f"{exc.summary} {exc.cause}".strip(),
        fix=exc.fix,
        evidence=(condition(f"{exc.code}: {exc.summary}"),),
        looked_at=(
            *(LookedAt(layer=one, verdict="healthy", detail="It answered.") for one in before),
            LookedAt(layer=layer, verdict="failed", detail=exc.summary),
        ),
        next=tuple(next_steps),
    )
