"""What every test stands on: an empty world, no network, nothing left running."""

import asyncio
import contextlib
import functools
import gc
import itertools
import os
import re
import signal
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpcore2
import hypothesis
import psutil
import pytest
from pydantic_settings import DotEnvSettingsSource, PydanticBaseSettingsSource

from core.environment import ROOT, inherited_environment
from core.settings import AzurePlane, GooglePlane, Settings
from tests.azure_plane import azure_plane
from tests.conversation import Agent, agent_of
from tests.event_loop import BACKEND, TestLoop
from tests.google_plane import google_plane
from tests.planes import folder_in_memory

# What a shell runs in the background has these ignored, and every program started here as well.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)

# What is imported stays: looking through it for garbage took a fifth of the collection.
gc.disable()

# SQLite waits for the disk at each change: 28 % of the tests' time, where the disk is one.
tempfile.tempdir = folder_in_memory()

# How long an example takes is the machine's business, not the test's.
hypothesis.settings.register_profile("no-clock", deadline=None, max_examples=60)
hypothesis.settings.load_profile("no-clock")


_LIVES: Final = {ROOT / "tests" / "stories", ROOT / "tests" / "survival"}
_ONE_MARK: Final = re.compile(r"(\w+)(?: and not \(.*\))?")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing for a mark that nobody asked for: two thirds of a second for each hundred."""
    asked = config.option.markexpr
    lives = bool(_LIVES & {collection_path, *collection_path.parents})
    if lives and re.fullmatch(r"not \(.*\blife\)", asked):
        return True
    one = _ONE_MARK.fullmatch(asked)
    if one is None or lives or collection_path.suffix != ".py" or collection_path.is_dir():
        return None
    return f"mark.{one[1]}" not in collection_path.read_text("utf-8") or None


@pytest.hookimpl(tryfirst=True)  # before those are left out that nobody asked for
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the folders in which every test is a whole life, or a death in the middle of one."""
    for path, of_one in itertools.groupby(items, lambda item: item.path):
        for item in of_one if _LIVES & set(path.parents) else ():
            item.add_marker(pytest.mark.life)


def pytest_collection_finish() -> None:
    """Look for garbage from here on, in what the tests themselves make."""
    gc.freeze()
    gc.enable()


def pytest_configure() -> None:
    """Let programs that a test runs in this process have such a loop too: gRPC's poller is one."""
    pytest.MonkeyPatch().setattr("asyncio.events.new_event_loop", TestLoop)


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return BACKEND


@pytest.fixture
async def hastened() -> AsyncIterator[None]:
    """Let nobody wait for time alone: see `tests.event_loop.TestLoop.hastened`."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TestLoop)
    with loop.hastened():
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_of_the_developer() -> Iterator[None]:
    """Forget the settings and the network of whoever runs this; imports stay frozen.

    A window of a measurement thaws what was frozen: every later search took half a second.
    """
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if self.family in {socket.AF_INET, socket.AF_INET6}:
            host = str(address[0])
            assert host.startswith("127.") or host in {"::1", "localhost"}, f"network: {host}"
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        for name in Settings.model_fields:
            patch.delenv(name.upper(), raising=False)
        patch.setitem(Settings.model_config, "env_file", None)
        patch.setattr(Settings, "settings_customise_sources", staticmethod(_asked_sources))
        patch.setattr(gc, "unfreeze", lambda: None)
        patch.setattr(socket.socket, "connect", guarded)
        yield


def _asked_sources(
    settings_cls: type[Settings],
    init_settings: PydanticBaseSettingsSource,
    env_settings: PydanticBaseSettingsSource,
    dotenv_settings: DotEnvSettingsSource,
    **_more: PydanticBaseSettingsSource,
) -> tuple[PydanticBaseSettingsSource, ...]:
    """Look for each setting in the environment, which takes 5 ms, only where one is there."""
    given = {name.lower() for name in os.environ} & settings_cls.model_fields.keys()
    more = (env_settings, dotenv_settings) if given or dotenv_settings.env_file else ()
    return (init_settings, *more)


@pytest.fixture(scope="session", autouse=True)
def _authorities_are_read_once() -> Iterator[None]:
    """Give every client the same context of TLS: to make one takes 20 ms."""
    fresh = httpcore2.default_ssl_context
    kept = functools.cache(fresh)

    def usual(*, _trust_env: bool = True) -> ssl.SSLContext:
        own = _trust_env and {"SSL_CERT_FILE", "SSL_CERT_DIR"} & inherited_environment().keys()
        return (fresh if own else kept)(_trust_env=_trust_env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", usual)
        yield


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """A state folder; what it or another folder of this test runs is dead when the test is over.

    So is a simulated cloud that was started because a server elsewhere looked at every cloud.
    """
    before = frozenset(psutil.pids())
    yield tmp_path / "state"
    end_all(tmp_path, before)


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GooglePlane]:
    """One simulated Google Cloud for a whole worker; each test has a project of its own."""
    with google_plane(tmp_path_factory.mktemp("google")) as plane:
        yield plane


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzurePlane]:
    """One simulated Azure for a whole worker; each test has a subscription of its own."""
    with azure_plane(tmp_path_factory.mktemp("azure")) as plane:
        yield plane


@pytest.fixture
def settings(state_dir: Path) -> Settings:
    """A server with every tool, on the simulated engine."""
    return Settings(
        vllm_devops_state_dir=state_dir, engine="simulated", toolsets=("all",), confirm="never"
    )


@pytest.fixture
async def agent(settings: Settings) -> AsyncIterator[Agent]:
    async with agent_of(settings) as agent:
        yield agent


def end_all(folder: Path, before: frozenset[int] = frozenset()) -> None:
    """Kill what belongs to a state folder, and is none of those that were there before."""
    while living := processes_of(folder, before):
        for process in living:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def processes_of(folder: Path, before: frozenset[int] = frozenset()) -> list[psutil.Process]:
    """Every living process that has to do with a state folder: watchers and engines.

    Of those that were there before it nothing is read: two reads each, of a machine's hundreds.
    """
    found = []
    for pid in set(psutil.pids()) - before:
        with contextlib.suppress(psutil.Error):
            words, files = _words_and_home(pid)
            if str(folder) in words or files.startswith(str(folder)):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
    return found


def _words_and_home(pid: int) -> tuple[str, str]:
    """Give a command line and where it runs: on Linux 10 times as fast as by psutil."""
    if not psutil.LINUX:
        process = psutil.Process(pid)
        return " ".join(process.cmdline()), process.cwd()
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return words.replace(b"\0", b" ").decode(errors="replace"), os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115
    except OSError:
        return "", ""
