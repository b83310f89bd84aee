"""What each target of the recorded world can do."""

from collections.abc import AsyncGenerator, Collection, Sequence
from datetime import UTC, datetime
from typing import Final

import anyio
from pydantic import SecretStr

from backends.base import (
    DeploymentConfig,
    KeptSecret,
    Leaving,
    Leftovers,
    LogQuery,
    QueuedResource,
    Quota,
    RegisteredModel,
    Setup,
    SetupStep,
    StoredModel,
    Upload,
    World,
    Zone,
)
from core.errors import DeploymentNotFound, InvalidArgument
from core.records import (
    BY_PURGE,
    Access,
    Deleted,
    Deployment,
    DeploymentSpec,
    ModelShape,
    Plan,
    PlannedStep,
    Preflight,
    Remainder,
    State,
    Target,
)
from logs.read import Line
from planner.memory import foresee
from planner.places import accelerator
from tests.tools.recorded_world import Kept
from tests.tools.sentinels import KEY, LEAKY, SIGNED

_MADE: Final = datetime(2026, 11, 1, tzinfo=UTC)


class RecordedCloud:
    """One target of it."""

    def __init__(self, target: Target, world: World, *, kept: Kept) -> None:
        self._target, self._kept = target, kept
        self.held: str | None = None

    @property
    def target(self) -> Target:
        return self._target

    def plan(self, spec: DeploymentSpec, model: ModelShape) -> Plan:
        step = PlannedStep(what="Make it.", request={}, command="make it")
        memory = foresee(spec, model, accelerator("l4"))
        price = self._target.usd_per_hour
        return Plan(
            spec=spec,
            target=self._target,
            model=model,
            steps=(step,),
            memory=memory,
            usd_per_hour=price,
        )

    async def check(self, plan: Plan) -> Preflight:
        await self._asked()
        return Preflight(checks=())

    async def apply(self, plan: Plan) -> Deployment:
        await self._asked()
        self._write("apply", plan.spec.name)
        self._kept.put(
            self._target.name, State.READY, plan.spec.name, revision=plan.spec.fingerprint
        )
        return await self.describe(plan.spec.name)

    async def describe(self, name: str) -> Deployment:
        await self._asked()
        try:
            return self._kept.deployments[self._target.name, name]
        except KeyError as exc:
            words = f"No deployment named '{name}'."
            raise DeploymentNotFound(words, fix="Call list_deployments.") from exc

    async def list(self) -> Sequence[Deployment]:
        await self._asked()
        there = self._kept.deployments.items()
        return [one for (target, _), one in there if target == self._target.name]

    async def delete(self, name: str, *, keep_cache: bool = False) -> Deleted:
        await self._asked()
        await anyio.sleep(self._kept.delete_seconds)
        here = (self._target.name, name)
        removed = self._kept.deployments.pop(here, None)
        if removed:
            self._write("delete", name)
        image = Remainder(what="its image", usd_per_month=1, how_to_remove=BY_PURGE)
        image = self._kept.paid.get(self._target.name, image)
        return Deleted(
            name=name,
            target=self._target.name,
            gone=True,
            removed=("all of it",) if removed else (),
            stays=(image,),
        )

    def leaving(self, name: str, *, keep_cache: bool = False) -> Leaving:
        return Leaving(
            deletes=(f"the service {name}",), purged=(f"the image {name}",), stays=("hf-token",)
        )

    async def purge(self, name: str) -> tuple[str, ...]:
        await self._asked()
        await anyio.sleep(self._kept.delete_seconds)
        self._write("purge", name)
        self._kept.paid.pop(self._target.name, None)
        return ("its image",)

    async def paid_leftovers(self) -> Sequence[Remainder]:
        await self._asked()
        found = self._kept.paid.get(self._target.name)
        return (found,) if found else ()

    async def access(self, name: str) -> Access:
        await self._asked()
        return Access(base_url=self._kept.url, api_key=SecretStr(KEY), protection="A key.")

    async def scale(self, name: str, *, min_replicas: int, max_replicas: int) -> Deployment:
        await self._asked()
        self._write(f"scale {min_replicas}-{max_replicas}", name)
        return await self.describe(name)

    async def stop(self, name: str) -> Deployment:
        await self._asked()
        self._write("stop", name)
        self._kept.put(self._target.name, State.STOPPED, name)
        return await self.describe(name)

    async def start(self, name: str) -> Deployment:
        await self._asked()
        self._write("start", name)
        self._kept.put(self._target.name, State.READY, name)
        return await self.describe(name)

    async def wake(self, name: str) -> None:
        await self._asked()
        self._write("wake", name)
        self._kept.put(self._target.name, State.READY, name)

    async def setup(self) -> Setup:
        await self._asked()
        step = SetupStep(what="a vault", done=self._kept.is_set_up, command="make a vault")
        return Setup(steps=(step,))

    async def set_up(self) -> Setup:
        await self._asked()
        self._write("set up", "")
        self._kept.is_set_up = True
        return await self.setup()

    async def keep_secret(self, name: str, value: SecretStr) -> KeptSecret:
        await self._asked()
        self._write("keep secret", name)
        return KeptSecret(name=name, version="1", readable_by=())

    async def quotas(self) -> Sequence[Quota]:
        await self._asked()
        return (Quota(quota="l4", region="here", accelerator="l4", limit=1),)

    async def zones(self) -> Sequence[Zone]:
        await self._asked()
        return ()

    async def stored_models(self, bucket: str | None = None) -> Sequence[StoredModel]:
        await self._asked()
        return ()

    async def registered_models(self) -> Sequence[RegisteredModel]:
        await self._asked()
        shown = {"name": "1", "display_name": SIGNED, "version": "1", "created_at": "2026"}
        return (RegisteredModel.model_validate({**shown, "artifact": SIGNED}),)

    def upload(self, folder: str, here: str, bucket: str | None = None) -> Upload:
        return Upload(location="files://w/x", bucket="files://w", steps=(), notes=())

    async def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        await self._asked()
        await self.describe(name)
        yield [Line(at=_MADE, text=text) for text in _log()]

    async def spec(self, name: str) -> DeploymentSpec | None:
        await self._asked()
        model, revision = (one := await self.describe(name)).model, one.revision
        if revision == "none":
            return None
        given = self._kept.specs.get((self._target.name, name), {"engine_args": ("--api-key", KEY)})
        return DeploymentSpec.model_validate({**given, "name": name, "model": model})

    async def config(self, name: str) -> DeploymentConfig:
        await self._asked()
        return DeploymentConfig(command=f"run --key {KEY}", docker_run="docker", yaml="a: b")

    async def _asked(self) -> None:
        error = self._kept.broken.get(self._target.name)
        if self._kept.hangs or (error is None and self._target.name in self._kept.broken):
            await anyio.sleep_forever()
        if error is not None:
            raise error

    def _write(self, what: str, name: str) -> None:
        self._kept.writes.append(f"{what} {self._target.name}/{name}")


class RecordedAccount(RecordedCloud):
    """A target whose account can be looked through."""

    account = "subscription one"

    async def find_leftovers(self, kept: Collection[str]) -> Leftovers:
        await self._asked()
        self._write("look for leftovers", ",".join(sorted(kept)))
        spare = tuple(self._kept.spare.values())
        return Leftovers(ours=spare, others={"disk": 3}, not_seen=("Vaults were not seen.",))

    async def remove_leftover(self, resource: str, kept: Collection[str]) -> bool:
        await self._asked()
        if self._kept.spare[resource].deployment in kept:
            raise InvalidArgument("A deployment stands on it.", fix="Leave it.")
        del self._kept.spare[resource]
        self._write("remove leftover", resource)
        return True


class RecordedQueue(RecordedCloud):
    """A target with a queue beside it."""

    async def queued_resources(self) -> Sequence[QueuedResource]:
        await self._asked()
        return tuple(self._kept.leftovers)

    async def remove_leftover(self, resource: str, kept: Collection[str]) -> bool:
        await self._asked()
        assert (resource, kept) == (self._kept.leftovers[0].path, ())
        self._write("remove leftover", resource)
        self._kept.leftovers.clear()
        return True


def _log() -> list[str]:
    return [*LEAKY, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"]
