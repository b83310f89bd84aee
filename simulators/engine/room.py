"""What an accelerator that is not there has room for, as the planner foresees it."""

import re
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from core.errors import OpsError
from core.records import KvPlan, MemoryPlan, ModelShape
from planner.flags import Flags
from planner.memory import Case, plan_memory, resident
from planner.model import read_model
from planner.places import Accelerator, accelerator
from simulators.engine.flags import FLAGS, BootError, Knobs, refused
from simulators.engine.scheduler import Device

GIB: Final = 2**30
_BUILT_IN: Final = "google/gemma-4-E4B-it"
_REPO_ID: Final = re.compile(r"[\w.-]+(/[\w.-]+)?")
_ROOMY: Final = {"memory_gib": 1e6, "free_at_start": 1.0}
"""Of an engine that stands for no accelerator."""
_ROOMY_CACHE: Final = 8 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A model on an accelerator, and what the planner foresees for the two."""

    shape: ModelShape
    accelerator: Accelerator
    flags: Flags
    plan: MemoryPlan
    knobs: Knobs

    @property
    def kv(self) -> KvPlan:
        """Return the cache that it boots with, or that it is refused for.

        The planner refuses on its low estimate: a refusal names the figures of that one, and the
        length that it names is one that boots.
        """
        return self.plan.kv_expected if self.plan.fits else self.plan.kv_low

    @property
    def graphs_gib(self) -> float:
        """Return what captured graphs take."""
        graphs = (part.gib.expected for part in self.plan.parts if part.name == "CUDA graphs")
        return next(graphs, 0.0)

    def check_device(self) -> None:
        """Refuse chips that are too many or too few, and a host whose memory others have."""
        kind, wanted = self.accelerator.kind, self.flags.tensor_parallel_size
        if kind == "tpu" and self.knobs.count not in {None, wanted}:
            # JAX takes all chips that it sees, and refuses a mesh of another size.
            raise refused("mesh", count=self.knobs.count, wanted=wanted)
        reserved, share = self.plan.requested_gib or 0.0, self.plan.gpu_memory_utilization
        given = kind != "cpu" or self.flags.kv_cache_memory_bytes
        if not given and reserved > self._free_gib:  # source: vLLM 0.32's cpu_worker.py
            visible, free = self.plan.visible_gib or 0.0, self._free_gib
            raise refused("host", free=free, visible=visible, share=share, wanted=reserved)

    def cache(self) -> KvPlan:
        """Return the cache; BootError where one request of full length does not fit."""
        kv = self.kv
        if kv.fits and not self.plan.fits:
            # In the planner's words: whoever plans first has read them already.
            raise BootError(f"ValueError: {self.plan.reasons[0]}", process="EngineCore")
        if kv.fits:
            return kv
        size = kv.kv_cache_bytes
        if self.flags.num_gpu_blocks_override is not None:
            size = kv.num_blocks * kv.bytes_per_block
        if size <= 0:
            raise refused("no-cache")
        needed, longest = kv.blocks_per_request * kv.bytes_per_block, kv.max_len_that_fits
        hint = f"Based on the available memory, the estimated maximum model length is {longest}. "
        raise refused(
            "small-cache",
            length=self.plan.max_model_len,
            needed_gib=round(needed / GIB, 2),
            cache_gib=round(size / GIB, 2),
            hint=hint if longest else "",
        )

    def device(self) -> Device:
        """Return how long its steps take; nobody foresees a CPU's speed."""
        step = None if self.knobs.step_ms is None else self.knobs.step_ms / 1000
        work = (self.shape, self.accelerator, self.flags)
        return Device(
            work=None if self.accelerator.kind == "cpu" else work,
            time_scale=self.knobs.pace,
            fixed_step_seconds=step,
        )

    @property
    def _free_gib(self) -> float:
        return (self.accelerator.memory_gib or 0.0) * self.accelerator.free_at_start

    def check_weights(self) -> None:
        """Refuse weights that are too heavy, where their loading comes to its end."""
        visible, peak = self.accelerator.memory_gib, self.plan.load_peak_gib
        if visible is None or peak <= self._free_gib:
            return
        passing = resident(Case.of(self.shape, self.accelerator, self.flags)).transient
        piece = passing.gib.expected if passing else 0.0
        held = peak - piece
        free = self._free_gib - held
        if free < 0:
            # Layer by layer, until the next one finds no room.
            piece = held / len(self.shape.layers)
            free = self._free_gib % piece
        what = "tpu-weights" if self.accelerator.kind == "tpu" else "weights"
        raise refused(what, piece=piece, visible=visible, free=free)


def load_model(name: str) -> ModelShape:
    """Read the folder of that name, or what the planner knows by it; that may be nothing.

    Raises:
        BootError: It is neither a model's folder nor a name.
    """
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise refused("folder", process="APIServer", name=name)
        return read_model(str(folder.resolve())).model_copy(update={"model": name})
    if not _REPO_ID.fullmatch(name):
        raise refused("name", process="APIServer", name=name)
    return read_model(name).model_copy(update={"model": name})


def stand_in(shape: ModelShape) -> ModelShape:
    """Return the model that is played for one of which nobody can plan the memory."""
    own = ("model", "architecture", "dtype", "vocab_size", "max_position_embeddings", "vision")
    said = {name: value for name in own if (value := getattr(shape, name)) is not None}
    return read_model(_BUILT_IN).model_copy(update=said)


def room_of(flags: Namespace, knobs: Knobs) -> Room:
    """Return what this engine stands on.

    Raises:
        BootError: There is no such model, it has no such length, the accelerator is unknown, or
            the planner cannot plan a flag.
    """
    shape, asked = load_model(flags.model), flags.max_model_len
    known = bool(shape.layers and shape.groups)
    shape = shape if known else stand_in(shape)
    longest = shape.max_position_embeddings
    if asked and longest and asked > longest:
        raise refused("length", process="APIServer", asked=asked, longest=longest)
    try:
        device, wanted = accelerator(knobs.accelerator or "cpu"), _flags(flags)
        if device.kind == "cpu" and known and knobs.accelerator:
            share = knobs.free_gib / knobs.device_memory_gib
            memory = {"memory_gib": knobs.device_memory_gib, "free_at_start": share}
            device = device.model_copy(update=memory)
        elif device.kind == "cpu":
            size = wanted.kv_cache_memory_bytes or _ROOMY_CACHE
            given = {"kv_cache_memory_bytes": size, "gpu_memory_utilization": None}
            device, wanted = device.model_copy(update=_ROOMY), wanted.model_copy(update=given)
        plan = plan_memory(shape, device, wanted)
        fitting = min(plan.kv_low.max_len_that_fits, plan.max_model_len)
        if asked == -1 and not plan.fits and fitting:
            shorter = wanted.model_copy(update={"max_model_len": fitting})
            plan = plan_memory(shape, device, shorter)
    except OpsError as error:
        text = f"SIMULATED_ENGINE_ACCELERATOR: {error} {error.fix}"
        raise BootError(text, code=2, traceback=False) from error
    return Room(shape=shape, accelerator=device, flags=wanted, plan=plan, knobs=knobs)


def _flags(flags: Namespace) -> Flags:
    values: dict[str, Any] = {name: getattr(flags, name, None) for name in Flags.model_fields}
    values["vllm_version"] = FLAGS["version"]
    if flags.max_model_len == -1:
        values["max_model_len"] = None
    given = {name: value for name, value in values.items() if value is not None}
    return Flags.model_validate(given)
