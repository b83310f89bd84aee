"""Flags computed for a model and an accelerator, and plans that nearly fit."""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

from core.records import MemoryPlan, ModelShape, Record, valid
from planner.flags import Flags, engine_flags, positions
from planner.memory import pinned_cache, plan_memory
from planner.places import Accelerator, Place
from planner.speed import Band, Decode, decode

Layout = Literal["speed", "concurrency", "context"]

_MOST_SEQUENCES: Final = 256
"""Of vLLM's defaults the smallest; more cost gigabytes of sampler memory with 262k words."""
_GPU_UTILIZATION: Final = 0.95
"""What deployments used that worked; a cap on it is what is free at the start."""
_TPU_UTILIZATION: Final = 0.9
"""Compiled programs live outside the budget: 0.95 never boots a v5e."""
SHORTEST: Final = 256
"""Tokens: a shorter length is no plan any more."""
_USEFUL_REQUESTS: Final = 4
"""Of full length at once: what a length that nobody asked for must leave room for."""
_USEFUL_LENGTH: Final = 8192
"""Tokens: no shorter length is chosen so that more requests have room."""
_SMALL_BATCH: Final = 512
"""Tokens that a step takes at most, where every token in flight holds blocks of a sliding window
that a short cache cannot spare."""
_WEIGHTS: Final = frozenset({"quantization", "dtype", "cpu_offload_gb", "language_model_only"})
"""Flags that say which weights are loaded, and where to; so does the number that share them."""
_CHOSEN: Final = frozenset(
    {"max_model_len", "max_num_seqs", "gpu_memory_utilization", "kv_cache_dtype"}
)
"""Flags that every layout sets."""
_NOT_KEPT: Final = frozenset({"max_model_len", "vllm_version"})
"""That a wish says itself."""


class Wish(NamedTuple):
    """What the flags must make possible."""

    max_model_len: int
    requests: int = 1
    """Of full length, that the KV cache must hold at once, on its low estimate."""
    layout: Layout | None = None
    """None is the plainest flags that do it."""
    text_only: bool = False
    usual_tokens: int | None = None
    """Of most requests, which the number of sequences is chosen for; None is the full length."""
    vllm_version: str | None = None
    kept: tuple[tuple[str, Any], ...] = ()
    """Flags that a person said, by name: what is computed is computed with them."""


class Change(Record):
    """One flag that made a plan fit better, and what it bought."""

    flag: str
    buys: str
    costs: str
    """What one gives up for it."""


class Arrangement(Record):
    """Flags, the memory they take, and how they were come by."""

    layout: Layout | None
    flags: Flags
    memory: MemoryPlan
    enough: bool
    """It fits, and the wished requests are held at once."""
    changes: tuple[Change, ...] = ()


