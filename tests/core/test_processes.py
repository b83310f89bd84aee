"""The one door to other programs."""

import os
import sys
from pathlib import Path

import anyio
import psutil
import pytest

from core.errors import CommandNotFound, WaitedTooLong
from core.processes import detach, reap, run
from tests.core.conftest import open_null
from tests.soon import HANGS, soon

pytestmark = pytest.mark.anyio


async def test_a_command_gives_what_it_printed_and_its_status() -> None:
    """Whatever the status, and whatever the bytes."""
    script = "printf 'a\\377'; printf e >&2; exit 3"
    output = await run(("sh", "-c", script))
    assert (output.returncode, output.stdout, output.stderr) == (3, "a\ufffd", "e")


async def test_words_reach_a_command_as_they_are(tmp_path: Path) -> None:
    """No shell reads them; it stands in its folder and has its variables."""
    script = 'printf "%s|" "$@" "$PWD" "$MINE"'
    output = await run(
        ("sh", "-c", script, "sh", "a b", "$HOME", "*", "'"), cwd=tmp_path, env={"MINE": "x y"}
    )
    assert output.stdout == f"a b|$HOME|*|'|{tmp_path}|x y|"


async def test_a_command_gets_no_secret_and_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our keys stay here, other variables go on; there is nothing to read."""
    monkeypatch.setenv("HF_TOKEN", "hf_mine")
    monkeypatch.setenv("VLLM_API_KEY", "sk-mine")
    monkeypatch.setenv("OTHER", "goes on")
    output = await run(("sh", "-c", "cat; env"))
    assert "OTHER=goes on" in output.stdout
    assert "mine" not in output.stdout


@pytest.mark.parametrize("what", ["nothing", "not executable", "a folder"])
async def test_a_program_that_cannot_be_run_is_not_found(tmp_path: Path, what: str) -> None:
    """Missing, a plain file, or a folder: what to do is the same."""
    program = tmp_path / "program"
    if what == "not executable":
        program.write_text("#!/bin/sh\n")
    if what == "a folder":
        program.mkdir()
    with pytest.raises(CommandNotFound) as caught:
        await run((str(program), "--secret-word"))
    assert str(program) in caught.value.summary


async def test_a_command_that_hangs_is_killed_at_its_deadline(tmp_path: Path) -> None:
    """The error says how long it was waited for, and the process is gone."""
    pid = tmp_path / "pid"
    with anyio.fail_after(HANGS), pytest.raises(WaitedTooLong):
        await run(("sh", "-c", f"echo $$ > {pid}; exec sleep 60"), timeout=0.2)
    started = pid.read_text() if pid.exists() else ""  # a busy machine had no time for it
    assert not (started and psutil.pid_exists(int(started)))


async def test_a_detached_program_has_only_the_environment_it_is_given(tmp_path: Path) -> None:
    """And the open file; it prints nowhere, and once it ended no zombie of it stays."""
    out = tmp_path / "out"
    script = f"import os; open({str(out)!r}, 'w').write(f'{{os.getpid()}} {{sorted(os.environ)}}')"
    with out.with_name("held").open("w+") as held:
        held.write("x = 1")
        held.seek(0)
        script = f"exec(input()); assert x; print('nowhere'); {script}"
        argv = (sys.executable, "-S", "-c", script)
        detach(argv, env={"LC_ALL": "C"}, stdin=held.fileno())

    async def written() -> str:
        return out.read_text() if out.exists() else ""

    async def there() -> bool:
        reap()
        return psutil.pid_exists(int(pid))

    text = await soon(written, waiting_for="it")
    pid, _, names = text.partition(" ")
    assert names == "['LC_ALL']"
    await soon(there, lambda alive: not alive, waiting_for="its end")


async def test_a_detached_program_holds_on_to_no_other_file() -> None:
    """A lock of the shell that started us, or a pipe that somebody reads, ends with us."""
    before = {child.pid for child in psutil.Process().children()}
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    os.set_inheritable(theirs, True)  # noqa: FBT003  so it is declared
    detach(("/bin/sleep", "60"), env={})
    os.close(theirs)
    (child,) = (one for one in psutil.Process().children() if one.pid not in before)
    try:
        assert os.read(ours, 1) == b""
    finally:
        os.close(ours)
        child.kill()
        child.wait(HANGS)
        reap()


async def test_letting_go_leaves_living_programs_alone() -> None:
    """Only what has ended is let go of, and what somebody else took is no error."""
    before = {child.pid for child in psutil.Process().children()}
    with open_null() as null:
        detach(("/bin/sleep", "60"), env={}, stdin=null)
    reap()
    (child,) = (one for one in psutil.Process().children() if one.pid not in before)
    assert child.status() != psutil.STATUS_ZOMBIE
    child.kill()
    child.wait(HANGS)
    reap()
    assert not child.is_running()
