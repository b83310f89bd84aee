"""What to write into an MCP client's configuration, with this checkout's own paths."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from core.errors import InvalidArgument
from core.record import Record
from operations.clients.changing import rendered
from operations.clients.entries import Entry, by_command
from operations.clients.table import SERVER_KEY as SERVER_KEY  # noqa: PLC0414  said here too
from operations.clients.table import Client, clients, matches


class ClientConfig(Record):
    """One thing to put into one place for one client."""

    client: Client
    where: str
    """The file that it goes into, or that it is typed into a shell."""
    text: str


def client_configs(root: Path, environment: Mapping[str, str]) -> tuple[ClientConfig, ...]:
    """Give every client its own words for the server of the checkout at `root`."""
    return tuple(
        words
        for client in clients()
        for words in _words(client, client.place(environment), by_command(client, root))
    )


def render(configs: Sequence[ClientConfig], client: str | None) -> str:
    """Write them one below the other; `client` picks those whose name begins so.

    Raises:
        InvalidArgument: No client is called so.
    """
    wanted = [one for one in configs if not client or matches(one.client, client)]
    if not wanted:
        known = ", ".join(dict.fromkeys(one.client.title for one in configs))
        raise InvalidArgument(f"No client is called '{client}'.", fix=f"Choose one of: {known}.")
    return "\n".join(f"# {one.client.title}: {one.where}\n{one.text}\n" for one in wanted)


def _words(client: Client, file: Path, entry: Entry) -> Iterator[ClientConfig]:
    yield ClientConfig(client=client, where=_short(file), text=rendered(client, entry))
    if client.shell:
        command = shlex.join((entry["command"], *entry["args"]))
        text = client.shell.format(key=SERVER_KEY, command=command)
        yield ClientConfig(client=client, where="a shell", text=text)


def _short(file: Path) -> str:
    """Write it as a person would."""
    home = Path.home()
    return str("~" / file.relative_to(home)) if file.is_relative_to(home) else str(file)
