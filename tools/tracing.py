"""Calls as OpenTelemetry spans, where the owner wants them and has set an SDK up.

The spans are our own: FastMCP's record what an exception says, in which a secret may stand.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import fastmcp
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from core import PRODUCT, VERSION
from core.redaction import redact
from core.settings import Settings
from operations.runtime import Runtime

_LONGEST: Final = 80
"""Characters of an attribute: a name that somebody made up may be a megabyte."""


def set_up(settings: Settings) -> None:
    """Let FastMCP pass on who called, or do nothing at all; it never makes spans of its own."""
    fastmcp.settings.telemetry_mode = "propagation_only" if settings.telemetry else "off"


@contextmanager
def span_of(tool: str, rt: Runtime) -> Iterator[Span]:
    """Open the span of a call; nothing of what goes wrong in it is recorded but what is told."""
    if not rt.settings.telemetry:
        yield trace.INVALID_SPAN
        return
    name = _short(tool, rt)
    attributes = {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
    }
    with trace.get_tracer(PRODUCT, VERSION).start_as_current_span(
        f"tools/call {name}",
        kind=SpanKind.SERVER,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        yield span


def tell(span: Span, arguments: Mapping[str, Any], told: Mapping[str, Any], rt: Runtime) -> None:
    """Say in a span which call it was, what it was about and how it ended; never its arguments."""
    if not span.is_recording():
        return
    code = "ok" if told.get("ok") else str(told.get("code", "asked"))
    data = told.get("data") or {}
    attributes: dict[str, str | bool] = {
        "vllm_devops.result": code,
        "vllm_devops.retryable": bool(told.get("retryable", False)),
        "vllm_devops.rehearsal": rt.settings.rehearsal,
        **{
            f"vllm_devops.{key}": _short(said, rt)
            for key in ("target", "name")
            if (said := data.get(key) or arguments.get(key))
        },
    }
    span.set_attributes(attributes)
    if "code" in told:
        span.set_attribute("error.type", code)
        span.set_status(Status(StatusCode.ERROR, code))


def _short(said: object, rt: Runtime) -> str:
    return str(redact(str(said), rt.secrets))[:_LONGEST]
