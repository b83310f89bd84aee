"""What a startup script has decided, read without running a line of it."""

import re
import shlex
from typing import Final, NamedTuple

_BEGIN: Final = "# --- decided ---"
_END: Final = "# --- to do ---"
_LINE: Final = re.compile(r"readonly (?P<name>[A-Z][A-Z0-9_]*)=(?P<value>.*)", re.DOTALL)
_QUOTED: Final = re.compile(r"'[^']*'")
_SPECIAL: Final = re.compile(r"[$`\\\"]")
"""What bash would not take as it is."""
_WORDS: Final = (
    "DEPLOYMENT",
    "PROJECT",
    "IMAGE",
    "KEY_SECRET",
    "TOKEN_SECRET",
    "PORT",
    "TLS",
    "LOG",
    "CACHE",
    "GUARD_IMAGE",
)
_LISTS: Final = ("DOCKER", "COMMAND", "GUARD_DOCKER", "GUARD_COMMAND")


class BadScript(ValueError):
    """It is not of the form that can be rehearsed."""


class Decided(NamedTuple):
    """The values of one script."""

    deployment: str
    project: str
    image: str
    key_secret: str
    token_secret: str
    """Empty: the model needs no token."""
    port: int
    """Where it is asked whether it is ready."""
    tls: bool
    log: str
    """Its id."""
    docker: tuple[str, ...]
    """Arguments of `docker run` before the image."""
    command: tuple[str, ...]
    """What follows the image."""
    guard_image: str
    """Of the proxy before the engine."""
    guard_docker: tuple[str, ...]
    guard_command: tuple[str, ...]


def read(script: str) -> Decided:
    """Read the lines between `decided` and `to do`.

    Raises:
        BadScript: There are no such lines, or something else is among them.
    """
    found = _values(_decided_lines(script))
    missing = [name for name in (*_WORDS, *_LISTS) if name not in found]
    if missing:
        raise BadScript(f"{missing[0]}: unbound variable")
    words = {name: _word(name, found[name]) for name in _WORDS}
    if words["TLS"] not in {"yes", "no"} or not words["PORT"].isdigit():
        raise BadScript("TLS is yes or no, and PORT a number.")
    return Decided(
        deployment=words["DEPLOYMENT"],
        project=words["PROJECT"],
        image=words["IMAGE"],
        key_secret=words["KEY_SECRET"],
        token_secret=words["TOKEN_SECRET"],
        port=int(words["PORT"]),
        tls=words["TLS"] == "yes",
        log=words["LOG"],
        docker=_list("DOCKER", found["DOCKER"]),
        command=_list("COMMAND", found["COMMAND"]),
        guard_image=words["GUARD_IMAGE"],
        guard_docker=_list("GUARD_DOCKER", found["GUARD_DOCKER"]),
        guard_command=_list("GUARD_COMMAND", found["GUARD_COMMAND"]),
    )


def _decided_lines(script: str) -> list[str]:
    lines = [line.rstrip() for line in script.splitlines()]
    if _BEGIN not in lines or _END not in lines[lines.index(_BEGIN) :]:
        raise BadScript(f"There is no part between {_BEGIN!r} and {_END!r}.")
    begin = lines.index(_BEGIN) + 1
    return lines[begin : lines.index(_END, begin)]


def _values(lines: list[str]) -> dict[str, tuple[str, list[str]]]:
    """Give each name's value as it stands there, and its words; a quoted word may hold lines."""
    found: dict[str, tuple[str, list[str]]] = {}
    text = ""
    for line in lines:
        text = f"{text}\n{line}" if text else line
        match = _LINE.fullmatch(text)
        if text and match is None:
            raise BadScript(f"Not a decision: {text.splitlines()[0][:60]!r}")
        words = _words(match["value"]) if match else None
        if match and words is not None:
            found[match["name"]] = (match["value"], words)
            text = ""
    if text:
        raise BadScript(f"A quote is not closed: {text.splitlines()[0][:60]!r}")
    return found


def _words(value: str) -> list[str] | None:
    """Split it as bash would; None if a quote is still open."""
    inner = value[1:-1] if value.startswith("(") and value.endswith(")") else value
    try:
        words = shlex.split(inner)
    except ValueError:
        return None
    if _SPECIAL.search(_QUOTED.sub("", inner.replace('"\'"', ""))):
        raise BadScript(f"Bash would change what is not quoted: {inner[:60]!r}")
    return words


def _word(name: str, value: tuple[str, list[str]]) -> str:
    text, words = value
    if text.startswith("(") or len(words) > 1:
        raise BadScript(f"{name} is one word.")
    return words[0] if words else ""


def _list(name: str, value: tuple[str, list[str]]) -> tuple[str, ...]:
    text, words = value
    if not text.startswith("("):
        raise BadScript(f"{name} is a list of words.")
    return tuple(words)
