"""What to write into an MCP client's configuration, with this checkout's own paths."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from core.records import Record
from operations.clients.changing import rendered
from operations.clients.entries import Entry, by_command
from operations.clients.table import SERVER_KEY as SERVER_KEY  # noqa: PLC0414  said here too
from operations.clients.table import Client, alike, clients


class ClientConfig(Record):
    """One thing to put into one place for one client."""

    client: Client
    where: str
    """The file that it goes into, or that it is typed into a shell."""
    text: str


def client_configs(
    root: Path, environment: Mapping[str, str], settings: Mapping[str, str] | None = None
) -> tuple[ClientConfig, ...]:
    """Return what each client must be told to start the server at `root` with these settings."""
    return tuple(
        words
        for client in clients()
        for words in _words(client, client.place(environment), by_command(client, root, settings))
    )


def render(configs: Sequence[ClientConfig], client: str | None) -> str:
    """Write them one below the other; `client` picks those whose name begins so.

    Raises:
        InvalidArgument: No client is called so.
    """
    meant = alike(client) if client else clients()
    wanted = [one for one in configs if one.client in meant]
    return "\n".join(f"# {one.client.title}: {one.where}\n{one.text}\n" for one in wanted)


def _words(client: Client, file: Path, entry: Entry) -> Iterator[ClientConfig]:
    yield ClientConfig(client=client, where=_short(file), text=rendered(client, entry))
    if client.shell:
        command = shlex.join((entry["command"], *entry["args"]))
        pairs = [f"{name}={value}" for name, value in entry.get("env", {}).items()]
        env = "".join(f" --env {shlex.quote(pair)}" for pair in pairs)
        text = client.shell.format(key=SERVER_KEY, command=command, env=env)
        yield ClientConfig(client=client, where="a shell", text=text)


def _short(file: Path) -> str:
    """Write it as a person would."""
    home = Path.home()
    return str("~" / file.relative_to(home)) if file.is_relative_to(home) else str(file)
