"""Benchmarks begun: the run's folder, and the process that measures."""

import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio

from benchmark.folder import RunFolder, beginning
from benchmark.records import RunPlan
from benchmark.server import Seen
from core.environment import ROOT, inherited_environment
from core.errors import Unsupported, WaitedTooLong
from core.processes import detach
from core.records import Access
from core.waiting import wait_until
from operations.benchmarks.credentials import keep_credential_fresh
from operations.benchmarks.kept import folder_of_runs, require_idle
from operations.benchmarks.provenance import provenance
from operations.benchmarks.wishes import Wish
from operations.resolve import Found
from operations.runtime import Runtime

_LOOK_SECONDS: Final = 12.0
_START_SECONDS: Final = 20.0


async def begin(runtime: Runtime, wanted: Wish) -> RunFolder:
    """Start the process that measures; it outlives this server.

    Raises:
        Busy: It is being measured already.
        EndpointError: It does not say what it serves.
        WaitedTooLong: It, or the process, did not come to it in time.
    """
    with beginning(folder_of_runs(runtime)):
        require_idle(runtime, wanted.found)
        access = runtime.keep_quiet(await wanted.found.backend.access(wanted.found.name))
        folder = wanted.folder or await _made(runtime, wanted, _without_password(access))
        if wanted.folder:
            _go_on(folder, wanted.plan)
        await _launch(folder, access)
    keep_credential_fresh(runtime, folder)
    return folder


async def _made(runtime: Runtime, wanted: Wish, base_url: str) -> RunFolder:
    from benchmark import profiles

    seen = await _look(runtime, wanted.found)
    simulated = seen.subject.simulated or wanted.found.deployment.simulated
    return profiles.make(
        folder_of_runs(runtime),
        base_url=base_url,
        plan=wanted.plan,
        subject=seen.subject.model_copy(update={"simulated": simulated}),
        provenance=await provenance(runtime, wanted.found),
    )


async def _look(runtime: Runtime, found: Found) -> Seen:
    from benchmark import server

    try:
        with anyio.fail_after(_LOOK_SECONDS):
            async with runtime.endpoint(found.backend, found.name) as endpoint:
                return await server.look(endpoint, found.deployment.served_model_name)
    except TimeoutError as exc:
        raise WaitedTooLong(
            f"{found.name} did not say within {_LOOK_SECONDS:.0f} s what it serves.",
            fix="See with verify_model_health whether it answers, then try again.",
        ) from exc


def _go_on(folder: RunFolder, plan: RunPlan) -> None:
    folder.stop_file.unlink(missing_ok=True)
    manifest = folder.manifest()
    if manifest.plan != plan:  # another budget
        folder.create(manifest.model_copy(update={"plan": plan}))


def _start(folder: RunFolder) -> None:
    env = {**inherited_environment(), "PYTHONPATH": str(ROOT)}
    argv = (sys.executable, "-P", "-m", "benchmark", "resume", str(folder.path))
    with Path("/dev/null").open("rb") as nothing:
        detach(argv, env=env, stdin=nothing.fileno(), own_session=True)


async def _launch(folder: RunFolder, access: Access) -> None:
    folder.keep_certificate(access.certificate)
    folder.keep_credential(access.api_key, access.identity_token)
    before = folder.progress()
    _start(folder)

    async def begun() -> bool:
        return folder.is_measured_now() or folder.progress() != before

    try:
        await wait_until(
            begun,
            bool,
            waiting_for="the process that measures to begin",
            every=0.05,
            timeout=_START_SECONDS,
        )
    except WaitedTooLong as exc:
        folder.keep_credential(None)
        exc.fix = f"Try again with resume={folder.path.name!r}; {folder.log_file} may say more."
        raise


def _without_password(access: Access) -> str:
    """Only a key goes with the load, and a manifest is shown to people."""
    if "@" in urlsplit(access.base_url).netloc:
        raise Unsupported(
            "The endpoint's address holds a password, which no benchmark sends.",
            fix="Give an address without one in VLLM_BASE_URL, and a key in VLLM_API_KEY.",
        )
    return access.base_url
