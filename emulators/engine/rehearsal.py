"""A boot on an accelerator that is not there: memory and time as the planner foresees them."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from core.errors import OpsError
from core.plans import KvPlan, MemoryPlan
from core.records import ModelShape
from emulators.engine.boot import Moment
from emulators.engine.boot_errors import BootError
from emulators.engine.flags import flag_names
from emulators.engine.memory import CachePlan, no_memory, too_small
from emulators.engine.options import Knobs
from emulators.engine.planned_device import PlannedDevice
from emulators.engine.rehearsal_refusals import Case, refusal
from emulators.engine.setup import Setup
from planner import catalog
from planner.accelerators import Accelerator, accelerator
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import read_model


def chosen(knobs: Knobs) -> Accelerator | None:
    """The accelerator to rehearse, None for the knobs' own device; BootError for an unknown one."""
    if not knobs.accelerator:
        return None
    with _usage():
        return accelerator(knobs.accelerator)


def known_config(model: str, knobs: Knobs) -> dict[str, Any] | None:
    """What a rehearsal takes for the config.json of a model that has no folder."""
    entry = catalog.find(model) if knobs.accelerator else None
    return entry.config if entry else None


def rehearse(flags: Namespace, setup: Setup, knobs: Knobs) -> "Rehearsal | None":
    """Plan this boot; None without an accelerator, BootError for what the planner cannot plan."""
    device = chosen(knobs)
    if device is None:
        return None
    if device.bandwidth_gb_per_s is None:
        device = device.model_copy(update={"bandwidth_gb_per_s": knobs.device_gb_per_s})
    with _usage():
        shape = _shape(setup)
        if device.kind == "cpu":
            if not (shape.layers and shape.groups):
                return None  # its knobs describe a machine for any model
            share = knobs.free_gib / knobs.device_memory_gib
            memory = {"memory_gib": knobs.device_memory_gib, "free_at_start": share}
            device = device.model_copy(update=memory)
        case = Case(shape, device, _flags(flags, setup), knobs.count)
        return Rehearsal(case, _plan(case, auto_length=flags.max_model_len == -1), setup)


class Rehearsal:
    """The room that the planner foresees."""

    def __init__(self, case: Case, plan: MemoryPlan, setup: Setup) -> None:
        self._case = case
        self._plan = plan
        self.kind = case.accelerator.kind.upper()
        graphs = (part.gib.expected for part in plan.parts if part.name == "CUDA graphs")
        self.graphs_gib = next(graphs, 0.0)
        self.setup = replace(
            setup,
            block_size=self._kv.block_size,
            max_num_seqs=plan.max_num_seqs,
            max_num_batched_tokens=plan.max_num_batched_tokens,
            weights_gib=plan.weights_gib,
        )

    @property
    def chips(self) -> int:
        """How many accelerators it takes."""
        return self._case.flags.tensor_parallel_size

    @property
    def accelerator(self) -> Accelerator:
        """What it rehearses."""
        return self._case.accelerator

    @property
    def utilization(self) -> float:
        """The share of its memory that may be used."""
        return self._plan.gpu_memory_utilization

    def check(self, moment: Moment) -> None:
        """What the planner refuses, where the engine would notice it."""
        if error := refusal(self._case, self._plan, moment):
            raise error

    def available_bytes(self) -> int:
        """What is left for the KV cache."""
        return self._kv.kv_cache_bytes

    def cache(self) -> CachePlan:
        """The planner's blocks."""
        kv, length = self._kv, self._plan.max_model_len
        if not kv.fits:
            raise self._too_small()
        return CachePlan(
            num_blocks=kv.num_blocks,
            tokens=kv.kv_tokens,
            max_concurrency=kv.max_concurrency,
            bytes_per_token=kv.blocks_per_request * kv.bytes_per_block / length,
            max_model_len=length,
        )

    def device(self, knobs: Knobs) -> PlannedDevice:
        """How long its steps take."""
        return PlannedDevice(
            model=self._case.model,
            accelerator=self._case.accelerator,
            flags=self._case.flags,
            time_scale=knobs.pace,
            fixed_step_seconds=None if knobs.step_ms is None else knobs.step_ms / 1000,
        )

    @property
    def _kv(self) -> KvPlan:
        # The planner refuses on its low estimate: a refusal then names the figures of that one,
        # and the length that it names is one that boots.
        return self._plan.kv_expected if self._plan.fits else self._plan.kv_low

    def _too_small(self) -> BootError:
        kv = self._kv
        overridden = self._case.flags.num_gpu_blocks_override is not None
        available = kv.num_blocks * kv.bytes_per_block if overridden else kv.kv_cache_bytes
        if available <= 0:
            return no_memory()
        return too_small(
            length=self._plan.max_model_len,
            needed_bytes=kv.blocks_per_request * kv.bytes_per_block,
            available_bytes=available,
            longest=kv.max_len_that_fits,
        )


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except OpsError as error:
        said = f"SIMULATED_ENGINE_ACCELERATOR: {error} {error.fix}"
        raise BootError(said, code=2, traceback=False) from error


def _shape(setup: Setup) -> ModelShape:
    name = setup.model.name
    shape = read_model(str(Path(name).resolve()) if setup.model.folder else name)
    # A longer one was allowed by VLLM_ALLOW_LONG_MAX_MODEL_LEN.
    longest = max(shape.max_position_embeddings or 0, setup.max_model_len)
    return shape.model_copy(update={"max_position_embeddings": longest})


def _flags(flags: Namespace, setup: Setup) -> Flags:
    values = {name: getattr(flags, name, None) for name in Flags.model_fields}
    values["vllm_version"] = flag_names()["version"]
    if flags.max_model_len == -1:
        values["max_model_len"] = None
    if not flags.enable_chunked_prefill:
        values["max_num_batched_tokens"] = setup.max_num_batched_tokens
    given = {name: value for name, value in values.items() if value is not None}
    return Flags.model_validate(given)


def _plan(case: Case, *, auto_length: bool) -> MemoryPlan:
    plan = plan_memory(case.model, case.accelerator, case.flags)
    longest = min(plan.kv_low.max_len_that_fits, plan.max_model_len)
    if not auto_length or plan.fits or not longest:
        return plan
    shorter = case.flags.model_copy(update={"max_model_len": longest})
    return plan_memory(case.model, case.accelerator, shorter)
