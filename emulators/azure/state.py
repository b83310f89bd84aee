"""Everything the simulated cloud knows: subscriptions and what is in them."""

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from anyio.abc import TaskGroup

from core.rehearsal import AzurePlane
from emulators.azure.kept import Kept, LogRow, Operation, Replica, Secret, Vault
from emulators.azure.knobs import Knobs
from emulators.azure.loganalytics_said import Said
from emulators.common.nursery import Nursery

__all__ = ["LogRow", "Operation", "Replica", "Secret", "Subscription", "Vault", "World", "id_of"]

_LOG_ROWS: Final = 5000
"""How many a subscription keeps."""
CALLS: Final = 5000
_OWN: Final = uuid.UUID("5f0c1c55-6c1e-4c3c-9b5f-8f0a5f6f1f00")
"""What ids are derived from."""


def id_of(*words: str) -> str:
    """Give the id that something always has."""
    return str(uuid.uuid5(_OWN, "/".join(words).lower()))


class Subscription(Kept):
    """One subscription; a fresh one is bare."""

    id: str
    knobs: Knobs = Knobs()
    providers: dict[str, float] = {}
    """When each registration takes effect, by namespace in lower case."""
    resources: dict[str, dict[str, Any]] = {}
    """ARM's body of each resource, secrets included, by its id in lower case."""
    operations: dict[str, Operation] = {}
    """By id."""
    vaults: dict[str, Vault] = {}
    """By name, in lower case."""
    kept: dict[str, Any] = {}
    """What other parts remember, by their own names: JSON only."""
    log: list[LogRow] = []
    replicas: list[Replica] = []
    """Every one that there ever was."""
    role_effects: dict[str, float] = {}
    """When a role assignment takes effect, by its id in lower case."""
    tokens: dict[str, float] = {}
    """When a token of getAuthtoken runs out, by the token."""
    doors: dict[str, int] = {}
    """The port of each app's front door, by the app's id in lower case."""
    calls: list[str] = []
    """Such as `PUT Microsoft.App/containerApps`, newest last."""
    needed: list[str] = []
    """Actions that those calls took, newest last."""

    @property
    def tenant(self) -> str:
        """The id of whose it is."""
        return id_of("tenant", self.id)

    @property
    def caller(self) -> str:
        """The object id of whoever calls."""
        named = self.knobs.identity
        try:
            return str(uuid.UUID(named))
        except ValueError:
            return id_of("caller", named or self.id)

    @property
    def caller_name(self) -> str:
        """The name of whoever calls."""
        return self.knobs.identity or f"operator@{self.id[:8]}.example"

    def registered(self, namespace: str) -> bool:
        """Whether a provider may be used."""
        return self.providers.get(namespace.lower(), float("inf")) <= time.time()

    def get(self, resource_id: str) -> dict[str, Any] | None:
        """Give the body of a resource, in whatever letters its id is written."""
        return self.resources.get(resource_id.lower())

    def under(self, resource_id: str) -> list[dict[str, Any]]:
        """Give what is directly in a collection such as `…/managedEnvironments`."""
        prefix = f"{resource_id.lower()}/"
        return [
            body
            for name, body in self.resources.items()
            if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
        ]

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        """Give every resource of a type such as Microsoft.App/containerApps."""
        return [
            body
            for body in self.resources.values()
            if str(body.get("type", "")).lower() == kind.lower()
        ]

    def living(self, app: str = "", revision: str = "") -> list[Replica]:
        """Give the replicas that are there, of one app (its id) or of all."""
        return [
            one
            for one in self.replicas
            if one.living
            and app.lower() in {"", one.app}
            and (not revision or one.revision == revision)
        ]

    def append(
        self,
        table: str,
        app: str,
        revision: str,
        replica: str,
        text: str,
        reason: str = "",
        stream: str = "",
        *,
        environment: str = "",
    ) -> LogRow:
        """Write one line of the log, now."""
        row = LogRow(
            number=self.log[-1].number + 1 if self.log else 1,
            at=time.time(),
            table=table,
            app=app,
            revision=revision,
            replica=replica,
            text=text,
            reason=reason,
            stream=stream,
            environment=environment.lower(),
        )
        self.log.append(row)
        del self.log[:-_LOG_ROWS]
        return row

    def called(self, method: str) -> None:
        """Remember a call."""
        self.calls.append(method)
        del self.calls[:-CALLS]


@dataclass(slots=True, kw_only=True)
class World:
    """All subscriptions, on the disk and in memory."""

    folder: Path
    tasks: TaskGroup
    """Where whatever goes on by itself is started; it ends with the process."""
    key: bytes
    """What tokens are signed with."""
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    urls: AzurePlane = field(init=False)
    """Where everything listens; known before anything is served."""
    seen: float = field(default_factory=time.monotonic)
    """When the plane was last called, of the monotonic clock."""
    nursery: Nursery = field(default_factory=Nursery)
    said: dict[str, Said] = field(default_factory=dict)
    """Lines that were put into a subscription's log, by its id; never on the disk."""
    live: dict[str, Any] = field(default_factory=dict)
    """What runs for each app, by its id in lower case; never on the disk."""

    def __post_init__(self) -> None:
        self._kept().mkdir(parents=True, exist_ok=True)
        for file in sorted(self._kept().glob("*.json")):
            found = Subscription.model_validate_json(file.read_bytes())
            self.subscriptions[found.id] = found

    def subscription(self, named: str) -> Subscription:
        """Give a subscription by its id; every one that is named exists."""
        name = named.lower()
        if name not in self.subscriptions:
            self.subscriptions[name] = Subscription(id=name)
        return self.subscriptions[name]

    def said_in(self, sub: Subscription) -> Said:
        """Give the lines that were put into a subscription's log."""
        return self.said.setdefault(sub.id, Said())

    def keep(self, sub: Subscription) -> None:
        """Write a subscription down, unless it was forgotten meanwhile."""
        if self.subscriptions.get(sub.id) is not sub:
            return
        folder = self._kept()
        part = folder / f".{sub.id}.part"
        part.write_text(sub.model_dump_json(), encoding="utf-8")
        part.replace(folder / f"{sub.id}.json")

    def forget(self, sub: Subscription) -> None:
        """Know nothing of a subscription any more."""
        self.subscriptions.pop(sub.id, None)
        self.said.pop(sub.id, None)
        (self._kept() / f"{sub.id}.json").unlink(missing_ok=True)

    def touch(self) -> None:
        """Somebody is there."""
        self.seen = time.monotonic()

    def __iter__(self) -> Iterator[Subscription]:
        return iter(tuple(self.subscriptions.values()))

    def _kept(self) -> Path:
        return self.folder / "subscriptions"
