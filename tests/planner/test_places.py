"""Places as data."""

import pytest

from core.errors import InvalidArgument
from planner.accelerators import accelerators
from planner.boot import boot
from planner.flags import Flags
from planner.places import place, places
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
    ("model", "ram_gib"), [("12b qat", 16), ("e4b", 32), ("26b qat", 32), ("31b qat", 32)]
)
def test_the_smallest_host_that_did_is_chosen(model: str, ram_gib: int) -> None:
    """As deployments on Cloud Run found."""
    needed = (catalogued(model).weight_bytes or 0) / 2**30
    size = place("cloud-run-l4").size_for(needed)
    assert size
    assert size.ram_gib == ram_gib


def test_a_model_too_large_for_any_host_has_no_size() -> None:
    """48 GiB of files do not go through 32 GiB of memory."""
    assert place("cloud-run-l4").size_for(48) is None


def test_an_unknown_place_says_which_are_known() -> None:
    """The fix lists them."""
    with pytest.raises(InvalidArgument) as refused:
        place("mars")
    assert "cloud-run-l4" in refused.value.fix
