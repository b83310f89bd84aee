"""The one decorator: it makes a tool of a function, and of what happens in it an answer."""

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, ParamSpec

from fastmcp.dependencies import Depends
from fastmcp.server.dependencies import get_context
from fastmcp.tools import ToolResult
from fastmcp.tools.function_tool import FunctionTool
from mcp.types import InputRequiredResult, ToolAnnotations
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from core.errors import ApiDisabled, NextStep, OpsError
from core.records import Answer
from core.reply import Json, Listed, collecting_notes, failure, few, markdown, outgoing, success
from core.settings import REHEARSAL, Toolset
from operations.runtime import Runtime

_SPELLED: Final = {
    "ai": "AI",
    "azure": "Azure",
    "gemma4": "Gemma 4",
    "gpu": "GPU",
    "hf": "Hugging Face",
    "huggingface": "Hugging Face",
    "huggingfacehub": "Hugging Face Hub",
    "sre": "SRE",
    "vertex": "Vertex",
    "vllm": "vLLM",
    "vm": "VM",
}


def title(name: str) -> str:
    """Spell a tool's name as people do.

    >>> title("get_vllm_gpu_deployment_config")
    'Get vLLM GPU deployment config'
    """
    words = [_SPELLED.get(word, word) for word in name.split("_")]
    return " ".join([words[0].capitalize(), *words[1:]])


P = ParamSpec("P")

Text = str | SkipJsonSchema[None]
Whole = Annotated[int, Field(ge=1)] | SkipJsonSchema[None]
Minutes = Annotated[int, Field(ge=1, le=43_200)]
"""A month at most."""
Number = Annotated[float, Field(allow_inf_nan=False)] | SkipJsonSchema[None]
Words = list[str] | SkipJsonSchema[None]
Wholes = list[Annotated[int, Field(ge=1)]] | SkipJsonSchema[None]
Numbers = list[Annotated[float, Field(gt=0)]] | SkipJsonSchema[None]
Layout = Literal["speed", "concurrency", "context"] | SkipJsonSchema[None]
"""Parameters that may be left out, without the `null` that would cost every client tokens."""


_annotations: Final = functools.partial(ToolAnnotations, open_world_hint=True)

KNOWS: Final = _annotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)
"""Looks at nothing but what this server knows by itself."""
LOOKS: Final = _annotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True)
ASKS: Final = _annotations(read_only_hint=True, destructive_hint=False, idempotent_hint=False)
"""Makes a model answer: nothing is changed, and no two answers need be the same."""
MEASURES: Final = _annotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False)
"""Puts load on a deployment and keeps what was seen; each time is a run of its own."""
CREATES: Final = _annotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True)
REPLACES: Final = _annotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True)
DESTROYS: Final = REPLACES


class Registered(NamedTuple):
    """One tool, with the group that it is listed in."""

    tool: FunctionTool
    group: Toolset
    default: bool
    parameters: Mapping[str, Mapping[str, Any]]
    """Every parameter that it takes, the seldom ones that no listing has among them."""

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
GIVEN: Final[ContextVar[Mapping[str, Any]]] = ContextVar("given", default=MappingProxyType({}))
"""The arguments of this call, so that a next step can repeat it."""


def runtime() -> Runtime:
    """Give the runtime of the server that is being asked."""
    found = get_context().lifespan_context["runtime"]
    assert isinstance(found, Runtime)
    return found


RT: Final[Any] = Depends(runtime)
"""What a tool's `rt` parameter defaults to; clients never see it."""


def offered(rt: Runtime) -> Listed:
    """Return what this server's profile says of a tool."""

    def needed(tool: str, /) -> Sequence[str] | None:
        if tool not in rt.listed:
            return None
        required: Sequence[str] = TOOLS[tool].tool.parameters.get("required", ())
        return required

    return needed


def ops_tool(
    group: Toolset,
    annotations: ToolAnnotations,
    *,
    default: bool = False,
    seldom: tuple[str, ...] = (),
) -> Callable[[Callable[P, Awaitable[Answer]]], Callable[P, Awaitable[Any]]]:
    """Make a tool of a function that returns an answer or raises an error of ours.

    `default` tools are listed always, the others with `TOOLSETS=group`. Parameters that are
    `seldom` needed are taken, and explained by get_help, and left out of the listing.
    """

    def make(fn: Callable[P, Awaitable[Answer]]) -> Callable[P, Awaitable[Any]]:
        @functools.wraps(fn)
        async def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            rt = kwargs["rt"]
            assert isinstance(rt, Runtime)
            given = GIVEN.get()  # a shell gives numbers as text: a next step has what was read
            GIVEN.set({**given, **{k: v for k, v in kwargs.items() if k in given and _plain(v)}})
            before = AGREED.set("")
            try:
                while True:  # after a yes anew: while a human thinks, the world may change
                    try:
                        with collecting_notes() as notes:
                            envelope = success(await fn(*args, **kwargs), notes, offered(rt))
                    except HumanAgreed as agreed:
                        AGREED.set(agreed.bound_to)
                    except HumanNeeded as needed:
                        return needed.result
                    except OpsError as exc:
                        _offer_steps(exc, fn.__name__)
                        return result(failure(exc, notes, offered(rt)), rt)
                    else:
                        return result(envelope, rt)
            finally:
                AGREED.reset(before)

        tool = _as_tool(fn, call, annotations, group)
        parameters = tool.parameters["properties"]
        listed = {name: row for name, row in parameters.items() if name not in seldom}
        tool.parameters = {**tool.parameters, "properties": listed}
        TOOLS[tool.name] = Registered(tool, group, default, parameters)
        return call

    return make


