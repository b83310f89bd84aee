"""Every failure of an engine among thousands of lines of its log, on this machine."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from backends.local.process import Exit, Folder, Process
from core.settings import Settings
from logs.failures import USERS, catalogue, meaning
from tests.conversation import agent_of
from tests.logs.failures import SEEN
from tests.stories.noise import LINES, noise, real_boots, remarked, seen_of, stamped, told
from tests.tools.world import plant

pytestmark = pytest.mark.anyio

ENGINES: Final = [one for one in SEEN if one.writer == "engine"]


ENDING: Final = seen_of("engine", "cause", "result", "end")
WARNING: Final = seen_of("engine", "warning")
EACH: Final = 20
"""Of the entries one of so many: `tests/logs` asks all of them. Two seconds each."""
SHOWN: Final = 8
"""Remarks of one answer."""


def died(state_dir: Path, status: int = 1) -> Folder:
    """Plant a deployment whose engine was started and has ended."""
    folder = plant(state_dir, wanted="running")
    now = datetime.now(UTC)
    process = Process(session=2**22 - 2, started="of another boot", at=now, engine=2**22 - 1)
    folder.write("process.json", process.model_dump_json())
    folder.write("exit.json", Exit(status=status, at=now).model_dump_json())
    return folder


def among(lines: Sequence[str], *texts: str) -> str:
    """Give a log with some lines more a third before its end."""
    place = len(lines) * 2 // 3
    return "\n".join((*lines[:place], *texts, *lines[place:], ""))


def test_every_entry_of_the_catalogue_is_told_here() -> None:
    """Each has a line that only it fits first."""
    fit = {entry.pattern for one in ENGINES if (entry := meaning("engine", one.line))}
    assert fit == {entry.pattern for entry in catalogue("engine")}
    assert len(ENDING) + len(WARNING) == len(ENGINES)


async def test_the_end_of_an_engine_is_recognized_in_a_noisy_log(
    state_dir: Path, settings: Settings
) -> None:
    """Code and cause are the catalogue's, the line is shown with its time."""
    folder, lines = died(state_dir), [text for _, text in noise()]
    assert len(lines) == LINES
    now = datetime.now(UTC).timestamp()
    async with agent_of(settings) as agent:
        for seen in ENDING[::EACH]:
            folder.log.write_text(among(lines, stamped(seen.line, now - 900)), encoding="utf-8")
            data = told(await agent.call("diagnose"))
            assert (data["code"], data["healthy"]) == (seen.code, False), (seen, data)
            assert seen.words in data["cause"], (seen, data)
            line, at = data["evidence"][0]["text"], data["evidence"][0]["at"]
            assert line == stamped(seen.line, now - 900).strip()[:400], (seen, data)
            assert abs(datetime.fromisoformat(at).timestamp() - now + 900) < 300, (seen, data)


async def test_an_engine_that_is_well_has_nothing_wrong_whatever_its_users_write(
    settings: Settings, state_dir: Path
) -> None:
    """Real boots and thousands of lines give no remark; warnings among them give one each."""
    async with agent_of(settings) as agent:
        await agent.serve()
        log = state_dir / "real" / "local" / "one" / "engine.log"
        now = datetime.now(UTC).timestamp()
        with log.open("a", encoding="utf-8") as file:
            file.writelines(f"{row}\n" for row in real_boots(now - 2500))
            file.writelines(f"{text}\n" for _, text in noise())
        assert remarked(await agent.call("diagnose")) == set()
        warned = [one for one in WARNING if not USERS.search(one.line)]  # those a judge weighs
        for first in range(0, len(warned), SHOWN):
            size, some = log.stat().st_size, warned[first : first + SHOWN]
            with log.open("a", encoding="utf-8") as file:
                file.writelines(f"{stamped(one.line, now)}\n" for one in some)
            assert remarked(await agent.call("diagnose")) == {one.code for one in some}
            os.truncate(log, size)
