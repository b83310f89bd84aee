"""What the tests of `logs` share: real logs and a clock that stands still."""

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
