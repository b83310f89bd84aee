"""What is known of engine and machine without asking the engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.base import EngineFacts
from backends.tpu import status
from tests.backends.tpu.planned import EIGHT
from tests.backends.tpu.sites import offline, on
from tests.backends.tpu.stage import HERE, Stage, staged

pytestmark = pytest.mark.anyio

_BOOT = (
    "(EngineCore pid=3) INFO [core.py:1] V1 LLM engine (v0.27.0) with config: dtype=torch.bfloat16",
    "(EngineCore pid=3) INFO [kv_cache_utils.py:2235] GPU KV cache size: 1,151,744 tokens",
    "(APIServer pid=1) INFO:     Application startup complete.",
)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as stage:
        yield stage


async def test_the_log_of_the_boot_tells_version_and_memory(there: Stage) -> None:
    """As vllm-tpu says it itself."""
    there.chip()
    there.wrote(*_BOOT)
    found = await status.engine_facts(there.site, "gemma")
    assert (found.version, found.weights_dtype) == ("0.27.0", "torch.bfloat16")
    assert found.memory["kv_cache_tokens"] == 1_151_744


async def test_without_a_vm_nothing_is_known(there: Stage) -> None:
    """A search goes on: there is no engine to speak of."""
    there.kept()
    assert await status.engine_facts(there.site, "gemma") == EngineFacts()


async def test_its_memory_is_foreseen_as_it_was_planned(there: Stage) -> None:
    """For the chips that it is spread over and the version of its image."""
    there.chip()
    there.kept(placed=HERE)
    found = await status.predicted(there.site, "gemma")
    assert found
    assert found.memory.count == 1
    assert found.flags.max_num_batched_tokens == 4096
    assert found.flags.vllm_version == "0.27.0"
    assert found.accelerator.name == "v6e"


async def test_what_another_machine_made_is_foreseen_too(there: Stage) -> None:
    """By what its VM's metadata says; of an unknown image the newest version is taken."""
    spec = there.spec(max_model_len=8192, image="us-docker.pkg.dev/p/r/mine@sha256:" + "0" * 64)
    there.chip(spec=spec)
    found = await status.predicted(there.site, "gemma")
    assert found
    assert found.flags.vllm_version is None
    there.chip(spec_json="")
    assert await status.predicted(there.site, "gemma") is None


async def test_the_hardware_is_that_of_one_vm() -> None:
    """As the planner knows it."""
    backend = on(offline(EIGHT))
    known = backend.hardware_known()
    assert known
    chip, count = known
    assert (chip.name, count) == ("v6e", 8)
    host = await backend.hardware("gemma")
    assert (host.vcpu, host.ram_gib) == (180, 1440)
