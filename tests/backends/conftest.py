"""What the tests of the backends share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.conftest import processes_of

# How long an example takes is the machine's business, not the test's.
settings.register_profile("no-clock", deadline=None, max_examples=60)
settings.load_profile("no-clock")


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """A state folder whose processes are dead when the test is over, be they reaped or not."""
    folder = tmp_path / "state"
    yield folder
    while living := processes_of(folder):
        for process in living:
            process.kill()
