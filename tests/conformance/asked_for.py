"""The tools, prompts and resources that the suite calls by name, kept until a server takes them."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from fastmcp import FastMCP
from fastmcp.prompts import Prompt
from fastmcp.tools.function_tool import FunctionTool
from mcp.types import ImageContent

from tools.surface import TOOLS, Registered

F = TypeVar("F", bound=Callable[..., Any])

_TOOLS: Final[list[FunctionTool]] = []
_PROMPTS: Final[list[Prompt]] = []

PNG: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4z8DwHwAFAAH/iZk9HQAAAABJRU5ErkJg"
    "gg=="
)
"""A red pixel."""


def image() -> ImageContent:
    """Give the red pixel as content."""
    return ImageContent(type="image", data=PNG, mime_type="image/png")


def tool(schema: dict[str, Any] | None = None) -> Callable[[F], F]:
    """Keep a function as a tool of its own name; `schema` replaces the one of its signature."""

    def keep(fn: F) -> F:
        made = FunctionTool.from_function(fn)
        if schema is not None:
            made.parameters = schema
        _TOOLS.append(made)
        return fn

    return keep


def prompt(fn: F) -> F:
    """Keep a function as a prompt of its own name."""
    _PROMPTS.append(Prompt.from_function(fn))
    return fn


def register_tools() -> None:
    """Add the tools to the register, where the middleware looks for what may be called."""
    for made in _TOOLS:
        TOOLS[made.name] = Registered(made, "help", default=True, parameters={})


def add_prompts(server: FastMCP[Any]) -> None:
    """Add the prompts to a server."""
    for made in _PROMPTS:
        server.add_prompt(made)
