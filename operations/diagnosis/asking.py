"""Whether its server and its model answer."""

import time
from collections.abc import Mapping
from typing import Any, Final

from backends.base import Stops
from core.endpoint import Endpoint
from core.errors import EndpointError, ModelNotServed, OpsError, Unauthorized, Unreachable
from core.metrics import EngineMetrics, MetricsPage
from core.records import Failure, Step
from core.redaction import in_quotes
from core.reply import note
from operations.diagnosis.case import (
    Case,
    Looked,
    condition,
    failed,
    healthy,
    lines,
    number,
    skipped,
)
from operations.lives.ending import anew, anew_steps

SLOW_HEALTH_SECONDS: Final = 2.0
"""/health of vLLM says what it knows, in milliseconds; a new TLS connection may take one second."""
_HEALTH_SECONDS: Final = 10.0
_NAMED: Final = 10
"""Models of a sentence."""
_ANSWER_SECONDS: Final = 12.0
"""For one token: a warm engine needs a tenth of a second, a busy one some."""


async def health(case: Case) -> Looked:
    """Ask /health, a second time if the first answer was slow: that one had to connect."""
    if case.silent:
        return skipped(f"Not asked: {case.silent}.")
    try:
        async with case.endpoint(timeout=_HEALTH_SECONDS) as endpoint:
            says, seconds = await _timed(endpoint)
            if says and seconds > SLOW_HEALTH_SECONDS:
                says, seconds = await _timed(endpoint)
    except EndpointError as exc:
        return failed(_unreachable(case, exc), condition(f"{exc.summary} {exc.cause}", case.now))
    took = number(f"/health took {seconds:.2f} s", case.now)
    if not says:
        failure = _dead(case)
        says_no = condition("/health says no", case.now)
        return failed(failure, says_no, took, *lines(failure.evidence[-8:]))
    if seconds > SLOW_HEALTH_SECONDS:
        return failed(_slow(case, seconds), took)
    return healthy(f"/health said yes in {seconds:.2f} s.")


async def model(case: Case) -> Looked:
    """Let the model say one token."""
    if case.silent:
        return skipped(f"Not asked: {case.silent}.")
    async with case.endpoint(timeout=_ANSWER_SECONDS) as endpoint:
        try:
            return await _one_token(case, endpoint)
        except Unreachable as exc:
            return await _silence(case, endpoint, exc)
        except EndpointError as exc:
            failure = await _refused(case, endpoint, exc)
            return failed(failure, condition(f"{exc.summary} {exc.cause}".strip(), case.now))


async def _timed(endpoint: Endpoint) -> tuple[bool, float]:
    began = time.perf_counter()
    return await endpoint.healthy(), time.perf_counter() - began


