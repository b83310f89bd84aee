"""A fifth cloud, small and made up: what a backend is when the lifecycle does the rest.

Its machines live in a JSON file, so that a server which is killed finds them again.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from backends.base import World
from backends.container import refuse_length
from backends.lifecycle import (
    Lifecycle,
    Pending,
    PendingStore,
    Resource,
    Status,
    look,
    steps,
)
from core.errors import CloudRefused, ConcurrentChange, DeploymentNotFound, NotReady
from core.records import (
    Access,
    Deployment,
    DeploymentSpec,
    ModelShape,
    Phase,
    Plan,
    Preflight,
    State,
    Target,
)

OURS: Final = "vllm-devops-agent"
TARGET: Final = Target(name="nimbus", backend="nimbus", description="", accelerator="cloud-1")


class Nimbus:
    """The cloud itself: things by kind and name, each with an owner and a state."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.calls: list[str] = []
        self.refuses: set[str] = set()
        """Calls that are refused, such as "put machine"."""
        self.looks_until_ready = 1

    def things(self) -> dict[str, dict[str, Any]]:
        if not self._file.exists():
            return {}
        found: dict[str, dict[str, Any]] = json.loads(self._file.read_text())
        return found

    async def get(self, kind: str, name: str) -> dict[str, Any] | None:
        things = self.things()
        found = things.get(f"{kind} {name}")
        if found and found["looks"] < self.looks_until_ready and kind == "machine":
            found["looks"] += 1
            self._write(things)
        return found

    async def put(self, kind: str, name: str, *, owner: str = OURS, **said: Any) -> None:
        self.calls.append(f"put {kind}")
        if f"put {kind}" in self.refuses:
            raise CloudRefused(f"Nimbus refuses {kind}.", fix="Ask Nimbus.")
        things = self.things()
        if f"{kind} {name}" in things:
            raise ConcurrentChange(f"{kind} {name} is there.", fix="Look.")
        made = datetime.now(UTC).isoformat()
        things[f"{kind} {name}"] = {"owner": owner, "looks": 0, "made": made, **said}
        self._write(things)

    async def delete(self, kind: str, name: str) -> None:
        self.calls.append(f"delete {kind}")
        if f"delete {kind}" in self.refuses:
            raise CloudRefused(f"Nimbus keeps {kind}.", fix="Ask Nimbus.")
        things = self.things()
        things.pop(f"{kind} {name}", None)
        self._write(things)

    def _write(self, things: dict[str, dict[str, Any]]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(things))


class NimbusBackend(Lifecycle):
    """A machine, its key and its disk, on a network that all of them share."""

    def __init__(self, target: Target, world: World) -> None:
        self.target = target
        self.pending = PendingStore(Pending, world.folder / "nimbus", where="nimbus")
        self.reads_only = world.settings.read_only
        self.cloud = Nimbus(world.folder / "nimbus-cloud.json")

    def _resource(self, kind: str, name: str, **more: Any) -> Resource:
        more.setdefault("put", partial(self.cloud.put, kind, name))
        return Resource(
            name=kind,
            title=f"the {kind} {name}",
            body={"kind": kind, "name": name},
            get=partial(self.cloud.get, kind, name),
            is_ours=lambda found: found["owner"] == OURS,
            command=f"nimbus create {kind} {name}",
            **more,
        )

    def _network(self) -> Resource:
        return self._resource("network", "shared", scope="shared", usd_per_month=5.0)

    async def wanted(self, spec: DeploymentSpec, _model: ModelShape) -> Sequence[Resource]:
        return self._everything(spec)

    def _everything(self, spec: DeploymentSpec) -> Sequence[Resource]:
        said = {"spec": spec.model_dump_json(exclude_defaults=True)}
        put = partial(self.cloud.put, "machine", spec.name, **said)
        disk, key, _ = self.parts(spec.name)
        machine = self._machine(spec.name, put=put)
        return (self._network(), disk, key, machine)

    def parts(self, name: str) -> tuple[Resource, Resource, Resource]:
        disk = self._resource(
            "disk", name, delete=partial(self.cloud.delete, "disk", name), usd_per_month=2.0
        )
        key = self._resource("key", name, delete=partial(self.cloud.delete, "key", name))
        return disk, key, self._machine(name)

    def _machine(self, name: str, **more: Any) -> Resource:
        return self._resource(
            "machine",
            name,
            delete=partial(self.cloud.delete, "machine", name),
            after=("network", "disk", "key"),
            status=self._status,
            phase="starting the machine",
            **more,
        )

    def _status(self, found: dict[str, Any]) -> Status:
        return Status.READY if found["looks"] >= self.cloud.looks_until_ready else Status.PENDING

    def owned(self, name: str) -> Sequence[Resource]:
        _, key, machine = self.parts(name)
        return (key, machine)

    def remaining(self, name: str, _spec: DeploymentSpec | None = None) -> Sequence[Resource]:
        return (self._network(), self.parts(name)[0])

    def shared(self) -> Sequence[Resource]:
        return (self._network(),)

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        refuse_length(spec, model)
        shown = steps(self._everything(spec))
        return Plan(spec=spec, target=self.target, model=model, steps=shown)

    async def check(self, _plan: Plan) -> Preflight:
        there = (await look(self._network())).status is Status.READY
        outcome, fix = ("pass", "") if there else ("fail", "Call setup_target.")
        row = {"what": "The network is there", "outcome": outcome, "detail": "Seen.", "fix": fix}
        return Preflight.model_validate({"checks": [row]})

    async def describe(self, name: str) -> Deployment:
        found = await self.cloud.get("machine", name)
        kept = self.pending.get(name)
        if found is None and kept is None:
            raise DeploymentNotFound(f"{name} is not here.", fix="Call list_deployments.")
        spec = DeploymentSpec.model_validate_json(found["spec"]) if found else kept.spec  # type: ignore[union-attr]  # one is there
        since = datetime.fromisoformat(found["made"]) if found else kept.since  # type: ignore[union-attr]
        is_up = found is not None and self._status(found) is Status.READY
        phase = None if is_up else Phase(name=kept.phase if kept else "starting", since=since)
        return Deployment(
            name=name,
            target=self.target.name,
            state=self._state(kept, is_up=is_up),
            since=since,
            phase=phase,
            model=spec.model,
            served_model_name=spec.served_model_name,
            engine="vllm",
            url=f"https://{name}.nimbus.example",
            revision=spec.fingerprint,
            created_at=since,
            replicas=int(is_up),
            failure=kept.failure if kept else None,
        )

    def _state(self, kept: Pending | None, *, is_up: bool) -> State:
        if kept is not None and kept.deleting:
            return State.DELETING
        return State.READY if is_up else State.CREATING

    async def list(self) -> Sequence[Deployment]:
        named = [one.partition(" ")[2] for one in self.cloud.things() if one.startswith("machine ")]
        names = dict.fromkeys([*named, *(one.spec.name for one in self.pending.all())])
        return [await self.describe(name) for name in names]

    async def access(self, name: str) -> Access:
        found = await self.describe(name)
        if found.state is not State.READY:
            raise NotReady(f"{name} is {found.state}.", fix="Call status_vllm.")
        key = SecretStr("nimbus-key")
        return Access(base_url=str(found.url), api_key=key, protection="Its key protects it.")
