"""What the tests of `core` share: real logs and a clock that stands still."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

DATA: Final = Path(__file__).parent.parent / "data"
NOW: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


@pytest.fixture(params=["eager", "default"])
def real_log(request: pytest.FixtureRequest) -> Path:
    """The log of a boot of vLLM 0.32 that went well, and of its end."""
    return DATA / f"boot-{request.param}.log"


@contextmanager
def open_null() -> Iterator[int]:
    """An open file with nothing in it, for a program that must hold one."""
    handle = os.open(os.devnull, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
