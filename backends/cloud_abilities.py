"""What a cloud can do beyond the contract; having the method is the flag."""

from collections.abc import Sequence
from typing import ClassVar, Protocol, runtime_checkable

from pydantic import SecretStr

from core.record import Record
from core.records import DeploymentSpec


class SetupStep(Record):
    """One thing that a target needs once, before anything can be deployed."""

    what: str
    done: bool
    """Seen to be there."""
    command: str
    """As a person would type it."""
    usd_per_month: float = 0.0
    """While it is there, whether it is used or not."""


class Setup(Record):
    """What a target needs, and how much of it is there."""

    steps: tuple[SetupStep, ...]

    @property
    def missing(self) -> tuple[SetupStep, ...]:
        """What is still to be done."""
        return tuple(step for step in self.steps if not step.done)


@runtime_checkable
class SetsUp(Protocol):
    """Needs things of its own in the cloud, and can make them."""

    async def setup(self) -> Setup:
        """Look at what is there; changes nothing."""

    async def set_up(self) -> Setup:
        """Make what is missing; what comes back was read back. Twice is harmless."""


class Quota(Record):
    """How many accelerators may be used at once."""

    quota: str
    """The provider's own name of it."""
    region: str
    accelerator: str
    limit: float | None
    """Accelerators; None is not known, which is not 0."""
    in_use: float | None = None
    first_grant: int | None = None
    """What the first deployment there is granted, where the limit is not known for want of one."""
    detail: str = ""
    """Why it is not known, or how the figure was read."""


@runtime_checkable
class HasQuotas(Protocol):
    """Is limited by a quota that can be read."""

    async def quotas(self) -> Sequence[Quota]:
        """Give those of the target's accelerator in its region, the one that counts first."""


class KeptSecret(Record):
    """A secret that the cloud keeps; its value is never told."""

    name: str
    version: str
    readable_by: tuple[str, ...]
    """Identities of ours that may read it, as seen."""


@runtime_checkable
class KeepsSecrets(Protocol):
    """Can keep a token where its deployments read it."""

    async def keep_secret(self, name: str, value: SecretStr) -> KeptSecret:
        """Keep a new version, unless the newest is the same; what comes back was read back."""


class StoredModel(Record):
    """A model's files in a bucket."""

    location: str
    """gs://BUCKET/FOLDER or files://SHARE/FOLDER: what `weights` takes."""
    model: str | None
    """As its config names it, where that can be told."""
    files: int
    size_bytes: int
    complete: bool | None
    """Every file that its index names is there with its size; None cannot be told."""
    detail: str = ""
    """What is missing, or why it cannot be told."""
    servable: bool = True
    """Whether a deployment can read it where it lies; if not, `detail` says why."""


@runtime_checkable
class ListsWeights(Protocol):
    """Can look into a bucket for models."""

    async def stored_models(self, bucket: str | None = None) -> Sequence[StoredModel]:
        """Give every folder that holds a model; a bucket left out is that of the settings."""


class Upload(Record):
    """How a person brings a model's folder to where deployments read it."""

    location: str
    """What `weights` takes afterwards."""
    bucket: str
    """Where `stored_models` finds it."""
    steps: tuple[tuple[str, str], ...]
    """What each is for, and the command."""
    notes: tuple[str, ...]


@runtime_checkable
class TakesUploads(Protocol):
    """Reads weights from a place that a person fills by the cloud's own commands."""

    def upload(self, folder: str, here: str, bucket: str | None = None) -> Upload:
        """Say how the folder `here` is copied there, as `folder` where the bucket names none."""


class RegisteredModel(Record):
    """A model of the cloud's registry."""

    name: str
    display_name: str
    version: str
    created_at: str
    artifact: str
    """Where its files are."""


@runtime_checkable
class ListsRegistry(Protocol):
    """Has a registry of models."""

    async def registered_models(self) -> Sequence[RegisteredModel]:
        """Give every model of the project's registry in the target's region."""


@runtime_checkable
class Purges(Protocol):
    """Leaves something behind that was made for one deployment alone."""

    async def purge(self, name: str) -> tuple[str, ...]:
        """Delete that too; names what was seen to go."""


