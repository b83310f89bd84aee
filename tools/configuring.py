"""`server.py mcp-config`: what MCP clients must be told, printed or written."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from core.environment import inherited_environment
from core.errors import Cancelled, ConfirmationRequired, InvalidArgument, NotFound
from core.settings import Settings
from operations.clients.changing import rendered
from operations.clients.client_config import client_configs, render
from operations.clients.entries import Entry, by_address, by_command, is_local
from operations.clients.seen import look_at
from operations.clients.table import Client, called, clients
from operations.clients.writing import Change, change, difference, write


def configure(root: Path, arguments: Sequence[str]) -> int:
    """Print or write the configurations of the checkout at `root`; give the exit status.

    Raises:
        InvalidArgument: No client is called so, or the address cannot be.
        NotFound: There is no such project.
        ConfirmationRequired, Cancelled: Nobody has agreed to the change that was shown.
        HostError, Busy: The client's file was left as it is, or is changed by others.
    """
    options = _parser().parse_args(arguments)
    if options.write:
        return _write(root, options)
    if options.url or options.project is not None:
        for client in [called(options.client)] if options.client else clients():
            entry = _entry(client, root, options)
            print(f"# {client.title}: {_place(client, options)}\n{rendered(client, entry)}\n")
        return 0
    print(render(client_configs(root, inherited_environment()), options.client))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="server.py mcp-config", description="Tell an MCP client of this server."
    )
    names = ", ".join(one.name for one in clients())
    parser.add_argument("client", nargs="?", help=f"the beginning of one of: {names}")
    parser.add_argument(
        "--write", action="store_true", help="put it into the client's own file; asks first"
    )
    parser.add_argument("--yes", action="store_true", help="agree to the change beforehand")
    parser.add_argument(
        "--project",
        metavar="FOLDER",
        nargs="?",
        const=Path(),
        type=Path,
        help="the file of one project instead (default: this folder)",
    )
    parser.add_argument(
        "--url",
        help="call the server at this address, such as http://127.0.0.1:8765/mcp, rather than"
        " start one",
    )
    return parser


def _write(root: Path, options: argparse.Namespace) -> int:
    if not options.client:
        known = ", ".join(one.name for one in clients())
        raise InvalidArgument("Whose file is meant?", fix=f"Name one client: {known}.")
    client = called(options.client)
    wanted = change(client, _place(client, options), _entry(client, root, options))
    if not wanted.needed:
        print(f"{look_at(client, wanted.file, root).detail} There is nothing to change.")
        return 0
    stays = "All else in it stays. " if wanted.old is not None else ""
    print(f"{difference(wanted)}\n{stays}{client.note}".rstrip(), flush=True)
    _agreed(wanted, yes=options.yes)
    copy = write(wanted)
    kept = f" What was there is kept as {copy.name}." if copy else ""
    print(f"Written, and read again: {look_at(client, wanted.file, root).detail}{kept}")
    see = f" Then `{client.see}` shows it." if client.see else ""
    print(f"Start {client.title} anew.{see}")
    return 0


def _place(client: Client, options: argparse.Namespace) -> Path:
    if options.project is not None:
        if not options.project.is_dir():
            raise NotFound(f"There is no folder {options.project}.", fix="Name a project's folder.")
        return Path(options.project.absolute(), client.project)
    return client.place(inherited_environment())


def _entry(client: Client, root: Path, options: argparse.Namespace) -> Entry:
    if not options.url:
        return by_command(client, root)
    token = not is_local(options.url) or Settings().mcp_bearer_token is not None
    if token and not client.token:
        said = f"{client.title} is not known to take a token from a variable; none is written."
        print(said, file=sys.stderr)
    return by_address(client, options.url, token=token)


def _agreed(wanted: Change, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfirmationRequired(
            "Nothing was written: nobody can be asked here.",
            fix="Give --yes (make: YES=1) if this change is right.",
        )
    print(f"Write this to {wanted.file}? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline().strip().lower()
    except KeyboardInterrupt:
        answer = ""
    if answer not in {"y", "yes"}:
        raise Cancelled("Nothing was written.", fix="Run it again whenever you like.")
