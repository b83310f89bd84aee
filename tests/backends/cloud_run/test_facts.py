"""What is known of engine and machine without asking the engine."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from backends.cloud_run.service import version_of
from backends.cloud_run.status import label_of
from core.records import DeploymentSpec
from tests.backends.cloud_run.planted import SPEC, Planted, planting
from tests.backends.cloud_run.server import backend_of

pytestmark = pytest.mark.anyio

_BOOT = (
    "[core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: dtype=torch.bfloat16,",
    "INFO 11-21 12:00:30 [x.py:1] Model loading took 8.6 GiB and 20.1 seconds",
    "INFO 11-21 12:00:40 [x.py:1] Application startup complete.",
)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Planted]:
    async with planting(tmp_path) as planted:
        yield planted


def with_spec(there: Planted, spec: DeploymentSpec) -> None:
    there.service(annotations={"vllm-devops/spec": spec.model_dump_json(exclude_defaults=True)})


async def test_the_log_of_the_boot_tells_version_and_memory(there: Planted) -> None:
    """As vLLM says it itself."""
    there.service()
    there.log(*_BOOT)
    found = await backend_of(there.site).engine_facts("gemma")
    assert (found.version, found.weights_dtype) == ("0.32.0", "torch.bfloat16")
    assert found.memory["weights_gib"] == 8.6


async def test_without_a_log_nothing_is_known(there: Planted) -> None:
    """A log is kept for 30 days."""
    there.service()
    assert (await backend_of(there.site).engine_facts("gemma")).version is None


async def test_memory_is_foreseen_for_the_targets_accelerator(there: Planted) -> None:
    """With the flags that were asked for."""
    with_spec(there, SPEC.model_copy(update={"model": "google/gemma-4-E4B-it"}))
    found = await backend_of(there.site).predicted("gemma")
    assert found
    assert (found.accelerator.name, found.flags.vllm_version) == ("l4", "0.32.0")


async def test_the_machine_is_the_one_that_the_service_has(there: Planted) -> None:
    """Not the largest that the target could give."""
    there.service()
    machine = await backend_of(there.site).hardware("gemma")
    assert (machine.vcpu, machine.ram_gib) == (4, 16)
    assert "L4" in machine.accelerator
    accelerator, count = backend_of(there.site).hardware_known()
    assert (accelerator.name, count) == ("l4", 1)


async def test_an_image_of_ones_own_has_no_version_unless_its_tag_says_it(there: Planted) -> None:
    """The target's own image is known by the rules."""
    service = there.service()
    image = service.template.containers[0]
    assert label_of(there.site, service, "vllm") == "simulated vLLM 0.32.0"
    image.image = "example.com/mine@sha256:00"
    assert label_of(there.site, service, "vllm").endswith("(version not known)")
    image.image = "vllm/vllm-openai@sha256:00"
    assert version_of(there.site, service)
    assert label_of(there.site, service, "ollama") == "simulated Ollama"
