"""Advice: what is offered fits, what is refused has the true reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import InvalidArgument
from planner.advise import Advice, Goal, Offer, Refusal, advise, consider
from planner.layouts import Ground, Layout, Wish, arrange
from planner.memory import plan_memory
from planner.model import read_model
from planner.places import accelerator, place, places
from tests.planner.shapes import catalogued

MODELS = st.sampled_from(["e2b", "e4b qat", "12b", "12b qat", "26b qat", "31b", "31b qat"])
LAYOUTS = st.sampled_from([None, "speed", "concurrency", "context"])


def refused(advice: Advice, where: str) -> Refusal:
    return next(each for each in advice.refused if each.place == where)


def offered(advice: Advice, where: str) -> Offer:
    return next(each for each in advice.offers if each.place == where)


@given(MODELS, LAYOUTS, st.sampled_from([512, 8192, 100_000]), st.integers(1, 32))
@settings(deadline=None, max_examples=5)
def test_what_advice_offers_the_planner_accepts(
    model: str, layout: Layout | None, length: int, users: int
) -> None:
    """Every offer fits on the low estimate and holds its users; no place is forgotten."""
    advice = advise(Goal(model=model, max_model_len=length, users=users, layout=layout))
    assert len(advice.offers) + len(advice.refused) == len(places())
    for offer in advice.offers:
        device = accelerator(place(offer.place).accelerator)
        again = plan_memory(read_model(offer.model), device, offer.flags)
        assert again.fits
        assert again.max_model_len >= length
        assert layout == "context" or again.kv_low.max_concurrency >= users
        assert again == offer.memory


@given(MODELS, st.sampled_from([1024, 16_384]), st.integers(1, 16))
@settings(deadline=None, max_examples=4)
def test_asking_less_is_never_refused_more(model: str, length: int, users: int) -> None:
    """Fewer users, shorter length: at least the same places."""
    much = {offer.place for offer in advise(_goal(model, length, users + 4)).offers}
    fewer = {offer.place for offer in advise(_goal(model, length, users)).offers}
    shorter = {offer.place for offer in advise(_goal(model, length // 2, users + 4)).offers}
    assert much <= fewer
    assert much <= shorter


def _goal(model: str, length: int, users: int) -> Goal:
    return Goal(model=model, max_model_len=length, users=users)


@given(MODELS, st.sampled_from([8192, 65_536]), st.integers(1, 32))
@settings(deadline=None, max_examples=5)
def test_a_near_miss_fits(model: str, length: int, users: int) -> None:
    """What is offered instead of a refusal can be had, and asks for less."""
    for refusal in advise(_goal(model, length, users)).refused:
        for near in refusal.nearest:
            flags = near.arrangement.flags
            device = accelerator(place(refusal.place).accelerator)
            assert plan_memory(read_model(refusal.model), device, flags).fits
            assert (
                (flags.max_model_len or 0) < length
                or (flags.max_num_seqs or 0) < users
                or flags.language_model_only
            )


def test_offers_are_ranked_by_price_and_own_machines_come_last() -> None:
    """An hour of what one must own costs nothing, but one must own it."""
    prices = [offer.price.usd_per_hour or 0 for offer in advise(Goal(model="26b qat")).offers]
    rented = [usd for usd in prices if usd]
    assert prices == [*sorted(rented), *[0.0] * (len(prices) - len(rented))]


def test_each_fix_says_what_it_buys_and_costs() -> None:
    """26B QAT at 16k for two on an L4 needs the fp8 cache."""
    change = offered(advise(Goal(model="26b qat", max_model_len=16_384, users=2)), "cloud-run-l4")
    (fp8,) = change.changes
    assert fp8.flag == "--kv-cache-dtype fp8"
    assert "GiB" in fp8.buys
    assert "->" in fp8.buys
    assert fp8.costs
    assert "--kv-cache-dtype fp8" in change.engine_line


def test_no_fp8_cache_is_offered_where_there_is_none() -> None:
    """A100, RTX 3090 and TPUs, whatever the layout; a T4, if an image of one's own serves it."""
    advice = advise(Goal(model="12b qat", layout="concurrency"))
    kinds = {offer.place: offer.flags.kv_cache_dtype for offer in advice.offers}
    assert kinds["cloud-run-l4"] == kinds["h100"] == "fp8"
    for where in ("aca-a100", "rtx-3090"):
        assert kinds[where] is None
    t4 = consider(catalogued("12b qat"), place("aca-t4"), advice.goal)
    assert isinstance(t4, Offer)
    assert t4.flags.kv_cache_dtype is None
    chips = advise(Goal(model="12b", layout="concurrency", places=("tpu-v6e-1",)))
    assert chips.offers[0].flags.kv_cache_dtype is None


