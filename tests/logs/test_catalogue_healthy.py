"""What is well is no failure: real logs, simulated boots, and lines that only sound bad."""

from pathlib import Path

import pytest

from logs.failures import WRITERS, Writer
from logs.read import head_lines
from logs.verdict import Judge, recognize
from simulators.engine.__main__ import main
from tests.logs.failures import found, healthy
from tests.simulators.test_boot import boot, on_chips


def test_the_log_of_a_real_boot_is_no_failure(real_log: Path) -> None:
    """None of the catalogue's wordings occurs when all is well, the shut-down included."""
    lines = list(head_lines(real_log))
    assert len(lines) > 50
    assert recognize(lines) is None
    assert found(lines) == ()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_line_that_only_sounds_bad_is_no_failure(writer: Writer) -> None:
    """Neither of its own writer, nor of an engine whose platform passes it on."""
    alarms = []
    for line in healthy(writer):
        judge = Judge(writer, mixed=True)
        judge.feed([line, *["(APIServer pid=1) INFO 11-20 12:00:00 [x.py:1] on"] * 6])
        if judge.verdict() or found([line], writer):
            alarms.append(line)
    assert alarms == []


@pytest.mark.anyio
@pytest.mark.parametrize("flags", [[], ["--enforce-eager"]])
async def test_a_simulated_boot_is_no_failure(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Compiled and captured, or eager."""
    await boot(*flags)
    said = capsys.readouterr()
    lines = [*said.out.splitlines(), *said.err.splitlines()]
    assert len(lines) > 10
    assert found(lines) == ()


@pytest.mark.anyio
@pytest.mark.parametrize("chips", [1, 4])
async def test_a_simulated_boot_on_a_tpu_is_no_failure(
    chips: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the words of tpu-inference."""
    await on_chips(chips=chips)
    said = capsys.readouterr()
    lines = [*said.out.splitlines(), *said.err.splitlines()]
    assert len(lines) > 10
    assert found(lines) == ()


def test_what_a_simulated_engine_is_refused_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The same reading of its output does find what is there to be found."""
    with pytest.raises(SystemExit):
        main(["serve", "google/gemma-4-E4B-it", "--no-such-flag"])
    said = capsys.readouterr()
    assert [one.failure.code for one in found(said.err.splitlines())] == ["BAD_ENGINE_ARGUMENT"]
