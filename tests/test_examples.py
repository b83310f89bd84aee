"""The examples in docstrings hold."""

import doctest
import importlib
from pathlib import Path
from typing import Final

import pytest

from core.environment import ROOT
from tests.measure_house import ROOMS, files


def _module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


_WITH_EXAMPLES: Final = [
    _module(path) for room in ROOMS for path in files(room) if "    >>> " in path.read_text("utf-8")
]


@pytest.mark.parametrize("name", _WITH_EXAMPLES)
def test_each_example_gives_what_it_says(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed
