"""The suite's tools that answer by themselves: each kind of content, errors, progress, logs."""

import base64
import io
import json
import wave
from typing import Final

from fastmcp import Context
from fastmcp.exceptions import ToolError
from fastmcp.tools import ToolResult
from mcp import MCPError
from mcp.types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    AudioContent,
    ClientCapabilities,
    EmbeddedResource,
    SamplingCapability,
    TextContent,
    TextResourceContents,
)

from tests.conformance.asked_for import image, tool

_DIALECT: Final = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {
        "properties": {"contactMethod": {"const": "phone"}},
        "required": ["contactMethod"],
    },
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
_HEADED: Final = {
    "type": "object",
    "properties": {"tenant": {"type": "string", "x-mcp-header": "Tenant"}},
    "required": ["tenant"],
}


def embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    """Give a text as a resource within a message."""
    contents = TextResourceContents(uri=uri, text=text, mime_type=mime_type)
    return EmbeddedResource(type="resource", resource=contents)


def _silence() -> str:
    written = io.BytesIO()
    with wave.open(written, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(1)
        sound.setframerate(8000)
        sound.writeframes(b"\x80" * 8)
    return base64.b64encode(written.getvalue()).decode()


@tool()
def test_simple_text() -> ToolResult:
    """Answer with a text."""
    return ToolResult(content="This is a simple text response for testing.")


@tool()
def test_image_content() -> ToolResult:
    """Answer with an image."""
    return ToolResult(content=[image()])


@tool()
def test_audio_content() -> ToolResult:
    """Answer with a millisecond of silence."""
    return ToolResult(content=[AudioContent(type="audio", data=_silence(), mime_type="audio/wav")])


@tool()
def test_embedded_resource() -> ToolResult:
    """Answer with a resource."""
    said = "This is an embedded resource content."
    return ToolResult(content=[embedded("test://embedded-resource", said)])


@tool()
def test_multiple_content_types() -> ToolResult:
    """Answer with a text, an image and a resource."""
    said = json.dumps({"test": "data", "value": 123})
    return ToolResult(
        content=[
            TextContent(type="text", text="Multiple content types test:"),
            image(),
            embedded("test://mixed-content-resource", said, "application/json"),
        ]
    )


@tool()
def test_error_handling() -> ToolResult:
    """Fail always."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool()
async def test_tool_with_progress(ctx: Context) -> ToolResult:
    """Tell how far it is, three times."""
    for percent in (0, 50, 100):
        await ctx.report_progress(percent, 100)
    return ToolResult(content="Told three times.")


@tool()
async def test_tool_with_logging(ctx: Context) -> ToolResult:
    """Log three lines for the client."""
    await ctx.info("Tool execution started")
    await ctx.info("Tool processing data")
    await ctx.info("Tool execution completed")
    return ToolResult(content="Logged three times.")


@tool()
async def test_logging_tool(ctx: Context) -> ToolResult:
    """Log a line, which a client that asked for none must not hear."""
    await ctx.info("Nobody asked for this line.")
    return ToolResult(content="Logged once.")


@tool()
async def test_missing_capability(ctx: Context) -> ToolResult:
    """Need a client that can sample."""
    needed = ClientCapabilities(sampling=SamplingCapability())
    if not ctx.session.check_client_capability(needed):
        raise MCPError(
            code=MISSING_REQUIRED_CLIENT_CAPABILITY,
            message="This tool needs a client that can sample.",
            data={"requiredCapabilities": needed.model_dump(by_alias=True, exclude_none=True)},
        )
    return ToolResult(content="The client can sample.")


@tool(_DIALECT)
def json_schema_2020_12_tool() -> ToolResult:
    """Take arguments that only the newer dialect of JSON Schema describes; it is only listed."""
    return ToolResult(content="Listed.")


@tool(_HEADED)
def test_custom_header(tenant: str) -> ToolResult:
    """Take an argument that clients repeat in a header."""
    return ToolResult(content=tenant)


@tool()
async def test_reconnection(ctx: Context) -> ToolResult:
    """Close the stream on the way, where it could be resumed."""
    await ctx.close_sse_stream()
    return ToolResult(content="The stream is still open.")
