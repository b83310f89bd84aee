"""Where weights come from: the Hub, a file share, or the image."""

import re

import pytest

from backends.aca.container import link_of, weights_of
from core.errors import InvalidArgument
from core.records import ModelShape
from planner.places import place
from tests.backends.aca.planned import GIB, PATCHED, drawn, planned, spec

EMPTY = ModelShape(model="m")
PLACE = place("aca-a100")


def test_a_small_model_is_downloaded_into_the_container() -> None:
    """As much as was seen to fit on its disk."""
    found = weights_of(spec("some/model"), ModelShape(model="m", weight_bytes=9 * GIB), PLACE)
    assert found.mount is None
    assert found.model == "some/model"
    assert "HF_HOME" not in found.env
    assert "Every start downloads 9.0 GiB" in found.doubts[0]


@pytest.mark.parametrize("size", [10 * GIB, 60 * GIB, None])
def test_a_larger_one_is_kept_on_the_share(size: int | None) -> None:
    """The container's disk may overflow; a size that nobody knows may be larger too."""
    found = weights_of(spec("some/model"), ModelShape(model="m", weight_bytes=size), PLACE)
    assert found.mount is not None
    assert (found.mount.share, found.mount.link) == ("weights", "weights")
    assert not found.mount.read_only
    assert found.env["HF_HOME"].startswith(f"{found.mount.path}/")
    assert found.kept


def test_a_folder_of_a_share_is_read_and_never_written() -> None:
    """The link is another one than that for downloads, for it opens the share another way."""
    found = weights_of(spec(weights="files://models/google/gemma"), EMPTY, PLACE)
    assert found.mount is not None
    assert (found.mount.share, found.mount.link) == ("models", "models-ro")
    assert found.mount.read_only
    assert found.model == "/weights/google/gemma"
    assert found.env == {"HF_HUB_OFFLINE": "1"}
    again = weights_of(spec(weights="files://models/gemma/"), EMPTY, PLACE)
    assert again.model == "/weights/gemma"


@pytest.mark.parametrize(
    "location",
    [
        "gs://bucket/folder",
        "files://weights",
        "files://weights/",
        "files://Weights/folder",
        "files://we--ights/folder",
        "files://w/folder",
        "files://weights/a/../b",
        "files://weights/a//b",
    ],
)
def test_what_is_no_folder_of_a_share_is_refused(location: str) -> None:
    """A bucket of Google's among them: nothing but Azure Files can be mounted."""
    with pytest.raises(InvalidArgument, match="no folder of a file share") as refused:
        drawn(weights=location)
    assert "files://SHARE/FOLDER" in refused.value.fix


def test_a_folder_of_this_machine_is_refused() -> None:
    """Azure cannot see it."""
    with pytest.raises(InvalidArgument, match="a folder of this machine") as refused:
        drawn(shape=EMPTY, model="/home/me/gemma")
    assert "files://" in refused.value.fix


def test_baked_weights_need_their_image() -> None:
    """Nobody else knows where they are."""
    with pytest.raises(InvalidArgument, match="need the image"):
        drawn(weights="baked")
    made = drawn(weights="baked", image=PATCHED)
    assert made.mount is None
    assert made.container.env == {"HF_HUB_OFFLINE": "1"}
    assert not any("Hub" in warning for warning in planned(weights="baked", image=PATCHED).warnings)


def test_downloads_keep_no_second_copy_on_the_disk() -> None:
    """The chunk cache of hf_xet would fill the container's disk beside the files."""
    assert drawn().container.env["HF_XET_CHUNK_CACHE_SIZE_BYTES"] == "0"
    assert "HF_XET_CHUNK_CACHE_SIZE_BYTES" not in drawn(weights="files://weights/a").container.env


@pytest.mark.parametrize("share", ["weights", "2026-models", "a" * 30, "m" * 63])
def test_a_link_is_named_as_azure_takes_it_whatever_its_share_is_called(share: str) -> None:
    """A share may begin with a digit and be twice as long; each has links of its own."""
    names = [link_of(share, read_only=read_only) for read_only in (False, True)]
    for name in names:
        assert re.fullmatch(r"[a-z](-?[a-z0-9]){0,31}", name)
        assert len(name) <= 32
    assert names[0] != names[1]
    assert link_of(f"{share[:-1]}z", read_only=True) != names[1]
