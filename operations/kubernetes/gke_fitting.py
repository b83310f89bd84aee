"""Whether a model fits on the accelerators of some GKE nodes, and on how many it would."""

import functools
import tomllib
from pathlib import Path
from typing import Final

from pydantic import Field

from core.errors import DoesNotFit, InvalidArgument, NextStep
from core.records import DeploymentName, ModelShape, Record, valid
from operations.plans.foreseeing import loads
from operations.plans.memory import memory_table
from operations.plans.nearer import nearest
from planner.advise import Goal, candidates
from planner.layouts import Arrangement, Ground, Layout, arrange
from planner.places import accelerator, place

_FILE: Final = Path(__file__).with_name("gke.toml")
PLACE: Final = "gke-l4"
"""Its name in the planner."""
_USUAL_LENGTH: Final = 8192
_LARGER: Final = ((1, 1), (2, 1), (2, 2), (2, 4))
"""Accelerators of a host, and hosts: what is looked at where it does not fit."""


class GkeWish(Record):
    """What is asked for."""

    model: str
    gpus: int = Field(default=1, ge=1, le=2)
    """Of each host."""
    hosts: int = Field(default=1, ge=1, le=4)
    """That one replica is spread over."""
    name: DeploymentName | None = None
    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    weights: str | None = None
    """`hub`, `gs://BUCKET/FOLDER` or `pvc:CLAIM/FOLDER`."""
    max_model_len: int | None = Field(default=None, ge=256)
    layout: Layout | None = None
    image: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9./_:@-]*$")


class Machine(Record):
    """A machine type, and what a pod may have of it."""

    machine_type: str
    cpu: str
    memory: str
    shm: str


class Rules(Record):
    """`gke.toml`, which has the sources."""

    image: str
    vllm: str
    accelerator: str
    period_seconds: int
    startup_margin_seconds: int
    rollout_margin_seconds: int
    node_disk_gb: int
    grace_seconds: int
    gcsfuse_options: str
    load_format: str
    machines: dict[str, Machine]


@functools.cache
def rules() -> Rules:
    """Read them."""
    return valid(Rules, tomllib.loads(_FILE.read_text("utf-8")))


def machine(wish: GkeWish) -> Machine:
    """Give the machine with so many accelerators."""
    return rules().machines[str(wish.gpus)]


def planned(wish: GkeWish) -> tuple[ModelShape, Arrangement]:
    """Compute the flags that make it fit.

    Raises:
        InvalidArgument: The model cannot be planned, or is not so long.
        DoesNotFit: The memory of so many accelerators does not suffice.
    """
    goal = valid(
        Goal,
        {
            "model": wish.model,
            "max_model_len": wish.max_model_len or _USUAL_LENGTH,
            "layout": wish.layout,
            "vllm_version": rules().vllm,
        },
    )
    (shape,) = candidates(goal)
    most = shape.max_position_embeddings
    if most and goal.max_model_len > most:
        raise InvalidArgument(
            f"max_model_len {goal.max_model_len:,} is beyond the model's {most:,} positions.",
            fix=f"Give at most {most}.",
        )
    ground = _ground(shape, wish.gpus * wish.hosts)
    arranged = arrange(ground, goal.wish)
    if not arranged.enough:
        raise _does_not_fit(wish, goal, ground, arranged)
    return shape, arranged


def _ground(shape: ModelShape, count: int) -> Ground:
    return Ground(shape, accelerator(place(PLACE).accelerator), count)


def _does_not_fit(wish: GkeWish, goal: Goal, ground: Ground, arranged: Arrangement) -> DoesNotFit:
    memory, model = arranged.memory, ground.model.model
    near = [words for words, _ in nearest(ground, goal)][:2] if loads(ground, memory) else []
    more = next(
        (
            (gpus, hosts)
            for gpus, hosts in _LARGER
            if gpus * hosts > ground.count
            and arrange(_ground(ground.model, gpus * hosts), goal.wish).enough
        ),
        None,
    )
    fix = f"Take gpus={more[0]}, hosts={more[1]}" if more else "Call recommend_deployment"
    larger = {"model": wish.model, "gpus": more[0], "hosts": more[1]} if more else {}
    steps = (NextStep("get_vllm_gpu_deployment_config", larger),) if more else ()
    return DoesNotFit(
        f"{model} does not fit on {ground.count} L4: {' '.join(memory.reasons)}",
        fix=f"{fix}{f', or serve it {near[0]}' if near else ''}.",
        data={"memory": memory_table(memory).model_dump(mode="json"), "nearest": near},
        next_steps=(*steps, NextStep("recommend_deployment", {"model": model})),
    )
