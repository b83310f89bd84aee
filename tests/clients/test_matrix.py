"""The matrix itself, with the one client that needs no download."""

from pathlib import Path

import pytest

from tests import readme
from tests.clients import desk as desks
from tests.clients.__main__ import markdown
from tests.clients.desk import ClientFailedError, Desk
from tests.clients.installing import Installed, NotInstalledError, packages
from tests.clients.matrix import WAYS, Result, Way, run
from tests.clients.seen import Seen
from tests.listing import listing

pytestmark = pytest.mark.anyio

NOTHING = Installed("node", Path(), Path())


async def used(way: str, folder: Path, names: list[str]) -> Result:
    (result,) = await run([one for one in WAYS if one.title == way], names, folder)
    return result


@pytest.fixture
def no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in `.venv` is there already."""

    async def installed(_name: str) -> Installed:
        return NOTHING

    monkeypatch.setattr("tests.clients.matrix.installed", installed)


@pytest.mark.usefixtures("no_node")
async def test_a_client_at_its_desk_is_seen_from_both_ends(tmp_path: Path) -> None:
    """The installer, a real server of its own (a second) and its recording, for one client."""
    names = [tool.name for tool in await listing()]
    result = await used("FastMCP", tmp_path, names)
    assert not result.wrong
    assert result.wire.protocol == "2026-07-28"
    assert result.cells()[4:] == (str(len(names)), "text and structured", "wants the token")


@pytest.mark.usefixtures("no_node")
async def test_a_client_that_fails_fails_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it printed is kept, and the table shows what did not happen as nothing."""

    async def fails(self: Desk, _client: str) -> None:
        raise ClientFailedError("exit status 3")

    monkeypatch.setattr(Desk, "configure", fails)
    result = await used("FastMCP", tmp_path, ["get_help"])
    assert result.wrong[0] == "exit status 3"
    assert result.cells()[2:] == ("", "no", "0", "", "")


async def test_a_command_gets_nothing_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No key, no proxy, and another home."""
    for name in ("OPENAI_API_KEY", "HTTPS_PROXY", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, "the user's")
    desk = Desk(tmp_path / "desk")
    said = (await desk.run("/usr/bin/env")).output
    assert "the user's" not in said
    assert f"HOME={desk.home}\n" in said


async def test_a_command_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients start processes of their own, which would outlive them."""
    monkeypatch.setattr(desks, "PATIENCE_SECONDS", 0.2)
    fifo = tmp_path / "fifo"
    desk = Desk(tmp_path / "desk")
    await desk.run("mkfifo", str(fifo))
    with pytest.raises(ClientFailedError, match="exit status -9"):
        await desk.run("/bin/sh", "-c", f"cat '{fifo}' & wait")
    assert (await desk.run("pgrep", "-f", str(fifo), good=(1,))).output == ""


def test_every_client_has_its_pin() -> None:
    """And no pin is without a client."""
    assert {way.package for way in WAYS} == set(packages())
    assert all(one.version for one in packages().values())


async def test_a_client_that_cannot_be_installed_has_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts as missing, with the installer's words, and the others go on."""

    async def installed(name: str) -> Installed:
        if name == "codex":
            raise NotInstalledError("404 Not Found")
        return NOTHING

    async def absent(_desk: Desk, _found: Installed) -> Seen:
        raise ClientFailedError("no program")

    monkeypatch.setattr("tests.clients.matrix.installed", installed)
    ways = [Way("One", "codex", absent), Way("Other", "mcporter", absent)]
    missing, other = await run(ways, (), tmp_path)
    assert (missing.missing, missing.wrong) == (True, ["404 Not Found"])
    assert (other.missing, other.wrong[0]) == (False, "no program")
    row = markdown([missing, other]).splitlines()[-2]
    assert row.startswith(f"| One | {packages()['codex'].version} | not installed |")


def test_the_documentation_lists_every_client() -> None:
    """Whoever changes a version lets `python -m tests.clients --write` see what it changes."""
    table = readme.part("clients")
    for way in WAYS:
        one = packages()[way.package]
        version = f" {one.version} |" if one.of != "ours" else ""
        assert f"| {way.title} |{version}" in table
