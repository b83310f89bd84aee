"""Resources: what a client can read without calling a tool; nothing is woken or changed."""

import json
from collections.abc import Awaitable
from logging import DEBUG
from typing import Any, Final

from fastmcp.exceptions import NotFoundError, ResourceError
from fastmcp.resources import Resource, ResourceTemplate

from core.errors import InvalidArgument, NotFound, OpsError
from core.records import Answer
from core.redaction import one_line, redact
from core.reply import collecting_notes, in_full, outgoing, success
from core.settings import REHEARSAL
from operations import benchmarks, observe, targets
from operations.help import failure, failures_of, known_failures
from tools.surface import offered, runtime

_LONGEST: Final = 2_000
"""Characters of an error."""
_JSON: Final = "application/json"
_MARKDOWN: Final = "text/markdown"


class Missing(ResourceError, NotFoundError):
    """There is nothing at that address: the protocol has a code for it."""


async def _json(looking: Awaitable[Answer]) -> str:
    """Give what a tool would give as its structured half."""
    rt = runtime()
    with collecting_notes() as notes:
        try:
            answer = await looking
        except OpsError as exc:
            raise _readable(exc) from exc
        with in_full(full=True):
            envelope = success(answer, notes, offered(rt))
    news = [REHEARSAL] if rt.settings.rehearsal else []
    envelope["warnings"] = [*news, *envelope["warnings"]]
    return json.dumps(outgoing(envelope, rt.secrets), ensure_ascii=False, indent=1)


def _readable(exc: OpsError) -> ResourceError:
    """Put an error of ours into the protocol's words; where nothing is, there is one for that."""
    if isinstance(exc, NotFound | InvalidArgument):
        return Missing(one_line(exc.summary, _LONGEST), log_level=DEBUG)
    words = one_line(f"{exc.code}: {exc.summary} {exc.fix}", _LONGEST)
    return ResourceError(redact(words, runtime().secrets), log_level=DEBUG)


async def _known(answer: Answer) -> Answer:
    return answer


async def _targets() -> str:
    return await _json(targets.list_all(runtime()))


async def _failures() -> str:
    return await _json(_known(known_failures()))


async def _failures_of(writer: str) -> str:
    return await _json(_of(writer))


async def _of(writer: str, code: str = "") -> Answer:
    return failure(writer, code) if code else failures_of(writer)


async def _failure(writer: str, code: str) -> str:
    return await _json(_of(writer, code))


async def _deployment(target: str, name: str) -> str:
    return await _json(observe.overview(runtime(), target, name))


async def _report(run: str) -> str:
    rt = runtime()
    try:
        return str(redact(benchmarks.report(rt, run), rt.secrets))
    except OpsError as exc:
        raise _readable(exc) from exc


def _resource(fn: Any, uri: str, name: str, title: str, description: str) -> Resource:
    return Resource.from_function(
        fn, uri, name=name, title=title, description=description, mime_type=_JSON
    )


def _template(
    fn: Any, uri: str, name: str, title: str, description: str, mime_type: str = _JSON
) -> ResourceTemplate:
    return ResourceTemplate.from_function(
        fn, uri, name=name, title=title, description=description, mime_type=mime_type
    )


RESOURCES: Final = (
    _resource(
        _targets,
        "vllm://targets",
        "targets",
        "Targets",
        "The places a model can run: accelerator, price, engine, what is missing; as list_targets.",
    ),
    _resource(
        _failures,
        "vllm://failures",
        "failures",
        "Known failures",
        "The codes of every failure that logs are searched for, by who writes the line.",
    ),
)
TEMPLATES: Final = (
    _template(
        _deployment,
        "vllm://deployments/{target}/{name}",
        "deployment",
        "One deployment",
        "State, address, protection and configuration of a deployment; no model is asked or woken.",
    ),
    _template(
        _report,
        "vllm://benchmarks/{run}/report",
        "benchmark-report",
        "Benchmark report",
        "The report of a benchmark run as Markdown, or its progress while it is measured.",
        _MARKDOWN,
    ),
    _template(
        _failures_of,
        "vllm://failures/{writer}",
        "failures-of",
        "Failures of one writer",
        "What each failure of an engine or a platform means, by code; `failures` lists both.",
    ),
    _template(
        _failure,
        "vllm://failures/{writer}/{code}",
        "failure",
        "One failure",
        "All of one failure: each wording, its cause, the fix, and the tools that do it.",
    ),
)
