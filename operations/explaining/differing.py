"""Two specs held against each other, flag by flag, and all of it together."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from operations.explaining.case import Case, at_once, usd
from operations.explaining.records import LIVE, Comparison, Difference, FlagRow
from operations.explaining.running_rows import cold_start, idle_cost, resting_cost
from planner.layouts import difference

_MEMORY: Final = {
    f"--{name.replace('_', '-')}": name
    for name in (
        "max_model_len", "gpu_memory_utilization", "kv_cache_dtype", "kv_cache_memory_bytes",
        "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "quantization", "dtype",
        "cpu_offload_gb", "enforce_eager",
    )
}  # fmt: skip
_WHERE: Final = ("model", "target", "price")


def compared(
    before: Case, after: Case, rows: tuple[Sequence[FlagRow], Sequence[FlagRow]], words: str
) -> Comparison:
    """Say what differs, what each difference does alone, and what all do together."""
    differences = (*_places(before, after), *_flags(before, after, *rows))
    changed = frozenset(one.flag for one in differences)
    plan = after.memory
    return Comparison(
        compared_with=words,
        differences=differences,
        together=tuple(_together(before, after)) if differences else (),
        fits=False if after.no_host else plan.fits if plan else None,
        why_not=(*(plan.reasons if plan else ()), *((after.no_host,) if after.no_host else ())),
        restarts=_restarts(before, after, changed),
    )


def _places(before: Case, after: Case) -> Iterator[Difference]:
    told = (
        (before.model.model, after.model.model),
        (before.place.title, after.place.title),
        (_hourly(before), _hourly(after)),
    )
    for name, (was, now) in zip(_WHERE, told, strict=True):
        if was != now:
            yield Difference(flag=name, before=was, after=now, does=_elsewhere(name, after))


def _elsewhere(name: str, after: Case) -> str:
    if name == "model":
        plan = after.memory
        return f"{plan.weights_gib:.2f} GiB of weights" if plan else "another model"
    return after.device.title if name == "target" else "for each replica"


def _hourly(case: Case) -> str:
    return "not known" if case.usd_per_hour is None else f"{usd(case.usd_per_hour)}/h"


def _flags(
    before: Case, after: Case, was: Sequence[FlagRow], now: Sequence[FlagRow]
) -> Iterator[Difference]:
    old, new = ({row.flag: row for row in rows} for rows in (was, now))
    for flag in dict.fromkeys((*old, *new)):
        one, other = old.get(flag), new.get(flag)
        values = [row.value if row else "left out" for row in (one, other)]
        if values[0] == values[1] or not (_said(one) or _said(other)):
            continue
        does = _alone(before, after, flag) or (other.does if other else "It is left out again.")
        yield Difference(flag=flag, before=values[0], after=values[1], does=does)


def _said(row: FlagRow | None) -> bool:
    """Whether somebody said it; what only follows from another flag is told with that."""
    return row is not None and row.differs


def _alone(before: Case, after: Case, flag: str) -> str:
    """Say what this flag does alone, to the deployment as it is."""
    name = _MEMORY.get(flag)
    if name is None or before.model.model != after.model.model or before.place != after.place:
        return ""
    change: dict[str, Any] = {name: getattr(after.flags, name)}
    if name == "max_model_len":  # Together with what makes such a length possible.
        change["hf_overrides"] = after.flags.hf_overrides
    one, other = before.memory, before.plan(**change)
    if one is None or other is None:
        return ""
    words = [difference(one, other)]
    if name == "enforce_eager" and (boots := (before.boot(), before.boot(**change))):
        words += [f"boot {a.seconds} s -> {b.seconds} s" for a, b in [boots] if a and b]
    return "; ".join(words) + ("" if other.fits else f"; it does not fit: {other.reasons[0]}")


def _together(before: Case, after: Case) -> Iterator[str]:
    one, other = before.memory, after.memory
    if one and other and one != other and other.fits:
        yield f"{difference(one, other)}, on the low estimate"
        lengths = one.max_model_len, other.max_model_len
        held = _with_tokens((at_once(one), at_once(other)), "of", lengths)
        fewer = (
            "fewer " if other.kv_expected.max_concurrency < one.kv_expected.max_concurrency else ""
        )
        yield from _moved(f"{fewer}requests of full length at once", *held)
        yield from _speeds(before, after, lengths[0] // 2, lengths[1] // 2)
    yield from _moved("cold start", cold_start(before), cold_start(after))
    yield from _moved("idle", resting_cost(before), resting_cost(after))
    yield from _moved("host", before.host, after.host)
    most = [idle_cost(case, case.spec.max_replicas) for case in (before, after)]
    if before.spec.max_replicas != after.spec.max_replicas:
        yield from _moved("with all replicas", *most)


def _moved(what: str, was: str, now: str) -> Iterator[str]:
    """Say what is another now, and nothing of what is not."""
    if was != now:
        yield f"{what}: {was} -> {now}"


def _speeds(before: Case, after: Case, context: int, later: int) -> Iterator[str]:
    was, now = before.decode(1, context=context), after.decode(1, context=later)
    if was and now:
        speeds = str(was.tokens_per_second_per_user), str(now.tokens_per_second_per_user)
        told = _with_tokens(speeds, "at", (context, later))
        yield from _moved("tokens/s of one request, half way through its length", *told)


def _with_tokens(pair: tuple[str, str], word: str, lengths: tuple[int, int]) -> tuple[str, str]:
    """Name the lengths that two figures hold for, where they are not the same."""
    if lengths[0] == lengths[1]:
        return pair
    return f"{pair[0]} {word} {lengths[0]:,} tokens", f"{pair[1]} {word} {lengths[1]:,}"


def _restarts(before: Case, after: Case, changed: frozenset[str]) -> str:
    if not changed:
        return "Nothing differs."
    if before.spec.name != after.spec.name or changed & {"model", "target"}:
        return "They are two deployments: nothing is restarted."
    if changed <= LIVE:
        return "update_vllm_scaling changes that."
    return f"The engine is started anew with it: {cold_start(after)} until it answers again."
