"""Boots of a real vLLM, as a container's, whose compiled code lies in a folder between them."""

import json
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from anyio.streams.text import TextReceiveStream

from backends.compile_cache import carried, compile_cache
from backends.container import LOOPBACK, Container, vllm_arguments
from core.address import free_port
from core.environment import inherited_environment
from core.records import DeploymentSpec
from logs.boot import BootLog, read_boot
from tests.real.conftest import BOOT_SECONDS, MODEL, VLLM


class Booted(NamedTuple):
    """What a boot said."""

    text: str
    seconds: float
    """From its start to its server's."""

    @property
    def log(self) -> BootLog:
        return read_boot(self.text.splitlines(), now=datetime.now(UTC))

    @property
    def of_cache(self) -> list[str]:
        """Return the words of what was done with the cache, without its figures."""
        lines = (one for one in self.text.splitlines() if one.startswith("compile-cache: "))
        return [" ".join(one.split()[1:3]) for one in lines]


async def boot(folder: Path, *, image: str = "one", **wanted: Any) -> Booted:
    """Boot until the cache was seen to, and end it; `folder` has both the store and the replica."""
    about = {"name": "one", "model": str(MODEL), "max_model_len": 2048, "max_num_seqs": 64}
    spec = DeploymentSpec.model_validate({**about, "kv_cache_memory_bytes": "64M", **wanted})
    port, root = free_port(), folder / "root"
    plain = Container(
        image=image,
        command=(str(VLLM),),
        args=vllm_arguments(spec, spec.model, host=LOOPBACK, port=port),
        env={},
        port=port,
        health="/health",
    )
    cache = compile_cache(spec, image=image, accelerator="cpu", store=str(folder / "store"))
    made = carried(plain, cache.model_copy(update={"key": "k"}))
    env = {**inherited_environment(), **made.env}
    env |= {"VLLM_CACHE_ROOT": str(root), "TRITON_CACHE_DIR": str(root / "triton")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    argv = [str(VLLM.with_name("python")), *made.command[1:], *made.args]
    said, seconds, began = "", 0.0, time.monotonic()
    with anyio.fail_after(BOOT_SECONDS):
        async with await anyio.open_process(argv, env=env, stderr=-2) as process:
            assert process.stdout
            async for text in TextReceiveStream(process.stdout):
                said += text
                if not seconds and "Application startup complete" in said:
                    seconds = time.monotonic() - began
                if seconds and said.rpartition("compile-cache: ")[2].startswith(_DONE):
                    process.send_signal(signal.SIGTERM)
    return Booted(said, seconds)


_DONE = ("saved", "not saved", "nothing new")


def manifest(tar: Path) -> dict[str, Any]:
    """Return what a stored cache says of itself."""
    found: dict[str, Any] = json.loads(tar.read_bytes()[512:].partition(b"\0")[0])
    return found
