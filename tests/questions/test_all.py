"""Nothing that people are known to type is left without an answer."""

import importlib
from pathlib import Path

from tests.prompts import TYPED
from tests.questions.typed import ANSWERED


def test_every_line_of_the_prompts_is_typed_by_a_test() -> None:
    """A line that is added needs a test that looks at its answer."""
    for file in Path(__file__).parent.glob("test_*.py"):
        importlib.import_module(f"tests.questions.{file.stem}")
    assert set(TYPED) - ANSWERED == set()
