"""`server.py mcp-config`: what MCP clients must be told, printed or written."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from pydantic import SecretStr, ValidationError

from core.environment import inherited_environment
from core.errors import Cancelled, ConfirmationRequired, InvalidArgument, NotFound, did_you_mean
from core.settings import Settings
from operations.clients import (
    Change,
    Client,
    Entry,
    by_address,
    by_command,
    called,
    change,
    client_configs,
    clients,
    difference,
    is_local,
    look_at,
    render,
    rendered,
    write,
)


def configure(root: Path, arguments: Sequence[str]) -> int:
    """Print or write the configurations of the checkout at `root`; give the exit status.

    Raises:
        InvalidArgument: No client is called so, or the address cannot be.
        NotFound: There is no such project.
        ConfirmationRequired, Cancelled: Nobody has agreed to the change that was shown.
        HostError, Busy: The client's file was left as it is, or is changed by others.
    """
    options = _parser().parse_args(arguments)
    settings = _settings(options)
    if options.write:
        return _write(root, options, settings)
    if options.url or options.project is not None:
        able = [
            one
            for one in clients()
            if (one.address or not options.url) and (one.project or options.project is None)
        ]
        for client in [called(options.client)] if options.client else able:
            entry = _entry(client, root, options, settings)
            print(f"# {client.title}: {_place(client, options)}\n{rendered(client, entry)}\n")
        return 0
    print(render(client_configs(root, inherited_environment(), settings), options.client))
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
    return parser


def _write(root: Path, options: argparse.Namespace, settings: Mapping[str, str]) -> int:
    if not options.client:
        known = ", ".join(one.name for one in clients())
        raise InvalidArgument("Whose file is meant?", fix=f"Name one client: {known}.")
    client = called(options.client)
    wanted = change(client, _place(client, options), _entry(client, root, options, settings))
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
        if client.project is None:
            raise InvalidArgument(
                f"{client.title} has no file for one project.", fix="Leave PROJECT out."
            )
        return Path(options.project.absolute(), client.project)
    return client.place(inherited_environment())


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
            print(f"{name} is a secret and is not written: put it into .env.", file=sys.stderr)
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


def _entry(
    client: Client, root: Path, options: argparse.Namespace, settings: Mapping[str, str]
) -> Entry:
    if not options.url:
        return by_command(client, root, settings)
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
