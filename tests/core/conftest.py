"""What the tests of `core` share."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def open_null() -> Iterator[int]:
    """An open file with nothing in it, for a program that must hold one."""
    handle = os.open(os.devnull, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
