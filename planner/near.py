"""Plans that nearly fit: what would have to be asked less for, and what offloading would cost."""

import math
from collections.abc import Iterator
from typing import Final

from core.records import Record
from planner.accelerators import Accelerator
from planner.flags import Flags
from planner.layouts import Arrangement, Ground, Wish, arrange, longest
from planner.reached import Band
from planner.speed import Decode, decode

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
    if loads(ground, _tightest(ground, wish)):
        yield from _asking_less(ground, wish)
    text = text_only(ground, wish)
    if text and text.enough:
        yield NearMiss(
            gives_up="input: no images and no sound (--language-model-only)",
            buys=_held(ground, wish, text),
            arrangement=text,
        )


def _asking_less(ground: Ground, wish: Wish) -> Iterator[NearMiss]:
    tightest = _tightest(ground, wish)
    if shorter := longest(ground, tightest, wish.requests):
        yield _miss(ground, shorter, f"length: {shorter.max_model_len:,} tokens", wish)
    if fewer := _fewer(ground, tightest):
        yield _miss(ground, fewer, f"users: {fewer.max_num_seqs} at full length at once", wish)


def _fewer(ground: Ground, flags: Flags) -> Flags | None:
    """Take as many sequences as are held; where so many leave no room for a cache, halve them."""
    while not ground.plan(flags).fits:
        if (flags.max_num_seqs or 1) == 1:
            return None
        flags = _sequences(flags, (flags.max_num_seqs or 1) // 2)
    held = int(ground.plan(flags).kv_low.max_concurrency)
    return _sequences(flags, min(held, flags.max_num_seqs or held))


def _sequences(flags: Flags, number: int) -> Flags:
    return flags.model_copy(update={"max_num_seqs": number})


def loads(ground: Ground, flags: Flags) -> bool:
    """Whether the weights get onto the accelerator."""
    return ground.plan(flags).load_peak_gib <= free_gib(ground.accelerator)


def free_gib(device: Accelerator) -> float:
    """Give what is free of its memory when vLLM begins, endless where that is not known."""
    return (device.memory_gib or math.inf) * device.free_at_start


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

    free = free_gib(ground.accelerator)
    low = max(1, math.ceil(ground.plan(flags).load_peak_gib - free))
    high = low + _SEARCHED
    if fits(0) or not fits(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return _offload(ground, _offloaded(flags, low), low, host_gib)


def _offload(ground: Ground, flags: Flags, gigabytes: int, host_gib: float | None) -> Offload:
    with_it, whole = _both(ground, flags)
    return Offload(
        cpu_offload_gb=gigabytes,
        flags=flags,
        roof_tokens_per_second=with_it.roof_tokens_per_second,
        tokens_per_second=with_it.tokens_per_second,
        slower=whole.roof_tokens_per_second / with_it.roof_tokens_per_second,
        why_not=(f"{_loaded(gigabytes, host_gib)} {offloading(ground, flags)}"),
    )


def offloading(ground: Ground, flags: Flags) -> str:
    """Say what the offload of these flags costs: PCIe held against the accelerator's memory."""
    device, (with_it, whole) = ground.accelerator, _both(ground, flags)
    bandwidth, pcie = device.bandwidth_gb_per_s or 0, device.pcie_gb_per_s or 1
    slower = whole.roof_tokens_per_second / with_it.roof_tokens_per_second
    return (
        f"every step then moves weights over PCIe: {pcie:.0f} GB/s against {bandwidth:,.0f} "
        f"GB/s of its own memory, {bandwidth / pcie:.0f} times slower. At most "
        f"{with_it.roof_tokens_per_second:.1f} tokens/s, likely "
        f"{with_it.tokens_per_second}, where {whole.roof_tokens_per_second:.0f} would be the "
        f"roof without: {slower:.1f} times slower."
    )


def _both(ground: Ground, flags: Flags) -> tuple[Decode, Decode]:
    """Foresee a step with the offload and without."""
    model, device = ground.model, ground.accelerator
    return decode(model, device, flags), decode(model, device, _offloaded(flags, 0))


def _loaded(gigabytes: int, host_gib: float | None) -> str:
    """Say whether the host has the memory for it."""
    flag = f"--cpu-offload-gb {gigabytes}"
    if host_gib is None or gigabytes <= host_gib:
        return f"It would fit with {flag}, but"
    return (
        f"No: {flag} would make room on the accelerator, and no host there can spare that (at most"
        f" {max(0.0, host_gib):.0f} GiB beside its files);"
    )


def _offloaded(flags: Flags, gigabytes: int) -> Flags:
    return flags.model_copy(update={"cpu_offload_gb": float(gigabytes) if gigabytes else None})


def _tightest(ground: Ground, wish: Wish) -> Flags:
    """Give the flags after every fix that was tried and was not enough."""
    return arrange(ground, wish).flags


def _miss(ground: Ground, flags: Flags, gives_up: str, wish: Wish) -> NearMiss:
    memory = ground.plan(flags)
    changed = arrange(ground, wish).changes
    arrangement = Arrangement(
        layout=wish.layout, flags=flags, memory=memory, enough=memory.fits, changes=changed
    )
    return NearMiss(
        gives_up=gives_up, buys=_held(ground, wish, arrangement), arrangement=arrangement
    )


def _held(ground: Ground, wish: Wish, after: Arrangement) -> str:
    before, now = ground.plan(_tightest(ground, wish)), after.memory
    return (
        f"{before.kv_low.max_concurrency:.2f} requests of {before.max_model_len:,} tokens at once "
        f"become {now.kv_low.max_concurrency:.2f} of {now.max_model_len:,}"
    )
