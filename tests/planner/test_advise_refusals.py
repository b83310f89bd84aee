"""What is refused, and which of many reasons is told."""

import pytest

from planner.advise import Goal, Offer, advise, consider
from planner.places import place
from tests.planner.shapes import catalogued

T4 = ("aca-t4",)


@pytest.mark.parametrize(
    "goal",
    [
        Goal(model="e2b", places=T4),
        Goal(model="e2b", places=T4, usd_per_hour=1),
        Goal(model="12b qat", places=T4, max_model_len=200_000),
    ],
    ids=["as it is", "for more money", "with less length"],
)
def test_what_published_vllm_cannot_serve_is_not_offered(goal: Goal) -> None:
    """Nor is more money or less length told as a way to have it; elsewhere it is to be had."""
    advice = advise(goal)
    (refusal,) = advice.refused
    assert (advice.offers, refusal.why, refusal.nearest) == ((), "accelerator", ())
    assert "Published vLLM cannot serve it there" in advice.summary()
    assert all(offer.place != "aca-t4" for offer in (*advice.elsewhere, *advice.instead))


def test_a_place_that_only_an_image_of_ones_own_serves_is_still_considered() -> None:
    """A comparison has its figures, and says so of them."""
    found = consider(catalogued("e2b"), place("aca-t4"), Goal(model="e2b"))
    assert isinstance(found, Offer)
    assert "Published vLLM cannot serve it there" in found.doubts[0]
    assert found.doubts[0].endswith("The figures are what such an image would come to.")


def test_a_refusal_speaks_of_no_figures_because_it_has_none() -> None:
    """It ends with who could serve it there; only then comes what else there is."""
    advice = advise(Goal(model="e2b", places=T4))
    (refusal,) = advice.refused
    assert refusal.reason.endswith("An image of your own with smaller tiles may serve it there.")
    assert "figures" not in advice.summary()
    assert "may serve it there. Instead: " in advice.summary()


def test_where_only_the_memory_is_too_small_that_is_the_reason() -> None:
    """Where no vLLM would load it, the published one is not to blame."""
    (refusal,) = advise(Goal(model="26b qat", places=T4)).refused
    assert "while loading" in refusal.reason


def test_the_commonest_reason_is_told_with_the_length_that_cures_it() -> None:
    """A machine that nobody knows comes first in the list, and is not why."""
    said = advise(Goal(model="e4b", max_model_len=500_000)).summary()
    assert said.startswith("Nothing fits. aca-a100 and ")
    assert "beyond the model's 131,072 positions." in said
    assert said.endswith("It fits aca-a100 with max_model_len=131072.")


def test_reasons_that_differ_in_their_figures_are_of_one_kind() -> None:
    """Every place is too slow by its own figures; no length would make it quicker."""
    said = advise(Goal(model="e2b", tokens_per_second_per_user=5000)).summary()
    assert "5000 tokens/s for each of 1 is more than" in said
    assert "max_model_len" not in said
