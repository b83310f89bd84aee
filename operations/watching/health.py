"""A deployment's health, layer by layer: process, server, model."""

import time
from typing import Final, Literal

from core.endpoint import Endpoint
from core.errors import EndpointError, NextStep
from core.records import State
from operations.asking import require_ready
from operations.lives.ending import anew, stoppable
from operations.resolve import Found
from operations.runtime import Runtime
from operations.watching.answers import Located

_WARM_SECONDS: Final = 2.0
"""A first answer slower than this was a cold one: a warm engine says a few tokens in far less."""


class HealthReport(Located):
    """Whether the model really answers, and which layer is at fault if not."""

    healthy: bool
    layer: Literal["process", "server", "model", "none"]
    """The first that is ill: the process, its HTTP server, or the model itself."""
    detail: str
    fix: str | None = None
    answer: str | None = None
    latency_seconds: float | None = None
    start: Literal["cold", "warm"] | None = None
    simulated: bool = False

    def summary(self) -> str:
        """Say whether it is well."""
        if self.healthy:
            return f"{self.name} is healthy: the model answered in {self.latency_seconds:.3f} s."
        return f"{self.name} is ill at the layer '{self.layer}': {self.detail}"

    def next_steps(self) -> tuple[NextStep, ...]:
        """Point at the log of an ill one."""
        here = {"target": self.target, "name": self.name}
        if self.healthy:
            return (NextStep("get_metrics", here),)
        return (NextStep("diagnose", here), NextStep("status_vllm", here))


async def health(runtime: Runtime, found: Found) -> HealthReport:
    """Let the model answer, and time it.

    Raises:
        Stopped: It was stopped, and nothing is wrong with it.
    """
    deployment = found.deployment
    here = {"target": deployment.target, "name": found.name, "simulated": deployment.simulated}
    if deployment.state is State.STOPPED:
        require_ready(found)  # which is not unhealthy
    if deployment.state not in {State.READY, State.UNKNOWN}:
        failure = deployment.failure
        fix = failure.fix if failure else "Wait for it with status_vllm."
        words = deployment.summary()
        return HealthReport(**here, healthy=False, layer="process", detail=words, fix=fix)
    async with runtime.endpoint(found.backend, found.name) as endpoint:
        try:
            text, seconds = await _answers(endpoint, found)
        except _Ill as ill:
            detail = f"{ill.cause.summary} {ill.cause.cause}".strip()
            fix = ill.cause.fix
            return HealthReport(**here, healthy=False, layer=ill.layer, detail=detail, fix=fix)
    return HealthReport(
        **here,
        healthy=True,
        layer="none",
        detail="Process, server and model answer.",
        answer=text,
        latency_seconds=round(seconds, 4),
        start="warm" if seconds < _WARM_SECONDS else "cold",
    )


class _Ill(Exception):
    def __init__(self, layer: Literal["server", "model"], cause: EndpointError) -> None:
        super().__init__(cause.summary)
        self.layer: Literal["server", "model"] = layer
        self.cause = cause


async def _answers(endpoint: Endpoint, found: Found) -> tuple[str, float]:
    """Give the model's words and their seconds, or the first layer that is ill."""
    try:
        healthy = await endpoint.healthy()
    except EndpointError as exc:
        raise _Ill("server", exc) from exc
    if not healthy:
        how = anew(found.backend, stops=await stoppable(found))
        fix = f"Call get_logs; then {how}."
        raise _Ill("server", EndpointError("/health says no.", fix=fix))
    try:
        return await _one_answer(endpoint, found.deployment.served_model_name)
    except EndpointError as exc:
        raise _Ill("model", exc) from exc


async def _one_answer(endpoint: Endpoint, model: str) -> tuple[str, float]:
    body = {"model": model, "prompt": "Hello", "max_tokens": 8, "temperature": 0}
    began = time.perf_counter()
    reply = await endpoint.post("/v1/completions", body, timeout=30)
    choices = reply.get("choices")
    if not isinstance(choices, list) or not choices:
        raise EndpointError("The model's answer has no text.", fix="Call get_logs.")
    return str(choices[0].get("text", "")), time.perf_counter() - began
