"""What an accelerator that is not there has room for, as the planner foresees it."""

from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from core.errors import OpsError
from core.records import KvPlan, MemoryPlan, ModelShape
from planner.flags import Flags
from planner.memory import Case, plan_memory, resident
from planner.places import Accelerator, accelerator
from simulators.engine.flags import BootError, Knobs, flag_names
from simulators.engine.model import GIB, load_model, stand_in
from simulators.engine.scheduler import Device

Moment = Literal["on-device", "empty", "cached"]
"""Where a boot may find that it cannot go on; `empty` is before the weights are read."""
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
    def kind(self) -> str:
        """Return what the log calls the accelerator."""
        return self.accelerator.kind.upper()

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

    def check(self, moment: Moment) -> None:
        """Raise BootError for what the engine finds out at this moment."""
        kind, wanted = self.accelerator.kind, self.flags.tensor_parallel_size
        if moment == "on-device" and kind == "tpu" and self.knobs.count not in {None, wanted}:
            raise _core(  # JAX takes all chips that it sees, and refuses a mesh of another size
                f"ValueError: Number of devices {self.knobs.count} must equal the product of"
                f" mesh_shape (1, {wanted})"
            )
        if moment == "on-device" and kind == "cpu" and not self.flags.kv_cache_memory_bytes:
            self._check_host()
        if moment == "empty":
            self._check_weights()
        if moment == "cached" and not self.plan.fits:
            # In the planner's words: whoever plans first has read them already.
            raise _core(f"ValueError: {self.plan.reasons[0]}")

    def cache(self) -> KvPlan:
        """Return the cache; BootError where one request of full length does not fit."""
        kv = self.kv
        if kv.fits:
            return kv
        size = kv.kv_cache_bytes
        if self.flags.num_gpu_blocks_override is not None:
            size = kv.num_blocks * kv.bytes_per_block
        if size <= 0:
            raise _core(
                "ValueError: No available memory for the cache blocks. Try increasing "
                "`gpu_memory_utilization` when initializing the engine (this flag also controls "
                "CPU memory reservation on the CPU backend, despite its name). See https://docs."
                "vllm.ai/en/latest/configuration/conserving_memory/ for more details."
            )
        needed, longest = kv.blocks_per_request * kv.bytes_per_block, kv.max_len_that_fits
        hint = f"the estimated maximum model length is {longest}. "
        raise _core(
            "ValueError: To serve at least one request with the model's max seq len "
            f"({self.plan.max_model_len}), ({_gib(needed)} GiB KV cache is needed, which is larger"
            f" than the available KV cache memory ({_gib(size)} GiB). "
            f"{'Based on the available memory, ' + hint if longest else ''}"
            "Try increasing `gpu_memory_utilization` (which also controls CPU memory on the CPU "
            "backend) or decreasing `max_model_len` when initializing the engine. See https://"
            "docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
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

    def _check_host(self) -> None:
        """Refuse in the words of vLLM 0.32's cpu_worker.py when others have what it reserves."""
        wanted, share = self.plan.requested_gib or 0.0, self.plan.gpu_memory_utilization
        if wanted > self._free_gib:
            raise _core(
                f"ValueError: Available memory on node 0 ({self._free_gib:.2f}/"
                f"{self.plan.visible_gib or 0.0:.2f} GiB) on startup is less than desired CPU "
                f"memory utilization ({share}, {wanted:.2f} GiB). On the CPU backend, the `--gpu-"
                "memory-utilization` flag controls the fraction of CPU memory reserved (despite "
                "its name). To resolve: decrease `--gpu-memory-utilization` (e.g. `--gpu-memory-"
                "utilization 0.5`) or reduce CPU memory used by other processes."
            )

    def _check_weights(self) -> None:
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
        if self.accelerator.kind == "tpu":
            raise _core(
                "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Error allocating device buffer: "
                f"Attempting to allocate {piece:.2f}G. That was not possible. There are "
                f"{free:.2f}G free.; (0x0x0_HBM0)"
            )
        raise _core(
            f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {piece:.2f} GiB. GPU 0 "
            f"has a total capacity of {visible:.2f} GiB of which {free:.2f} GiB is free."
        )


def _gib(size: int) -> float:
    return round(size / GIB, 2)


def _core(text: str) -> BootError:
    return BootError(text, process="EngineCore")


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
        raise BootError(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
            f"  Value error, User-specified max_model_len ({asked}) is greater than the derived "
            f"max_model_len (max_position_embeddings={float(longest)} or model_max_length=None in "
            "model's config.json). To allow overriding this maximum, set the env var "
            "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
        )
    with _usage():
        device, wanted = accelerator(knobs.accelerator or "cpu"), _flags(flags)
        if device.kind == "cpu" and known and knobs.accelerator:
            share = knobs.free_gib / knobs.device_memory_gib
            memory = {"memory_gib": knobs.device_memory_gib, "free_at_start": share}
            device = device.model_copy(update=memory)
        elif device.kind == "cpu":
            size = wanted.kv_cache_memory_bytes or _ROOMY_CACHE
            given = {"kv_cache_memory_bytes": size, "gpu_memory_utilization": None}
            device, wanted = device.model_copy(update=_ROOMY), wanted.model_copy(update=given)
        plan = _plan(shape, device, wanted, auto_length=asked == -1)
    return Room(shape=shape, accelerator=device, flags=wanted, plan=plan, knobs=knobs)


@contextmanager
def _usage() -> Iterator[None]:
    try:
        yield
    except OpsError as error:
        text = f"SIMULATED_ENGINE_ACCELERATOR: {error} {error.fix}"
        raise BootError(text, code=2, traceback=False) from error


def _flags(flags: Namespace) -> Flags:
    values: dict[str, Any] = {name: getattr(flags, name, None) for name in Flags.model_fields}
    values["vllm_version"] = flag_names()["version"]
    if flags.max_model_len == -1:
        values["max_model_len"] = None
    given = {name: value for name, value in values.items() if value is not None}
    return Flags.model_validate(given)


def _plan(shape: ModelShape, device: Accelerator, flags: Flags, *, auto_length: bool) -> MemoryPlan:
    plan = plan_memory(shape, device, flags)
    longest = min(plan.kv_low.max_len_that_fits, plan.max_model_len)
    if not auto_length or plan.fits or not longest:
        return plan
    return plan_memory(shape, device, flags.model_copy(update={"max_model_len": longest}))
