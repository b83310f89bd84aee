"""Words that nobody searches for: users read plain operations English instead."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Final

_FILE: Final = Path(__file__).with_suffix(".toml")


def unwanted_words(text: str) -> list[str]:
    """Return each unwanted word of a text, with what to write instead.

    >>> unwanted_words("It works as well as before, and is not still filled.")
    []
    >>> unwanted_words("The engine is ill.")
    ['ill: write unhealthy, failed']
    """
    return [
        f"{found[0]}: write {instead}" for one, instead in _words() for found in one.finditer(text)
    ]


@cache
def _words() -> list[tuple[re.Pattern[str], str]]:
    rows = tomllib.loads(_FILE.read_text(encoding="utf-8"))["words"]
    return [(re.compile(rf"(?i)\b(?:{one})\b"), instead) for one, instead in rows.items()]
