"""What is asked of a process that ends meanwhile is answered all the same."""

import sys

import anyio
import psutil
import pytest

from tests.processes import lives, load_workers, variables_of, words_of

pytestmark = pytest.mark.anyio


async def test_a_process_that_ended_after_it_was_listed_has_nothing_to_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker of another test's may end between the list of children and a look at each."""
    async with await anyio.open_process([sys.executable, "-c", "input()"]) as process:
        listed = psutil.Process(process.pid)
        assert words_of(listed).endswith("-c input()")
        assert lives(listed.pid)
    monkeypatch.setattr(psutil.Process, "children", lambda _self, recursive: [listed])
    assert load_workers() == []
    assert words_of(listed) + variables_of(listed) == ""
    assert not lives(listed.pid)
