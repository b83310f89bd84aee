"""The nouns: closed, immutable records that every room speaks in."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from pydantic import Field, SecretStr, ValidationError

from core.address import HTTP, socket_of
from core.errors import InvalidArgument, NextStep
from core.headers import IDENTITY_HEADER, KEY_HEADER
from core.record import Record as Record  # noqa: PLC0414  said here too
from core.shape import ModelShape as ModelShape  # noqa: PLC0414  said here too
from core.spec import NAME_PATTERN as NAME_PATTERN  # noqa: PLC0414  said here too
from core.spec import DeploymentName as DeploymentName  # noqa: PLC0414  said here too
from core.spec import DeploymentSpec as DeploymentSpec  # noqa: PLC0414  said here too
from core.spec import Word as Word  # noqa: PLC0414  said here too

R = TypeVar("R", bound=Record)


def valid(kind: type[R], values: Mapping[str, Any]) -> R:
    """Make a record of what a person said.

    Raises:
        InvalidArgument: A value cannot be what it is.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as exc:
        rows = exc.errors(include_url=False)
        words = "; ".join(f"{'.'.join(map(str, row['loc']))}: {_said(row)}" for row in rows)
        raise InvalidArgument(f"That cannot be: {words}.", fix="Correct the value.") from exc


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


class Step(Record):
    """A tool that helps, and how to call it; target and name are those of the deployment."""

    tool: str
    arguments: Mapping[str, str | int | float | bool] = {}


class Failure(Record):
    """Why a deployment does not run."""

    code: str
    cause: str
    fix: str
    next: tuple[Step, ...] = ()
    """Tools that do what `fix` says."""
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
    created_at: datetime
    expires_at: datetime | None = None
    """When its ttl ends."""
    usd_per_hour: float | None = None
    usd_so_far: float | None = None
    failure: Failure | None = None
    resources: Mapping[str, str] = {}
    """What stands behind it at its provider, in the provider's own words."""
    prediction: str | None = None
    """Its memory as the engine says it, against the plan; once it is ready."""

    @property
    def runs(self) -> bool:
        """Whether something of it runs now, or is about to."""
        return self.replicas > 0 or self.state in {State.CREATING, State.LOADING, State.READY}

    @property
    def usd_per_hour_now(self) -> float | None:
        """Return what all running replicas cost together; None where nobody has said."""
        if not self.replicas:
            return 0.0
        return None if self.usd_per_hour is None else round(self.usd_per_hour * self.replicas, 4)

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
            return f"{head}: {self.phase.name}{percent}{detail}.{self.phase.takes}"
        if self.state is State.STOPPED:
            return f"{head}: no request wakes it, start_vllm does."
        if self.state is State.ASLEEP:
            price = f" at {usd(self.usd_per_hour)} an hour" if self.usd_per_hour else ""
            return f"{head}: nothing runs and nothing is billed; a question wakes it{price}."
        where = f": {self.served_model_name} at {self.url}" if self.url else ""
        if self.state is not State.READY:
            return f"{head}{where}."
        bill = f", {usd(self.usd_per_hour_now)} an hour" if self.usd_per_hour_now else ""
        used = f"; {self.last_used}" if self.last_used else ""
        return f"{head}{where}; {self._running}{bill}, since {moment(self.since)}{used}."

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
        scales = {"min_replicas", "max_replicas", "last_used", "awake_until"}
        costs = {"usd_per_hour", "usd_so_far", "expires_at", "prediction"}
        waits = {"name", "percent", "detail", "usual_seconds"}
        return {
            **self.model_dump(mode="json", include=shown | scales | costs),
            "memory": self.resources.get("memory"),
            "phase": self.phase.model_dump(include=waits) if self.phase else None,
            "failure": self.failure.model_dump(include={"code", "fix"}) if self.failure else None,
        }

    def warnings(self) -> tuple[str, ...]:
        """Warn of what is not real, and of what should have been stopped."""
        said = (SIMULATED,) if self.simulated else random_weights(self.model)
        if self.expires_at is None or not self.state.settled or self.state.ended:
            return said
        late = f"{self.name} is overdue since {self.expires_at:%F %H:%M} UTC."
        return (*said, late) if self.expires_at < datetime.now(UTC) else said

    def next_steps(self) -> tuple[NextStep, ...]:
        """Name the tool that helps in this state."""
        here = {"target": self.target, "name": self.name}
        match self.state:
            case State.READY:
                return (NextStep("query_gemma4", {**here, "prompt": "What is Gemma?"}),)
            case State.FAILED:
                helping = ("diagnose", "get_logs", "destroy_vllm")
                return tuple(NextStep(tool, here) for tool in helping)
            case State.EXPIRED:
                again = NextStep("deploy_vllm", {**here, "model": self.model})
                return (again, NextStep("destroy_vllm", here))
            case State.STOPPED:
                return (NextStep("start_vllm", here), NextStep("destroy_vllm", here))
            case _:
                return (NextStep("status_vllm", {**here, "wait_s": 30}),)


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
            return (NextStep("destroy_vllm", here),)
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