def test_layouts_differ_in_what_they_are_for() -> None:
    """Speed keeps the batch and what it reads small, concurrency fills the cache, context takes
    all of the length.
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


def test_a_context_layout_takes_no_more_than_the_model_was_made_for() -> None:
    """On an H100 the model ends before the memory does."""
    ground = Ground(catalogued("e2b"), accelerator("h100"), 1)
    found = arrange(ground, Wish(max_model_len=4096, layout="context"))
    assert found.memory.max_model_len == 131_072


def test_an_impossible_speed_is_refused_with_the_roof() -> None:
    """80 tokens/s of 12B QAT on an L4."""
    advice = advise(Goal(model="12b qat", tokens_per_second_per_user=80))
    refusal = refused(advice, "cloud-run-l4")
    assert refusal.why == "speed"
    assert "the roof is 3" in refusal.reason
    (doubt,) = offered(advice, "h100").doubts
    assert "is extrapolated: nothing was measured there; the nearest is 98.7 tokens/s" in doubt


def test_a_speed_within_the_band_is_a_doubt() -> None:
    """It may come out so: offered, after the sure ones."""
    advice = advise(Goal(model="12b qat", tokens_per_second_per_user=25, places=("gke-l4",)))
    assert "25 tokens/s" in offered(advice, "gke-l4").doubts[0]


def test_a_sure_offer_ranks_before_a_cheaper_doubtful_one() -> None:
    """20 tokens/s: likely on an L4, certain on a TPU."""
    new = Goal(model="12b qat", tokens_per_second_per_user=20, vllm_version="0.32.0")
    advice = advise(new)
    names = [offer.place for offer in advice.offers]
    assert names.index("tpu-v6e-1") < names.index("gke-l4")


def test_a_budget_is_kept_and_disagreeing_prices_are_a_doubt() -> None:
    """An A100 at Azure is 6.35 or 8.86 an hour."""
    cheap = advise(Goal(model="12b qat", usd_per_hour=2))
    assert refused(cheap, "aca-a100").why == "price"
    assert all((offer.price.usd_per_hour or 0) <= 2 for offer in cheap.offers)
    enough = advise(Goal(model="12b qat", usd_per_hour=7))
    assert "8.86" in offered(enough, "aca-a100").doubts[0]


def test_a_monthly_budget_counts_the_hours() -> None:
    """100 dollars are 95 hours of the smallest L4 on Cloud Run."""
    always = Goal(model="12b qat", usd_per_month=100, places=("cloud-run-l4",))
    some = always.model_copy(update={"hours_per_month": 70})
    assert refused(advise(always), "cloud-run-l4").why == "price"
    assert advise(some).offers


def test_scale_to_zero_leaves_only_places_that_sleep() -> None:
    """Virtual machines and TPUs bill until they are stopped."""
    advice = advise(Goal(model="e2b", scale_to_zero=True))
    assert {offer.place for offer in advice.offers} == {
        "cloud-run-l4", "cloud-run-rtx-pro-6000", "aca-a100",
    }  # fmt: skip
    assert refused(advice, "tpu-v6e-1").why == "scale to zero"


def test_a_quality_is_served_by_any_model_of_that_class() -> None:
    """Medium on a budget is 12B in int4; of the large ones the Hub has none that fits there."""
    advice = advise(Goal(quality="medium", usd_per_hour=1.5, places=("cloud-run-l4",)))
    assert [offer.model for offer in advice.offers] == ["google/gemma-4-12B-it-qat-w4a16-ct"]
    large = advise(Goal(quality="large", usd_per_hour=1.5, places=("cloud-run-l4",)))
    assert large.offers == ()


def test_only_known_backends_make_a_place_deployable() -> None:
    """Nothing is promised that this project cannot do yet."""
    goal = Goal(model="e2b", places=("cloud-run-l4", "rtx-3090"))
    deployable = {
        offer.place: offer.deployable for offer in advise(goal, backends={"local"}).offers
    }
    assert deployable == {"cloud-run-l4": False, "rtx-3090": True}


def test_the_host_must_hold_the_files_where_they_count() -> None:
    """31B in bf16 fits a GPU of 96 GB and the 80 GiB beside it."""
    offer = offered(advise(Goal(model="31b")), "cloud-run-rtx-pro-6000")
    assert offer.size
    assert offer.size.ram_gib == 80
    assert any("Direct VPC" in warning for warning in offer.warnings)


def test_a_model_nobody_knows_is_refused() -> None:
    """And no model at all."""
    with pytest.raises(InvalidArgument, match="cannot be planned"):
        advise(Goal(model="nobody/knows"))
    with pytest.raises(InvalidArgument, match="Which model"):
        advise(Goal())
    with pytest.raises(InvalidArgument, match="mars"):
        advise(Goal(model="e2b", places=("mars",)))


def test_this_machine_is_not_guessed_at() -> None:
    """Its memory and bandwidth are not known to the planner."""
    assert refused(advise(Goal(model="e2b")), "local").why == "not known"


def test_the_summary_says_what_to_do() -> None:
    """The best offer, or why none and what instead."""
    assert "26B-A4B-it-qat-w4a16-ct on" in advise(Goal(model="26b qat")).summary()
    nothing = advise(Goal(model="31b qat", places=("cloud-run-l4",)))
    assert nothing.summary().startswith("Nothing fits. cloud-run-l4: It runs out of memory while")
    assert "Instead: " in nothing.summary()
    assert nothing.warnings() == ()
