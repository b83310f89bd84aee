"""Advice: what is offered fits, what is refused has the true reason."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidArgument
from planner.advise import Goal, Offer, Refusal, candidates, commonest, consider, whose
from planner.layouts import Ground, Layout, Wish, arrange
from planner.memory import plan_memory
from planner.model import read_model
from planner.places import Size, accelerator, place, places
from tests.planner.shapes import advised, catalogued, offer, refusal

MODELS = st.sampled_from(["e2b", "e4b qat", "12b", "12b qat", "26b qat", "31b", "31b qat"])
LAYOUTS = st.sampled_from([None, "speed", "concurrency", "context"])


def offers(goal: Goal) -> dict[str, Offer]:
    return {name: one for name, one in advised(goal).items() if isinstance(one, Offer)}


def refused(goal: Goal, *where: str) -> list[Refusal]:
    return [one for one in advised(goal, *where).values() if isinstance(one, Refusal)]


@given(MODELS, LAYOUTS, st.sampled_from([512, 8192, 100_000]), st.integers(1, 32))
@settings(deadline=None, max_examples=5)
def test_what_advice_offers_the_planner_accepts(
    model: str, layout: Layout | None, length: int, users: int
) -> None:
    """Every offer fits on the low estimate and holds its users; what comes near fits, for less."""
    goal = Goal(model=model, max_model_len=length, users=users, layout=layout)
    for where, found in advised(goal).items():
        device, shape = accelerator(place(where).accelerator), read_model(found.model)
        if isinstance(found, Offer):
            again = plan_memory(shape, device, found.flags)
            assert again == found.memory
            assert again.fits
            assert again.max_model_len >= length
            assert layout == "context" or again.kv_low.max_concurrency >= users
            continue
        for near in found.nearest if layout is None else ():
            flags = near.arrangement.flags
            assert plan_memory(shape, device, flags).fits
            assert (
                (flags.max_model_len or 0) < length
                or (flags.max_num_seqs or 0) < users
                or flags.language_model_only
            )


@given(MODELS, st.sampled_from([1024, 16_384]), st.integers(1, 16))
@settings(deadline=None, max_examples=4)
def test_asking_less_is_never_refused_more(model: str, length: int, users: int) -> None:
    """Fewer users, shorter length: at least the same places."""
    much, fewer, shorter = (
        offers(Goal(model=model, max_model_len=tokens, users=together)).keys()
        for tokens, together in ((length, users + 4), (length, users), (length // 2, users + 4))
    )
    assert much <= fewer
    assert much <= shorter


def test_each_fix_says_what_it_buys_and_costs() -> None:
    """26B QAT at 16k for two on an L4 needs the fp8 cache."""
    found = offer(Goal(model="26b qat", max_model_len=16_384, users=2), "cloud-run-l4")
    (fp8,) = found.changes
    assert fp8.flag == "--kv-cache-dtype fp8"
    assert "GiB" in fp8.buys
    assert "->" in fp8.buys
    assert fp8.costs
    assert found.engine_line == (
        "vllm serve google/gemma-4-26B-A4B-it-qat-w4a16-ct --max-model-len 16384"
        " --gpu-memory-utilization 0.95 --kv-cache-dtype fp8 --max-num-seqs 16"
        " --enable-auto-tool-choice --tool-call-parser=gemma4 --reasoning-parser=gemma4"
    )


def test_no_fp8_cache_is_offered_where_there_is_none() -> None:
    """A100, RTX 3090 and TPUs, whatever the layout; a T4, if an image of one's own serves it."""
    goal = Goal(model="12b qat", layout="concurrency")
    kinds = {name: one.flags.kv_cache_dtype for name, one in offers(goal).items()}
    assert kinds["cloud-run-l4"] == kinds["h100"] == "fp8"
    assert kinds["aca-a100"] is kinds["rtx-3090"] is None
    t4 = consider(catalogued("12b qat"), place("aca-t4"), goal)
    assert isinstance(t4, Offer)
    assert t4.flags.kv_cache_dtype is None
    assert offer(Goal(model="12b", layout="concurrency"), "tpu-v6e-1").flags.kv_cache_dtype is None


def test_layouts_differ_in_what_they_are_for() -> None:
    """Speed keeps the batch and what it reads small, concurrency fills the cache, context takes
    all of the length, and no more than the model was made for.
    """
    ground = Ground(catalogued("12b qat"), accelerator("l4"), 1)
    speed, many, long = (
        arrange(ground, Wish(max_model_len=8192, requests=2, layout=layout, usual_tokens=1280))
        for layout in ("speed", "concurrency", "context")
    )
    assert (speed.flags.max_num_seqs, speed.flags.kv_cache_dtype) == (2, "fp8")
    assert (many.flags.max_num_seqs or 0) > 8
    assert many.memory.kv_low.max_concurrency > 2
    assert long.memory.max_model_len > 100_000
    assert all(each.enough for each in (speed, many, long))
    ground = Ground(catalogued("e2b"), accelerator("h100"), 1)
    found = arrange(ground, Wish(max_model_len=4096, layout="context"))
    assert found.memory.max_model_len == 131_072


def test_an_impossible_speed_is_refused_with_the_roof() -> None:
    """80 tokens/s of 12B QAT on an L4; within a band, or extrapolated, it is a doubt."""
    goal = Goal(model="12b qat", tokens_per_second_per_user=80)
    found = refusal(goal, "cloud-run-l4")
    assert found.why == "speed"
    assert "the roof is 3" in found.reason
    (doubt,) = offer(goal, "h100").doubts
    assert "is extrapolated: nothing was measured there; the nearest is 98.7 tokens/s" in doubt
    within = Goal(model="12b qat", tokens_per_second_per_user=25)
    assert "25 tokens/s" in offer(within, "gke-l4").doubts[0]