def _plain(value: object) -> bool:
    """Whether it is a number, yes or no, or a list of such."""
    return isinstance(value, int | float) or (isinstance(value, list) and all(map(_plain, value)))


def _offer_steps(exc: OpsError, tool: str) -> None:
    """Let `next` of an error that lists choices be the same call first, once with each of them.

    Where an API is off it is the tool that enables it, unless that is what was called.
    """
    again = {name: value for name, value in GIVEN.get().items() if name != "confirm"}
    choices = [
        one for one in exc.data.get("choices", ()) if one.keys() <= TOOLS[tool].parameters.keys()
    ]
    for choice in reversed(choices[:5]):
        reset = choice.get("reset", ())
        kept = {name: value for name, value in again.items() if name not in reset}
        more = {"reset": [*again.get("reset", ()), *reset]} if reset else {}
        exc.next_steps = (NextStep(tool, {**kept, **choice, **more}), *exc.next_steps)
    if isinstance(exc, ApiDisabled) and not exc.next_steps and tool != "setup_target":
        where = {"target": again["target"]} if "target" in again else {}
        exc.next_steps = (NextStep("setup_target", where),)


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
    looks = bool(annotations.read_only_hint) and "prompt" not in tool.parameters["properties"]
    tool.parameters = _slim(tool.parameters, has_detail=looks)
    return tool


_ADVICE: Final = frozenset({"summary", "cause", "fix", "how_to_remove", "warnings"})
"""Where answers advise tools."""
_A_TOOL: Final = re.compile(r"\b[a-z]+(?:_[a-z0-9]+)+\b(?! \()")


def result(envelope: Json, rt: Runtime) -> ToolResult:
    """Return both halves of an envelope, without secrets and within bounds."""
    news = [REHEARSAL] if rt.settings.rehearsal else []
    warnings = few([*rt.news, *envelope["warnings"]])
    rt.news.clear()
    envelope = _with_toolsets({**envelope, "warnings": [*news, *warnings]}, rt)
    quiet = outgoing(envelope, rt.secrets)
    return ToolResult(content=markdown(quiet), structured_content=quiet, is_error=not quiet["ok"])


def _with_toolsets(value: Any, rt: Runtime, *, advice: bool = False) -> Any:
    """Say behind each tool that is advised, and not listed, how it is."""
    if isinstance(value, Mapping):
        return {
            name: _with_toolsets(item, rt, advice=name in _ADVICE) for name, item in value.items()
        }
    if isinstance(value, list):
        return [_with_toolsets(item, rt, advice=advice) for item in value]
    if not advice or not isinstance(value, str):
        return value
    return _A_TOOL.sub(lambda found: _listed_how(found[0], rt), value)


def _listed_how(tool: str, rt: Runtime) -> str:
    if tool in rt.listed or tool not in TOOLS or TOOLS[tool].group == "compat":
        return tool
    if rt.settings.read_only and TOOLS[tool].writes:
        return f"{tool} (not while READ_ONLY is set)"
    return f"{tool} (listed with TOOLSETS={TOOLS[tool].group})"


def args_of(given: Mapping[str, Any], *, without: tuple[str, ...]) -> dict[str, Any]:
    """Give what a call said: a tool's `locals()` but for some names and for what it left out."""
    return {k: v for k, v in given.items() if k not in without and v is not None}


def _slim(schema: Mapping[str, Any], *, has_detail: bool) -> dict[str, Any]:
    """Leave out what goes without saying, which every listing would pay for.

    Calls are checked against the function all the same. `detail` is taken by the gate, of every
    tool; it is listed where what is looked at has more to tell than a few facts.
    """
    properties = {}
    for name, row in schema.get("properties", {}).items():
        properties[name] = _without_unsaid(row)
        if "items" in row:
            properties[name]["items"] = _without_unsaid(row["items"])
    if has_detail:
        properties["detail"] = {"type": "string", "enum": ["full"]}
    rest = {key: value for key, value in schema.items() if key != "additionalProperties"}
    return {**rest, "properties": properties}


def _without_unsaid(row: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out defaults that are nothing, and that a count is not negative."""
    return {
        key: value
        for key, value in row.items()
        if not (key == "default" and not value)
        and not (key in {"minimum", "exclusiveMinimum"} and value in (0, 1))
    }
