"""The memory of this machine: what is computed from it, and what is refused before anything starts.

The simulated engine ends as vLLM's CPU build does where its machine has too little free.
"""

import re
from pathlib import Path
from typing import Any, Final

import pytest

from backends.local.devices import machine_memory
from core.settings import Settings
from tests.conversation import Agent, agent_of
from tests.simulators.models import write_tiny_model

MODEL: Final = "google/gemma-4-E2B-it"
ONE: Final[dict[str, Any]] = {"target": "local", "name": "one"}


def machine(patch: pytest.MonkeyPatch, *, total_gib: int, free_gib: int) -> None:
    """Let the simulated engine's machine be so large, and others hold some of it."""
    patch.setenv("SIMULATED_ENGINE_DEVICE_MEMORY_GIB", str(total_gib))
    patch.setenv("SIMULATED_ENGINE_DEVICE_FREE_GIB", str(free_gib))
    patch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "0")


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has not the 92 % free that vLLM would reserve by default."""
    machine(monkeypatch, total_gib=16, free_gib=12)


@pytest.mark.anyio
async def test_a_first_deployment_needs_no_argument(settings: Settings) -> None:
    async with agent_of(settings) as agent:
        deployed = await agent.call("deploy_vllm", target="local")
        assert not deployed.failed, deployed
        ready = await agent.settled(deployed.data["name"])
        assert ready.state == "ready", ready


@pytest.mark.anyio
async def test_two_gib_are_enough_for_a_tiny_model(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also one whose shape nobody knows before it is loaded."""
    machine(monkeypatch, total_gib=8, free_gib=2)
    async with agent_of(settings) as agent:
        ready = await agent.serve(model=str(write_tiny_model(tmp_path / "tiny")))
        assert ready.data["resources"]["memory"].endswith("of 2.0 GiB free at its start")


@pytest.mark.anyio
@pytest.mark.usefixtures("busy")
async def test_the_cache_is_computed_from_what_is_free(settings: Settings) -> None:
    """Plan, command line and status name the same size, and asking again starts nothing anew."""
    async with agent_of(settings) as agent:
        planned = await agent.call("plan_deployment", target="local", model=MODEL)
        assert planned.data["fits"] is True, planned
        assert "12.0 GiB free" in planned.structured["summary"]
        size = re.search(r"--kv-cache-memory-bytes (\d+)", planned.data["engine_line"])
        assert size is not None, planned
        ready = await agent.serve(model=MODEL)
        expected = f"KV cache {int(size[1]) / 2**30:.2f} GiB, of 12.0 GiB free at its start"
        assert ready.data["resources"]["memory"] == expected
        assert expected in (await agent.brief("status_vllm")).text
        config = await agent.call("get_vllm_deployment_config")
        assert f"--kv-cache-memory-bytes {size[1]}" in config.data["config"]["command"]
        again = await agent.call("deploy_vllm", **ONE, model=MODEL)
        assert again.data["instance"] == ready.data["instance"]


@pytest.mark.anyio
@pytest.mark.usefixtures("busy")
@pytest.mark.parametrize(
    ("flags", "fitting"),
    [
        ({"gpu_memory_utilization": 0.92}, r"at most (?P<gpu_memory_utilization>0\.75) would fit"),
        ({"kv_cache_memory_bytes": "4G"}, r"a cache of (?P<kv_cache_memory_bytes>\d+) MiB would"),
    ],
)
async def test_what_is_not_free_is_refused_with_the_number_that_fits(
    flags: dict[str, Any], fitting: str, settings: Settings
) -> None:
    async with agent_of(settings) as agent:
        refused = await agent.call("deploy_vllm", **ONE, model=MODEL, **flags)
        assert refused.code == "DOES_NOT_FIT", refused
        found = re.search(fitting, refused.structured["summary"])
        assert found is not None, refused
        ((name, number),) = found.groupdict().items()
        smaller: dict[str, Any] = {
            name: f"{number}M" if name == "kv_cache_memory_bytes" else float(number)
        }
        assert (await agent.serve(model=MODEL, **smaller)).state == "ready"


