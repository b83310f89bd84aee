"""A deployment's health, layer by layer: process, server, model."""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal

from core.endpoint import Endpoint
from core.errors import EndpointError, NextStep
from core.records import Deployment, State, random_weights
from operations.asking import require_ready
from operations.last_use import asked
from operations.lives.ending import anew, stoppable
from operations.resolve import Found
from operations.runtime import Runtime
from operations.watching.answers import Located
from operations.watching.probing import Probe, probe

_WARM_SECONDS: Final = 2.0
"""A first answer slower than this was a cold one: a warm engine says a few tokens in far less."""

_LONGEST_ANSWER: Final = 1_000
"""Characters of eight tokens, and then some."""
_WAIT: Final = "Wait for it with status_vllm."


class HealthReport(Located):
    """Whether the model really answers, and which layer is at fault if not."""

    healthy: bool
    layer: Literal["process", "server", "model", "none"]
    """The first that is unhealthy: the process, its HTTP server, or the model itself."""
    state: State
    detail: str
    fix: str | None = None
    answer: str | None = None
    latency_seconds: float | None = None
    start: Literal["cold", "warm"] | None = None
    simulated: bool = False
    awake_until: datetime | None = None
    """About; when it falls asleep if nobody asks."""
    probes: tuple[Probe, ...] = ()
    """With `deep`: tools, a JSON schema, thoughts, an image."""

    def summary(self) -> str:
        """Say whether it is healthy."""
        where = f"{self.name} on {self.target}"
        if self.latency_seconds is not None:
            return (
                f"{where} is healthy: the model answered in {self.latency_seconds:.3g} s."
                f"{self._probed()}"
            )
        if self.layer == "process":
            return f"Not healthy: {self.detail}"
        return f"Not healthy: {where}, the {self.layer} does not answer: {self.detail}"

    def facts(self) -> Mapping[str, Any]:
        """Return what was answered, or what is wrong and what to do."""
        kept = {"target", "name", "healthy", "layer", "state", "fix", "answer"}
        more = {"latency_seconds", "start", "awake_until"}
        seen = {one.what: f"{one.outcome}: {one.detail}" for one in self.probes}
        if self.healthy and not seen:
            seen = {"more": "deep=true also tests tools, a JSON schema, thoughts and images"}
        return {**self.model_dump(mode="json", include=kept | more), **seen}

    def _probed(self) -> str:
        """Say what passed, failed and was not tested."""
        said = {
            outcome: ", ".join(one.what for one in self.probes if one.outcome == outcome)
            for outcome in ("fail", "pass", "not tested")
        }
        parts = [f"{outcome}: {names}" for outcome, names in said.items() if names]
        return f" {'; '.join(parts).capitalize()}." if parts else ""

    def next_steps(self) -> tuple[NextStep, ...]:
        """Name what helps in the state that it is in."""
        here = {"target": self.target, "name": self.name}
        if self.healthy:
            return (NextStep("get_metrics", here),)
        if self.layer == "process" and self.state not in {State.FAILED, State.EXPIRED}:
            return (NextStep("status_vllm", here),)
        return (NextStep("diagnose", here), NextStep("get_logs", here))


async def health(runtime: Runtime, found: Found, *, deep: bool = False) -> HealthReport:
    """Let the model answer, and time it; `deep` also asks for what clients rely on.

    Raises:
        Stopped: It was stopped, and nothing is wrong with it.
    """
    deployment = found.deployment
    if deployment.state is State.STOPPED:
        require_ready(found)  # which is not unhealthy
    here = {
        "target": deployment.target,
        "name": found.name,
        "simulated": deployment.simulated,
        "state": deployment.state,
        "awake_until": deployment.awake_until,
    }
    if deployment.state not in {State.READY, State.UNKNOWN}:
        failure = deployment.failure
        settled = {State.ASLEEP: "Ask with wake=true."}
        fix = failure.fix if failure else settled.get(deployment.state, _WAIT)
        words = deployment.summary()
        return HealthReport(**here, healthy=False, layer="process", detail=words, fix=fix)
    async with runtime.endpoint(found.backend, found.name) as endpoint:
        try:
            text, seconds = await _answers(endpoint, found)
        except _Unhealthy as exc:
            detail = f"{exc.cause.summary} {exc.cause.cause}".strip()
            fix = exc.cause.fix
            return HealthReport(**here, healthy=False, layer=exc.layer, detail=detail, fix=fix)
        name = deployment.served_model_name
        probes = await probe(endpoint, name, made_up=_made_up(deployment)) if deep else ()
    asked(runtime, deployment, by_user=False)
    return HealthReport(
        **here,
        healthy=True,
        layer="none",
        detail="Process, server and model answer.",
        answer=text,
        latency_seconds=round(seconds, 4),
        start="warm" if seconds < _WARM_SECONDS else "cold",
        probes=probes,
    )


def _made_up(deployment: Deployment) -> str:
    """Say why this model's words mean nothing, if they do not."""
    if deployment.simulated:
        return "a simulated engine makes its words up"
    return "its weights are random" if random_weights(deployment.served_model_name) else ""


class _Unhealthy(Exception):
    def __init__(self, layer: Literal["server", "model"], cause: EndpointError) -> None:
        super().__init__(cause.summary)
        self.layer: Literal["server", "model"] = layer
        self.cause = cause


async def _answers(endpoint: Endpoint, found: Found) -> tuple[str, float]:
    """Give the model's words and their seconds, or the first layer that is unhealthy."""
    try:
        healthy = await endpoint.healthy()
    except EndpointError as exc:
        raise _Unhealthy("server", exc) from exc
    if not healthy:
        how = anew(found.backend, stops=await stoppable(found))
        fix = f"Call get_logs; then {how}."
        raise _Unhealthy("server", EndpointError("/health says no.", fix=fix))
    try:
        return await _one_answer(endpoint, found.deployment.served_model_name)
    except EndpointError as exc:
        raise _Unhealthy("model", exc) from exc


async def _one_answer(endpoint: Endpoint, model: str) -> tuple[str, float]:
    body = {"model": model, "prompt": "Hello", "max_tokens": 8, "temperature": 0}
    began = time.perf_counter()
    reply = await endpoint.post("/v1/completions", body, timeout=30)
    choices = reply.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    text = first.get("text", "") if isinstance(first, dict) else None
    if not isinstance(text, str):
        raise EndpointError("The model's answer has no text.", fix="Call get_logs.")
    return text[:_LONGEST_ANSWER], time.perf_counter() - began
