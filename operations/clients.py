"""MCP clients: where each keeps its configuration, and how ours gets into it."""

import json
import os
import re
import shlex
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal, NoReturn
from urllib.parse import urlsplit

import platformdirs

from core.errors import Busy, HostError, InvalidArgument
from core.records import Record

SERVER_KEY: Final = "gpu-devops-agent"
"""What this server is called in every client's configuration."""

CALL_SECONDS: Final = 120
"""Above the 45 s that a tool takes at most; Codex would cut at 60 s, a busy machine is slower."""
START_SECONDS: Final = 30
"""Codex gives a server 10 s; the first start after an install compiles every module."""

SCRIPT: Final = "server.py"
_TABLE: Final = Path(__file__).with_name("clients.toml")
_LEAST_SECONDS: Final = {"call": 60, "start": 20}
"""A tool takes 45 s at most; the first start after an install compiles every module."""
_ADDRESSES: Final = frozenset(("url", "httpUrl", "serverUrl"))
"""The fields by which entries name the address of a server; some clients read several."""
_OF_STDIO: Final = frozenset(("command", "args", "cwd", "env", "env_vars", "envFile"))
_OF_HTTP: Final = _ADDRESSES | {"headers", "http_headers", "bearer_token_env_var", "oauth"}

Entry = dict[str, Any]


class Timeout(Record):
    """A client's field for how long something may take."""

    field: str
    per_second: int
    """How many of the field's unit are a second."""


class Client(Record):
    """One MCP client; a row of `clients.toml`, whose head says what each field is."""

    name: str
    title: str
    form: Literal["json", "toml"]
    under: str
    variable: str | None = None
    folder: str
    file: str
    project: str | None = None
    address: str | None = None
    call: Timeout | None = None
    start: Timeout | None = None
    stdio: dict[str, str] = {}
    http: dict[str, str] = {}
    token: dict[str, Any] = {}
    shell: str | None = None
    see: str | None = None
    note: str = ""
    source: str

    def place(self, environment: Mapping[str, str]) -> Path:
        """Its own file, on this machine, for this user."""
        moved = environment.get(self.variable or "")
        config = platformdirs.user_config_path(roaming=True)
        return Path(moved or self.folder.format(config=config)).expanduser() / self.file

    @property
    def times(self) -> dict[str, int]:
        """Its fields for what a call and a start may take, with our values."""
        pairs = ((self.call, CALL_SECONDS), (self.start, START_SECONDS))
        return {one.field: seconds * one.per_second for one, seconds in pairs if one}


@cache
def clients() -> tuple[Client, ...]:
    """Every client that is known, those of this project's first users first."""
    rows = tomllib.loads(_TABLE.read_text(encoding="utf-8"))
    return tuple(Client.model_validate({"name": name, **row}) for name, row in rows.items())


def called(name: str) -> Client:
    """Give the client whose name begins so; case, spaces and dashes do not count.

    Raises:
        InvalidArgument: None is called so, or several are.
    """
    found = alike(name)
    if len(found) > 1:
        several = ", ".join(one.name for one in found)
        raise InvalidArgument(f"'{name}' may mean {several}.", fix="Give more of its name.")
    return found[0]


def alike(name: str) -> list[Client]:
    """Return the client of this name, or all whose name or title begins so.

    Raises:
        InvalidArgument: There is none.
    """
    said = _plain(name)
    found = [one for one in clients() if said and said in {_plain(one.name), _plain(one.title)}]
    found = found or [
        one
        for one in clients()
        if said and (_plain(one.title).startswith(said) or _plain(one.name).startswith(said))
    ]
    if not found:
        known = ", ".join(f"{one.title} ({one.name})" for one in clients())
        raise InvalidArgument(f"No client is called '{name}'.", fix=f"Choose one of: {known}.")
    return found


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


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
    home = Path.home()
    where = str("~" / file.relative_to(home)) if file.is_relative_to(home) else str(file)
    yield ClientConfig(client=client, where=where, text=rendered(client, entry))
    if client.shell:
        command = shlex.join((entry["command"], *entry["args"]))
        pairs = [f"{name}={value}" for name, value in entry.get("env", {}).items()]
        env = "".join(f" --env {shlex.quote(pair)}" for pair in pairs)
        text = client.shell.format(key=SERVER_KEY, command=command, env=env)
        yield ClientConfig(client=client, where="a shell", text=text)


