"""One file of a local deployment is damaged: it is listed as that, hides nothing, and can go."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.processes import lives
from tests.soon import HANGS
from tests.survival.world import assert_nothing_left, facts, folder_of
from tests.tools.asked import ONE
from tests.tools.calls import CHANGING, LOOKING, MODEL
from tests.tools.world import assert_envelope, plant, snapshot, still_engine
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

FILES: Final = (
    *("deployment.json", "process.json", "exit.json", "wanted", "api-key", "engine.log"),
    "engine.1.log",
)
_OTHER_VERSION: Final = b'{"schema": 9, "spec": {}, "session": "none", "at": 5}'


def _put(content: bytes) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        _clear(path)
        path.write_bytes(content)

    return put


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _folder(path: Path) -> None:
    _clear(path)
    path.mkdir()
    (path / "more").touch()


def _link(path: Path) -> None:
    _clear(path)
    path.symlink_to("/nowhere/at/all")


def _half(path: Path) -> None:
    if path.exists():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES: Final[Mapping[str, Callable[[Path], None]]] = {
    "not UTF-8": _put(b"\xff\xfe\x00\x80"),
    "empty": _put(b""),
    "cut short": _half,
    "of another version": _put(_OTHER_VERSION),
    "a folder": _folder,
    "a link to nothing": _link,
    "gone": _clear,
}
_NOT_SEEN: Final = frozenset(
    {(file, "gone") for file in FILES if file != "process.json"}
    | {(file, "cut short") for file in ("exit.json", "api-key")}
    | {(file, kind) for file in ("engine.log", "engine.1.log") for kind in DAMAGES}
    - {("engine.log", kind) for kind in ("a folder", "a link to nothing")}
)
"""No damage that anybody could see: a file that need not be there, or a log, which may hold
anything."""


async def deploy(agent: Agent) -> dict[str, Any]:
    reply = await agent.call("deploy_vllm", **ONE, model=MODEL)
    assert not reply.failed, reply
    return reply.data


@pytest.mark.parametrize("file", FILES)
async def test_what_is_damaged_is_listed_and_can_be_taken_away_with_what_runs(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Whatever the damage; the answer says what was ended, and the other one is as it was."""
    still_engine(monkeypatch)
    other = plant(state_dir, "two")
    before = snapshot(other.path)
    async with agent_of(settings) as agent:
        for kind, damage in DAMAGES.items():
            process = {}
            if file == "process.json" or kind == "a folder":  # else it is not about what runs
                await deploy(agent)
                process = facts(state_dir, "one")
            else:
                plant(state_dir)
            damage(folder_of(state_dir, "one") / file)
            for tool in ("list_deployments", "get_system_status"):
                reply = await agent.call(tool)
                names = {row["name"] for row in reply.data["deployments"]}
                assert names == {"one", "two"}, (kind, reply)
            seen = await agent.call("status_vllm", **ONE)
            if (file, kind) not in _NOT_SEEN:
                assert seen.state == "unknown", (kind, seen)
                assert seen.data["failure"]["code"] == "HOST_ERROR"
                assert file in seen.data["failure"]["cause"]
                assert "validation error" not in seen.text  # a library's words, no cause
                assert seen.data["replicas"] == len(process.keys() & {"engine"}), (kind, seen)
            gone = await agent.call("destroy_vllm", **ONE)
            assert gone.data["gone"] is True, (kind, gone)
            assert not any(lives(process[key]) for key in process.keys() & {"engine", "session"})
            if file == "process.json":
                assert str(process["engine"]) in gone.structured["summary"], (kind, gone)
        assert snapshot(other.path) == before
        await agent.call("destroy_vllm", target="local", name="two")
    assert_nothing_left(state_dir)


