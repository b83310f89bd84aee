"""What is started for the suite, and that it ends."""

import sys
from pathlib import Path
from typing import Final

import anyio
import pytest

from tests.conformance.suite import serving
from tests.soon import HANGS

pytestmark = pytest.mark.anyio

_SERVER: Final = """
import signal, sys
print("On http://127.0.0.1:1/mcp, for nobody.", file=sys.stderr, flush=True)
signal.pause()
"""


async def _broken_run(home: Path) -> None:
    async with serving((sys.executable, "-c", _SERVER), home) as url:
        assert url == "http://127.0.0.1:1/mcp"
        raise LookupError("no list of scenarios")


async def test_a_server_ends_with_the_run_that_broke(tmp_path: Path) -> None:
    """A run that cannot go on says why, and does not wait for what it has started."""
    with anyio.fail_after(HANGS), pytest.raises(ExceptionGroup) as broken:
        await _broken_run(tmp_path / "home")
    assert broken.group_contains(LookupError)