def by_command(client: Client, root: Path, settings: Mapping[str, str] | None = None) -> Entry:
    """Let the client start the server of the checkout at `root`, with these settings."""
    started = {"command": str(root / ".venv" / "bin" / "python"), "args": [str(root / SCRIPT)]}
    env = {"env": dict(settings)} if settings else {}
    return {**client.stdio, **started, **env, **client.times}


def by_address(client: Client, url: str, *, token: bool) -> Entry:
    """Let the client call a server that runs; a token is named by its variable, never written.

    Raises:
        InvalidArgument: It is no address, or one that holds a secret, or the client takes none.
    """
    _require_address(url)
    if client.address is None:
        raise InvalidArgument(
            f"{client.title} takes no address in its file: it starts servers itself.",
            fix="Leave URL out; or add the address in the client's own settings (Connectors).",
        )
    return {**client.http, client.address: url, **client.times, **(client.token if token else {})}


def is_local(url: str) -> bool:
    """Whether nobody but this machine can be meant."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _require_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname if parts.port != 0 else None
    except ValueError:
        host = None
    if not host or parts.scheme not in {"http", "https"} or not url.isprintable() or " " in url:
        raise InvalidArgument(
            "That is no address of a server.", fix="Give it as http://127.0.0.1:8765/mcp."
        )
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidArgument(
            "The address holds more than a place: what stands there may be a secret.",
            fix="Leave out user, password, query and fragment; the token comes from the variable"
            " MCP_BEARER_TOKEN.",
        )
    if parts.scheme == "http" and not is_local(url):
        raise InvalidArgument(
            "Plain http carries the token in clear to another machine.",
            fix="Use https (server.py --http --tls-cert … --tls-key …), or a tunnel to 127.0.0.1.",
        )


def merged(old: Mapping[str, Any], ours: Entry) -> Entry:
    """Set what is ours and keep the rest; of two time-outs the longer one stays.

    What belongs to the other way of reaching a server goes: no client takes both. What was meant
    for another address goes too: its headers may hold a secret; and so does another script's `cwd`.
    An address in another field is such a one: some clients would call it still.
    """
    there = {"args"} if "command" in ours else _ADDRESSES & (ours.keys() | old.keys())
    gone = _OF_HTTP if "command" in ours else _OF_STDIO
    if any(name not in ours or old.get(name) != ours[name] for name in there):
        gone |= _OF_HTTP | {"cwd"}
    kept = {name: value for name, value in old.items() if name not in gone}
    if (kept.get("type") in {None, "stdio"}) != ("command" in ours):
        kept.pop("type", None)  # of the other way
    for name, new in ours.items():
        before = kept.get(name)
        if name == "env":
            kept[name] = {**(before or {}), **new}
        elif isinstance(new, dict) and isinstance(before, Mapping):
            kept[name] = {**new, **before}
        elif isinstance(new, int) and isinstance(before, int | float) and before is not True:
            kept[name] = max(before, new)
        else:
            kept[name] = new
    return kept


def entry_in(client: Client, text: str) -> Mapping[str, Any] | None:
    """Return our entry as it stands in a client's configuration.

    Raises:
        ValueError: The text is not what the client writes; the message quotes nothing of it.
    """
    found = _servers(client, _read(client, text)).get(SERVER_KEY)
    if found is not None and not isinstance(found, dict):
        raise ValueError(f"'{SERVER_KEY}' is no table of settings")
    return found


def rendered(client: Client, entry: Entry) -> str:
    """Write a configuration that holds nothing but our entry."""
    if client.form == "toml":
        return _toml("", client.under, entry).strip()
    return _json("", {client.under: {SERVER_KEY: entry}}).strip()


def _changed(client: Client, text: str, ours: Entry) -> str:
    """Return the text with our entry; it is read again: what else it says must mean what it did.

    Raises:
        ValueError: The text cannot be read, or cannot be changed so.
    """
    before, old = _read(client, text), entry_in(client, text)
    entry = merged(old or {}, ours)
    if old == entry:
        return text
    wanted = {**before, client.under: {**_servers(client, before), SERVER_KEY: entry}}
    new = _toml(text, client.under, entry) if client.form == "toml" else _json(text, wanted)
    if _read(client, new) != wanted:
        raise ValueError("it is written in a way that cannot be added to safely")
    return new


def _json(text: str, wanted: Mapping[str, Any]) -> str:
    """Write it with the indentation that the text has."""
    indent = re.search(r"\n([ \t]+)\S", text)
    ends = "" if text.strip() and not text.endswith("\n") else "\n"
    return json.dumps(wanted, indent=indent[1] if indent else 2, ensure_ascii=False) + ends


def _toml(text: str, under: str, entry: Entry) -> str:
    """Put our table into it, and leave its comments and all other tables as they are."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        document: Any = tomlkit.parse(text if not text or text.endswith("\n") else f"{text}\n")
        servers = document.setdefault(under, tomlkit.table(is_super_table=True))
        if SERVER_KEY not in servers:
            servers[SERVER_KEY] = tomlkit.table()
            new = True
        else:
            new = False
        table = document[under][SERVER_KEY]
        for name in [one for one in table if one not in entry]:
            del table[name]
        for name, value in entry.items():
            if table.get(name) != value:
                table[name] = value
        if new:
            table.add(tomlkit.nl())  # apart from the table that follows, if one does
        return tomlkit.dumps(document)
    except (TOMLKitError, TypeError, AttributeError) as exc:
        raise ValueError("its tables are written in a way that cannot be added to") from exc


