"""The folder of one deployment."""

import errno
import fcntl
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import anyio
import pytest

from backends.local.process import Engine, Folder, Made
from core.errors import Busy, DiskFull, HostError
from core.processes import run
from core.records import DeploymentSpec

pytestmark = pytest.mark.anyio

MADE = Made(
    spec=DeploymentSpec(name="one", model="m"),
    engine=Engine(kind="vllm", command=("vllm",)),
    argv=("vllm", "serve", "m"),
    env={},
    port=8000,
    created_at=datetime(2026, 11, 20, tzinfo=UTC),
)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "local" / "one")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.common.concurrency.LOCK_SECONDS", 0.06)


def test_what_was_never_made_says_nothing(folder: Folder) -> None:
    """No file is no error, and looking makes none."""
    assert (folder.made(), folder.process(), folder.exit(), folder.api_key()) == (None,) * 4
    assert (folder.wanted(), folder.exists, folder.touched) == ("running", False, False)
    assert not folder.path.parent.exists()


def test_what_was_made_is_read_back(folder: Folder) -> None:
    """The key is drawn once, and only its owner may read it."""
    folder.fresh()
    folder.make(MADE)
    key = folder.api_key()
    folder.make(MADE)
    folder.want("stopped")
    assert (folder.made(), folder.wanted(), folder.api_key()) == (MADE, "stopped", key)
    assert key is not None
    assert len(key.get_secret_value()) > 30
    assert folder.path.stat().st_mode & 0o777 == 0o700
    for name in ("api-key", "deployment.json", "wanted"):
        assert (folder.path / name).stat().st_mode & 0o777 == 0o600


def test_a_fresh_start_keeps_the_last_log_and_forgets_the_last_engine(folder: Folder) -> None:
    """Of the logs before that none is kept."""
    for text in ("first", "second", "third"):
        folder.fresh()
        folder.log.write_text(text)
        (folder.path / "process.json").write_text("{}")
        (folder.path / "exit.json").write_text("{}")
    folder.fresh()
    assert (folder.path / "engine.1.log").read_text() == "third"
    assert folder.log.read_text() == "\n"
    assert (folder.process(), folder.exit()) == (None, None)


def test_a_file_is_written_whole_or_not_at_all(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fills up in the middle leaves what was there; leftovers are no obstacle."""
    folder.fresh()
    folder.write("wanted", "running")
    (folder.path / ".wanted.part").write_text("half of an interrupted wri")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", _full)
        with pytest.raises(DiskFull):
            folder.write("wanted", "stopped")
    assert folder.wanted() == "running"
    folder.write("wanted", "stopped")
    assert folder.wanted() == "stopped"


def _full(_handle: int, *_more: object, **_rest: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """With what to set."""
    (tmp_path / "file").touch()
    with pytest.raises(HostError) as caught:
        Folder(tmp_path / "file" / "one").fresh()
    assert "VLLM_DEVOPS_STATE_DIR" in caught.value.fix


@pytest.mark.parametrize("text", ["", "{", "[]", '{"session": 1}', "\udcff"])
def test_a_file_that_was_damaged_is_told_with_its_path(folder: Folder, text: str) -> None:
    """Whatever is wrong with it."""
    folder.fresh()
    (folder.path / "process.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(HostError) as caught:
        folder.process()
    assert str(folder.path / "process.json") in caught.value.summary
    assert caught.value.cause


async def test_only_one_changes_a_folder_at_a_time(folder: Folder) -> None:
    """The other waits a while, then is told; afterwards no lock is left."""
    async with folder.locked():
        with pytest.raises(Busy) as caught:
            async with folder.locked():
                pass
        assert caught.value.retryable
    async with folder.locked():
        pass
    assert list(folder.path.parent.iterdir()) == []


async def test_a_change_that_fails_leaves_no_lock(folder: Folder) -> None:
    """The next call is not kept out by it."""
    with pytest.raises(ValueError, match="broken"):
        async with folder.locked():
            raise ValueError("broken")
    assert list(folder.path.parent.iterdir()) == []


async def test_another_server_is_kept_out_until_it_is_done(folder: Folder) -> None:
    """A second process gets BUSY while the lock is held; then it gets the lock."""
    script = (
        "import sys, anyio\nfrom pathlib import Path\n"
        "from backends.common import concurrency as locking\n"
        "from backends.local import process as folder\nlocking.LOCK_SECONDS = 0.1\n"
        "async def main():\n    async with folder.Folder(Path(sys.argv[1])).locked(): pass\n"
        "try: anyio.run(main)\nexcept locking.Busy as exc: print(exc.code)\n"
    )
    argv = (sys.executable, "-c", script, str(folder.path))
    async with folder.locked():
        assert (await run(argv)).stdout == "BUSY\n"
    assert (await run(argv)).stdout == ""
    assert list(folder.path.parent.iterdir()) == []


async def test_many_that_wait_get_the_lock_one_after_another(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the file of the lock comes and goes, never two hold it."""
    monkeypatch.setattr("backends.common.concurrency.LOCK_SECONDS", 5)
    inside, done = 0, 0

    async def change() -> None:
        nonlocal inside, done
        async with folder.locked():
            inside += 1
            assert inside == 1
            await anyio.sleep(0.001)
            inside -= 1
            done += 1

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(change)
    assert done == 5
    assert list(folder.path.parent.iterdir()) == []


async def test_a_lock_whose_holder_died_is_free(folder: Folder) -> None:
    """Its file alone locks nothing."""
    folder.path.parent.mkdir(parents=True)
    folder.path.with_name(".one.lock").touch()
    assert folder.touched
    async with folder.locked():
        pass
    assert not folder.touched


async def test_a_file_that_its_last_holder_has_just_removed_is_no_lock(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one would lock the next file of that name beside it."""
    lock, take = folder.path.with_name(".one.lock"), fcntl.flock
    handles: list[int] = []

    def flock(handle: int, how: int) -> None:
        if not handles:
            lock.unlink()
        handles.append(handle)
        take(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    async with folder.locked(seconds=1):
        assert lock.exists()


def test_taking_it_away_takes_everything(folder: Folder) -> None:
    """Folders that an engine made in it included."""
    folder.fresh()
    folder.make(MADE)
    folder.want("deleted")
    (folder.path / "cache" / "deep").mkdir(parents=True)
    (folder.path / "cache" / "deep" / "file").touch()
    folder.remove()
    assert not folder.path.exists()


def test_a_folder_that_is_a_link_is_let_go_of_and_not_emptied(
    folder: Folder, tmp_path: Path
) -> None:
    """What it leads to is somebody else's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    folder.path.parent.mkdir(parents=True)
    folder.path.symlink_to(elsewhere)
    folder.remove()
    assert not folder.path.is_symlink()
    assert (elsewhere / "mine").exists()


def test_a_damaged_record_can_be_passed_over_to_clear_it_away(folder: Folder) -> None:
    """Where nothing but its end is wanted."""
    folder.fresh()
    folder.write("deployment.json", "{")
    assert folder.made_if_readable() is None
    folder.make(MADE)
    assert folder.made_if_readable() == MADE
