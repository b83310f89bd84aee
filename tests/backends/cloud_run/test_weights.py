"""Where weights come from, and what that asks of a container."""

from typing import Any

import pytest

from backends.cloud_run.container import rules, weights_of
from backends.container import hub_environment
from core.errors import InvalidArgument
from tests.backends.cloud_run.planned import BUCKET, E4B, spec


def test_a_bucket_is_mounted_to_be_read_by_anybody_and_written_by_nobody() -> None:
    """Options of gcsfuse have no dashes here; an image may run as another user than root."""
    weights = weights_of(spec(weights=BUCKET + "/"))
    assert weights.mount is not None
    assert weights.mount.bucket == "my-bucket"
    assert weights.model == "/weights/models/gemma"
    assert not any(option.startswith("-") for option in weights.mount.options)
    assert {"implicit-dirs", "file-mode=444", "dir-mode=555"} <= set(weights.mount.options)
    assert weights.env == {"HF_HUB_OFFLINE": "1"}
    assert not weights.fills_memory


@pytest.mark.parametrize(
    ("args", "added", "source"),
    [
        ((), ("--load-format", "runai_streamer"), "gcs-streamed"),
        (("--load-format", "runai_streamer"), (), "gcs-streamed"),
        (("--load-format=auto",), (), "gcs-fuse"),
        (("--safetensors-load-strategy", "prefetch"), (), "gcs-fuse"),
    ],
)
def test_files_are_streamed_unless_the_caller_reads_them_otherwise(
    args: tuple[str, ...], added: tuple[str, ...], source: str
) -> None:
    """And the boot is foreseen for the way that is taken."""
    weights = weights_of(spec(weights=BUCKET, engine_args=args))
    assert weights.args == added
    assert weights.boot_source == source


def test_baked_weights_are_never_looked_for_on_the_hub() -> None:
    """An image that holds them may run without any network."""
    weights = weights_of(spec(weights="baked", image="me/gemma:1"))
    assert weights.env == {"HF_HUB_OFFLINE": "1"}
    assert weights.mount is None
    assert weights.model == E4B


def test_the_hub_is_the_place_where_nobody_says() -> None:
    """Its files fill memory; its larger buffers only where there is enough of it."""
    weights = weights_of(spec())
    assert weights.kind == "hub"
    assert weights.fills_memory
    assert "HF_HUB_OFFLINE" not in weights.env
    assert hub_environment(rules().hub, 32) == {"HF_XET_CHUNK_CACHE_SIZE_BYTES": "0"}
    assert hub_environment(rules().hub, 80)["HF_XET_HIGH_PERFORMANCE"] == "1"


@pytest.mark.parametrize(
    "said",
    [
        {"weights": "gs://only-a-bucket"},
        {"weights": "gs://only-a-bucket/"},
        {"weights": "gs://b-b/a/../c"},
        {"weights": "gs://b-b//a"},
        {"weights": "baked"},
        {"model": "/home/me/gemma"},
        {"model": "~/gemma"},
    ],
)
def test_what_no_container_can_read_is_refused(said: dict[str, Any]) -> None:
    """With what to give instead."""
    with pytest.raises(InvalidArgument) as refused:
        weights_of(spec(**said))
    assert refused.value.fix


def test_a_folder_of_this_machine_may_name_what_a_bucket_holds() -> None:
    """Its shape is read here, its files over there."""
    weights = weights_of(spec(model="/models/gemma", weights=BUCKET))
    assert weights.model == "/weights/models/gemma"
