"""One deployment as it stands: its state, where it answers, and how it was made."""

from collections.abc import Awaitable
from typing import TypeVar

from backends.base import DeploymentConfig
from core.errors import NextStep, OpsError
from core.records import Deployment
from core.reply import note
from operations.resolve import find
from operations.runtime import Runtime
from operations.watching.answers import Located
from operations.watching.reading import EndpointInfo, config, endpoint_info

T = TypeVar("T")


class Overview(Located):
    """What `status_vllm`, `get_endpoint` and `get_vllm_deployment_config` say, in one."""

    deployment: Deployment
    endpoint: EndpointInfo | None = None
    """None where it has no address yet."""
    config: DeploymentConfig | None = None
    """None of an endpoint that was not made here."""

    def summary(self) -> str:
        """Say its state."""
        return self.deployment.summary()

    def warnings(self) -> tuple[str, ...]:
        """Warn of what is not real, or overdue."""
        return self.deployment.warnings()

    def next_steps(self) -> tuple[NextStep, ...]:
        """Name what helps in this state."""
        return self.deployment.next_steps()


async def overview(runtime: Runtime, target: str, name: str) -> Overview:
    """Look, without asking the model or waking anything.

    Raises:
        InvalidArgument: The name cannot be one.
        TargetNotFound: There is no such target.
        DeploymentNotFound: Nothing of that name was made there.
    """
    found = await find(runtime.stage, target, name)
    made = await _if_there(config(found))
    return Overview(
        target=target,
        name=name,
        deployment=found.deployment,
        endpoint=await _if_there(endpoint_info(runtime, found)),
        config=made.config if made else None,
    )


async def _if_there(looking: Awaitable[T]) -> T | None:
    try:
        return await looking
    except OpsError as exc:
        note(exc.summary)
        return None