def test_a_budget_is_kept_and_disagreeing_prices_are_a_doubt() -> None:
    """An A100 at Azure is 6.35 or 8.86 an hour."""
    cheap = Goal(model="12b qat", usd_per_hour=2)
    assert refusal(cheap, "aca-a100").why == "price"
    assert all((one.price.usd_per_hour or 0) <= 2 for one in offers(cheap).values())
    assert "8.86" in offer(Goal(model="12b qat", usd_per_hour=7), "aca-a100").doubts[0]
    exact = offer(Goal(model="12b qat"), "aca-a100").price.usd_per_hour
    assert offer(Goal(model="12b qat", usd_per_hour=exact), "aca-a100")
    # 100 dollars are 70 hours of the smallest L4 on Cloud Run, and not a month of them.
    always = Goal(model="12b qat", usd_per_month=100)
    assert refusal(always, "cloud-run-l4").why == "price"
    assert offer(always.model_copy(update={"hours_per_month": 70}), "cloud-run-l4")


def test_scale_to_zero_leaves_only_places_that_sleep() -> None:
    """Virtual machines and TPUs bill until they are stopped."""
    goal = Goal(model="e2b", scale_to_zero=True)
    assert offers(goal).keys() == {"cloud-run-l4", "cloud-run-rtx-pro-6000", "aca-a100"}
    assert refusal(goal, "tpu-v6e-1").why == "scale to zero"


def test_a_quality_is_any_model_of_that_class_that_the_hub_has() -> None:
    """26B in int4 is not there."""
    assert {one.model for one in candidates(Goal(quality="medium"))} == {
        "google/gemma-4-12B-it",
        "google/gemma-4-12B-it-qat-w4a16-ct",
    }
    assert not any(
        "26B" in one.model and "qat" in one.model for one in candidates(Goal(quality="large"))
    )


def test_only_known_backends_make_a_place_deployable() -> None:
    """Nothing is promised that this project cannot do yet."""
    goal = Goal(model="e2b")
    assert not offer(goal, "cloud-run-l4", backends=("local",)).deployable
    assert offer(goal, "rtx-3090", backends=("local",)).deployable


def test_the_host_must_hold_the_files_where_they_count() -> None:
    """31B in bf16 fits a GPU of 96 GB and the 80 GiB beside it; 16 GiB do not hold 26B's files."""
    found = offer(Goal(model="31b"), "cloud-run-rtx-pro-6000")
    assert found.size
    assert found.size.ram_gib == 80
    assert any("Direct VPC" in warning for warning in found.warnings)
    small = {"sizes": (Size(vcpu=4, ram_gib=16),)}
    hasty = {"startup_seconds_max": 300, "weights_from": "gcs-fuse"}
    version = {"vllm_version": "not-a-version"}
    rows: tuple[tuple[dict[str, Any], dict[str, Any], str, str], ...] = (
        (small, {}, "host memory", "16 GiB at most"),
        (small, {"layout": "speed"}, "host memory", "16 GiB at most"),
        (hasty, {}, "boot", "300 s"),
        ({}, version, "not known", "is no vLLM version"),
    )
    for changed, said, why, words in rows:
        where = place("cloud-run-l4").model_copy(update=changed)
        goal = Goal.model_validate({"model": "26b qat", **said})
        judged = consider(catalogued("26b qat"), where, goal)
        assert isinstance(judged, Refusal)
        assert judged.why == why
        assert words in judged.reason


def test_a_model_nobody_knows_is_refused() -> None:
    """And no model at all; nothing is guessed of this machine."""
    with pytest.raises(InvalidArgument, match="cannot be planned"):
        candidates(Goal(model="nobody/knows"))
    with pytest.raises(InvalidArgument, match="Which model"):
        candidates(Goal())
    assert refusal(Goal(model="e2b"), "local").why == "not known"


@pytest.mark.parametrize(
    "said", [{}, {"usd_per_hour": 1}, {"max_model_len": 200_000, "model": "12b qat"}]
)
def test_what_published_vllm_cannot_serve_is_not_offered(said: dict[str, Any]) -> None:
    """Nor is more money or less length told as a way to have it; but it has figures."""
    goal = Goal.model_validate({"model": "e2b", **said})
    found = refusal(goal, "aca-t4")
    assert (found.why, found.nearest) == ("accelerator", ())
    assert "Published vLLM cannot serve it there" in found.reason
    assert found.reason.endswith("An image of your own with smaller tiles may serve it there.")
    figures = consider(catalogued("e2b"), place("aca-t4"), Goal(model="e2b"))
    assert isinstance(figures, Offer)
    assert figures.doubts[0].endswith("The figures are what such an image would come to.")
    assert "while loading" in refusal(Goal(model="26b qat"), "aca-t4").reason


def test_the_commonest_reason_is_told() -> None:
    """A machine that nobody knows comes first in the list, and is not why; figures do not count."""
    long = refused(Goal(model="e4b", max_model_len=500_000))
    first = commonest(long)
    assert whose(first, long) == "aca-a100"
    assert "beyond the model's 131,072 positions." in first.reason
    assert first.nearest[0].arrangement.memory.max_model_len == 131_072
    slow = commonest(refused(Goal(model="e2b", tokens_per_second_per_user=5000)))
    assert "5000 tokens/s for each of 1 is more than" in slow.reason
    assert not slow.nearest
    assert len(places()) == len(advised(Goal(model="e2b")))
