"""Who a process is."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from backends.local import identity, process
from backends.local.identity import everyone, look, runs_in, words
from core.processes import detach, reap
from tests.core.conftest import open_null
from tests.soon import HANGS

NOBODY = 2**22 + 1
"""More than Linux gives away."""


def _program(process: psutil.Process) -> str:
    """What it was started as; a zombie of another test has none."""
    with contextlib.suppress(psutil.Error):
        return next(iter(process.cmdline()), "")
    return ""


@pytest.fixture(params=["linux", "elsewhere"])
def _system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "elsewhere":
        monkeypatch.setattr(identity, "_BOOT_ID", Path("/nowhere"))


pytestmark = pytest.mark.usefixtures("_system")


def test_a_living_process_has_one_identity() -> None:
    """The same whenever it is looked at, and its session and parent are told."""
    me = look(os.getpid())
    assert me is not None
    assert me == look(os.getpid())
    assert (me.pid, me.parent, me.session) == (os.getpid(), os.getppid(), os.getsid(0))
    assert me in list(everyone())


def test_processes_of_one_boot_share_the_beginning_of_their_identity() -> None:
    """So that members of a session are known as being of its time, wherever it is."""
    me, parent = look(os.getpid()), look(os.getppid())
    assert me is not None
    assert parent is not None
    assert me.started.partition(":")[0] == parent.started.partition(":")[0]
    assert me.started != me.started.partition(":")[0]


def test_nobody_is_none() -> None:
    """Neither a process nor a place nor words."""
    assert look(NOBODY) is None
    assert not runs_in(NOBODY, Path("/"))
    assert words(NOBODY) == []


def test_an_exit_status_that_nobody_took_is_no_process() -> None:
    """A zombie is dead."""
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert look(child) is None
    os.waitpid(child, 0)


def test_a_process_is_known_by_where_it_works(tmp_path: Path) -> None:
    """Whatever that folder is called there."""
    here = tmp_path / "here"
    here.symlink_to(Path.cwd())
    assert runs_in(os.getpid(), here)
    assert not runs_in(os.getpid(), tmp_path)


def test_a_process_may_have_any_name(tmp_path: Path) -> None:
    """Brackets, spaces and line ends in it are no part of what is read."""
    program = tmp_path / "a) S 1 (b\n c"
    program.symlink_to(sys.executable)
    with open_null() as null:
        detach((str(program), "-S", "-c", "import time; time.sleep(60)"), env={}, stdin=null)
    (child,) = (one for one in psutil.Process().children() if _program(one) == str(program))
    seen = look(child.pid)
    assert seen is not None
    assert seen.parent == os.getpid()
    child.kill()
    child.wait(HANGS)
    reap()


def test_a_number_that_was_given_away_again_is_not_signalled() -> None:
    """Whoever has it now is somebody else's."""
    stranger = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    seen = look(stranger)
    assert seen is not None
    process._signal(seen._replace(started="another"), signal.SIGKILL)
    assert os.waitpid(stranger, os.WNOHANG) == (0, 0)
    process._signal(seen, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(stranger, 0)[1]) == -signal.SIGTERM