def _read(client: Client, text: str) -> Mapping[str, Any]:
    text = text.removeprefix("\ufeff")  # editors of Windows begin a file with it
    try:
        if client.form == "toml":
            return tomllib.loads(text)
        found = json.loads(
            text.strip() or "{}", object_pairs_hook=_once, parse_constant=_no_constant
        )
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
    except json.JSONDecodeError as exc:
        said = f"line {exc.lineno} is not plain JSON (comments cannot be kept)"
        raise ValueError(said) from exc
    if isinstance(found, dict):
        return found
    raise ValueError("it is no table of settings")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse what is there twice: which of the two a client believes nobody knows."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("something is there twice")
    return dict(pairs)


def _no_constant(_word: str) -> NoReturn:
    raise ValueError("it is not as JSON wants it")


def _servers(client: Client, tables: Mapping[str, Any]) -> Mapping[str, Any]:
    found = tables.get(client.under, {})
    if isinstance(found, dict):
        return found
    raise ValueError(f"'{client.under}' is no table of servers")


class Seen(Record):
    """One client's configuration; nothing of what stands in it is quoted."""

    client: Client
    state: Literal["absent", "without", "well", "off", "wrong", "unreadable"]
    """`absent`: no such file; `without`: a file that does not name this server; `off`: its owner
    has switched it off, and writing leaves it so."""
    detail: str


def look(root: Path, environment: Mapping[str, str]) -> tuple[Seen, ...]:
    """Look at every client's own file; `root` is this checkout."""
    return tuple(look_at(client, client.place(environment), root) for client in clients())


def look_at(client: Client, file: Path, root: Path) -> Seen:
    """Look at one file of a client."""
    seen = partial(Seen, client=client)
    try:
        text = _text_of(file)
        entry = entry_in(client, text or "")
    except (OSError, ValueError) as exc:
        return seen(state="unreadable", detail=f"{file} cannot be read: {_why(exc)}.")
    if text is None:
        return seen(state="absent", detail=f"{file} is not there.")
    if entry is None:
        return seen(state="without", detail=f"{file} does not name {SERVER_KEY}.")
    if wrong := [*_of_start(entry, root), *_of_times(client, entry)]:
        return seen(state="wrong", detail=f"{file}: {'; '.join(wrong)}.")
    if entry.get("disabled") is True or entry.get("enabled") is False:
        return seen(state="off", detail=f"{file} names {SERVER_KEY}, and has it switched off.")
    does = "starts this checkout" if "command" in entry else "calls an address"
    return seen(state="well", detail=f"{file} {does}.")


def _of_start(entry: Mapping[str, Any], root: Path) -> Iterator[str]:
    if _ADDRESSES & entry.keys() and "command" not in entry:
        return
    command, arguments = entry.get("command"), entry.get("args", [])
    if not isinstance(command, str) or not isinstance(arguments, list):
        yield "it says neither a command nor an address"
        return
    words = (one for one in arguments if isinstance(one, str))
    script = next((Path(one) for one in words if Path(one).name == SCRIPT), None)
    if script is None or not script.is_absolute():
        yield f"it starts no {SCRIPT} by its full path"
    elif script.resolve() != (root / SCRIPT).resolve():
        yield "it starts another checkout"
    elif not shutil.which(command):
        yield "its program is not there; run `make install`"


def _of_times(client: Client, entry: Mapping[str, Any]) -> Iterator[str]:
    for one, what in ((client.call, "call"), (client.start, "start")):
        if one is None:
            continue
        value, least = entry.get(one.field), _LEAST_SECONDS[what]
        # Of those who have such a field, Codex alone is impatient by itself.
        enough = isinstance(value, int | float) and value >= least * one.per_second
        if not enough and (value is not None or client.form == "toml"):
            yield f"{one.field} gives a {what} less than {least} s"


