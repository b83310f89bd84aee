"""Tools by the names that people know from earlier servers; each does what its successor does."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from mcp.types import ToolAnnotations

from core.errors import InvalidArgument, NextStep, NotFound
from core.records import Answer
from core.reply import note
from operations.resolve import Found, find, find_among
from operations.runtime import Stage
from tools import ask, benchmark, deploy, observe, plan, quota
from tools.surface import LOOKS, TOOLS, ops_tool


class Cloud(NamedTuple):
    """Where a tool of an old name looks, when no target is named."""

    backend: str
    title: str
    instead: str
    """What an old name said that there is no more, and what it means."""
    setting: str


class Old(NamedTuple):
    """What an old name means today."""

    tool: Callable[..., Awaitable[Any]]
    """Of today."""
    says: str
    """Its description, before the new name."""
    cloud: Cloud | None = None
    """That it was about."""
    given: Mapping[str, Any] = {}
    """Arguments of the new tool that the old name stands for."""
    without: tuple[str, ...] = ()
    """Other arguments of the new tool that it does not take."""
    annotations: ToolAnnotations | None = None
    """Where they are not those of the new tool."""

    @property
    def new(self) -> str:
        """The name of today."""
        return self.tool.__name__


AZURE: Final = Cloud(
    "aca",
    "Azure",
    ": there is no virtual machine, it means a deployment on Azure Container Apps.",
    "AZURE_SUBSCRIPTION_ID",
)
TPU: Final = Cloud("tpu", "Cloud TPU", ", of a deployment on Cloud TPU.", "GOOGLE_CLOUD_PROJECT")
OLD: Final[Mapping[str, Old]] = {
    "check_vllm": Old(observe.verify_model_health, "Let the model answer for real"),
    "get_active_models": Old(deploy.list_deployments, "List what is served"),
    "get_system_details": Old(observe.get_system_status, "Show deployments and their host"),
    "run_vllm_benchmark": Old(benchmark.run_benchmark, "Benchmark a deployment"),
    "get_vllm_endpoint": Old(observe.get_endpoint, "Give a deployment's URL and protection"),
    "status_azure_vm": Old(deploy.status_vllm, "Show the state of the deployment on Azure", AZURE),
    "stop_azure_vm": Old(
        deploy.stop_vllm,
        "Stop the deployment on Azure so that it bills no more",
        AZURE,
        without=("all", "confirm"),
    ),
    "start_azure_vm": Old(deploy.start_vllm, "Start the stopped deployment on Azure again", AZURE),
    "query_queued_gemma4": Old(
        ask.query_gemma4, "Ask the model that is deployed on Cloud TPU", TPU
    ),
    "query_queued_gemma4_with_stats": Old(ask.query_gemma4_with_stats, "Ask it and time it", TPU),
    "estimate_deployment_cost": Old(
        plan.estimate_cost, "Price a target by hour and month, and a load on it"
    ),
    "describe_queued_resource": Old(
        quota.manage_queued_resource,
        "Show one TPU request and what came of it",
        given={"action": "describe"},
        without=("model", "confirm"),
        annotations=LOOKS,
    ),
    "destroy_queued_resource": Old(
        quota.manage_queued_resource,
        "Delete a TPU request of ours, with proof",
        given={"action": "delete"},
        without=("model",),
    ),
}


def _register(name: str, old: Old) -> None:
    """Make a tool of the old name: it takes what the new one takes and does what it does."""
    new = TOOLS[old.new]
    fn: Callable[..., Awaitable[Answer]] = inspect.unwrap(old.tool)
    gone = {*old.given, *old.without}

    @functools.wraps(fn)
    async def call(**arguments: Any) -> Answer:
        if old.cloud is None:
            means = "".join(f" with {key}={said}" for key, said in old.given.items())
            note(f"{name} is an old name of {old.new}{means}.")
        else:
            note(f"{name} is an old name of {old.new}{old.cloud.instead}")
            stage, where = arguments["rt"].stage, (arguments.get("target"), arguments.get("name"))
            found = await _found(old, old.cloud, stage, *where)
            arguments |= {"target": found.deployment.target, "name": found.name}
        return await fn(**arguments, **old.given)

    _, args, told = (inspect.getdoc(fn) or "").partition("Args:")
    call.__name__ = name
    call.__doc__ = f"{old.says}: {old.new} by an old name.\n\n{args}{told}".rstrip()
    signature = inspect.signature(fn)
    kept = [one for key, one in signature.parameters.items() if key not in gone]
    call.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # inspect reads it
    call.__annotations__ = {k: v for k, v in fn.__annotations__.items() if k not in gone}
    annotations = old.annotations or new.tool.annotations
    assert annotations
    listed = new.tool.parameters["properties"]
    seldom = tuple(key for key in new.parameters if key not in listed)
    ops_tool("compat", annotations, seldom=seldom)(call)


async def _found(
    old: Old, cloud: Cloud, stage: Stage, target: str | None, name: str | None
) -> Found:
    """Give the deployment that an old name means.

    On the target that is named, else VLLM_TARGET if it is one of that cloud, else whichever of
    its targets has it.

    Raises:
        InvalidArgument: The target is none of that cloud.
        NotFound: No target of it can be used.
        DeploymentNotFound, Ambiguous: As `find` and `find_among`.
    """
    if target and stage.backend(target).target.backend != cloud.backend:
        raise InvalidArgument(
            f"{target} is not on {cloud.title}.",
            fix=f"Call {old.new}, or leave `target` out.",
            next_steps=(NextStep("list_deployments"),),
        )
    names = [one for one in stage.usable if stage.targets[one].backend == cloud.backend]
    if not names:
        raise NotFound(
            f"No target of {cloud.title} can be used.",
            fix=f"Set {cloud.setting}, or REHEARSAL=1: see list_targets.",
            next_steps=(NextStep("list_targets"),),
        )
    preferred = stage.settings.vllm_target
    meant = target or (preferred if preferred in names else None)
    if meant:
        return await find(stage, meant, name, to_change=TOOLS[old.new].writes)
    return await find_among(stage, names, name)


for _name, _old in OLD.items():
    _register(_name, _old)
