"""A runtime kept while a server lives, with the work that goes on between calls."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from core.errors import OpsError
from core.settings import Settings
from operations.lives.overdue import watch
from operations.lives.resuming import resume
from operations.runtime import Runtime


@asynccontextmanager
async def running(settings: Settings, listed: frozenset[str]) -> AsyncIterator[Runtime]:
    """Keep a runtime while a server lives; its background work ends with it.

    `listed` names the tools that this server shows.
    """
    runtime = Runtime(settings, listed)
    if not settings.read_only:
        runtime.background.start("overdue", lambda: watch(runtime.stage, runtime.tell))
        runtime.background.start("resume", lambda: resume(runtime))
        runtime.background.start("credentials", lambda: _forget_credentials(runtime))
    try:
        yield runtime
    finally:
        await runtime.background.end()
        await runtime.stage.aclose()


async def _forget_credentials(runtime: Runtime) -> None:
    """Take away what killed benchmark runs have left; whoever looks at one tries again."""
    manifests = tuple((runtime.stage.folder / "benchmarks").glob("*/manifest.json"))
    if manifests:
        from benchmark.folder import RunFolder

        for manifest in manifests:
            with suppress(OpsError, OSError):
                RunFolder(manifest.parent).forget_credential()
