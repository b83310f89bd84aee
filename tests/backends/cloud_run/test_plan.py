"""A plan for Cloud Run: pure, the same every time, with its price and what to know first."""

from typing import Any

import pytest

from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape
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
    assert "--project=mine" in planned(site(google_cloud_project="mine")).steps[-1].command


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


def test_a_plan_of_another_spec_is_another_revision() -> None:
    """The fingerprint on the service tells whether it is what was asked for."""
    first, second = typed(), typed(max_num_seqs=8)
    assert first.labels["vllm-devops-spec"] != second.labels["vllm-devops-spec"]
    assert isinstance(spec(), DeploymentSpec)
    assert first.labels["vllm-devops-target"] == L4
