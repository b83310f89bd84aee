"""A plan for Cloud Run: pure, the same every time, with its price and what to know first."""

from typing import Any

import pytest

from backends.cloud_run import container
from backends.cloud_run.container import rules, weights_of
from backends.container import hub_environment
from core.errors import InvalidArgument
from core.records import ModelShape, Target
from planner.places import Size
from tests.backends.cloud_run.planned import (
    BUCKET,
    E4B,
    L4,
    QAT_12B,
    QAT_31B,
    RTX,
    drawn,
    planned,
    site,
    spec,
    typed,
)
from tests.backends.cloud_run.server import backend_of


@pytest.mark.parametrize("said", [{}, {"weights": BUCKET}, {"engine": "ollama"}])
def test_the_same_plan_twice_is_equal(said: dict[str, Any]) -> None:
    """No clock and no random name decides anything, so that what is interrupted can go on."""
    assert planned(**said) == planned(**said)
    assert typed(**said) == typed(**said)


def test_a_plan_needs_neither_project_nor_login() -> None:
    """Whoever only wants to know reads PROJECT_ID where their project will stand."""
    plan = planned()
    assert "projects/PROJECT_ID/" in plan.steps[-1].request["parent"]
    assert all("PROJECT_ID" in step.command for step in plan.steps)
    assert backend_of(site()).engine_name()[1]
    assert not backend_of(site(google_cloud_project="mine")).engine_name()[1]
    assert "/projects/mine/" in planned(site(google_cloud_project="mine")).steps[-1].command


def test_the_price_is_of_the_size_that_is_planned() -> None:
    """A larger instance costs more, and the plan knows which one it takes."""
    small, large = planned(model=QAT_12B, weights=BUCKET), planned(model=E4B)
    assert small.usd_per_hour is not None
    assert large.usd_per_hour is not None
    assert small.usd_per_hour == pytest.approx(1.0465, abs=0.001)
    assert large.usd_per_hour == pytest.approx(1.4209, abs=0.001)
    assert any("price" in warning for warning in planned(RTX).warnings)


def test_the_memory_is_foreseen_for_the_gpu_and_the_image() -> None:
    """What does not fit is known before anybody pays for finding out."""
    memory = planned(model=QAT_12B, max_model_len=8192).memory
    assert memory is not None
    assert memory.fits
    assert memory.accelerator == "l4"
    tight = planned(model=QAT_31B, max_model_len=8192).memory
    assert tight is not None
    assert not tight.fits
    assert planned(engine="ollama").memory is None


def test_an_instance_holds_the_files_and_what_is_offloaded() -> None:
    """Memory is planned from the host's peak, not from a table of examples."""
    assert drawn(model=QAT_12B).size.ram_gib == 32
    assert drawn(model=QAT_12B, memory_gib=16).size.ram_gib == 16
    assert drawn(model=QAT_12B, weights=BUCKET).size.ram_gib == 16
    assert drawn(model=QAT_12B, weights=BUCKET, cpu_offload_gb=5).size.ram_gib == 32
    with pytest.raises(InvalidArgument, match="GiB of an instance's memory"):
        drawn(model=QAT_31B, cpu_offload_gb=14)
    with pytest.raises(InvalidArgument, match="GiB of an instance's memory"):
        drawn(model=QAT_31B, cpu_offload_gb=30, weights=BUCKET)


def test_a_model_that_nobody_measured_gets_the_largest_instance_and_the_longest_boot() -> None:
    """Not knowing is said, and planned for on the safe side."""
    unknown = ModelShape(model="someone/else")
    plan = planned(shape=unknown, model="someone/else")
    made = drawn(shape=unknown, model="someone/else")
    assert (made.size.vcpu, made.size.ram_gib) == (8, 32)
    assert made.startup.budget_seconds == 1800
    assert made.concurrency == 256
    assert plan.memory is None
    assert sum("not known" in warning for warning in plan.warnings) == 2


