"""What is known of an engine beyond its HTTP API."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.backends.aca.planted import SPEC, Planted, ago, planting

pytestmark = pytest.mark.anyio

LINES = (
    "INFO 11-21 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: dtype=bf16",
    "INFO 11-21 12:00:09 [m.py:1] Model loading took 14.9 GiB memory and 61.0 seconds",
    "INFO 11-21 12:00:20 [kv.py:1] GPU KV cache size: 409,600 tokens",
)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        planted.app()
        planted.revision()
        yield planted


async def test_the_log_of_its_boot_tells_what_the_engine_is(there: Planted) -> None:
    """As it was kept; a stream has only the last lines."""
    rows = [[ago(3000 - 10 * number), line] for number, line in enumerate(LINES)]
    there.kept("ContainerAppConsoleLogs_CL", *rows)
    found = await there.backend.engine_facts("gemma")
    assert (found.version, found.weights_dtype) == ("0.32.0", "bf16")
    assert (found.memory["weights_gib"], found.memory["kv_cache_tokens"]) == (14.9, 409600)


async def test_before_it_is_kept_the_stream_is_read(there: Planted) -> None:
    """Log Analytics is minutes late."""
    there.wrote(there.replica(), *LINES)
    found = await there.backend.engine_facts("gemma")
    assert found.memory["weights_gib"] == 14.9


async def test_without_a_revision_that_was_ready_nothing_is_known(there: Planted) -> None:
    """Nor is anything asked."""
    there.app(latestReadyRevisionName="")
    assert (await there.backend.engine_facts("gemma")).version is None


async def test_a_replica_has_what_its_profile_has(there: Planted) -> None:
    """One GPU, and the processors and memory that come with it."""
    there.app()
    found = await there.backend.hardware("gemma")
    assert (found.vcpu, found.ram_gib) == (24, 220)
    assert "A100" in found.accelerator
    gpu, count = there.backend.hardware_known()
    assert (gpu.name, count) == ("a100-80", 1)


async def test_its_memory_is_foreseen_from_what_was_asked_for(there: Planted) -> None:
    """The tags say it."""
    found = await there.backend.predicted("gemma")
    assert found
    assert found.model.model == SPEC.model