@runtime_checkable
class GoesOn(Protocol):
    """Deploys in several steps, of which the later ones wait for the earlier."""

    waits_in: ClassVar[frozenset[str]]
    """Phases after which there is a next step: only whoever saw one of them may take it."""

    async def go_on(self, name: str) -> None:
        """Take the next step of a deployment if its time has come; else do nothing."""


@runtime_checkable
class RefusesEarly(Protocol):
    """Is paid for, and looks at what stands against a change before anybody agrees to its price.

    Each of these changes nothing, and raises what the change itself would.
    """

    async def refuse_deploy(self, spec: DeploymentSpec) -> None:
        """Refuse a name that somebody else's resource has, or a cloud that lets nobody in."""

    async def refuse_start(self, name: str) -> None:
        """Refuse to start what is not there, or cannot be started again."""

    async def refuse_scale(self, name: str, minimum: int, maximum: int) -> None:
        """Refuse to scale what is not there, or more replicas than there can be."""


@runtime_checkable
class Wakes(Protocol):
    """Sleeps when nobody asks, and is started by whoever does."""

    async def wake(self, name: str) -> None:
        """Ask it, which starts a replica where none runs; returns once the model has answered.

        Raises:
            EndpointError: It was asked and did not answer.
        """


@runtime_checkable
class Closes(Protocol):
    """Holds connections while the server lives."""

    async def aclose(self) -> None:
        """Let go of them."""


@runtime_checkable
class Ends(Protocol):
    """Bills on while it is stopped, or cannot be started again: what is overdue is deleted."""

    async def end(self, name: str) -> str:
        """End an overdue deployment in the way that bills nothing; says what was seen."""


class ZoneQuota(Record):
    """How many accelerators one pool of quota allows in a zone."""

    pool: str
    """The provider's own name of it."""
    control_plane: str
    limit: float | None
    """Accelerators; None is not known, which is not 0."""
    detail: str = ""


class ZoneOutcome(Record):
    """What asking for an accelerator in a zone came to, the last time."""

    control_plane: str
    provisioning: str
    outcome: str
    """GIVEN, or the code of what stood against it."""
    minutes_ago: int
    detail: str = ""


class Zone(Record):
    """One zone, as far as can be seen without asking for an accelerator."""

    zone: str
    hardware: bool | None
    """The zone has the accelerator; None is not known."""
    quotas: tuple[ZoneQuota, ...]
    """Those that count for the target's provisioning model."""
    accepts: bool | None
    """It gives accelerators in this way; None is not known before it is asked."""
    outcomes: tuple[ZoneOutcome, ...] = ()
    """Newest first."""
    verdict: str
    """In one sentence; capacity is known only by asking."""
    usable: bool | None
    """Nothing that can be seen stands against it; None where too little is known."""


@runtime_checkable
class FindsZones(Protocol):
    """Has several zones, of which some may give an accelerator."""

    async def zones(self) -> Sequence[Zone]:
        """Give those that are known, the most promising first."""


class QueuedResource(Record):
    """One request for accelerators, or the VM that came of it."""

    id: str
    zone: str
    control_plane: str
    state: str
    """In the provider's own words."""
    node: str
    """Id and state of its node; empty where there is none."""
    health: str = ""
    accelerator: str
    provisioning: str
    external_ip: str = ""
    created_at: str
    """UTC."""
    ours: bool
    """Made by this project: others are shown, never touched."""
    deployment: str = ""
    target: str = ""
    leftover: bool
    """It will never serve again, and holds quota until it is deleted."""
    why: str = ""


@runtime_checkable
class HasQueue(Protocol):
    """Gives accelerators from a queue."""

    async def queued_resources(self) -> Sequence[QueuedResource]:
        """Give every one of the account, ours and others'."""

    async def delete_leftover(self, zone: str, resource: str) -> bool:
        """Delete one of ours that serves nothing any more; whether it was seen to be gone.

        Raises:
            NotOurs: It was not made here.
            InvalidArgument: It is no leftover: a deployment stands on it.
            NotFound: There is none of that id.
        """
