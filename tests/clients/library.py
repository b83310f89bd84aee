"""One agent library, told of our server: `python library.py NAME {entry, calls}`.

It runs where only that library is installed, so that it imports nothing of ours. What it prints
is what the library has of us: the names of the tools, and what a model would be given.
"""

import json
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any, Final

import anyio

Shown = dict[str, Any]
Calls = list[tuple[str, dict[str, Any]]]

_SECONDS: Final = 50
"""Their own time-outs are for servers that share no machine with others."""


async def openai_agents(entry: dict[str, Any], calls: Calls) -> Shown:
    mcp = import_module("agents.mcp")
    context = import_module("agents").RunContextWrapper(None)
    params = {"command": entry["command"], "args": entry["args"]}
    async with mcp.MCPServerStdio(params, client_session_timeout_seconds=_SECONDS) as server:
        tools = {tool.name: tool for tool in await server.list_tools()}
        told = [
            await mcp.MCPUtil.invoke_mcp_tool(server, tools[name], context, json.dumps(arguments))
            for name, arguments in calls
        ]
    return {"tools": list(tools), "told": told}


async def google_adk(entry: dict[str, Any], calls: Calls) -> Shown:
    adk = import_module("google.adk.tools.mcp_tool")
    params = import_module("mcp").StdioServerParameters(
        command=entry["command"], args=entry["args"]
    )
    toolset = adk.McpToolset(
        connection_params=adk.StdioConnectionParams(server_params=params, timeout=_SECONDS)
    )
    tools = {tool.name: tool for tool in await toolset.get_tools()}
    told = [
        await tools[name].run_async(args=arguments, tool_context=None) for name, arguments in calls
    ]
    await toolset.close()
    return {"tools": list(tools), "told": told}


async def langchain(entry: dict[str, Any], calls: Calls) -> Shown:
    adapters = import_module("langchain_mcp_adapters.client")
    refused = import_module("langchain_core.tools").ToolException
    connection = {"transport": "stdio", "command": entry["command"], "args": entry["args"]}
    client = adapters.MultiServerMCPClient({"ours": connection})
    tools = {tool.name: tool for tool in await client.get_tools()}
    told = []
    for name, arguments in calls:
        try:
            told.append(await tools[name].ainvoke(arguments))
        except refused as exc:
            told.append(str(exc))
    return {"tools": list(tools), "told": told}


_WAYS: Final[dict[str, Callable[[dict[str, Any], Calls], Awaitable[Shown]]]] = {
    "openai-agents": openai_agents,
    "google-adk": google_adk,
    "langchain": langchain,
}


def main(name: str, wish: str) -> None:
    """Print what one library has of us, each answer as JSON."""
    wished = json.loads(wish)
    shown = anyio.run(_WAYS[name], wished["entry"], wished["calls"])
    told = [json.dumps(one, default=str, ensure_ascii=False) for one in shown["told"]]
    print(json.dumps({**shown, "told": told}))


if __name__ == "__main__":
    main(*sys.argv[1:])
