"""Models and places side by side."""

import pytest

from planner.advise import Comparison, Goal, Row, compare


def row(found: Comparison, model: str, where: str) -> Row:
    return next(each for each in found.rows if model in each.model and each.place == where)


def test_rows_come_in_the_order_asked_for() -> None:
    """Models by places."""
    found = compare(["12b qat", "26b qat"], ["cloud-run-l4", "aca-t4"], Goal())
    assert [(each.model.split("-")[2], each.place) for each in found.rows] == [
        ("12B", "cloud-run-l4"), ("12B", "aca-t4"), ("26B", "cloud-run-l4"), ("26B", "aca-t4"),
    ]  # fmt: skip


def test_what_does_not_fit_says_why() -> None:
    """26B in int4 on a T4."""
    found = compare(["26b qat"], ["aca-t4"], Goal())
    assert not found.rows[0].fits
    assert "out of memory while loading" in found.rows[0].reason
    assert found.summary() == "None of them fits."
    assert found.cheapest is None


def test_price_and_performance_across_clouds() -> None:
    """The same card costs more where it sleeps for nothing; how much is said."""
    found = compare(["12b qat"], ["ec2-g6-2xlarge", "gke-l4", "cloud-run-l4"], Goal(users=4))
    times = row(found, "12B", "cloud-run-l4").times_the_cheapest
    assert times == pytest.approx(1.4209 / 0.8536, rel=0.01)
    assert row(found, "12B", "gke-l4").times_the_cheapest == 1
    assert found.cheapest == "google/gemma-4-12B-it-qat-w4a16-ct on gke-l4"
    speeds = {each.tokens_per_second_per_user for each in found.rows}
    assert len(speeds) == 1
    assert "they are equally fast for each of 4 users" in found.summary()
    assert "fastest" not in found.summary()


def test_two_models_on_one_card_cost_the_same_by_the_hour() -> None:
    """Neither is the cheapest by the hour; by the token one is, and it is named for both."""
    found = compare(["31b qat", "12b qat"], ["aca-a100", "tpu-v6e-8"], Goal())
    assert row(found, "31B", "aca-a100").usd_per_hour == row(found, "12B", "aca-a100").usd_per_hour
    assert "cheapest by the hour" not in found.summary()
    assert "2 of them cost the same by the hour" in found.summary()
    assert found.cheapest == "google/gemma-4-12B-it-qat-w4a16-ct on aca-a100"


def test_the_fastest_the_cheapest_and_the_best_value_may_differ() -> None:
    """An hour of an L4 is cheap, its tokens are not."""
    found = compare(["e2b"], ["cloud-run-l4", "tpu-v6e-1", "h100"], Goal(users=8))
    assert found.cheapest
    assert found.cheapest.endswith("cloud-run-l4")
    assert found.best_value
    assert not found.best_value.endswith("cloud-run-l4")
    assert found.fastest
    assert found.fastest.endswith("tpu-v6e-1")  # no speed was ever measured on an H100
    rows = {row.place: row.beyond for row in found.rows}
    assert "nothing was measured there" in (rows["h100"] or "")
    assert rows["tpu-v6e-1"] is None


def test_what_published_vllm_cannot_serve_is_best_at_nothing() -> None:
    """A T4 is the cheapest hour here, and Gemma 4 dies on it: its row says so, and has figures."""
    found = compare(["e2b"], ["aca-t4", "tpu-v6e-1"], Goal())
    t4 = row(found, "E2B", "aca-t4")
    assert t4.fits
    assert t4.unserved
    assert "96 KiB" in t4.unserved
    assert t4.usd_per_hour
    assert {found.cheapest, found.best_value, found.fastest} == {
        "google/gemma-4-E2B-it on tpu-v6e-1"
    }
    assert compare(["e2b"], ["aca-t4"], Goal()).summary() == (
        "None of them is served by published vLLM."
    )


def test_every_place_is_compared_when_none_is_named() -> None:
    """Refusals included."""
    found = compare(["31b"], [], Goal())
    assert {each.place for each in found.rows if each.fits} >= {"h100", "cloud-run-rtx-pro-6000"}
    assert any(not each.fits for each in found.rows)
