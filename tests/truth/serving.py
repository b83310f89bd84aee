"""The endpoint as a child of ours that tells its truth when it is stopped."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.soon import HANGS
from tests.truth.build import built
from tests.truth.recorded import Truth, read

MODEL: Final = "truth"


class Mock:
    """One running endpoint."""

    def __init__(self, process: Process, port: int, file: Path) -> None:
        self.base_url = f"http://127.0.0.1:{port}"
        self.pid = process.pid
        self._process = process
        self._file = file

    async def truth(self) -> Truth:
        """Stop it, and give what it did."""
        self._process.send_signal(signal.SIGTERM)
        assert await self._process.wait() == 0
        return read(self._file)


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    ttft_ms: float = 50,
    itl_ms: float = 10,
    tokens_per_event: int = 1,
    core: int | None = None,
) -> AsyncIterator[Mock]:
    """Serve on a free port, on a core of its own if one is named; it ends with the context."""
    file = folder / "truth.bin"
    knobs = ["--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms), "--truth", str(file)]
    knobs += ["--per-event", str(tokens_per_event)]
    knobs += [] if core is None else ["--core", str(core)]
    async with await anyio.open_process([str(await built()), *knobs], stderr=None) as process:
        try:
            assert process.stdout
            with anyio.fail_after(HANGS):
                line = await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 16)
            yield Mock(process, int(line), file)
        finally:
            if process.returncode is None:
                process.kill()
