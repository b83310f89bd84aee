"""Places as data."""

import pytest

from backends.aca.container import rules as aca_rules
from backends.cloud_run.container import rules as cloud_run_rules
from backends.tpu.vm import rules as tpu_rules
from core.errors import InvalidArgument
from planner.boot import boot
from planner.flags import Flags
from planner.places import accelerators, place, places
from tests.planner.shapes import catalogued


def test_every_place_is_complete() -> None:
    """Its accelerator is known, its weights come from somewhere, its facts from someone."""
    for each in places().values():
        assert each.accelerator in accelerators()
        assert each.sources
        assert boot(catalogued("e2b"), each, Flags()).seconds.expected >= 0
        assert list(each.sizes) == sorted(each.sizes, key=lambda size: size.ram_gib)


def test_a_place_is_deployable_where_its_backend_exists() -> None:
    """The data names the backend; whoever asks says which there are."""
    assert place("local").deployable({"local", "endpoint"})
    assert not place("cloud-run-l4").deployable({"local", "endpoint"})
    assert place("cloud-run-l4").deployable({"cloud_run"})
    assert not place("h100").deployable({"", "local"})


@pytest.mark.parametrize(
    ("model", "from_hub", "from_bucket"),
    [("e2b", 32, 16), ("12b qat", 32, 16), ("e4b", 32, 32), ("26b qat", 32, 32)],
)
def test_the_smallest_host_that_is_enough_is_chosen(
    model: str, from_hub: int, from_bucket: int
) -> None:
    """The Hub's files stay in memory there, beside vLLM's own."""
    needed = (catalogued(model).weight_bytes or 0) / 2**30
    there = place("cloud-run-l4")
    streamed = there.model_copy(update={"weights_from": "gcs-streamed"})
    sizes = [where.size_for(needed) for where in (there, streamed)]
    assert [size and size.ram_gib for size in sizes] == [from_hub, from_bucket]
    chosen = there.sized(None, 16).size_for(9.6)
    assert chosen
    assert chosen.ram_gib == 16


def test_a_model_too_large_for_any_host_has_no_size() -> None:
    """48 GiB of files do not go through 32 GiB of memory."""
    assert place("cloud-run-l4").size_for(48) is None


def test_a_plan_reckons_with_the_vllm_that_is_started_there() -> None:
    """What the backends' own rules name; where this project starts none, nobody can say."""
    started: dict[str, set[str | None]] = {
        "aca": {each.vllm for each in aca_rules().gpus.values()},
        "cloud_run": {each.vllm for each in cloud_run_rules().gpus.values()},
        "tpu": {tpu_rules().engine.vllm},
    }
    for each in places().values():
        known = started.get(each.deployable_by)
        assert {each.vllm_version} == (known or {None}), each.name


def test_what_was_sold_is_more_than_what_is_seen() -> None:
    """ECC, firmware and runtime keep a part, never more than a tenth."""
    for device in accelerators().values():
        if device.memory_gib is None:
            assert device.sold_gib is None
        else:
            assert device.sold_gib, device.name
            assert 0.9 * device.sold_gib <= device.memory_gib <= device.sold_gib, device.name


def test_an_unknown_place_says_which_are_known() -> None:
    """The fix lists them."""
    with pytest.raises(InvalidArgument) as refused:
        place("mars")
    assert "cloud-run-l4" in refused.value.fix
