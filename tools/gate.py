"""The one middleware: what passes is allowed, written down, in time, and told in our words."""

import getpass
import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import anyio
from fastmcp.exceptions import ToolError, ValidationError
from fastmcp.server.context import Context
from fastmcp.server.dependencies import get_http_request
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools import Tool, ToolResult
from mcp.types import CallToolRequestParams, Implementation, ListToolsRequest
from pydantic import ValidationError as PydanticValidationError

from core import VERSION, waiting
from core.errors import (
    InvalidArgument,
    NextStep,
    NotFound,
    OpsError,
    ReadOnly,
    WaitedTooLong,
    did_you_mean,
)
from core.journal import BROKEN_OFF, Outcome
from core.redaction import MASK, one_line, redact
from core.reply import collecting_notes, failure, in_full, note
from operations.journal import outcome_of
from operations.runtime import Runtime
from tools.surface import GIVEN, TOOLS, offered, result

_CHARACTERS: Final = 80
"""Of a client's name and version, which it may choose freely."""


def caller(context: Context) -> str:
    """Name client and user, such as `claude-code 2.1.0 (alice)`, for the journal."""
    params = getattr(context.session, "client_params", None)
    info = getattr(params, "client_info", None)
    try:
        request = get_http_request()
    except RuntimeError:  # standard input, or one process
        agent, user = "", _user()
    else:
        # A client that does not say who it is is named by the program that sent its request.
        agent = request.headers.get("user-agent", "")
        user = f"from {request.client.host}" if request.client else "over HTTP"
    unnamed = f"unnamed client, {agent}" if agent else "unnamed client"
    name = f"{info.name} {info.version}" if info else unnamed
    return f"{one_line(name, _CHARACTERS)} ({user})"


