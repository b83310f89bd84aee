"""The fixtures of this folder."""

import pytest

from operations import diagnose
from tests.simulators.conftest import simulate, tiny_model
from tests.tools.shared import _hurry, served, served_dir, served_settings

__all__ = [
    "_hurry",
    "served",
    "served_dir",
    "served_settings",
    "simulate",
    "tiny_model",
]


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The looks at the metrics follow each other at once."""
    monkeypatch.setattr(diagnose, "FIRST_GAP_SECONDS", 0.0)
