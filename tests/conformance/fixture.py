"""Our server with what the suite looks for added to it; `python -m tests.conformance.fixture`.

Middleware, settings, protection and limits are those of the real server: `build` makes it.
"""

import base64
import json
import sys
from typing import Any

from fastmcp import FastMCP
from fastmcp.prompts import Message, PromptResult

import server
from core.settings import Settings
from tests.conformance import answering, asking  # noqa: F401  they keep what they define
from tests.conformance.asked_for import PNG, add_prompts, image, prompt, register_tools
from tools.http import serve


@prompt
def test_simple_prompt() -> PromptResult:
    """Say one sentence."""
    return PromptResult(messages="This is a simple prompt for testing.")


@prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> PromptResult:
    """Repeat two arguments."""
    return PromptResult(messages=f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'")


@prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> PromptResult:  # noqa: N803  the suite's
    """Show a resource."""
    shown = answering.embedded(resourceUri, "Embedded resource content for testing.")
    asked = Message("Please process the embedded resource above.")
    return PromptResult(messages=[Message(shown), asked])


@prompt
def test_prompt_with_image() -> PromptResult:
    """Show an image."""
    return PromptResult(messages=[Message(image()), Message("Please analyze the image above.")])


def _add_resources(made: FastMCP[Any]) -> None:
    @made.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        return "This is the content of the static text resource."

    @made.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        return base64.b64decode(PNG)

    @made.resource("test://template/{number}/data", mime_type="application/json")
    def by_number(number: str) -> str:
        said = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
        return json.dumps(said)

    @made.resource("test://watched-resource", mime_type="text/plain")
    def watched() -> str:
        return "Nobody changes this."


def build(settings: Settings) -> FastMCP[Any]:
    """Make our server, with the suite's tools, prompts and resources among its own."""
    register_tools()
    made = server.build(settings)
    add_prompts(made)
    _add_resources(made)
    return made


if __name__ == "__main__":
    sys.exit(serve(build, sys.argv[1:]))
