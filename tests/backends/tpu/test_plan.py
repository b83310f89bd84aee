"""A plan for TPUs: pure, the same every time, with its price and what to know first."""

from typing import Any

import pytest

from backends.tpu.site import Place
from backends.tpu.vm import blueprint
from core.errors import InvalidArgument
from core.records import ModelShape
from planner.model import read_model
from tests.backends.tpu.planned import (
    BARE,
    DENSE,
    E4B,
    EIGHT,
    EVERY,
    FOUR,
    ONE,
    drawn,
    planned,
    spec,
)
from tests.backends.tpu.sites import offline, on

targets = pytest.mark.parametrize("target", EVERY)


@targets
def test_a_plans_own_spec_makes_the_same_plan(target: str) -> None:
    """What was filled in is what stands on the VM's label, and what is compared with it."""
    plan, model = planned(target), read_model(E4B)
    again = blueprint(offline(target), plan.spec, model)
    assert again == drawn(target)
    assert again.labels["vllm-devops-spec"] == plan.spec.fingerprint
    assert again.spec == plan.spec


def test_a_plan_needs_neither_project_nor_login() -> None:
    """Whoever only wants to know reads PROJECT_ID where their project will stand."""
    bare = offline(project="")
    plan = planned(bare)
    assert all("PROJECT_ID" in step.command for step in plan.steps)
    assert on(bare).engine_name()[1]
    assert on(offline()).engine_name() == ("vLLM 0.27.0 (vllm/vllm-tpu:v0.27.0)", "")
    assert "/projects/mine/" in planned(offline(project="mine")).steps[-1].command


@targets
def test_the_price_is_of_all_chips_in_the_way_they_are_given(target: str) -> None:
    """A v6e-8 costs eight times a v6e-1, and spot half."""
    plan, one = planned(target), planned(f"{ONE}{target[len(ONE) :]}")
    assert plan.usd_per_hour
    assert one.usd_per_hour
    chips = int(target.split("-")[2])
    assert plan.usd_per_hour == pytest.approx(chips * one.usd_per_hour)
    assert (plan.usd_per_hour < (planned(target[: len(ONE)]).usd_per_hour or 0)) == (
        target.endswith(("-spot", "-flex"))
    )


def test_the_memory_is_foreseen_for_all_chips_and_the_image() -> None:
    """T55: what does not fit is known before anybody pays for finding out."""
    small, large = (planned(one, model=DENSE, max_model_len=8192).memory for one in (ONE, FOUR))
    assert small
    assert large
    assert not small.fits
    assert large.fits
    assert (large.accelerator, large.count) == ("v6e", 4)
    assert small.vllm_version != "0.32.0"
    assert planned(shape=BARE, model="someone/else").memory is None


def test_the_steps_are_key_grant_firewall_and_both_requests() -> None:
    """In the order in which they are made; the search goes on from there."""
    plan = planned(EIGHT, zones=("us-east5-a", "us-east5-b"))
    said = [step.what for step in plan.steps]
    assert len(said) == 5
    assert "your addresses alone" in said[2]
    asked = "Make a VM with v6e-8 (on-demand), asked for of "
    assert said[3].startswith(f"{asked}Compute Engine in us-east5-a, then at 3 more places")
    assert said[4] == f"{asked}the queue of Cloud TPU in us-east5-a"
    alone = planned(EIGHT, zones=("us-east5-a",), control_plane="queued").steps[-1]
    assert alone.what.startswith(f"{asked}the queue")
    assert "more places" not in alone.what


def test_a_firewall_rule_lets_in_whom_the_settings_name() -> None:
    """private: the callers; public: everybody; internal: there is none."""
    mine = offline(google_allowed_addresses=("203.0.113.0/24",))
    rule = planned(mine).steps[2].request
    assert rule["sourceRanges"] == ["203.0.113.0/24"]
    assert rule["targetTags"] == [rule["name"]] == ["vllm-devops-gemma"]
    assert rule["allowed"] == [{"IPProtocol": "tcp", "ports": ["8000"]}]
    assert planned(mine, access="public").steps[2].request["sourceRanges"] == ["0.0.0.0/0"]
    assert planned().steps[2].request["sourceRanges"] == ["YOUR_ADDRESS/32"]


