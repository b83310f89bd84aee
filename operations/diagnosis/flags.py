"""Whether an engine runs with what was asked for."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from backends.base import EngineFacts, KnowsEngine, Predicts
from core.errors import EndpointError, OpsError
from core.records import DeploymentSpec, Failure, Step
from operations.diagnosis.case import Case, Looked, condition, failed, healthy
from operations.diagnosis.records import Remark

_TENSOR_PARALLEL: Final = re.compile(r"tensor_parallel_size'?\"?\s*[:=]\s*([0-9]{1,4})")
_ALIASES: Final = {"half": "float16", "float": "float32", "fp8": "fp8_e4m3"}
"""vLLM's own: what is asked for by the one name runs by the other."""
_FAR_OFF: Final = 1.25
"""Weights that are so many times the plan's are other weights than were planned."""
_LOOK_SECONDS: Final = 3.0


class Pair(NamedTuple):
    """One thing that was asked for, and what runs."""

    flag: str
    asked: str | int
    runs: str | int


class _Seen(NamedTuple):
    facts: EngineFacts
    max_model_len: int | None


async def as_asked(case: Case) -> Looked:
    """Hold what the engine says of itself against what was asked for, and against the plan."""
    spec = await case.spec()
    if spec is None or spec.engine != "vllm" or not isinstance(case.backend, KnowsEngine):
        return healthy("It has booted; what was asked for is not known here.")
    facts = await case.backend.engine_facts(case.found.name)
    seen = _Seen(facts, await _max_model_len(case))
    wrong = tuple(_differing(spec, seen))
    if wrong:
        rows = (f"{one.flag}: asked for {one.asked}, runs with {one.runs}" for one in wrong)
        return failed(_misflagged(wrong), *(condition(row, case.now) for row in rows))
    remarks = [remark for remark in (await _off_plan(case, facts),) if remark]
    return healthy("It has booted with what was asked for.", remarks=remarks)


def _differing(spec: DeploymentSpec, seen: _Seen) -> Iterator[Pair]:
    for flag, asked, runs in (
        ("max_model_len", spec.max_model_len, seen.max_model_len),
        ("dtype", _asked(spec.dtype), _named(seen.facts.weights_dtype)),
        ("kv_cache_dtype", _asked(spec.kv_cache_dtype), _named(seen.facts.kv_cache_dtype)),
        ("tensor_parallel_size", spec.tensor_parallel_size, _tensor_parallel(seen.facts)),
    ):
        if asked is not None and runs is not None and asked != runs:
            yield Pair(flag, asked, runs)


def _asked(word: str | None) -> str | None:
    """Give what was asked for; `auto` is whatever the engine takes."""
    return None if word == "auto" else _named(word)


def _named(word: str | None) -> str | None:
    """Give one name for one thing."""
    plain = (word or "").removeprefix("torch.")
    return _ALIASES.get(plain, plain) or None


def _tensor_parallel(facts: EngineFacts) -> int | None:
    """Flags that are not told at all say nothing; told without this one, it is one."""
    if not facts.flags:
        return None
    match = _TENSOR_PARALLEL.search(facts.flags)
    return int(match.group(1)) if match else 1


async def _max_model_len(case: Case) -> int | None:
    try:
        async with case.endpoint(timeout=_LOOK_SECONDS) as endpoint:
            rows = await endpoint.models()
    except EndpointError:
        return None  # the layers that ask it say why
    served = case.deployment.served_model_name
    return next((row.max_model_len for row in rows if row.id == served), None)


def _misflagged(wrong: tuple[Pair, ...]) -> Failure:
    rows = "; ".join(f"{one.flag} {one.runs} instead of {one.asked}" for one in wrong)
    return Failure(
        code="RUNS_WITH_OTHER_FLAGS",
        cause=f"Its engine runs with other flags than were asked for: {rows}.",
        fix="Look for a second mention in engine_args, or a change from outside; then deploy_vllm"
        " with what is meant.",
        next=(Step(tool="get_vllm_deployment_config"), Step(tool="deploy_vllm")),
    )


async def _off_plan(case: Case, facts: EngineFacts) -> Remark | None:
    """Say where the weights are not those that were planned for; the rest of memory varies."""
    actual = facts.memory.get("weights_gib")
    if not actual or not isinstance(case.backend, Predicts):
        return None
    try:
        predicted = await case.backend.predicted(case.found.name)
    except OpsError:
        return None  # its model's folder is gone, or it was never planned
    planned = predicted.memory.weights_gib if predicted else None
    if not planned or 1 / _FAR_OFF < actual / planned < _FAR_OFF:
        return None
    text = f"Its weights take {actual:.2f} GiB, and {planned:.2f} GiB were planned."
    return Remark(code="WEIGHTS_OFF_PLAN", text=text)