class Change(Record):
    """What one client's file says now and would say."""

    client: Client
    file: Path
    """The file itself, not a link to it."""
    old: str | None
    """None where there is no file."""
    new: str
    entry: Entry
    """Ours, as it is written where none was."""

    @property
    def needed(self) -> bool:
        """Whether there is anything to change."""
        return self.old != self.new

    def difference(self) -> str:
        """Show what is set, which is ours, and by name alone what goes: that may hold a secret."""
        old, new = (entry_in(self.client, text or "") or {} for text in (self.old, self.new))
        sets = {name: value for name, value in self.entry.items() if old.get(name) != new[name]}
        gone = [f"-{name}" for name, value in old.items() if new.get(name) != value]
        lines = [f"+{line}" for line in rendered(self.client, sets).splitlines()] if sets else []
        return "\n".join((str(self.file), *gone, *lines))


def change(client: Client, file: Path, entry: Entry) -> Change:
    """Say what writing would change; nothing is written.

    Raises:
        HostError: The file cannot be read, understood or written; it says what to paste into it.
    """
    file = Path(os.path.realpath(file))
    try:
        old = _text_of(file)
        new = _changed(client, old or "", entry)
        if old is not None and old != new:
            _require_writable(file)
    except (OSError, ValueError) as exc:
        raise _by_hand(client, file, entry, exc) from exc
    return Change(client=client, file=file, old=old, new=new, entry=entry)


def write(wanted: Change) -> Path | None:
    """Write it as a whole or not at all; return the copy of what was there before.

    Raises:
        Busy: Somebody else has changed the file since it was looked at.
        HostError: It cannot be written, or does not say afterwards what it should.
    """
    client, file = wanted.client, wanted.file
    again = f"Close {client.title}, then run the same command again."
    try:
        if _text_of(file) != wanted.old:
            said = f"{file} was changed by somebody else meanwhile; nothing was written."
            raise Busy(said, fix=again)
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # such files hold secrets
        copy = None
        if wanted.old is not None:
            names = (f"{file.name}.bak{number or ''}" for number in count())
            copy = next(path for name in names if not os.path.lexists(path := file.with_name(name)))
            _replace(copy, wanted.old, like=file)
        _replace(file, wanted.new, like=file)
        seen = entry_in(client, _text_of(file) or "")
    except (OSError, ValueError) as exc:
        raise _by_hand(client, file, wanted.entry, exc) from exc
    if seen != entry_in(client, wanted.new):
        raise Busy(f"{file} was written, and says something else again.", fix=again)
    return copy


def _text_of(file: Path) -> str | None:
    """Read a file; None where there is none.

    Raises:
        OSError: It cannot be read, or is a folder, a pipe or a link in a circle.
        UnicodeError: It is not UTF-8.
    """
    file = Path(os.path.realpath(file))
    try:
        mode = file.lstat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError("it is no file")
    return file.read_bytes().decode("utf-8")


def _require_writable(file: Path) -> None:
    """Leave alone what its owner or another program protects, though it could be replaced."""
    if not file.stat().st_mode & stat.S_IWUSR or not os.access(file, os.W_OK):
        raise OSError("it is read-only")


def _replace(file: Path, text: str, *, like: Path) -> None:
    """Put a whole file in its place, with the owner and mode of another; else nobody else's."""
    there = like.stat() if like.exists() else None
    number, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(number, "wb") as made:
            made.write(text.encode("utf-8"))
            made.flush()
            if there:
                if there.st_uid != os.geteuid():  # by sudo: its owner must be able to read it
                    os.fchown(number, there.st_uid, there.st_gid)
                os.fchmod(number, stat.S_IMODE(there.st_mode))
            os.fsync(number)
        Path(name).replace(file)
    finally:
        Path(name).unlink(missing_ok=True)


def _why(exc: Exception) -> str:
    """Say why a file cannot be used; nothing of it is quoted."""
    if isinstance(exc, UnicodeError):
        return "it is not UTF-8"
    if isinstance(exc, OSError):
        return (exc.strerror or str(exc)).lower()
    return str(exc)


def _by_hand(client: Client, file: Path, entry: Entry, exc: Exception) -> HostError:
    return HostError(
        f"{file} stays as it is: {_why(exc)}.",
        fix=f"Put '{SERVER_KEY}' into it by hand:\n{rendered(client, entry)}",
    )
