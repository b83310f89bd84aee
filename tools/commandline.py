"""One tool called from a shell, in process, for make and for people."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
from fastmcp import Client, FastMCP
from fastmcp.client.elicitation import ElicitResult

from core.errors import did_you_mean
from core.settings import Settings
from tools.caller import command
from tools.gate import SUCH_AS
from tools.surface import TOOLS

Build = Callable[[Settings], FastMCP[Any]]
_WAIT_SECONDS: Final = 20
_WAIT_LIMIT_SECONDS: Final = 4 * 3600
"""The longest boot that is waited for."""


def call(build: Build, arguments: list[str]) -> int:
    """Run `TOOL key=value …`; exit status 0 if ok, 1 if not, 2 if it was not asked."""
    options = _parser().parse_intermixed_args(arguments)
    if options.tool not in TOOLS:
        near = did_you_mean(options.tool, TOOLS) or "get_help lists all tools."
        print(f"There is no tool '{options.tool}'. {near}", file=sys.stderr)
        return 2
    settings = Settings(toolsets=("all", "compat"))
    try:
        given = dict(_argument(options.tool, word) for word in options.arguments)
    except ValueError as exc:
        print(exc, file=sys.stderr)
        return 2
    try:
        return anyio.run(_call, build(settings), options, given)
    except BrokenPipeError:  # `… | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("Stopped waiting; what was started goes on. Call again to go on.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="server.py call", description="Run one tool.")
    parser.add_argument("tool")
    parser.add_argument("arguments", nargs="*", metavar="key=value")
    parser.add_argument("--json", action="store_true", help="print the structured half")
    parser.add_argument("--field", metavar="NAME", help="print one field of the data alone")
    parser.add_argument("--wait", action="store_true", help="stay until the state settles")
    parser.add_argument("--make", metavar="TARGET", help="the make target that calls, for examples")
    parser.add_argument("--yes", action="store_true", help="say yes to what would be asked")
    return parser


def _argument(tool: str, word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    if not equals:
        raise ValueError(f"'{word}' is not of the form key=value.")
    schema = TOOLS[tool].parameters.get(name, {})
    return name, _value(schema, text)


def _value(schema: Mapping[str, Any], text: str) -> Any:
    """Read a word as its parameter wants it; a list may be words of a shell or JSON.

    Numbers may have commas between them.
    """
    if schema.get("type") != "array":
        return text
    if text.lstrip().startswith("["):
        return json.loads(text)
    numbers = schema.get("items", {}).get("type") in {"integer", "number"}
    return shlex.split(text.replace(",", " ") if numbers else text)


async def _call(server: FastMCP[Any], options: argparse.Namespace, given: dict[str, Any]) -> int:
    async with Client(
        server, elicitation_handler=_handler(options), client_info=command("command line")
    ) as client:
        if options.field:
            given["detail"] = "full"
        told, text = await _ask(client, options.tool, given)
        if options.wait:
            told, text = await _settled(client, told, text)
    if options.field:
        return _print_field(told, options.field, text)
    if options.make and (missing := (told.get("data") or {}).get("missing")):
        words = " ".join(f'{name.upper()}="{SUCH_AS.get(name, "…")}"' for name in missing)
        text = f"{', '.join(missing)} is missing, such as: make {options.make} {words}"
    print(json.dumps(told, indent=1) if options.json else text)
    return 0 if told.get("ok") and not _failed(told) else 1


async def _ask(
    client: Client[Any], tool: str, given: Mapping[str, Any]
) -> tuple[dict[str, Any], str]:
    reply = await client.call_tool(tool, dict(given), raise_on_error=False)
    text = "\n".join(getattr(block, "text", "") for block in reply.content)
    return reply.structured_content or {"ok": False, "summary": text}, text


async def _settled(
    client: Client[Any], told: dict[str, Any], text: str
) -> tuple[dict[str, Any], str]:
    deadline = anyio.current_time() + _WAIT_LIMIT_SECONDS
    while told.get("ok") and _unsettled(told) and anyio.current_time() < deadline:
        print(told["summary"], file=sys.stderr)
        told, text = await _ask(client, *_next_look(told["data"]))
    return told, text


def _print_field(told: Mapping[str, Any], name: str, text: str) -> int:
    """Print one field as it is saved in a file; where there is none, say what there is."""
    data = told.get("data") or {}
    if not told.get("ok") or name not in data:
        there = f"There is no field '{name}': {', '.join(sorted(data))}"
        print(there if told.get("ok") else text, file=sys.stderr)
        return 1
    value = data[name]
    print(value.rstrip("\n") if isinstance(value, str) else json.dumps(value, indent=1))
    return 0


def _next_look(data: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if "run" in data:
        return "get_benchmark", {"run": data["run"], "wait_s": _WAIT_SECONDS}
    if data.get("operation"):
        return data["tool"], {"operation": data["operation"], "wait_s": _WAIT_SECONDS}
    here = {key: data[key] for key in ("target", "name")}
    return "status_vllm", {**here, "wait_s": _WAIT_SECONDS}


def _unsettled(told: Mapping[str, Any]) -> bool:
    state = (told.get("data") or {}).get("state")
    return state in {"queued", "creating", "loading", "deleting", "running"}


def _failed(told: Mapping[str, Any]) -> bool:
    """Whether what was wanted is not so, though the call itself went well.

    A list that is empty because a cloud could not be looked at is no answer; one that shows what
    is on the others is.
    """
    data = told.get("data") or {}
    rows = data.get("deployments") or ()
    blind = not rows and data.get("complete") is False
    return (
        blind
        or data.get("state") in {"failed", "unknown"}
        or any(isinstance(row, Mapping) and row.get("trouble") for row in rows)
    )


def _handler(options: argparse.Namespace) -> Callable[..., Any] | None:
    """Ask on a terminal; without one there is nobody to ask, and the token is printed."""
    if not options.yes and not sys.stdin.isatty():
        return None

    async def ask(message: str, *_rest: Any) -> ElicitResult[dict[str, Any]]:
        if options.yes:
            return ElicitResult(action="accept", content=_yes(_rest[0]))
        print(f"{message} [y/N] ", end="", file=sys.stderr, flush=True)
        said = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        if said.strip().lower() not in {"y", "yes"}:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=_yes(_rest[0]))

    return ask


def _yes(_response_type: Any) -> dict[str, Any]:
    return {"confirm": True}
