"""What the tests of the surface stand on: made-up deployments, targets and endpoints."""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest

from backends.local.process import Engine, Folder, Made, simulated
from benchmark.folder import RunFolder
from benchmark.records import Progress, RunState
from core.journal import Journal, Operation
from core.records import DeploymentSpec
from core.reply import MAX_CHARACTERS
from core.settings import Settings
from operations import runtime
from tests.benchmark.made import WHEN, a_grid, a_manifest
from tests.conversation import Agent, Reply, agent_of
from tests.tools.calls import MODEL, RUNS

BOUND: Final = 32_000
"""Characters of one half: about 8,000 tokens, the design's hard limit."""
assert MAX_CHARACTERS <= BOUND

LONG_AGO: Final = datetime(2026, 1, 1, tzinfo=UTC)


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Let engines boot at once, and look at them often."""
    patch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "0")
    patch.setenv("SIMULATED_ENGINE_TIME_SCALE", "0")
    patch.setenv("PAUSE_SCALE", "0.06")


def still_engine(patch: pytest.MonkeyPatch, script: str = "exec sleep 600") -> None:
    """Put a shell script where the simulated engine is: a process that costs nothing."""
    patch.setattr(runtime, "_SIMULATED_ENGINE", ("/bin/sh", "-c", script, "engine"))


def targets(patch: pytest.MonkeyPatch, path: Path, **usd_per_hour: float) -> None:
    """Give the server these targets, each a place on this machine with a price."""
    rows = (
        f'[{name}]\nbackend = "local"\ndescription = "{name}"\nusd_per_hour = {usd}\n'
        for name, usd in usd_per_hour.items()
    )
    path.write_text("\n".join(rows), encoding="utf-8")
    patch.setattr(runtime, "_TARGETS", path)


def plant(
    state_dir: Path,
    name: str = "one",
    *,
    target: str = "local",
    wanted: str = "stopped",
    ttl_minutes: int | None = None,
    **flags: Any,
) -> Folder:
    """Make a deployment that was stopped, without ever starting it."""
    folder = Folder(state_dir / "real" / target / name)
    spec = DeploymentSpec(name=name, model=MODEL, ttl_minutes=ttl_minutes, **flags)
    engine: Engine = simulated(("/bin/false",))
    made = Made(spec=spec, engine=engine, argv=("/bin/false",), env={}, port=9, created_at=LONG_AGO)
    folder.path.mkdir(parents=True, mode=0o700)
    folder.make(made)
    folder.write("wanted", wanted)
    return folder


def plant_runs(state_dir: Path, stage: str = "real") -> tuple[RunFolder, ...]:
    """Make two runs that are done, on accelerators of their own, without measuring anything."""
    return tuple(
        plant_run(state_dir, run, stage=stage, accelerator=accelerator)
        for run, accelerator in zip(RUNS, ("L4", "A100 80GB"), strict=True)
    )


def plant_run(
    state_dir: Path,
    run: str = RUNS[0],
    *,
    state: RunState = RunState.DONE,
    stage: str = "real",
    **provenance: object,
) -> RunFolder:
    """Make one run of `one` on this machine."""
    grid = ((8, 512), (1, 8, 32))
    ground = {"target": "local", "deployment": "one"} | provenance
    manifest = a_manifest(run, grid[0], grid[1], **ground)
    folder = RunFolder(state_dir / stage / "benchmarks" / run)
    folder.create(manifest)
    cells = a_grid(*grid)
    folder.cells_file.write_text("".join(f"{cell.model_dump_json()}\n" for cell in cells))
    folder.tell(
        Progress(
            state=state,
            cells_done=len(cells),
            cells_total=len(cells),
            elapsed_seconds=84.0,
            usd_so_far=0.0856,
            updated_at=WHEN,
        )
    )
    return folder


def operations_of(state_dir: Path) -> tuple[Operation, ...]:
    """What the journal says was done, oldest first."""
    return Journal(state_dir / "real" / "journal.db").operations(limit=1000)


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below a folder with its time and content, but for the log of a living engine."""
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mtime_ns,
            path.stat().st_size,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in sorted(folder.rglob("*"))
        if path.name != "engine.log"
    }


def assert_envelope(reply: Reply) -> None:
    """Both halves are there, agree on how it went, and are within bounds."""
    told = reply.structured
    common = {"ok", "summary", "data", "warnings", "next"}
    wanted = common if told["ok"] else common | {"code", "cause", "fix", "retryable"}
    assert wanted <= set(told) <= wanted | {"truncated", "detail"}
    assert told["ok"] is not reply.failed
    assert told["summary"]
    assert told["ok"] or (told["fix"] and told["code"].isupper())
    assert len(reply.text) <= BOUND
    assert len(json.dumps(told, ensure_ascii=False)) <= BOUND


def assert_same_facts(reply: Reply) -> None:
    """Whatever the structured half says is in the text."""
    lines = {line.strip(" -") for line in reply.text.splitlines()}
    missing = [fact for fact in facts(reply.structured) if fact.strip(" -") not in reply.text]
    assert not missing, (missing, reply.text)
    for step in reply.structured["next"]:
        said = ", ".join(f"{name}={value!r}" for name, value in step["arguments"].items())
        assert f"Next: `{step['tool']}({said})`" in lines


def facts(told: Mapping[str, Any]) -> Iterator[str]:
    """Every line that the text owes to the structured half."""
    if told["ok"]:
        yield from f"**{told['summary']}**".splitlines()
    else:
        yield from f"**{told['code']}**: {told['summary']}".splitlines()
        yield from (f"Fix: {told['fix']}").splitlines()
        yield f"Retryable: {'yes' if told['retryable'] else 'no'}"
    if told.get("cause"):
        yield from f"Cause: {told['cause']}".splitlines()
    for warning in told["warnings"]:
        yield from f"⚠ {warning}".splitlines()
    if told["data"]:
        yield from _leaves(told["data"], "")


def _leaves(value: object, key: str) -> Iterator[str]:
    prefix = f"{key}: " if key else ""
    if isinstance(value, Mapping) and value:
        for name, item in value.items():
            yield from _leaves(item, str(name))
    elif isinstance(value, list) and value:
        for item in value:
            yield from _leaves(item, "")
    elif isinstance(value, str) and "\n" in value:
        yield from value.rstrip("\n").splitlines()
    elif isinstance(value, bool):
        yield f"{prefix}{'yes' if value else 'no'}"
    else:
        yield f"{prefix}{'none' if value in ([], {}) else value}".rstrip()


@asynccontextmanager
async def agent_at(
    url: str, state_dir: Path, api_key: str | None = None, **more: Any
) -> AsyncIterator[Agent]:
    """Talk to a server that was given an endpoint of the owner's own."""
    settings = Settings(
        vllm_base_url=url,
        vllm_api_key=api_key,
        vllm_devops_state_dir=state_dir,
        engine="simulated",
        **{"toolsets": ("all",), "confirm": "never", **more},
    )
    async with agent_of(settings) as agent:
        yield agent
