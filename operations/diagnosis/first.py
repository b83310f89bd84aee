"""The deployment that is meant, or why none can be looked at."""

from typing import Final

import anyio

from backends.base import SetsUp
from core.errors import (
    Ambiguous,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    OpsError,
    TargetNotFound,
    WaitedTooLong,
)
from operations.diagnosis.blame import SETTINGS
from operations.diagnosis.records import LAYERS, Call, Diagnosis, Evidence, Layer, LookedAt
from operations.resolve import Found, find
from operations.runtime import Runtime

FIND_SECONDS: Final = 26.0
"""An engine that hangs keeps a look at it for 25 s: five for /health, twenty for one token."""


async def meant(runtime: Runtime, target: str | None, name: str | None) -> Found | Diagnosis:
    """Give the deployment, or the diagnosis where it ends there.

    Raises:
        InvalidArgument: The name cannot be one.
        TargetNotFound: The target is not configured.
        DeploymentNotFound: Every target that could have it answered, and none has.
        Ambiguous: Several deployments fit; the message lists them.
    """
    where = target or runtime.settings.vllm_target or "every target"
    with anyio.move_on_after(FIND_SECONDS):
        try:
            return await find(runtime.stage, target, name)
        except (DeploymentNotFound, InvalidArgument, Ambiguous, TargetNotFound):
            raise
        except OpsError as exc:
            return _of(runtime, where, name, exc)
    return _of(runtime, where, name, _slow(where))


def _of(runtime: Runtime, where: str, name: str | None, exc: OpsError) -> Diagnosis:
    layer: Layer = "settings and login" if exc.code in SETTINGS else "cloud resource"
    place = LAYERS.index(layer)
    rows = [
        *(LookedAt(layer=one, verdict="healthy", detail="It answered.") for one in LAYERS[:place]),
        LookedAt(layer=layer, verdict="failed", detail=exc.summary),
    ]
    return Diagnosis(
        target=where,
        name=name,
        healthy=False,
        layer=layer,
        code=exc.code,
        cause=f"{exc.summary} {exc.cause}".strip(),
        fix=exc.fix,
        evidence=(Evidence(kind="condition", text=f"{exc.code}: {exc.summary}"[:400]),),
        looked_at=tuple(rows),
        next=tuple(
            Call(tool=step.tool, arguments=step.arguments) for step in _next(runtime, where, exc)
        ),
    )


def _next(runtime: Runtime, where: str, exc: OpsError) -> tuple[NextStep, ...]:
    """Name what helps; a cloud whose API is off has not been set up."""
    if exc.next_steps:
        return exc.next_steps
    known = where in runtime.stage.targets
    if exc.code == "API_DISABLED" and known and isinstance(runtime.stage.backend(where), SetsUp):
        return (NextStep("setup_target", {"target": where}),)
    return (NextStep("list_targets"),)


def _slow(where: str) -> OpsError:
    return WaitedTooLong(
        f"{where} did not say within {FIND_SECONDS:.0f} s what it runs.",
        fix="Call diagnose again with target and name; its cloud or its engine may hang.",
    )
