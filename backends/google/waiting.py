"""How long Google is waited for: for one answer, of a look or of a change."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from backends.google.failing import patient, translated, words_of
from core.cloud_errors import CloudRefused, CloudTimeout, CloudUnavailable

READ_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 15.0
UNSURE: Final = (CloudUnavailable, CloudTimeout)
"""After these a change may have happened all the same."""


def reading() -> dict[str, Any]:
    """Give the limits of a call that only looks: it may be made again."""
    return {"timeout": READ_SECONDS, "retry": patient()}


def writing() -> dict[str, Any]:
    """Give the limits of a call that changes something: it is made once."""
    return {"timeout": WRITE_SECONDS, "retry": None}


@contextmanager
def strictly(what: str) -> Iterator[None]:
    """Translate what Google raises where nothing that is named may be missing."""
    from google.api_core.exceptions import NotFound

    try:
        with translated(what):
            yield
    except NotFound as exc:
        raise CloudRefused(
            f"Google does not find what is needed: {what}.",
            cause=words_of(exc),
            fix="Call setup_target (make setup) if it is something of the project's.",
        ) from exc
