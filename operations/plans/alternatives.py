"""The memory layouts that a model can have at a place, each with what it holds, side by side."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, get_args

from core.records import MemoryPlan
from planner.advise import engine_line, host_gib, spare_gib
from planner.boot import boot
from planner.flags import Flags
from planner.layouts import (
    Arrangement,
    Ground,
    Layout,
    Wish,
    arrange,
    of_weights,
    offload,
    text_only,
)
from planner.places import Place
from planner.price import price
from planner.speed import Band, decode

MODEST: Final = 8192
"""Tokens: a length that is of use, for what is computed beside what was asked."""
_MORE: Final = 1.05
"""Times: what is less apart than that is the same."""
_SAME: Final = (
    "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
)  # fmt: skip


class Alternatives(NamedTuple):
    """The layouts of a model at a place."""

    rows: Mapping[str, str]
    """By name: flags, what they hold, speed, cold start, host and price."""
    standing: str
    """Which of them the flags in question are, and what another would give."""
    flags: Mapping[str, Flags]
    """Of each that fits, without those in question."""


class _Case(NamedTuple):
    """One model at one place with the flags that are in question."""

    ground: Ground
    where: Place
    flags: Flags
    memory: MemoryPlan


def alternatives(ground: Ground, where: Place, flags: Flags, *, wanted: Wish) -> Alternatives:
    """Compute every layout of the same weights beside these flags, at their length if they fit."""
    device = ground.accelerator
    if device.memory_gib is None or device.bandwidth_gb_per_s is None:
        return Alternatives({}, "", {})
    case = _Case(ground, where, flags, ground.plan(flags))
    length = case.memory.max_model_len if case.memory.fits else wanted.max_model_len
    if not case.memory.fits:
        length = min(length, MODEST)
    wish = of_weights(wanted, flags)._replace(max_model_len=length, layout=None)
    found = dict(_found(case, wish))
    rows = {name: _row(case, each.flags, each.memory) for name, each in found.items()}
    this = {"this": _row(case, flags, case.memory)} if case.memory.fits else {}
    flags_of = {name: each.flags for name, each in found.items()}
    return Alternatives({**this, **rows}, _standing(case, found), flags_of)


def _found(case: _Case, wish: Wish) -> Iterator[tuple[str, Arrangement]]:
    """Give the layouts that fit; offloading only where nothing does with images and sound."""
    layouts: tuple[Layout, ...] = get_args(Layout)
    whole = False
    for name in layouts:
        found = arrange(case.ground, wish._replace(layout=name))
        if found.enough:
            whole = True
            yield name, found
    text = text_only(case.ground, wish)
    if text and text.enough:
        yield "text only", text
    if whole:
        return
    host = offload(case.ground, wish, spare_gib(case.ground.model, case.where))
    if host and _has_host(case, host.flags):
        memory = case.ground.plan(host.flags)
        yield "offload", Arrangement(layout=None, flags=host.flags, memory=memory, enough=True)


def _has_host(case: _Case, flags: Flags) -> bool:
    """Whether a host of the place has the memory for it, as far as its hosts are known."""
    needed = host_gib(case.ground.model, case.where, flags)
    return not case.where.sizes or case.where.size_for(needed) is not None


def _row(case: _Case, flags: Flags, memory: MemoryPlan) -> str:
    model, where, held = case.ground.model, case.where, memory.kv_low
    needed = host_gib(model, where, flags)
    size = where.size_for(needed)
    hourly = price(where, size).usd_per_hour
    line = engine_line("", flags).removeprefix("vllm serve").strip() or "vLLM's defaults"
    parts = [
        f"at least {held.max_concurrency:.1f} requests of {memory.max_model_len:,} tokens",
        f"{_speed(case, flags, memory)} tokens/s for each of {_at_once(memory)} at once",
        f"cold start {boot(model, where, flags).seconds} s",
    ]
    if size:
        parts.append(f"{size.vcpu} vCPU, {size.ram_gib} GiB")
    elif where.sizes:
        parts.append(f"no host there has {needed:.1f} GiB for weights")
    if hourly:
        parts.append(f"${hourly:.2f}/h")
    return f"{line}: {'; '.join(parts)}"


def _at_once(memory: MemoryPlan) -> int:
    """Requests of full length that are worked on together, on the low estimate."""
    return max(1, min(memory.max_num_seqs, int(memory.kv_low.max_concurrency)))


def _speed(case: _Case, flags: Flags, memory: MemoryPlan) -> Band:
    """Give tokens per second of each request when all are there, half way through."""
    model, device = case.ground.model, case.ground.accelerator
    together, context = _at_once(memory), memory.max_model_len // 2
    step = decode(model, device, flags, concurrency=together, context=context)
    return step.tokens_per_second_per_user


def _standing(case: _Case, found: Mapping[str, Arrangement]) -> str:
    if not case.memory.fits:
        names = ", ".join(found)
        return f"These flags do not fit; what does: {names}." if found else "Nothing fits there."
    alike = [name for name, each in found.items() if _same(case, each)]
    head = f"the layout for {' and '.join(alike)}" if alike else "none of the layouts"
    more = list(_more(case, found))
    rest = f"More elsewhere: {'; '.join(more)}." if more else "No layout gives more of anything."
    return f"These flags are {head}. {rest}"


def _same(case: _Case, other: Arrangement) -> bool:
    mine, theirs = case.memory, other.memory
    both = case.flags, other.flags
    rest = [flags.model_dump(exclude={*_SAME, "kv_cache_dtype"}) for flags in both]
    caches = {flags.kv_cache_dtype or "auto" for flags in both}
    alike = all(getattr(mine, name) == getattr(theirs, name) for name in _SAME)
    return alike and rest[0] == rest[1] and len(caches) == 1


def _more(case: _Case, found: Mapping[str, Arrangement]) -> Iterator[str]:
    """Say of each layout what it gives of what it is for, where that is more."""
    mine, flags = case.memory, case.flags
    if quick := [name for name, each in found.items() if _faster(case, each)]:
        best = max(quick, key=lambda name: _middle(case, found[name]))
        theirs = found[best]
        yield (
            f"{best} gives {_speed(case, theirs.flags, theirs.memory)} tokens/s to each of"
            f" {_at_once(theirs.memory)}, these {_speed(case, flags, mine)} to each of"
            f" {_at_once(mine)}"
        )
    if each := found.get("concurrency"):
        held, ours = _held(each.memory), _held(mine)
        if held > ours * _MORE:
            yield (
                f"concurrency holds {held:.1f} requests of {each.memory.max_model_len:,} tokens"
                f" at once, these {ours:.1f}"
            )
    if each := found.get("context"):
        longest = each.memory.max_model_len
        if longest > mine.max_model_len * _MORE:
            yield f"context takes one request of {longest:,} tokens, these {mine.max_model_len:,}"


def _faster(case: _Case, other: Arrangement) -> bool:
    return _middle(case, other) > _speed(case, case.flags, case.memory).middle * _MORE


def _middle(case: _Case, each: Arrangement) -> float:
    return _speed(case, each.flags, each.memory).middle


def _held(memory: MemoryPlan) -> float:
    """Requests of full length that cache and sequences allow, on the low estimate."""
    return min(memory.max_num_seqs, memory.kv_low.max_concurrency)