class Ground:
    """A model on some accelerators of one kind; remembers every plan it made."""

    def __init__(self, model: ModelShape, accelerator: Accelerator, count: int) -> None:
        self.model = model
        self.accelerator = accelerator
        self.count = count
        self._plans: dict[Flags, MemoryPlan] = {}

    def plan(self, flags: Flags) -> MemoryPlan:
        """Plan, or remember the plan."""
        if flags not in self._plans:
            self._plans[flags] = plan_memory(self.model, self.accelerator, flags)
        return self._plans[flags]

    def pinned(self, flags: Flags, where: Place) -> Flags:
        """Return the flags with the cache that a cloud's GPU is given where nobody asks for one."""
        cloud = where.deployable_by not in {"", "local"}
        size = pinned_cache(self.plan(flags), self.accelerator, flags) if cloud else None
        return flags if size is None else _with(flags, kv_cache_memory_bytes=size)

    def holds(self, flags: Flags, requests: int) -> bool:
        """Whether it fits, and so many requests of full length are held at once."""
        plan = self.plan(flags)
        return plan.fits and plan.kv_low.max_concurrency >= requests

    def loads(self, flags: Flags) -> bool:
        """Whether the weights get onto the accelerator."""
        return self.plan(flags).load_peak_gib <= self.accelerator.free_gib

    @property
    def fp8_kv(self) -> bool:
        """Whether an fp8 KV cache is allowed, and gains anything."""
        return self.accelerator.kind == "gpu" and self.accelerator.fp8_kv

    def plainest(self, wish: Wish) -> Flags:
        """Give the flags to begin with."""
        plain = Flags(
            max_model_len=wish.max_model_len,
            max_num_seqs=wish.requests,
            gpu_memory_utilization=utilization(self.accelerator),
            tensor_parallel_size=self.count,
            kv_cache_dtype="fp8" if self._begins_with_fp8(wish) else None,
            language_model_only=wish.text_only and (self.model.vision or self.model.audio),
            vllm_version=wish.vllm_version,
        )
        return plain.model_copy(update=dict(wish.kept))

    def _begins_with_fp8(self, wish: Wish) -> bool:
        """Whether the layout is for a large cache, or a step that reads one is quicker."""
        if not self.fp8_kv or wish.layout != "speed":
            return self.fp8_kv and wish.layout is not None
        if self.accelerator.bandwidth_gb_per_s is None:
            return False
        plain = Flags(tensor_parallel_size=self.count).model_copy(update=dict(wish.kept))
        usual, fp8 = (
            decode(self.model, self.accelerator, flags, context=wish.max_model_len // 2)
            for flags in (plain, _with(plain, kv_cache_dtype="fp8"))
        )
        return fp8.tokens_per_second.middle > usual.tokens_per_second.middle


def arrange(ground: Ground, wish: Wish) -> Arrangement:
    """Compute flags; look at `enough` before using them.

    Raises:
        InvalidArgument: A flag is none that vLLM takes.
        Unsupported: The model's shape is not known.
    """
    flags, changes = _fixed(ground, wish)
    if ground.holds(flags, wish.requests):
        flags = _grown(ground, flags, wish)
    return Arrangement(
        layout=wish.layout,
        flags=flags,
        memory=ground.plan(flags),
        enough=ground.holds(flags, wish.requests),
        changes=tuple(changes),
    )


def arrange_said(
    ground: Ground, wish: Wish, flags: Flags, engine_args: Sequence[str] = ()
) -> Arrangement:
    """Arrange what was said and a layout does not set; vLLM reads engine_args last, so they win.

    Raises:
        InvalidArgument: A flag is none that vLLM takes.
        Unsupported: The model's shape is not known.
    """
    last = engine_flags(engine_args)
    merged = valid(Flags, {**dict(flags), **last})
    names = (Flags.model_fields.keys() - _CHOSEN) | last.keys()
    found = arrange(ground, _keeping(wish, merged, names - _NOT_KEPT))
    used = valid(Flags, {**dict(merged), **found.flags.computed(), **last})
    memory = ground.plan(used)
    return found.model_copy(update={"flags": used, "memory": memory, "enough": memory.fits})


def of_weights(wish: Wish, flags: Flags) -> Wish:
    """Wish the same of the weights that these flags load, on as many accelerators."""
    return _keeping(wish, flags, _WEIGHTS)


def _keeping(wish: Wish, flags: Flags, names: Collection[str]) -> Wish:
    plain = dict(Flags())
    said = {name: value for name, value in flags if name in names and value != plain[name]}
    kept = {**said, "tensor_parallel_size": flags.tensor_parallel_size}
    text_only = wish.text_only or flags.language_model_only
    return wish._replace(kept=tuple(kept.items()), text_only=text_only)


def usual_length(ground: Ground, flags: Flags) -> int | None:
    """Return the length to serve with where none was asked for; None is the model's own.

    It is the longest, halving from the model's own, of which four requests have room at once. Where
    even 8,192 tokens have less room, it is that.
    """
    own = positions(ground.model, flags)
    if own is None or ground.accelerator.memory_gib is None:
        return None
    length = own
    while length > _USEFUL_LENGTH and not ground.holds(
        _with(flags, max_model_len=length), _USEFUL_REQUESTS
    ):
        length = max(_USEFUL_LENGTH, length // 2)
    return None if length == own else length


def utilization(accelerator: Accelerator) -> float | None:
    """Give the share of its memory that vLLM may take there; None where it is not known."""
    if accelerator.memory_gib is None or accelerator.kind == "cpu":
        return None  # on a CPU the cache is computed from what is free
    if accelerator.kind == "tpu":
        return _TPU_UTILIZATION
    return min(_GPU_UTILIZATION, int(accelerator.free_at_start * 100) / 100)


def difference(before: MemoryPlan, after: MemoryPlan) -> str:
    """Say what a change bought; requests of two lengths are counted each with its own."""
    cache = f"{before.kv_cache_gib.expected:.2f} -> {after.kv_cache_gib.expected:.2f} GiB"
    was, now = (f"{plan.kv_low.max_concurrency:.2f}" for plan in (before, after))
    old, new = (f"{plan.max_model_len:,}" for plan in (before, after))
    if old != new:
        return f"KV cache {cache}, {was} requests of {old} tokens -> {now} of {new}"
    return f"KV cache {cache}, {was} -> {now} requests of {new} tokens"


def _with(flags: Flags, **changed: Any) -> Flags:
    return flags.model_copy(update=changed)


def _fixed(ground: Ground, wish: Wish) -> tuple[Flags, list[Change]]:
    """Change what asks for no less, one flag after another, until it is enough."""
    flags = ground.plainest(wish)
    changes = list(_fewer_sequences(ground, flags))
    if ground.accelerator.memory_gib is None or not (
        ground.plan(flags).load_peak_gib < ground.accelerator.free_gib
    ):
        return flags, []  # No flag below helps to load it.
    for flag, costs, change in _fixes(ground, flags):
        if ground.holds(flags, wish.requests):
            break
        changed = _with(flags, **change)
        if changed != flags:
            buys = difference(ground.plan(flags), ground.plan(changed))
            changes.append(Change(flag=flag, buys=buys, costs=costs))
            flags = changed
    return flags, changes


def _fixes(ground: Ground, flags: Flags) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield what can be changed without asking less: flag, cost and change, gentlest first."""
    if ground.fp8_kv:
        fp8 = {"kv_cache_dtype": "fp8"}
        yield "--kv-cache-dtype fp8", "a little accuracy of attention", fp8
    if ground.accelerator.kind != "gpu":
        return
    if flags.language_model_only:  # an image of Gemma 4 has to fit in one step
        slower = "prompts are read in more steps, so the first token comes later"
        small = {"max_num_batched_tokens": _SMALL_BATCH}
        yield f"--max-num-batched-tokens {_SMALL_BATCH}", slower, small
    waits = "CUDA graphs: every step waits for Python, most with small batches"
    yield "--enforce-eager", waits, {"enforce_eager": True}


def _fewer_sequences(ground: Ground, flags: Flags) -> Iterator[Change]:
    """Say what the sequences bought, where vLLM's own default would not have been enough."""
    default = ground.plan(_with(flags, max_num_seqs=None))
    if not default.fits and ground.plan(flags).fits:
        yield Change(
            flag=f"--max-num-seqs {flags.max_num_seqs}",
            buys=difference(default, ground.plan(flags)),
            costs=f"further requests queue instead of up to {default.max_num_seqs} at once",
        )


def _grown(ground: Ground, flags: Flags, wish: Wish) -> Flags:
    """Take what the layout is for: sequences of usual requests in powers of two, or length."""
    if wish.layout == "speed":
        return flags  # A step waits for every other request in its batch.
    if wish.layout == "context":
        most = ground.plan(flags).kv_low.max_len_that_fits
        most = min(most, ground.model.max_position_embeddings or most)
        longer = _longest(ground, _with(flags, max_model_len=most), 1)
        return longer if longer and most > wish.max_model_len else flags
    usual = min(wish.usual_tokens or wish.max_model_len, wish.max_model_len)
    held = ground.plan(_with(flags, max_model_len=usual)).kv_low.max_concurrency
    fewer = min(_MOST_SEQUENCES, int(held))
    more = _with(flags, max_num_seqs=max(wish.requests, 1 << max(0, fewer.bit_length() - 1)))
    return more if ground.holds(more, wish.requests) else flags


def _longest(ground: Ground, flags: Flags, requests: int) -> Flags | None:
    """Give the same flags with the longest length, up to theirs, that so many requests have."""
    lengths = range(SHORTEST, (flags.max_model_len or 0) + 1, SHORTEST)
    fitting = bisect_left(
        lengths,
        1,
        key=lambda length: not ground.holds(_with(flags, max_model_len=length), requests),
    )
    return _with(flags, max_model_len=lengths[fitting - 1]) if fitting else None


_SEARCHED: Final = 15
"""GiB beyond what loading alone would need: the KV cache of a long request."""


class NearMiss(Record):
    """A plan that does fit, and what it gives up."""

    gives_up: str
    buys: str
    """What is held at once, before and after."""
    arrangement: Arrangement


class Offload(Record):
    """What keeping a part of the weights in the host's memory would mean."""

    cpu_offload_gb: int
    """The least that makes it fit."""
    flags: Flags
    roof_tokens_per_second: float
    tokens_per_second: Band
    slower: float
    """Times, compared with the whole model in the accelerator's own memory."""
    why_not: str


def near_misses(ground: Ground, wish: Wish) -> Iterator[NearMiss]:
    """Give plans that fit and ask for less, the nearest first."""
    tightest = arrange(ground, wish)
    if ground.loads(tightest.flags):
        if shorter := _longest(ground, tightest.flags, wish.requests):
            said = f"length: {shorter.max_model_len:,} tokens"
            yield _miss(said, tightest, _again(ground, tightest, shorter))
        if fewer := _fewer(ground, tightest.flags):
            said = f"users: {fewer.max_num_seqs} at full length at once"
            yield _miss(said, tightest, _again(ground, tightest, fewer))
    text = text_only(ground, wish)
    if text and text.enough:
        said = "input: no images and no sound (--language-model-only)"
        yield _miss(said, tightest, text)


def _again(ground: Ground, tightest: Arrangement, flags: Flags) -> Arrangement:
    memory = ground.plan(flags)
    return tightest.model_copy(update={"flags": flags, "memory": memory, "enough": memory.fits})


def _miss(gives_up: str, before: Arrangement, after: Arrangement) -> NearMiss:
    buys = _held(after.memory)
    if before.memory.kv_low.max_concurrency:
        buys += f" instead of {_held(before.memory)}"
    return NearMiss(gives_up=gives_up, buys=buys, arrangement=after)


def _held(memory: MemoryPlan) -> str:
    """Say what the KV cache holds at once at the least."""
    return (
        f"{memory.kv_low.max_concurrency:.2f} requests of {memory.max_model_len:,} tokens at once"
    )


def _fewer(ground: Ground, flags: Flags) -> Flags | None:
    """Take as many sequences as are held; where so many leave no room for a cache, halve them."""
    while not ground.plan(flags).fits:
        if (flags.max_num_seqs or 1) == 1:
            return None
        flags = _with(flags, max_num_seqs=(flags.max_num_seqs or 1) // 2)
    held = int(ground.plan(flags).kv_low.max_concurrency)
    return _with(flags, max_num_seqs=min(held, flags.max_num_seqs or held))


def text_only(ground: Ground, wish: Wish) -> Arrangement | None:
    """Arrange it without the towers for images and sound, None where there are none."""
    if wish.text_only or not (ground.model.vision or ground.model.audio):
        return None
    return arrange(ground, wish._replace(text_only=True))


def offload(ground: Ground, wish: Wish, host_gib: float | None) -> Offload | None:
    """Compute what offloading would cost; None where it is not possible or would not help."""
    if ground.accelerator.kind != "gpu":
        return None
    flags = ground.plainest(wish._replace(requests=1))

    def fits(gigabytes: int) -> bool:
        return ground.plan(_offloaded(flags, gigabytes)).fits

    least = ground.plan(flags).load_peak_gib - ground.accelerator.free_gib
    low = max(1, math.ceil(least))
    if fits(0) or not fits(low + _SEARCHED):
        return None
    gigabytes = low + bisect_left(range(low, low + _SEARCHED), 1, key=fits)
    flags = _offloaded(flags, gigabytes)
    with_it, slower = _slower(ground, flags)
    short = host_gib is not None and gigabytes * ground.count > host_gib
    head = f"It would fit with --cpu-offload-gb {gigabytes}, but"
    if short:
        head = (
            f"No: --cpu-offload-gb {gigabytes}, of each accelerator, would make room, and no host"
            f" there can spare that (at most {max(0.0, host_gib or 0):.0f} GiB beside its files);"
        )
    return Offload(
        cpu_offload_gb=gigabytes,
        flags=flags,
        roof_tokens_per_second=with_it.roof_tokens_per_second,
        tokens_per_second=with_it.tokens_per_second,
        slower=slower,
        why_not=f"{head} {offloading(ground, flags)}",
    )


def offloading(ground: Ground, flags: Flags) -> str:
    """Say what the offload of these flags costs: PCIe held against the accelerator's memory."""
    device, (with_it, slower) = ground.accelerator, _slower(ground, flags)
    bandwidth, pcie = device.bandwidth_gb_per_s or 0, device.pcie_gb_per_s or 1
    roof = with_it.roof_tokens_per_second
    return (
        f"every step then moves weights over PCIe: {pcie:.0f} GB/s against {bandwidth:,.0f} "
        f"GB/s of its own memory, {bandwidth / pcie:.0f} times slower. At most "
        f"{roof:.1f} tokens/s, likely {with_it.tokens_per_second}, where {roof * slower:.0f} would"
        f" be the roof without: {slower:.1f} times slower."
    )


def _slower(ground: Ground, flags: Flags) -> tuple[Decode, float]:
    """Foresee a step with the offload, and how many times longer it takes than without."""
    with_it, whole = (
        decode(ground.model, ground.accelerator, each) for each in (flags, _offloaded(flags, 0))
    )
    return with_it, whole.roof_tokens_per_second / with_it.roof_tokens_per_second


def _offloaded(flags: Flags, gigabytes: int) -> Flags:
    return _with(flags, cpu_offload_gb=float(gigabytes) if gigabytes else None)