async def _one_token(case: Case, endpoint: Endpoint) -> Looked:
    name = case.deployment.served_model_name
    if name == "not known":  # of somebody else's: whichever it serves first
        name = next((row.id for row in await endpoint.models()), name)
    began = time.perf_counter()
    body = {"model": name, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
    reply = await endpoint.post("/v1/completions", body, timeout=_ANSWER_SECONDS)
    seconds = time.perf_counter() - began
    if not _is_text(reply):
        return failed(_nonsense(case), condition(f"It answered: {in_quotes(reply, 200)}", case.now))
    spec = await case.spec()
    if spec and not spec.min_replicas:
        note(f"{case.found.name} was asked for one token, which keeps its replica a while longer.")
    return healthy(f"{name} said one token in {seconds:.2f} s.")


def _is_text(reply: Mapping[str, Any]) -> bool:
    """One choice that holds text: words may be empty, for a first token may be the last."""
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return isinstance(first, dict) and isinstance(first.get("text"), str)


async def _silence(case: Case, endpoint: Endpoint, exc: Unreachable) -> Looked:
    """Where requests wait, or it sleeps, that is why; the metrics say so."""
    case.seen = await _load(endpoint)
    waiting = case.seen.requests_waiting if case.seen else None
    if waiting:
        case.unheard = _unheard(case, waiting)
        return skipped(case.unheard.cause)
    said = condition(f"{exc.summary} {exc.cause}", case.now)
    sleeps = case.seen.sleep_state if case.seen else None
    if sleeps not in {None, "awake"}:
        return failed(
            _engine_sleeps(case, sleeps), said, condition(f"sleep state: {sleeps}", case.now)
        )
    failure = Failure(
        code="MODEL_SILENT",
        cause=f"/health says yes and the model says no token in {_ANSWER_SECONDS:.0f} s.",
        fix=f"It may be hung, or compiling for a new shape. {_again(case)}",
        next=_restarts(case),
    )
    return failed(failure, said)


async def _load(endpoint: Endpoint) -> EngineMetrics | None:
    try:
        return MetricsPage(await endpoint.metrics_text()).engine()
    except OpsError:
        return None


async def _refused(case: Case, endpoint: Endpoint, exc: EndpointError) -> Failure:
    words = f"{exc.summary} {exc.cause}".strip()
    if isinstance(exc, Unauthorized):
        return Failure(code=exc.code, cause=words, fix=exc.fix)
    if isinstance(exc, ModelNotServed):
        served = await _served(endpoint)
        wanted = case.deployment.served_model_name
        cause = f"It serves {served}, and not {wanted}."
        fix = f"Ask for {served}, or deploy {wanted} anew with deploy_vllm."
        step = Step(tool="get_model_details")
        return Failure(code=exc.code, cause=cause, fix=fix, next=(step, Step(tool="deploy_vllm")))
    fix = exc.fix if exc.code != "ENDPOINT_ERROR" else _again(case)
    return Failure(code=exc.code, cause=words, fix=fix, next=_restarts(case))


async def _served(endpoint: Endpoint) -> str:
    try:
        rows = await endpoint.models()
        more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        return ", ".join(row.id for row in rows[:_NAMED]) + more or "no model"
    except EndpointError:
        return "another model"


def _unreachable(case: Case, exc: EndpointError) -> Failure:
    if not exc.cause.endswith("Timeout"):
        cause = f"Nothing answers at its address: {exc.summary} {exc.cause}".strip()
        return Failure(code=exc.code, cause=cause, fix=_address(case), next=_restarts(case))
    cause = f"Its port is open and /health gives no answer in {_HEALTH_SECONDS:.0f} s."
    return Failure(code="HEALTH_SILENT", cause=cause, fix=_again(case), next=_restarts(case))


def _address(case: Case) -> str:
    if isinstance(case.backend, Stops):
        return _again(case)
    return "Start it where it runs, or correct VLLM_BASE_URL; a firewall may stand between."


def _dead(case: Case) -> Failure:
    failure = case.deployment.failure
    said = f" {failure.cause}" if failure and failure.code != "UNHEALTHY" else ""
    cause = f"Its server is up and /health says that the engine behind it is dead.{said}"
    return Failure(
        code="UNHEALTHY",
        cause=cause,
        fix=_again(case),
        next=_restarts(case),
        evidence=failure.evidence if failure else (),
    )


def _slow(case: Case, seconds: float) -> Failure:
    return Failure(
        code="HEALTH_SLOW",
        cause=f"/health took {seconds:.1f} s, twice; a healthy engine needs milliseconds.",
        fix="Its server's event loop is busy: fewer or shorter requests at once, more CPU, or"
        f" {anew(case.backend, stops=case.stops)}.",
        next=(Step(tool="get_metrics"), *_restarts(case)),
    )


def _nonsense(case: Case) -> Failure:
    return Failure(
        code="BAD_REPLY",
        cause="It answers a completion with something that holds no text.",
        fix=f"Check that the address is vLLM's own. {_again(case)}",
        next=_restarts(case),
    )


def _engine_sleeps(case: Case, state: str | None) -> Failure:
    return Failure(
        code="ENGINE_SLEEPS",
        cause=f"Its engine was put to sleep ({state}), so that no request is answered.",
        fix=f"POST /wake_up where it runs, or {anew(case.backend, stops=case.stops)}.",
        next=anew_steps(case.backend, stops=case.stops),
    )


def _unheard(case: Case, waiting: int) -> Failure:
    return Failure(
        code="MODEL_SILENT",
        cause=f"The model said no token in {_ANSWER_SECONDS:.0f} s; {waiting} requests wait.",
        fix=f"Call diagnose again, which sees whether the queue lasts. {_again(case)}",
        next=(Step(tool="diagnose"), Step(tool="get_metrics"), *_restarts(case)),
    )


def _again(case: Case) -> str:
    how = anew(case.backend, stops=case.stops)
    return f"Look at its log with get_logs; if it stays so, {how}."


def _restarts(case: Case) -> tuple[Step, ...]:
    """Log first; what is somebody else's has neither."""
    steps = anew_steps(case.backend, stops=case.stops)
    return (Step(tool="get_logs"), *steps) if steps else ()