@pytest.mark.parametrize("file", FILES)
async def test_no_tool_fails_for_a_reason_it_does_not_know(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """Of all that look and all that change, named and not; the other is as it was."""
    still_engine(monkeypatch)
    plant(state_dir, "two")
    plant(state_dir)
    async with agent_of(settings) as agent:
        _folder(folder_of(state_dir, "one") / file)
        for tool, arguments in (LOOKING | CHANGING).items():
            named = {"name": "one"} if "name" in TOOLS[tool].parameters else {}
            reply = await agent.call(tool, **{**arguments, **named})
            assert_envelope(reply)
            assert reply.code != "INTERNAL_ERROR", (tool, reply)
        two = await agent.call("status_vllm", target="local", name="two")
        assert two.state == "stopped", two


async def test_a_server_that_only_looks_changes_nothing_of_it(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told with what runs; nothing is ended or written."""
    still_engine(monkeypatch)
    async with agent_of(settings) as agent:
        await deploy(agent)
    engine = facts(state_dir, "one")["engine"]
    (folder_of(state_dir, "one") / "process.json").write_bytes(b"")
    before = snapshot(state_dir)
    async with agent_of(settings.model_copy(update={"read_only": True})) as agent:
        seen = await agent.call("status_vllm", **ONE)
        assert (seen.state, seen.data["replicas"]) == ("unknown", 1)
        assert str(engine) in seen.data["instance"]
        assert (await agent.call("destroy_vllm", **ONE)).code == "READ_ONLY"
    assert snapshot(state_dir) == before
    assert lives(engine)


@pytest.fixture
def strangers(state_dir: Path) -> Iterator[Callable[..., psutil.Process]]:
    """Starts processes of somebody else, whose working folder is that of the deployment."""
    started: list[psutil.Process] = []

    def start(*words: str, home: Path | None = None, **env: str) -> psutil.Process:
        home = home or folder_of(state_dir, "one")
        script = f"cd {home} && exec /bin/sleep 600"
        words = words or ("/bin/sh", "-c", script)
        pid = os.posix_spawn(words[0], list(words), env, setsid=True)
        process = psutil.Process(pid)
        started.append(process)
        while process.cwd() != str(home) and home.exists():
            assert process.is_running()
        return process

    yield start
    for process in started:
        process.kill()
        process.wait(HANGS)


def _forged(process: Mapping[str, Any], stranger: int) -> Mapping[str, bytes]:
    """What `process.json` may say that leads to a stranger."""
    said = {**process, "session": stranger, "engine": stranger}
    none = {name: value for name, value in said.items() if not name.endswith("started")}
    empty = {**said, "started": "", "engine_started": None}
    other = {**said, "started": "another-boot:1", "engine_started": ":2"}
    boot = process["started"].partition(":")[0]
    reused = {**said, "started": f"{boot}:1", "engine_started": f"{boot}:2"}
    root = {**empty, "session": 0, "engine": 1, "home": "/"}
    forged = {"none": none, "empty": empty, "other": other, "reused": reused, "root": root}
    broken = {"truncated": json.dumps(said)[:-9].encode(), "nothing": b""}
    return {name: json.dumps(value).encode() for name, value in forged.items()} | broken


async def test_a_stranger_is_never_ended_for_a_process_that_cannot_be_told(
    settings: Settings,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    strangers: Callable[..., psutil.Process],
) -> None:
    """Not by its number, nor by its folder, nor by the deployment's key."""
    still_engine(monkeypatch)
    kinds = list(_forged({"started": "x:1"}, 1))
    async with agent_of(settings) as agent:
        for kind in kinds:
            await deploy(agent)
            process = facts(state_dir, "one")
            key = (folder_of(state_dir, "one") / "api-key").read_text()
            shell = strangers(VLLM_API_KEY=key)
            away = strangers("/bin/sleep", "600", home=Path.cwd())
            forged = _forged(process, shell.pid)[kind]
            (folder_of(state_dir, "one") / "process.json").write_bytes(forged)
            gone = await agent.call("destroy_vllm", **ONE)
            assert gone.data["gone"] is True, (kind, gone)
            assert not lives(process["engine"]), kind
            assert not lives(process["session"]), kind
            assert lives(shell.pid), kind
            assert lives(away.pid), kind


async def test_an_engine_of_another_place_with_the_same_path_is_no_part_of_it(
    settings: Settings,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    strangers: Callable[..., psutil.Process],
    tmp_path: Path,
) -> None:
    """As one in a container has it: the folder itself is compared, not its name."""
    still_engine(monkeypatch)
    async with agent_of(settings) as agent:
        await deploy(agent)
        engine = psutil.Process(facts(state_dir, "one")["engine"])
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        same = strangers(home=elsewhere, **engine.environ())
        (folder_of(state_dir, "one") / "process.json").write_bytes(b"")
        assert (await agent.call("destroy_vllm", **ONE)).data["gone"] is True
        assert not lives(engine.pid)
        assert lives(same.pid)


async def test_only_its_own_socket_is_removed_with_it(
    settings: Settings, state_dir: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious" / "engine.sock"
    precious.parent.mkdir()
    precious.write_text("mine")
    folder = plant(state_dir)
    made = json.loads((folder.path / "deployment.json").read_text())
    (folder.path / "deployment.json").write_text(json.dumps({**made, "socket": str(precious)}))
    async with agent_of(settings) as agent:
        assert (await agent.call("destroy_vllm", **ONE)).data["gone"] is True
    assert precious.read_text() == "mine"


async def test_a_session_that_a_person_began_is_none_of_its_own(
    settings: Settings, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who tries the engine by hand, in its folder and with its environment, lives on."""
    still_engine(monkeypatch)
    async with agent_of(settings) as agent:
        await deploy(agent)
        home, engine = folder_of(state_dir, "one"), facts(state_dir, "one")["engine"]
        script = f"cd {home}; /bin/sleep 600 & /bin/sleep 600"
        shell = _shell(script, psutil.Process(engine).environ())
        while len(shell.children()) < 2:
            assert shell.is_running()
        theirs = [shell, *shell.children()]
        try:
            (home / "process.json").write_bytes(b"")
            gone = await agent.call("destroy_vllm", **ONE)
            assert gone.data["gone"] is True
            assert not lives(engine)
            assert all(lives(one.pid) for one in theirs)
        finally:
            for one in theirs:
                one.kill()
            shell.wait(HANGS)


def _shell(script: str, environ: Mapping[str, str]) -> psutil.Process:
    """A person's shell, in a session of its own."""
    return psutil.Process(os.posix_spawn("/bin/sh", ["sh", "-c", script], environ, setsid=True))
