"""The one decorator: it makes a tool of a function, and of what happens in it an answer."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Annotated, Any, Final, Literal, NamedTuple, ParamSpec

from fastmcp.dependencies import Depends
from fastmcp.server.dependencies import get_context
from fastmcp.tools import ToolResult
from fastmcp.tools.function_tool import FunctionTool
from mcp.types import InputRequiredResult, ToolAnnotations
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from core.errors import OpsError
from core.records import Answer
from core.redaction import redact
from core.rehearsal import REHEARSAL
from core.reply import Json, bounded, collecting_notes, failure, markdown, success
from core.settings import Toolset
from operations.runtime import Runtime
from tools.titles import title

P = ParamSpec("P")

Text = str | SkipJsonSchema[None]
Whole = Annotated[int, Field(ge=1)] | SkipJsonSchema[None]
Minutes = Annotated[int, Field(ge=1, le=43_200)]
"""A month at most."""
Number = float | SkipJsonSchema[None]
Words = list[str] | SkipJsonSchema[None]
Wholes = list[Annotated[int, Field(ge=1)]] | SkipJsonSchema[None]
Numbers = list[Annotated[float, Field(gt=0)]] | SkipJsonSchema[None]
Layout = Literal["speed", "concurrency", "context"] | SkipJsonSchema[None]
"""Parameters that may be left out, without the `null` that would cost every client tokens."""


def _annotations(
    *, read_only: bool, destructive: bool, idempotent: bool, open_world: bool = True
) -> ToolAnnotations:
    return ToolAnnotations(
        read_only_hint=read_only,
        destructive_hint=destructive,
        idempotent_hint=idempotent,
        open_world_hint=open_world,
    )


KNOWS: Final = _annotations(read_only=True, destructive=False, idempotent=True, open_world=False)
"""Looks at nothing but what this server knows by itself."""
LOOKS: Final = _annotations(read_only=True, destructive=False, idempotent=True)
ASKS: Final = _annotations(read_only=True, destructive=False, idempotent=False)
"""Makes a model answer: nothing is changed, and no two answers need be the same."""
MEASURES: Final = _annotations(read_only=False, destructive=False, idempotent=False)
"""Puts load on a deployment and keeps what was seen; each time is a run of its own."""
CREATES: Final = _annotations(read_only=False, destructive=False, idempotent=True)
REPLACES: Final = _annotations(read_only=False, destructive=True, idempotent=True)
DESTROYS: Final = REPLACES


class Registered(NamedTuple):
    """One tool, with the group that it is listed in."""

    tool: FunctionTool
    group: Toolset
    default: bool

    @property
    def writes(self) -> bool:
        """Whether it may change anything."""
        annotations = self.tool.annotations
        return annotations is None or not annotations.read_only_hint


TOOLS: Final[dict[str, Registered]] = {}
"""Every tool there is, by name; a server shows the ones of its profile."""


class HumanNeeded(Exception):
    """The client is asked to ask its human; the call comes again with the answer."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__("The human is asked.")
        self.result = result


class HumanAgreed(Exception):
    """The human said yes to what they were shown; whether it is still so is looked at anew."""

    def __init__(self, bound_to: str) -> None:
        super().__init__("The human agreed.")
        self.bound_to = bound_to


AGREED: Final[ContextVar[str]] = ContextVar("agreed", default="")
"""What the human has said yes to during this call."""


def runtime() -> Runtime:
    """Give the runtime of the server that is being asked."""
    found = get_context().lifespan_context["runtime"]
    assert isinstance(found, Runtime)
    return found


RT: Final[Any] = Depends(runtime)
"""What a tool's `rt` parameter defaults to; clients never see it."""


def ops_tool(
    group: Toolset, annotations: ToolAnnotations, *, default: bool = False
) -> Callable[[Callable[P, Awaitable[Answer]]], Callable[P, Awaitable[Any]]]:
    """Make a tool of a function that returns an answer or raises an error of ours.

    `default` tools are listed always, the others with `TOOLSETS=group`.
    """

    def make(fn: Callable[P, Awaitable[Answer]]) -> Callable[P, Awaitable[Any]]:
        @functools.wraps(fn)
        async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            rt = kwargs["rt"]
            assert isinstance(rt, Runtime)
            with collecting_notes() as notes:
                try:
                    answer = await _until_agreed(lambda: fn(*args, **kwargs))
                    envelope = success(answer, notes, rt.listed.__contains__)
                except OpsError as exc:
                    envelope = failure(exc, notes, rt.listed.__contains__)
                except HumanNeeded as needed:
                    return needed.result
            return result(envelope, rt)

        tool = _as_tool(fn, call, annotations, group)
        TOOLS[tool.name] = Registered(tool, group, default)
        return call

    return make


def _as_tool(
    fn: Callable[..., Any], call: Callable[..., Any], annotations: ToolAnnotations, group: Toolset
) -> FunctionTool:
    """Give `call` the parameters of `fn`; what it returns is always an envelope."""
    empty = inspect.Signature.empty
    signature = inspect.signature(fn).replace(return_annotation=empty)
    call.__signature__ = signature  # type: ignore[attr-defined]  # inspect reads it
    call.__annotations__ = {k: v for k, v in fn.__annotations__.items() if k != "return"}
    tool = FunctionTool.from_function(
        call, title=title(call.__name__), annotations=annotations, tags={group}
    )
    tool.parameters = _slim(tool.parameters)
    return tool


async def _until_agreed(call: Callable[[], Awaitable[Answer]]) -> Answer:
    """Begin anew after each yes: while a human thinks, the world may change."""
    before = AGREED.set("")
    try:
        while True:
            try:
                return await call()
            except HumanAgreed as said:
                AGREED.set(said.bound_to)
    finally:
        AGREED.reset(before)


def result(envelope: Json, rt: Runtime) -> ToolResult:
    """Give both halves of an envelope, without secrets and within bounds."""
    news = [REHEARSAL] if rt.settings.rehearsal else []
    envelope = {**envelope, "warnings": [*news, *rt.told, *envelope["warnings"]]}
    rt.told.clear()
    quiet = bounded(redact(envelope, rt.secrets))
    return ToolResult(content=markdown(quiet), structured_content=quiet, is_error=not quiet["ok"])


def said(given: Mapping[str, Any], *, without: tuple[str, ...]) -> dict[str, Any]:
    """Give what a call said: a tool's `locals()` but for some names and for what it left out."""
    return {k: v for k, v in given.items() if k not in without and v is not None}


def _slim(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what goes without saying, which every listing would pay for."""
    properties = {
        name: {key: value for key, value in row.items() if not _unsaid(key, value)}
        for name, row in schema.get("properties", {}).items()
    }
    return {**schema, "properties": properties}


def _unsaid(key: str, value: Any) -> bool:
    """Tell defaults that are nothing, and that a count is not negative; calls are still checked."""
    if key == "default":
        return value is None or value is False
    return key == "minimum" and value in (0, 1)
