"""Given flags: exactly those are foreseen, and a refusal says what would do."""

import pytest

from planner.advise import Goal, Offer, Refusal, consider, examine
from planner.flags import Flags
from planner.places import Place, Size, place
from tests.planner.shapes import catalogued


def seen(model: str, where: Place | str, **flags: object) -> Offer | Refusal:
    site = place(where) if isinstance(where, str) else where
    return examine(catalogued(model), site, Flags.model_validate(flags))


def test_given_flags_are_foreseen_as_they_are() -> None:
    """Nothing is tuned: the line is what was asked for, with the parsers that Gemma 4 has."""
    found = seen("26b qat", "cloud-run-l4", max_model_len=8192, max_num_seqs=4)
    assert isinstance(found, Offer)
    assert found.engine_line == (
        "vllm serve google/gemma-4-26B-A4B-it-qat-w4a16-ct --max-model-len 8192 --max-num-seqs 4"
        " --enable-auto-tool-choice --tool-call-parser=gemma4 --reasoning-parser=gemma4"
    )
    assert found.changes == ()
    assert found.memory.gpu_memory_utilization == 0.92


def test_flags_that_do_not_fit_come_back_with_the_nearest_that_do() -> None:
    """12B with 64k on one v6e chip is shortened."""
    found = seen("12b", "tpu-v6e-1", max_model_len=65_536)
    assert isinstance(found, Refusal)
    assert found.why == "memory"
    assert found.nearest
    near = found.nearest[0].arrangement
    assert near.memory.fits
    assert near.memory.max_model_len < 65_536


def test_flags_that_cannot_even_load_come_back_with_the_price_of_offloading() -> None:
    """31B QAT on an L4."""
    found = seen("31b qat", "cloud-run-l4", max_model_len=8192, gpu_memory_utilization=0.95)
    assert isinstance(found, Refusal)
    assert found.nearest == ()
    assert found.offload
    assert "PCIe" in found.offload.why_not
    enough = found.offload.cpu_offload_gb
    alike = {"max_model_len": 8192, "gpu_memory_utilization": 0.95, "max_num_seqs": 1}
    assert isinstance(seen("31b qat", "gke-l4", **alike, cpu_offload_gb=enough), Offer)
    assert isinstance(seen("31b qat", "gke-l4", **alike, cpu_offload_gb=enough - 1), Refusal)


def test_all_chips_of_a_place_work_together() -> None:
    """A v6e-4 is four chips unless the flags say otherwise."""
    found = seen("31b", "tpu-v6e-4", max_model_len=8192, gpu_memory_utilization=0.9)
    assert isinstance(found, Offer)
    assert found.memory.count == 4
    assert "--tensor-parallel-size 4" in found.engine_line
    two = seen("e2b", "tpu-v6e-4", max_model_len=8192, tensor_parallel_size=2)
    assert isinstance(two, Offer)
    assert two.memory.count == 2


def test_offloading_asks_for_host_memory_on_top_of_the_files() -> None:
    """14 GiB and 22 GiB of files do not go into 32."""
    found = seen("31b qat", "cloud-run-l4", max_model_len=8192, cpu_offload_gb=14)
    assert isinstance(found, Refusal)
    assert found.why == "host memory"
    assert "32 GiB at most" in found.reason


@pytest.mark.parametrize("layout", [None, "speed"])
def test_a_small_host_is_a_reason_of_its_own(layout: str | None) -> None:
    """16 GiB do not hold 26B's files, whatever the GPU does."""
    small = place("cloud-run-l4").model_copy(update={"sizes": (Size(vcpu=4, ram_gib=16),)})
    goal = Goal.model_validate({"model": "26b qat", "layout": layout})
    found = consider(catalogued("26b qat"), small, goal)
    assert isinstance(found, Refusal)
    assert found.why == "host memory"


def test_a_probe_that_can_only_kill_the_boot_is_a_reason_of_its_own() -> None:
    """26B over FUSE is not up in five minutes."""
    fuse = {"startup_seconds_max": 300, "weights_from": "gcs-fuse"}
    hasty = place("cloud-run-l4").model_copy(update=fuse)
    found = consider(catalogued("26b qat"), hasty, Goal(model="26b qat"))
    assert isinstance(found, Refusal)
    assert found.why == "boot"
    assert "300 s" in found.reason


def test_a_flag_that_vllm_does_not_take_is_a_reason_not_a_crash() -> None:
    """An unknown version of vLLM makes every place say so."""
    goal = Goal(model="e2b", vllm_version="not-a-version")
    found = consider(catalogued("e2b"), place("cloud-run-l4"), goal)
    assert isinstance(found, Refusal)
    assert found.why == "not known"
