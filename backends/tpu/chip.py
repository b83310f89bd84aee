"""A chip's VM as either control plane tells it, in the same words."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from backends.google.clients import DEPLOYMENT_LABEL, MANAGED_BY, TARGET_LABEL
from core.record import Record

PlaneKind = Literal["queued", "compute"]
Provisioning = Literal["on-demand", "spot", "flex-start"]


class Place(NamedTuple):
    """Where a chip is asked for, and of whom."""

    zone: str
    plane: PlaneKind

    def __str__(self) -> str:
        """As a person says it."""
        return f"{self.zone} ({SAID[self.plane]})"


SAID: Final[Mapping[PlaneKind, str]] = {"queued": "queued resource", "compute": "Compute Engine"}


class ChipState(StrEnum):
    """What a request for a chip, or its VM, does; either plane's words are `Chip.said`."""

    WAITING = "waiting"
    """In the queue: no chip yet, nothing bills."""
    PROVISIONING = "provisioning"
    """A chip was given; its VM is being made."""
    RUNNING = "running"
    """The VM is up, which says nothing of vLLM; it bills."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUSPENDED = "suspended"
    """The chip was taken back: a leftover, which holds quota, or bills a disk, until deleted."""
    FAILED = "failed"
    """The request failed: a leftover as well."""
    DELETING = "deleting"
    UNKNOWN = "unknown"

    @property
    def leftover(self) -> bool:
        """Whether it will never have a chip again, and yet holds quota."""
        return self in {ChipState.SUSPENDED, ChipState.FAILED}


class Chip(Record):
    """One queued resource with its node, or one instance of a TPU machine type."""

    place: Place
    id: str
    """Of the queued resource or the instance."""
    state: ChipState
    said: str
    """The plane's own word, such as WAITING_FOR_RESOURCES or RUNNING."""
    node: str = ""
    """The node's id, or the instance's."""
    node_said: str = ""
    """The node's own state, such as READY or PREEMPTED; empty where there is none."""
    health: str = ""
    """The node's, in the plane's own word."""
    node_number: str = ""
    """Google's own number of it, by which some of its logs name it; empty where there is none."""
    accelerator: str
    """Such as v6e-4."""
    chips: int
    provisioning: Provisioning
    labels: Mapping[str, str] = {}
    spec_json: str = ""
    """What was asked for, if it was made here."""
    external_ip: str = ""
    internal_ip: str = ""
    created_at: datetime
    """When it was asked for."""
    given_at: datetime | None = None
    """When its VM began to bill, as far as is known."""
    ends_at: datetime | None = None
    """When the cloud itself ends it."""
    why: str = ""
    """Google's words on why it failed or was suspended."""
    taken_by: Literal["", "user", "service"] = ""
    """Who suspended it."""

    @property
    def ours(self) -> bool:
        """Whether it was made here."""
        return self.labels.get("managed-by") == MANAGED_BY

    @property
    def deployment(self) -> str:
        """The deployment that it serves; empty if it was not made here."""
        return self.labels.get(DEPLOYMENT_LABEL, "") if self.ours else ""

    @property
    def target(self) -> str:
        """The target that it was made for."""
        return self.labels.get(TARGET_LABEL, "") if self.ours else ""


class Ended(NamedTuple):
    """Why a VM is there no more."""

    code: Literal["PREEMPTED", "EXPIRED", "DELETED_ELSEWHERE", "NOT_KNOWN"]
    at: datetime | None
    words: str
    """Google's own, as far as there are any."""