@pytest.mark.anyio
@pytest.mark.usefixtures("busy")
async def test_a_model_that_no_cache_helps_is_refused_before_it_is_started(agent: Agent) -> None:
    refused = await agent.call("deploy_vllm", **ONE, model="google/gemma-4-E4B-it")
    assert refused.code == "DOES_NOT_FIT", refused
    assert "12.00 free" in refused.structured["summary"]
    assert (await agent.call("list_deployments")).data["deployments"] == []


@pytest.mark.anyio
@pytest.mark.usefixtures("busy")
async def test_memory_that_is_taken_meanwhile_has_a_code_and_a_fix_that_works(
    settings: Settings,
) -> None:
    """`force` starts what the plan refuses; the engine then says why it ends."""
    async with agent_of(settings) as agent:
        forced = {**ONE, "model": MODEL, "gpu_memory_utilization": 0.92, "force": True}
        await agent.call("deploy_vllm", **forced)
        failed = await agent.settled("one")
        assert failed.data["failure"]["code"] == "CPU_MEMORY_TAKEN", failed
        diagnosis = await agent.call("diagnose")
        step = diagnosis.structured["next"][0]
        assert step["tool"] == "deploy_vllm"
        await agent.call(step["tool"], **step["arguments"])
        assert (await agent.settled("one")).state == "ready"


@pytest.mark.anyio
async def test_a_failure_that_no_catalogue_knows_is_shown_by_its_error_not_its_frames(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error stands far before the log's last lines; no answer needs `detail` to show it."""
    monkeypatch.setenv("SIMULATED_ENGINE_FAIL", "unknown-error")
    error = "RuntimeError: the attention sink of layer 0 was left dangling"
    async with agent_of(settings) as agent:
        await agent.call("deploy_vllm", **ONE, model="acme/a-model")
        failed = await agent.settled("one")
        assert failed.data["failure"]["evidence"][0] == error
        for tool in ("status_vllm", "get_logs", "diagnose"):
            seen = await agent.brief(tool, target="local", name="one")
            assert error in seen.text.splitlines()[0], seen


NODE = """\
Node 0 MemTotal:        8388608 kB
Node 0 MemFree:         1048576 kB
Node 0 Active(file):     524288 kB
Node 0 Inactive(file):   524288 kB
Node 0 SReclaimable:          0 kB
"""


@pytest.mark.parametrize(
    ("nodes", "limit", "total_gib", "available_gib", "largest_gib"),
    [
        (2, None, 8, 2, 2),  # bound to a node of several
        (1, None, None, None, 2),  # vLLM asks the only node for a cache, the machine for the rest
        (0, (4, 3), 4, 1, 1),  # within a container's limit
        (2, (4, 3), 4, 1, 1),
    ],
)
def test_memory_is_read_as_vllm_reads_it(
    nodes: int,
    limit: tuple[int, int] | None,
    total_gib: int | None,
    available_gib: int | None,
    largest_gib: int,
    tmp_path: Path,
) -> None:
    """Of NUMA nodes and cgroups, as vLLM's cpu_resource_utils.py does."""
    for node in range(nodes):
        for cpu in range(512):  # which one the test may run on is not known
            (tmp_path / f"sys/devices/system/cpu/cpu{cpu}/node0").mkdir(parents=True, exist_ok=True)
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "meminfo").write_text(NODE)
    if limit:
        cgroup = tmp_path / "sys/fs/cgroup"
        cgroup.mkdir(parents=True)
        (cgroup / "memory.max").write_text(f"{limit[0] * 2**30}\n")
        (cgroup / "memory.current").write_text(f"{limit[1] * 2**30}\n")
    whole, seen = machine_memory(tmp_path / "nowhere"), machine_memory(tmp_path)
    assert seen.total == (whole.total if total_gib is None else total_gib * 2**30)
    if available_gib is not None:
        assert seen.available == available_gib * 2**30
    assert seen.largest_cache == largest_gib * 2**30
