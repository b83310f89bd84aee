"""Plans that nearly fit: what would have to be asked less for, and what offloading would cost."""

import math
from collections.abc import Iterator
from typing import Final

from core.records import Record
from planner.flags import Flags
from planner.layouts import Arrangement, Ground, Wish, arrange, longest
from planner.reached import Band
from planner.speed import decode

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
    roof_tokens_per_second: float
    tokens_per_second: Band
    slower: float
    """Times, compared with the whole model in the accelerator's own memory."""
    why_not: str


def near_misses(ground: Ground, wish: Wish) -> Iterator[NearMiss]:
    """Give plans that fit and ask for less, the nearest first."""
    tightest = _tightest(ground, wish)
    if shorter := longest(ground, tightest, wish.requests):
        yield _miss(ground, shorter, f"length: {shorter.max_model_len:,} tokens", wish)
    held = ground.plan(tightest)
    if held.fits:
        fewer = tightest.model_copy(update={"max_num_seqs": int(held.kv_low.max_concurrency)})
        yield _miss(ground, fewer, f"users: {fewer.max_num_seqs} at full length at once", wish)
    if not wish.text_only and (ground.model.vision or ground.model.audio):
        text = arrange(ground, wish._replace(text_only=True))
        if text.enough:
            yield NearMiss(
                gives_up="input: no images and no sound (--language-model-only)",
                buys=_held(ground, wish, text),
                arrangement=text,
            )


def offload(ground: Ground, wish: Wish, host_gib: int | None) -> Offload | None:
    """Compute what offloading would cost; None where it is not possible or would not help."""
    if ground.accelerator.kind != "gpu":
        return None
    flags = ground.plainest(wish._replace(requests=1))

    def fits(gigabytes: int) -> bool:
        return ground.plan(_offloaded(flags, gigabytes)).fits

    device = ground.accelerator
    free = (device.memory_gib or 0) * device.free_at_start
    low = max(1, math.ceil(ground.plan(flags).load_peak_gib - free))
    high = low + _SEARCHED
    if fits(0) or not fits(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle + 1, high)
    return _offload(ground, _offloaded(flags, low), low, host_gib)


def _offload(ground: Ground, flags: Flags, gigabytes: int, host_gib: int | None) -> Offload:
    model, device = ground.model, ground.accelerator
    with_it = decode(model, device, flags)
    whole = decode(model, device, _offloaded(flags, 0))
    slower = whole.roof_tokens_per_second / with_it.roof_tokens_per_second
    bandwidth, pcie = device.bandwidth_gb_per_s or 0, device.pcie_gb_per_s or 0
    return Offload(
        cpu_offload_gb=gigabytes,
        roof_tokens_per_second=with_it.roof_tokens_per_second,
        tokens_per_second=with_it.tokens_per_second,
        slower=slower,
        why_not=(
            f"It would fit with --cpu-offload-gb {gigabytes}{_host(gigabytes, host_gib)}, but "
            f"every step then moves weights over PCIe: {pcie:.0f} GB/s against {bandwidth:,.0f} "
            f"GB/s of its own memory, {bandwidth / pcie:.0f} times slower. At most "
            f"{with_it.roof_tokens_per_second:.1f} tokens/s, likely "
            f"{with_it.tokens_per_second}, where {whole.roof_tokens_per_second:.0f} would be the "
            f"roof without: {slower:.1f} times slower."
        ),
    )


def _host(gigabytes: int, host_gib: int | None) -> str:
    if host_gib is None or gigabytes < host_gib:
        return ""
    return f" (more than a host of {host_gib} GiB can spare)"


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
