"""An engine started, in a session of its own, by its watcher."""

import sys

from backends.local import session
from backends.local.folder import Folder
from backends.local.ports import claim
from core.errors import HostError
from core.processes import detach
from core.settings import ROOT, inherited_environment
from core.waiting import wait_until


def runs(folder: Folder) -> bool:
    """Whether its engine lives, and nobody began to end it and died over it."""
    return folder.wanted() == "running" and session.engine(folder.process()) is not None


async def launch(folder: Folder, hf_token: str | None, lock: int) -> None:
    """Start what the folder says; back once it runs or is known to have failed at once.

    The watcher holds the folder's lock too, until it has written down which engine it started: if
    this server dies meanwhile, the next one waits and then knows.

    Raises:
        PortInUse: Another process listens on its port.
    """
    made = folder.made()
    assert made is not None
    if made.port:
        claim(made.port)
    seconds = 60 * (made.spec.ttl_minutes or 0)
    env = {**inherited_environment(), "PYTHONPATH": str(ROOT)}
    env[session.MARK] = str(folder.path)
    if hf_token:
        env["HF_TOKEN"] = hf_token
    watcher = ("-m", session.WATCHER, str(folder.path), str(seconds))
    detach((sys.executable, "-P", *watcher), env=env, stdin=lock)

    async def look() -> bool:
        return folder.process() is not None and not session.starting(folder)

    await wait_until(
        look, bool, waiting_for="the engine's process to start", every=0.02, timeout=20
    )
    _require_start(folder, made.argv[0])


def _require_start(folder: Folder, program: str) -> None:
    ended = folder.exit()
    if ended and ended.reason == "not started":
        raise HostError(
            f"{program} cannot be started.",
            fix="Run `make vllm` again, or correct VLLM_EXECUTABLE.",
            cause=ended.detail,
        )
