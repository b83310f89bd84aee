"""A deployment explained: what was asked for it, what that does here, and what else would do."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import anyio

from backends.base import Backend, KnowsEngine, Predicts, RemembersSpec
from backends.container import vllm_flags
from core.errors import InvalidArgument, OpsError, Unsupported
from core.records import DeploymentSpec
from core.reply import note
from operations.explaining.booting import boot_check, budget_of
from operations.explaining.case import Case
from operations.explaining.differing import compared
from operations.explaining.memory_rows import memory_rows
from operations.explaining.practising import practices
from operations.explaining.records import Comparison, Explanation, FlagRow
from operations.explaining.running_rows import running_rows
from operations.explaining.serving_rows import serving_rows
from operations.explaining.spec_words import changed, plain
from operations.explaining.trading import trade_offs
from operations.plans.places import place_named
from operations.plans.startable import check_startable
from operations.resolve import Found, everything, find, find_among
from operations.runtime import Runtime
from planner.model import read_model


class _Seen(NamedTuple):
    """One deployment, read."""

    case: Case
    explanation: Explanation
    asked: DeploymentSpec
    """As it was given, before its engine_args were read as flags."""


async def explain(
    runtime: Runtime,
    target: str | None,
    name: str | None,
    *,
    other: str | None = None,
    flags: Sequence[str] | None = None,
) -> Explanation:
    """Explain a deployment; against another one, or against itself with some flags changed.

    Raises:
        InvalidArgument: Both are to be compared with, or a flag cannot be.
        Unsupported: What was asked for it is not known here.
        OpsError: It cannot be found or read.
    """
    if other and flags:
        raise InvalidArgument(
            "Two things to compare with are one too many.", fix="Give one of other and flags."
        )
    flags = [words for words in flags or () if words.strip()]
    found = await _meant(runtime, target, name, other)
    seen = await _read(runtime, found)
    if flags:
        return _with_flags(found.backend, seen, flags)
    if not other:
        return seen.explanation
    return _beside(seen, await _read(runtime, await _second(runtime, other, found)))


async def _second(runtime: Runtime, other: str, first: Found) -> Found:
    """Give the other one, as NAME or as NAME on TARGET; of one name, not the first."""
    name, _, where = (part.strip() for part in other.partition(" on "))
    if where:
        return await find(runtime.stage, place_named(runtime, where).name, name)
    there = [one for one in await everything(runtime.stage, None) if one.name == name]
    mine = (first.deployment.target, first.name)
    rest = [one for one in there if (one.deployment.target, one.name) != mine]
    if len(rest) == 1:
        return rest[0]
    return await find_among(runtime.stage, runtime.stage.usable, name)


async def _meant(
    runtime: Runtime, target: str | None, name: str | None, other: str | None
) -> Found:
    """Give the deployment; beside another one, the one that is not it."""
    if name is None and other:
        there = await everything(runtime.stage, target)
        rest = [one for one in there if one.name != other]
        if len(rest) == 1:
            return rest[0]
    return await find(runtime.stage, target, name)


async def _read(runtime: Runtime, found: Found) -> _Seen:
    asked = await _spec(found)
    spec = plain(asked)
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    budget = await budget_of(found, model, spec.weights)
    deployment = found.deployment
    case = Case(
        spec,
        model,
        place_named(runtime, deployment.target),
        usd_per_hour=deployment.usd_per_hour,
        vllm_version=await _version(found),
        weights_from=budget.weights_from,
        stays_seconds=budget.stays_seconds,
    )
    boot = boot_check(case, budget, runtime.stage.journal, deployment)
    explanation = Explanation(
        target=deployment.target,
        name=found.name,
        model=spec.model,
        place=case.place.title,
        state=deployment.state,
        flags=_rows(case),
        trade_offs=tuple(trade_offs(case, boot.long_enough)),
        boot=boot,
        practices=tuple(practices(case, boot)),
        measured_capacity=await _measured(found),
    )
    return _Seen(case, explanation, asked)


def _rows(case: Case) -> tuple[FlagRow, ...]:
    if case.spec.engine != "vllm":
        note(f"It is served by {case.spec.engine}: vLLM's flags do not apply to it.")
        return tuple(_short(running_rows(case)))
    rows = (*memory_rows(case), *serving_rows(case), *running_rows(case))
    return tuple(_short(rows))


def _short(rows: Iterable[FlagRow]) -> Iterator[FlagRow]:
    """Leave the default out where it is the value."""
    for row in rows:
        yield row if row.differs else row.model_copy(update={"default": None})


async def _spec(found: Found) -> DeploymentSpec:
    backend = found.backend
    spec = await backend.spec(found.name) if isinstance(backend, RemembersSpec) else None
    if spec is None:
        raise Unsupported(
            f"What was asked for {found.name} on {found.deployment.target} is not known here.",
            fix="Call get_model_details for what its engine says of itself.",
        )
    return spec


async def _version(found: Found) -> str | None:
    """Give the version that its image is known to hold."""
    backend = found.backend
    try:
        known = await backend.predicted(found.name) if isinstance(backend, Predicts) else None
    except OpsError:
        return None  # its model cannot be read any more
    return known.flags.vllm_version if known else None


async def _measured(found: Found) -> str | None:
    """Say what the log of its boot tells of the KV cache; nothing is asked of the engine."""
    if not isinstance(found.backend, KnowsEngine):
        return None
    try:
        memory = (await found.backend.engine_facts(found.name)).memory
    except OpsError as exc:
        note(f"Its log could not be read: {exc.summary}")
        return None
    tokens, requests = memory.get("kv_cache_tokens"), memory.get("max_concurrency")
    if tokens is None:
        return None
    at_once = f", {requests:g} requests of full length" if requests is not None else ""
    return f"{tokens:,} tokens{at_once}"


def _with_flags(backend: Backend, seen: _Seen, words: Sequence[str]) -> Explanation:
    spec = changed(seen.case.spec, words)
    vllm_flags(spec)  # refuses what this project sets itself, such as keys
    case = seen.case.of(spec)
    if spec.engine == "vllm":
        check_startable(case.model, case.place, case.flags)
    if case.no_host is None:  # else the comparison says so, beside all that the change does
        backend.plan(spec, case.model)  # refuses what deploying would
    rows = seen.explanation.flags, _rows(case)
    comparison = compared(seen.case, case, rows, f"itself with {' '.join(words)}")
    said = spec.model_dump(mode="json", exclude_defaults=True, exclude={"name", "model"})
    # Left out, the least is the target's; a call that scales needs both.
    said |= {"min_replicas": spec.min_replicas, "max_replicas": spec.max_replicas}
    # What a call leaves out stays as it is: what is left out again has to be reset.
    before = seen.asked.model_dump(exclude_defaults=True, exclude={"name", "model"})
    if left_out := [name for name in before if name not in said]:
        said["reset"] = left_out
    return _shortened(seen.explanation, comparison, said)


def _beside(one: _Seen, two: _Seen) -> Explanation:
    rows = one.explanation.flags, two.explanation.flags
    words = f"{two.explanation.name} on {two.explanation.target}"
    comparison = compared(one.case, two.case, rows, words)
    return _shortened(one.explanation, comparison, {})


def _shortened(whole: Explanation, found: Comparison, new: Mapping[str, Any]) -> Explanation:
    """Leave out what the two have in common."""
    differ = {one.flag for one in found.differences}
    rows = tuple(row for row in whole.flags if row.flag in differ)
    update = {"flags": rows, "trade_offs": (), "practices": (), "comparison": found, "new": new}
    return whole.model_copy(update=update)