def test_a_boot_longer_than_the_probe_allows_is_said_before() -> None:
    """Otherwise the first sign is a revision that failed after half an hour."""
    large = ModelShape(model="some/70b", weight_bytes=70 * 2**30)
    plan = planned(RTX, shape=large, weights=BUCKET, engine_args=("--load-format", "auto"))
    assert any("boot may be ended" in warning for warning in plan.warnings)
    assert not any("boot may be ended" in warning for warning in planned(model=QAT_12B).warnings)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"max_model_len": 10_000_000}, "beyond the model's"),
        ({"engine_args": ("--max-model-len=10M",)}, "beyond the model's"),
        ({"port": 8000}, "own address"),
        ({"min_replicas": 3}, "more than max_replicas"),
        ({"network": "default"}, "no subnetwork"),
        ({"network": "a/b/c"}, "no subnetwork"),
        ({"model": "/home/me/gemma"}, "a folder of this machine"),
        ({"weights": "baked"}, "need the image"),
        ({"weights": "gs://bucket-only"}, "no folder of a bucket"),
        ({"weights": "gs://bucket/a/../b"}, "no folder of a bucket"),
        ({"weights": "gs://bucket//a"}, "no folder of a bucket"),
        ({"weights": "files://share/folder"}, "no folder of a bucket"),
        ({"access": "internal"}, "not kept inside a network"),
        ({"engine_args": ("--api-key", "x")}, "key of its own"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(said: dict[str, Any], why: str) -> None:
    """A refusal now is cheaper than a failed revision later."""
    with pytest.raises(InvalidArgument, match=why) as refused:
        planned(shape=ModelShape(model="m", max_position_embeddings=131_072), **said)
    assert refused.value.fix


def test_the_token_of_the_hub_is_a_reference_where_one_is_kept() -> None:
    """Without the secret a reference would keep every instance from starting."""
    assert "HF_TOKEN" not in drawn().container.secrets
    kept = drawn(site(hf_token="hf_secret"))
    assert kept.container.secrets["HF_TOKEN"] == "hf-token"
    assert "hf_secret" not in kept.model_dump_json()
    assert "HF_TOKEN" not in drawn(site(hf_token="hf_secret"), weights=BUCKET).container.secrets


@pytest.mark.parametrize("target", [L4, RTX])
def test_every_size_that_the_planner_offers_is_one_that_cloud_run_gives(target: str) -> None:
    """Two tables of one thing must not drift apart."""
    named = site(target).target
    place = container.place_of(named)
    for size in place.sizes:
        container.refuse_size(container.gpu_of(named), place, size, Size(vcpu=0, ram_gib=0))
    assert container.place_of(named).name == target
    limit = container.place_of(named).startup_seconds_max
    assert limit == container.rules().limits.startup_seconds


def test_a_target_whose_gpu_cloud_run_does_not_have_is_refused() -> None:
    """A made-up target says so at once, and names those that there are."""
    for accelerator in ("nvidia-h100", None):
        odd = Target(name="odd", backend="cloud_run", description="", accelerator=accelerator)
        with pytest.raises(InvalidArgument) as refused:
            container.place_of(odd)
        assert "nvidia-l4" in refused.value.fix


@pytest.mark.parametrize("name", ["", "4gemma", "Gemma", "gemma-", "a_b", "a" * 50])
def test_what_no_service_can_be_called_is_refused(name: str) -> None:
    """The pattern is Cloud Run's own."""
    with pytest.raises(InvalidArgument):
        container.refuse_name(name)


def test_a_region_that_is_not_listed_is_a_warning_and_what_is_no_region_is_refused() -> None:
    """Google adds regions often, and knows which."""
    for target, region in ((L4, "europe-north1"), (RTX, "us-east4")):
        made = planned(site(target, google_cloud_location=region))
        (warning,) = [one for one in made.warnings if region in one]
        assert "us-central1" in warning
    for name in ("europe", "us-east4-a", "Frankfurt"):
        with pytest.raises(InvalidArgument, match="no region of Google Cloud"):
            drawn(site(L4, google_cloud_location=name))


@pytest.mark.parametrize(
    ("target", "said", "size"),
    [
        (L4, {"cpu": 8}, (8, 32)),
        (L4, {"cpu": 6}, (6, 24)),
        (L4, {"memory_gib": 24}, (8, 24)),
        (L4, {"cpu": 8, "memory_gib": 20}, (8, 20)),
        (RTX, {"cpu": 30}, (30, 80)),
        (RTX, {"memory_gib": 176}, (44, 176)),
    ],
)
def test_processors_and_memory_that_are_asked_for_are_given(
    target: str, said: dict[str, Any], size: tuple[int, int]
) -> None:
    """What is left out fits the rest; where Google names no largest size, more is doubted."""
    made = planned(target, model="google/gemma-4-E2B-it", **said)
    limits = made.steps[-1].request["service"]["template"]["containers"][0]["resources"]["limits"]
    assert (limits["cpu"], limits["memory"]) == (str(size[0]), f"{size[1]}Gi")
    doubted = any("names no largest size" in warning for warning in made.warnings)
    assert doubted == (target == RTX)


@pytest.mark.parametrize(
    "said",
    [
        {"cpu": 2},
        {"cpu": 5},
        {"cpu": 16},
        {"cpu": 4.5},
        {"memory_gib": 8},
        {"memory_gib": 40},
        {"memory_gib": 16.5},
        {"cpu": 4, "memory_gib": 32},
        {"cpu": 8, "access": "public"},
    ],
)
def test_processors_and_memory_that_cloud_run_does_not_give_are_refused(
    said: dict[str, Any],
) -> None:
    with pytest.raises(InvalidArgument):
        drawn(L4, **said)


def test_a_region_by_invitation_is_a_warning() -> None:
    """Google's page and what projects see disagree, so that the quota decides."""
    invited = planned(site(L4, google_cloud_location="us-central1"))
    assert any("invitation" in warning for warning in invited.warnings)
    assert not any("invitation" in warning for warning in planned(L4).warnings)
    assert drawn(site(L4, google_cloud_location="europe-west1")).region == "europe-west1"


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


def test_the_hub_is_the_place_where_nobody_says() -> None:
    """Its files fill memory; its larger buffers only where there is enough of it."""
    weights = weights_of(spec())
    assert weights.fills_memory
    assert "HF_HUB_OFFLINE" not in weights.env
    assert hub_environment(rules().hub, 32) == {"HF_XET_CHUNK_CACHE_SIZE_BYTES": "0"}
    assert hub_environment(rules().hub, 80)["HF_XET_HIGH_PERFORMANCE"] == "1"
