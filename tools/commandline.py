"""One tool called from a shell, `server.py mcp-config` and `server.py doctor`."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import anyio
from fastmcp import Client, FastMCP
from fastmcp.client.elicitation import ElicitResult
from pydantic import SecretStr, ValidationError

from core.environment import inherited_environment
from core.errors import InvalidArgument, did_you_mean
from core.records import State
from core.settings import Settings
from operations.clients import alike, by_address, by_command, clients, is_local, printed
from operations.doctor import examined
from tools.gate import SUCH_AS, command
from tools.surface import TOOLS

Build = Callable[[Settings], FastMCP[Any]]
_WAIT_SECONDS: Final = 20
_UNSETTLED: Final = {str(one) for one in State if not one.settled} - {"unknown"} | {"running"}
"""Of a deployment, a benchmark or an analysis."""
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
    """Read `key=value` as its parameter wants it; a list may be words of a shell or JSON.

    Numbers may have commas between them.
    """
    name, equals, text = word.partition("=")
    if not equals:
        raise ValueError(f"'{word}' is not of the form key=value.")
    schema = TOOLS[tool].parameters.get(name, {})
    if schema.get("type") != "array":
        return name, text
    if text.lstrip().startswith("["):
        return name, json.loads(text)
    numbers = schema.get("items", {}).get("type") in {"integer", "number"}
    return name, shlex.split(text.replace(",", " ") if numbers else text)


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
    if options.make and told.get("code") == "CONFIRMATION_REQUIRED":
        text += f"\n\nThe same `make {options.make}` with YES=1 agrees beforehand."
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
    deadline, removal = anyio.current_time() + _WAIT_LIMIT_SECONDS, None
    while told.get("ok") and anyio.current_time() < deadline:
        data = told.get("data") or {}
        if data.get("gone") is False and "name" in data:
            removal = told["next"][0]["arguments"]
        elif data.get("state") not in _UNSETTLED:
            break
        print(told["summary"], file=sys.stderr)
        told, text = await _ask(client, *_next_look(data))
        if removal and told.get("code") == "DEPLOYMENT_NOT_FOUND":  # what goes with it is seen too
            told, text = await _ask(client, "destroy_vllm", removal)
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
        or data.get("gone") is False
        or data.get("state") in {"failed", "unknown"}
        or (data.get("state") == "asleep" and bool(data.get("failure")))
        or any(isinstance(row, Mapping) and row.get("trouble") for row in rows)
    )


def _handler(options: argparse.Namespace) -> Callable[..., Any] | None:
    """Ask on a terminal; without one there is nobody to ask, and the token is printed."""
    if not options.yes and not sys.stdin.isatty():
        return None

    async def ask(message: str, *_rest: Any) -> ElicitResult[dict[str, Any]]:
        if not options.yes:
            print(f"{message} [y/N] ", end="", file=sys.stderr, flush=True)
            said = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
            if said.strip().lower() not in {"y", "yes"}:
                return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"confirm": True})

    return ask


def configure(root: Path, arguments: Sequence[str]) -> int:
    """Print what clients must be told to reach the server of the checkout at `root`.

    Raises:
        InvalidArgument: No client is called so, or the address or a setting cannot be.
    """
    parser = argparse.ArgumentParser(
        prog="server.py mcp-config", description="Print the configuration of MCP clients."
    )
    names = ", ".join(one.name for one in clients())
    parser.add_argument("client", nargs="?", help=f"the beginning of one of: {names}")
    parser.add_argument(
        "--set",
        metavar="NAME[=VALUE]",
        action="append",
        default=[],
        help="a setting for the server, such as TOOLSETS=all; without a value, as it is set here",
    )
    parser.add_argument(
        "--url",
        help="call the server at this address, such as http://127.0.0.1:8765/mcp, rather than"
        " start one",
    )
    options = parser.parse_args(arguments)
    settings = _settings(options)
    meant = alike(options.client) if options.client else clients()
    for client in meant:
        if not options.url:
            entry = by_command(client, root, settings)
        elif options.client or client.address:
            token = not is_local(options.url) or Settings().mcp_bearer_token is not None
            entry = by_address(client, options.url, token=token)
            if token and not client.token:
                said = f"{client.title} is not known to take a token from a variable; none is"
                print(f"{said} written.", file=sys.stderr)
        else:
            continue
        print(printed(client, entry, inherited_environment()))
    return 0


def _settings(options: argparse.Namespace) -> dict[str, str]:
    """Return the settings that the client starts the server with; a secret is never one of them.

    Raises:
        InvalidArgument: There is no such setting, or it does not take that value.
    """
    given: dict[str, str] = {}
    for pair in options.set:
        name, valued, value = pair.partition("=")
        name = name.upper()
        field = Settings.model_fields.get(name.lower())
        if field is None:
            known = [one.upper() for one in Settings.model_fields]
            raise InvalidArgument(
                f"There is no setting '{name}'.",
                fix=did_you_mean(name, known) or "get_help lists the settings.",
            )
        value = value if valued else inherited_environment().get(name, "")
        if SecretStr in get_args(field.annotation) or _has_secret(name, value):
            print(f"{name} is a secret and is not printed: put it into .env.", file=sys.stderr)
        elif value:
            given[name] = value
    if given and options.url:
        names = ", ".join(given)
        print(f"{names}: set it where the server at this address is started.", file=sys.stderr)
    return given


def _has_secret(name: str, value: str) -> bool:
    """Whether a value that is allowed holds a secret, as an address with a password does."""
    if not value:
        return False
    try:
        settings = Settings.model_validate({name.lower(): value})
    except ValidationError as exc:
        fix = "; ".join(str(one["msg"]) for one in exc.errors())
        raise InvalidArgument(f"{name} cannot be '{value}'.", fix=f"{fix}.") from exc
    return any(secret in value for secret in settings.secrets)


_WIDTHS: Final = (8, 28)


def examine(arguments: Sequence[str]) -> int:
    """Print what was found; the exit status is 0 where nothing that is needed fails."""
    parser = argparse.ArgumentParser(
        prog="server.py doctor", description="Look at this machine; change nothing."
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args(arguments)
    report = examined()
    if options.json:
        rows = [one.model_dump(mode="json") for one in report.findings]
        told = {"ok": report.ok, "summary": report.summary(), "findings": rows}
        print(json.dumps(told, indent=1))
    else:
        state, name = _WIDTHS
        for one in report.findings:
            todo = f"\n{'':{state}} → {one.fix}" if one.fix else ""
            print(f"{one.verdict:{state}} {one.about:{name}} {one.detail}{todo}")
        print(f"\n{report.summary()}")
    status = 0 if report.ok else 1
    if not report.finished:
        sys.stdout.flush()
        os._exit(status)  # libraries' own threads may hang, and the end would wait for them
    return status
