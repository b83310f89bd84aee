"""What of an entry may be shown: the program, our server's path, the host; all else may be secret.

A line of a shell, a flag and an address can each hold a secret and end like a path.
"""

import os
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from core.redaction import MASK, redact

SCRIPT: Final = "server.py"
_PATH: Final = re.compile(r"(?:[\w.+~/-]|\$\{[\w:]+\})+")
"""A path of which nothing is more than a name: no space, sign or address."""
_PROGRAM: Final = re.compile(r"[A-Za-z][\w.+-]{0,30}")
_LAUNCHER: Final = re.compile(r"(?:ba|z)?sh|env|nice|node|npx|docker|pipx|uvx?|python[\d.]*")
"""Words of a command that are no secret, wherever they stand."""
_HOST: Final = re.compile(r"[\w.:-]+")


def names_server(value: Any) -> bool:
    """Whether this is the path of a server.py and nothing beside it."""
    if not isinstance(value, str) or Path(value).name != SCRIPT:
        return False
    there = Path(value).is_absolute() and os.path.lexists(value)
    return there or (bool(_PATH.fullmatch(value)) and redact(value) == value)


def program(command: str) -> str | None:
    """Name the program that a command starts; None where that could be something else."""
    name = re.split(r"[/\\]", command)[-1]
    plain = _PATH.fullmatch(command.replace("\\", "/")) and _PROGRAM.fullmatch(name)
    return name if plain and redact(command) == command else None


def words(command: str) -> str:
    """Show a command's program, and of several words those that start another program."""
    if alone := program(command):
        return alone
    shown = [one if _LAUNCHER.fullmatch(one) else MASK for one in command.split()]
    return " ".join(shown) or MASK


def host(url: Any) -> str:
    """Name whom an address calls; a password that is not escaped can look like a host."""
    try:
        parts = urlsplit(url)
        name = parts.hostname or ""
    except (ValueError, TypeError, AttributeError):
        return "nobody"
    sure = parts.scheme in {"http", "https"} and "@" not in url.replace(parts.netloc, "", 1)
    return name if sure and _HOST.fullmatch(name) and redact(name) == name else "nobody"