def test_zones_are_searched_from_the_settings_own_on() -> None:
    """By default a search: one zone alone seldom has a chip."""
    here = drawn(offline(google_cloud_zone="europe-west4-a"))
    assert here.places[:3] == (
        Place("europe-west4-a", "compute"),
        Place("europe-west4-a", "queued"),
        Place("us-central1-b", "compute"),
    )
    assert len(here.places) == len(set(here.places)) == 10
    assert drawn().places[0].zone == "us-east5-b"


def test_zones_that_are_said_are_searched_in_their_order() -> None:
    """And no other one: somebody may have to stay in Europe."""
    zones = ("us-east5-b", "europe-west4-a", "us-east5-b")
    made = drawn(zones=zones, control_plane="compute")
    assert [place.zone for place in made.places] == ["us-east5-b", "europe-west4-a"]
    assert {place.plane for place in made.places} == {"compute"}


@pytest.mark.parametrize(
    ("target", "said", "seconds"),
    [
        (ONE, {}, 600),
        (ONE, {"zones": ("us-east5-b",), "control_plane": "queued"}, 7200),
        (ONE, {"zones": ("us-east5-b",)}, 600),
        (ONE, {"zone_wait_minutes": 45}, 2700),
        (f"{ONE}-flex", {"zone_wait_minutes": 600, "control_plane": "queued"}, 36_000),
    ],
)
def test_a_place_is_waited_for_so_long(target: str, said: dict[str, Any], seconds: int) -> None:
    """Two hours for one alone, ten minutes where others are to be tried."""
    assert drawn(target, **said).wait_seconds == seconds


def test_a_wait_that_compute_engine_does_not_take_is_said() -> None:
    """Its flex-start waits for two hours at most."""
    long = drawn(f"{ONE}-flex", zone_wait_minutes=600)
    assert any("120 minutes at most" in doubt for doubt in long.doubts)
    assert not any("at most" in doubt for doubt in drawn(ONE, zone_wait_minutes=600).doubts)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"max_model_len": 10_000_000}, "beyond the model's"),
        ({"port": 8000}, "answers on port 8000"),
        ({"min_replicas": 0}, "one VM"),
        ({"max_replicas": 2}, "one VM"),
        ({"engine": "ollama", "model": "gemma3:4b"}, "no build for TPUs"),
        ({"network": "a/b/c"}, "no network"),
        ({"zones": ("us-east5",)}, "no zone"),
        ({"model": "/home/me/gemma"}, "a folder of this machine"),
        ({"weights": "baked"}, "need the image"),
        ({"weights": "gs://bucket/folder"}, "do not read"),
        ({"weights": "files://share/folder"}, "do not read"),
        ({"engine_args": ("--api-key", "x")}, "key of its own"),
        ({"engine_args": ("--chat-template", "a\nreadonly IMAGE=x")}, "control character"),
        ({"ttl_minutes": 200_000}, "cannot be"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(said: dict[str, Any], why: str) -> None:
    """A refusal now is cheaper than a chip that serves nothing."""
    shape = ModelShape(model="m", max_position_embeddings=131_072, weight_bytes=10**9)
    with pytest.raises(InvalidArgument, match=why) as refused:
        planned(shape=shape, **said)
    assert refused.value.fix


def test_a_zone_of_the_settings_is_looked_at_as_well() -> None:
    """GOOGLE_CLOUD_ZONE may hold a region by mistake."""
    with pytest.raises(InvalidArgument, match="no zone") as refused:
        drawn(offline(google_cloud_zone="us-east5"))
    assert "GOOGLE_CLOUD_ZONE" in refused.value.fix


def test_what_stays_open_is_said() -> None:
    """The proxy answers probes without a key."""
    for access in ("private", "public"):
        assert any("but /health and /ping" in said for said in planned(access=access).warnings)
    assert any("SSH tunnel" in said for said in planned(access="internal").warnings)


def test_a_plan_of_another_spec_is_another_vm() -> None:
    """The fingerprint on its label tells whether it is what was asked for."""
    first, second = drawn(), drawn(max_num_seqs=8)
    assert first.labels["vllm-devops-spec"] != second.labels["vllm-devops-spec"]
    assert first.labels["vllm-devops-target"] == ONE
    assert first.labels["managed-by"] == "vllm-devops-agent"
    assert first.labels["vllm-devops-deployment"] == spec().name
