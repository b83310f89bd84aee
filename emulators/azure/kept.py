"""What a subscription remembers beside its resources: log, replicas, operations, secrets."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class LogRow(Kept):
    """One line of a container, or one event of the system."""

    number: int
    at: float
    """Epoch seconds, as are all moments."""
    table: str
    """`console` or `system`."""
    app: str
    """Its name."""
    revision: str
    replica: str
    text: str
    reason: str = ""
    """Of an event, such as AssigningReplica."""
    stream: str = ""
    """stdout or stderr, of a console's line."""
    environment: str = ""
    """The environment's id in lower case."""


class Replica(Kept):
    """One replica of a revision, from its scheduling to its end."""

    name: str
    app: str
    """The app's id in lower case."""
    revision: str
    """The revision's name."""
    profile_type: str
    """Such as Consumption-GPU-NC24-A100."""
    environment: str
    """The environment's id in lower case."""
    region: str = ""
    created: float
    """When it was scheduled: the cooldown's clock begins."""
    assigned: float | None = None
    """When it had a host."""
    billed_from: float | None = None
    ended: float | None = None
    state: str = "NotRunning"
    """Running, NotRunning or Unknown, as the SDK names them."""
    details: str = ""
    """Why, such as AssigningReplica."""
    started: bool = False
    ready: bool = False
    restarts: int = 0

    @property
    def living(self) -> bool:
        """Whether it is there."""
        return self.ended is None

    def exists(self, at: float) -> bool:
        """Whether it was there at that moment."""
        return self.created <= at and (self.ended is None or at < self.ended)

    def billed(self, begin: float, end: float) -> float:
        """Seconds of an interval that are billed."""
        if self.billed_from is None:
            return 0.0
        return max(0.0, min(end, self.ended or end) - max(begin, self.billed_from))


class Operation(Kept):
    """A change that goes on by itself."""

    id: str
    work: str
    """Who goes on with it, also after a restart: a name of `operations.worker`."""
    resource: str
    """The id in lower case of what is changed."""
    path: str
    """Where it is looked up, below Azure Resource Manager."""
    api_version: str
    begun: float
    status: str = "InProgress"
    """InProgress, Succeeded, Failed or Canceled."""
    error: dict[str, Any] | None = None
    error_status: int = 400
    """Of HTTP, where the error is not told in a body with status 200."""
    answer: dict[str, Any] | None = None
    """What is given at its end by a `Location`; None is no content."""
    more: dict[str, Any] = {}
    """What its worker must know."""


class Secret(Kept):
    """One secret of a vault with its versions, newest last."""

    versions: list[dict[str, Any]] = []
    deleted: float | None = None
    """When it was deleted; it can be recovered or purged."""


class Vault(Kept):
    """The contents of a Key Vault."""

    secrets: dict[str, Secret] = {}
    """By name, in lower case."""
