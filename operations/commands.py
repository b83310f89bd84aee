"""Commands for a person's shell, each with what it does."""

import shlex

from core.records import Record


class Command(Record):
    """One thing to do, as it is typed; each works by itself."""

    what: str
    command: str


def command(what: str, *words: str) -> Command:
    """Write words so that any of them reaches the program as it is."""
    return Command(what=what, command=shlex.join(words))
