"""Command lines that call a server: the inspector, mcpdo, mcporter; and FastMCP's own client."""

import json
from typing import Any, Final

import anyio
from fastmcp import Client
from mcp import MCPError

from tests.clients.desk import PATIENCE_SECONDS, ClientFailedError, Desk
from tests.clients.installing import Installed
from tests.clients.seen import DESTROY, HELP, Seen

_ERROR_STATUS: Final = 5
"""Of the inspector and mcpdo, for a tool that answers with an error."""
_STORE: Final = {"MCP_INSPECTOR_SECRET_STORE": "memory"}
_ARGUMENTS: Final = [f"{name}={value}" for name, value in DESTROY.arguments.items()]
_INSPECTOR: Final = "@modelcontextprotocol/inspector/clients"


async def inspector(desk: Desk, found: Installed) -> Seen:
    """Let it check every schema on the way; what it dislikes it says as an error."""
    await desk.configure("cursor")
    program = found.script(f"{_INSPECTOR}/launcher/build/index.js")
    which = ("--cli", "--config", str(desk.servers), "--server", desk.key)
    argv = (*program, *which, "--method")
    call = (*argv, "tools/call", "--tool-name")
    listed = await desk.run(*argv, "tools/list", "--strict", env=_STORE)
    told = await desk.run(*call, HELP, env=_STORE)
    given = [word for pair in _ARGUMENTS for word in ("--tool-arg", pair)]
    kept = await desk.run(*call, DESTROY.tool, *given, good=(_ERROR_STATUS,), env=_STORE)
    return Seen(_names(json.loads(listed.output)["tools"]), (told.output, kept.output))


async def mcporter(desk: Desk, found: Installed) -> Seen:
    """List by its own words, then call with the answer as it is passed on."""
    await desk.configure("cursor")
    argv = (*found.script("mcporter/dist/cli.js"), "--config", str(desk.servers))
    listed = await desk.run(*argv, "list", desk.key, "--json")
    call = (*argv, "call", "--output", "json")
    told = await desk.run(*call, f"{desk.key}.{HELP}")
    kept = await desk.run(*call, f"{desk.key}.{DESTROY.tool}", *_ARGUMENTS, good=(0, 1))
    return Seen(_names(json.loads(listed.output)["tools"]), (told.output, kept.output))


async def mcpdo(era: str, elicit: str, desk: Desk, found: Installed) -> Seen:
    """Delete for good: a human agrees where one can be asked, else somebody shows the token."""
    await desk.configure("cursor")
    do = _Mcpdo(desk, found)
    await do("connect", desk.key, "--era", era, "--elicit", elicit, "--config", str(desk.servers))
    try:
        listed = await do("tools/list")
        told = await do("tools/call", HELP)
        if elicit == "off":
            gone = await _with_token(do)
        else:
            gone = await _asked(do)
    finally:
        await do("daemon", "stop")
    return Seen(_names(listed["tools"]), (json.dumps(told), json.dumps(gone)), agreed=True)


async def fastmcp_client(desk: Desk, _found: Installed) -> Seen:
    """Give it the configuration as it stands in the file.

    Raises:
        ClientFailedError: The server does not start, or does not answer in time.
    """
    await desk.configure("cursor")
    try:
        with anyio.fail_after(PATIENCE_SECONDS):
            async with Client(json.loads(desk.servers.read_text())) as client:
                tools = await client.list_tools()
                told = [
                    await client.call_tool(name, arguments, raise_on_error=False)
                    for name, arguments in ((HELP, {}), DESTROY)
                ]
    except (MCPError, RuntimeError, TimeoutError) as exc:
        raise ClientFailedError(f"{type(exc).__name__}: {exc}") from exc
    both = [json.dumps([one.structured_content, str(one.content)]) for one in told]
    return Seen([tool.name for tool in tools], both)


class _Mcpdo:
    """Its commands, each a process of its own that speaks to the daemon of its home."""

    def __init__(self, desk: Desk, found: Installed) -> None:
        self._desk = desk
        program = found.script(f"{_INSPECTOR}/mcpdo/build/mcp-bin.js")
        self._argv = (*program, "--format", "json", "--connection", "it")

    async def __call__(self, *words: str, good: tuple[int, ...] = (0,)) -> dict[str, Any]:
        said = await self._desk.run(*self._argv, *words, good=good, env=_STORE)
        found: dict[str, Any] = json.loads(said.output)
        return found


async def _asked(do: _Mcpdo) -> dict[str, Any]:
    pending = await do("tools/call", *_destroy())
    question = pending["elicitationPending"]
    fields = [f"{name}:=true" for name in question["requestedSchema"]["required"]]
    return await do("elicitation/respond", question["elicitationId"], *fields)


async def _with_token(do: _Mcpdo) -> dict[str, Any]:
    refused = await do("tools/call", *_destroy(), good=(_ERROR_STATUS,))
    token = refused["structuredContent"]["data"]["confirm"]
    return await do("tools/call", *_destroy(confirm=token))


def _destroy(**more: str) -> list[str]:
    given = {**DESTROY.arguments, **more}
    return [DESTROY.tool, *(f"{name}:={json.dumps(value)}" for name, value in given.items())]


def _names(tools: list[dict[str, Any]]) -> list[str]:
    return [tool["name"] for tool in tools]
