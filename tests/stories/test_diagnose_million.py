"""A million lines on this machine: what is wrong, and what they come down to, within one call."""

import resource
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from core.settings import Settings
from tests.conversation import agent_of
from tests.stories.noise import noise, stamped, told
from tests.stories.test_diagnose_local import died
from tests.tools.world import assert_envelope

pytestmark = pytest.mark.anyio

LINES: Final = 1_150_000
BEFORE: Final = 100_000
"""As far before the end the cause stands."""
GROWTH_MIB: Final = 300
FULL: Final = (
    "(EngineCore pid=93) ERROR 11-20 12:00:00 [core.py:1001] OSError: [Errno 28] No space left"
    " on device: '/data/x'"
)


async def test_a_million_lines_are_read_within_one_call(
    state_dir: Path, settings: Settings
) -> None:
    """The cause stands 100,000 lines before the end; memory is bounded; what is not read is said.

    How many more a quiet machine reads in a call is measured by `make bench-logs`. A minute: the
    lines are made and written first.
    """
    folder, now = died(state_dir), datetime.now(UTC).timestamp()
    with folder.log.open("w", encoding="utf-8") as file:
        for number, (_, text) in enumerate(noise(LINES)):
            if number == LINES - BEFORE:
                file.write(f"{stamped(FULL, now - 1200)}\n")
            file.write(f"{text}\n")
    assert folder.log.stat().st_size >= 150_000_000
    async with agent_of(settings) as agent:
        await agent.call("diagnose", name="nobody")
        before = _peak_mib()
        data = told(await agent.call("diagnose"))
        assert (data["code"], data["evidence"][0]["kind"]) == ("DISK_FULL", "line"), data
        reply = await agent.call("get_logs", reduce=True)
        assert_envelope(reply)
        assert reply.data["total"] == LINES + 1 or "Not read" in str(reply.structured["warnings"])
        assert any("No space left" in row for row in reply.data["rows"]), reply
        assert _peak_mib() - before <= GROWTH_MIB


def _peak_mib() -> float:
    """Give the most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
