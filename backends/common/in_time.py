"""An end for what asks a cloud many questions."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from core.cloud_errors import CloudTimeout


@contextmanager
def in_time(who: str, what: str, seconds: float, *, fix: str) -> Iterator[None]:
    """Stop waiting after so many seconds.

    Raises:
        CloudTimeout: Then.
    """
    try:
        with anyio.fail_after(seconds):
            yield
    except TimeoutError as exc:
        raise CloudTimeout(
            f"{who} did not answer within {seconds:.0f} s: {what}.", fix=fix
        ) from exc