def _user() -> str:
    """Give the user whose process this is."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        return f"user {os.getuid()}"


def command(name: str) -> Implementation:
    """Name a program of this project, which is a client as well."""
    return Implementation(name=name, version=VERSION)


_NO: Final = frozenset({"false", "0", "no", "off", "f", "n"})
"""What pydantic reads as False."""
_TAKES_LAYOUT: Final = frozenset({"deploy_vllm", "plan_deployment"})
"""They took `low_latency` before; it is in no schema, so that nobody has to learn it."""


def _take_old_name(message: CallToolRequestParams) -> None:
    """Put layout="speed" in the place of its old name; the answer says so."""
    given = dict(message.arguments or {})
    if message.name not in _TAKES_LAYOUT or "low_latency" not in given:
        return
    note("low_latency is an old name of layout='speed'.")
    if str(given.pop("low_latency")).lower() not in _NO | {"", "none"}:
        given = {"layout": "speed", **given}  # what is said in today's words wins
    message.arguments = given


LONGEST_SECONDS: Final = 44.0
"""Of one call, but for the time in which a human thinks: some clients cut it at 45 s."""

_ENDS: Final[ContextVar[anyio.CancelScope | None]] = ContextVar("ends", default=None)


@contextmanager
def patience() -> Iterator[None]:
    """Break off what is done within, when the longest time is over.

    Whoever waits within asks `anyio.current_effective_deadline()` how long it still may.
    """
    with anyio.move_on_after(waiting.limit(LONGEST_SECONDS)) as scope:
        before = _ENDS.set(scope)
        try:
            yield
        finally:
            _ENDS.reset(before)


@contextmanager
def a_humans_time() -> Iterator[None]:
    """Let the clock stand still while a human is asked; after that a call begins anew."""
    scope = _ENDS.get()
    if scope is None:
        yield
        return
    scope.deadline = math.inf
    try:
        yield
    finally:
        scope.deadline = anyio.current_time() + waiting.limit(LONGEST_SECONDS)


_log: Final = logging.getLogger(__name__)
_SECRET: Final = frozenset({"confirm", "token"})
"""Arguments that are never written down."""
ENDS_COST: Final = frozenset(
    {"stop_vllm", "stop_benchmark", "destroy_vllm", "destroy_queued_resource", "stop_azure_vm"}
)
"""Done though it cannot be written down, with a token in memory: else what bills stays."""

_LOOKING_INSTEAD: Final = {"manage_queued_resource": "describe_queued_resource"}
"""Of tools that write, those that look as well: which one does that alone."""


class InternalError(OpsError):
    """A bug in this server."""

    code = "INTERNAL_ERROR"


class Gate(Middleware):
    """Stands around every tool call."""

    async def on_list_tools(
        self,
        context: MiddlewareContext[ListToolsRequest],
        call_next: CallNext[ListToolsRequest, Sequence[Tool]],
    ) -> Sequence[Tool]:
        """Leave out old names, which can be called without being listed."""
        shown = _runtime(context).listed
        return [tool for tool in await call_next(context) if tool.name in shown]

    async def on_call_tool(
        self,
        context: MiddlewareContext[CallToolRequestParams],
        call_next: CallNext[CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        """Refuse, write down, call, and put foreign errors into our words."""
        rt, message = _runtime(context), context.message
        with collecting_notes(), in_full(full=_wants_detail(message)):
            _take_old_name(message)
            given = {k: said for k, said in (message.arguments or {}).items() if said is not None}
            message.arguments = given  # some clients send null for what is left out
            GIVEN.set(dict(given))
            entry = _Entry()
            try:
                _refuse(message, rt)
                with _journalled(entry, context, rt):
                    try:
                        with patience():
                            entry.reply = await call_next(context)
                        entry.reply = entry.reply or _failed(_late(message), rt)
                    except ValidationError as exc:
                        entry.reply = _failed(_invalid(message.name, exc), rt)
                    except ToolError as exc:
                        entry.reply = _failed(_bug(message.name, exc), rt)
            except OpsError as exc:
                entry.reply = _failed(exc, rt)
            assert entry.reply is not None
        return entry.reply


class _Entry:
    """A call, and what it was answered."""

    reply: ToolResult | None = None


@contextmanager
def _journalled(
    entry: _Entry, context: MiddlewareContext[CallToolRequestParams], rt: Runtime
) -> Iterator[None]:
    """Write down a call that may change anything: before it, and how it ended.

    Raises:
        OpsError: It cannot be written down; what only ends cost is done all the same.
    """
    tool = context.message.name
    if not (TOOLS[tool].writes or _wakes(context.message)):
        yield
        return
    # A token that was wrong here may still be good elsewhere.
    sent = (context.message.arguments or {}).items()
    safe = {name: MASK if name in _SECRET else said for name, said in sent}
    arguments = redact(safe, rt.secrets)
    journal = rt.stage.journal
    assert context.fastmcp_context is not None
    try:
        number = journal.begin(caller(context.fastmcp_context), tool, arguments)
    except OpsError as exc:
        if tool not in ENDS_COST:
            raise
        _log.warning("%s is not in the journal: %s", tool, exc.summary)
        yield
        return
    try:
        yield
    finally:
        outcome = Outcome(result=BROKEN_OFF)
        if entry.reply is not None:  # a question to a human has no envelope
            told = getattr(entry.reply, "structured_content", None) or {}
            outcome = outcome_of(arguments, told)
        try:
            journal.end(number, outcome)
        except OpsError as exc:
            _log.warning("The end of %s is not in the journal: %s", tool, exc.summary)


def _bug(tool: str, exc: ToolError) -> InternalError:
    return InternalError(
        f"{tool} failed for a reason it does not know.",
        fix="This is a bug of the server: its standard error has the traceback; report it.",
        cause=str(exc)[:200],
    )


def _wakes(message: CallToolRequestParams) -> bool:
    """Whether a call may start a GPU, though its tool only asks."""
    said = (message.arguments or {}).get("wake", False)
    return str(said).lower() not in _NO


def _wants_detail(message: CallToolRequestParams) -> bool:
    """Take `detail` out of a call, which every tool may have; whether it asks for the whole."""
    if not message.arguments or "detail" not in message.arguments:
        return False
    message.arguments = dict(message.arguments)
    return str(message.arguments.pop("detail")).lower() == "full"


def _refuse(message: CallToolRequestParams, rt: Runtime) -> None:
    """Raise an error for what there is not, and for what this server may not do."""
    registered = TOOLS.get(message.name)
    if registered is None:
        raise _unknown(message.name)
    if rt.settings.read_only and (registered.writes or _wakes(message)):
        raise _read_only(message.name, writes=registered.writes)


def _read_only(name: str, *, writes: bool) -> ReadOnly:
    does = "changes things" if writes else "with wake=true starts a GPU"
    instead = "" if writes else "Leave `wake` out. "
    if name in _LOOKING_INSTEAD:
        instead = f"To look, call {_LOOKING_INSTEAD[name]}. "
    return ReadOnly(
        f"{name} {does}, and this server was started to look only.",
        fix=f"{instead}Start the server without READ_ONLY to change anything.",
    )


def _late(message: CallToolRequestParams) -> WaitedTooLong:
    """Say what was waited for; each tool has an end of its own, which should have come first."""
    given = message.arguments or {}
    meant = {key: given[key] for key in ("target", "name") if isinstance(given.get(key), str)}
    of = " ".join(f"{key}={said[:60]!r}" for key, said in meant.items())
    hints = TOOLS[message.name].tool.annotations
    once = bool(hints and not (hints.idempotent_hint or hints.read_only_hint))
    look = NextStep("get_benchmark") if once else NextStep("status_vllm", meant)
    return WaitedTooLong(
        f"{message.name} {of}".strip()
        + f" did not end within {waiting.limit(LONGEST_SECONDS):.0f} s.",
        fix=f"What it began goes on: look with {look.tool} before you call it again"
        + (", which begins another run." if once else "; the same call is harmless."),
        next_steps=(look,),
    )


def _unknown(name: str) -> NotFound:
    return NotFound(
        f"There is no tool '{name[:60]}'.",
        fix=f"{did_you_mean(name, TOOLS)}get_help lists what there is.",
        next_steps=(NextStep("get_help"),),
    )


def _invalid(tool: str, exc: ValidationError) -> InvalidArgument:
    cause = exc.__cause__
    rows = cause.errors(include_url=False) if isinstance(cause, PydanticValidationError) else []
    known = TOOLS[tool].parameters
    words, advice, missing = [], "", []
    for row in rows:
        name = str(row["loc"][0]) if row["loc"] else ""
        if row["type"] == "missing_argument":
            missing.append(name)
        elif row["type"] == "none_required":
            continue  # said beside what else it may be; none is what is left out
        elif row["type"] == "unexpected_keyword_argument":
            words.append(f"it has no argument '{name[:60]}'")
            advice += did_you_mean(name, known)
        else:
            words.append(f"{name}: {row['msg']}")
    if missing:
        words.append(f"it needs {' and '.join(missing)}")
        given = ", ".join(f"{name}={SUCH_AS.get(name, '…')!r}" for name in missing)
        advice += f"Such as {tool}({given}). "
    return InvalidArgument(
        f"{tool} cannot be called so: {'; '.join(words) or str(exc)[:200]}.",
        fix=f"{advice}get_help(topic='{tool}') explains its arguments.",
        data={"missing": missing} if missing else None,
        next_steps=(NextStep("get_help", {"topic": tool}),),
    )


SUCH_AS: Final = {"model": "12b qat", "prompt": "What is Gemma?", "models": ["12b qat", "31b qat"]}
"""What people give for the arguments that some tools cannot do without."""


def _failed(exc: OpsError, rt: Runtime) -> ToolResult:
    return result(failure(exc, [], offered(rt)), rt)


def _runtime(context: MiddlewareContext[Any]) -> Runtime:
    assert context.fastmcp_context is not None
    found = context.fastmcp_context.lifespan_context["runtime"]
    assert isinstance(found, Runtime)
    return found
