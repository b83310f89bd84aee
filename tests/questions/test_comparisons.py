"""Models, targets and clouds held against each other, as people ask for it."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from core.settings import Settings
from planner.places import places
from planner.price import price
from tests.questions.planted import measured
from tests.questions.typed import typed
from tests.tools.test_advice import middle

pytestmark = pytest.mark.anyio

Asked = Callable[..., Any]
E2B: Final = "google/gemma-4-E2B-it"
E4B: Final = "google/gemma-4-E4B-it"
L4: Final = "cloud-run-l4"
PRINTED: Final = "tpu_v6e4_vs_v6e1_comparison.md"


def both_sizes(state_dir: Path) -> None:
    """One model on one chip, and 2.5 times as fast on four."""
    chips: dict[str, Any] = {"accelerator": "v6e", "model": E4B}
    one: dict[str, Any] = {"target": "tpu-v6e-1", "accelerator_count": 1, "usd_per_hour": 2.7}
    four: dict[str, Any] = {"target": "tpu-v6e-4", "accelerator_count": 4, "usd_per_hour": 10.8}
    measured(state_dir, "20261121-120000-quick-one", **chips, **one)
    measured(state_dir, "20261121-130000-quick-one", **chips, **four, times=2.5)


@typed(
    "compare 26B QAT to 12B QAT, 26B QAT to 12B non QAT, 26B QAT to 4B QAT, 26B QAT to 4B non QAT"
)
async def test_each_model_has_a_row(asked: Asked, words: str) -> None:
    """What does not fit says why; nothing is called measured."""
    models = ["26B QAT", "12B QAT", "12B non QAT", "4B QAT", "4B non QAT"]
    async with asked() as ask:
        reply = await ask(words).call("compare_targets", models=models, targets=[L4])
    qat26, qat12, bf12, qat4, _ = reply.data["rows"]
    assert qat12["weights_gib"] < qat26["weights_gib"]
    assert (bf12["fits"], bool(bf12["reason"])) == (False, True)
    assert middle(qat26["usd_per_million_tokens"]) < middle(qat4["usd_per_million_tokens"])
    assert "Nothing of this was measured here" in reply.structured["summary"]


@typed("how does the performance compare to ACA T4?")
async def test_what_was_measured_is_told_from_what_is_only_foreseen(
    asked: Asked, settings: Settings, state_dir: Path, words: str
) -> None:
    """One side has a run; the other cannot be served by published vLLM at all, and says so."""
    run = "20261121-120000-quick-one"
    measured(state_dir, run, model=E2B, target=L4, accelerator="L4", usd_per_hour=1.0465)
    async with asked(settings) as ask:
        reply = await ask(words).call("compare_targets", models=["e2b"], targets=[L4, "ACA T4"])
    here, t4 = reply.data["rows"]
    assert run in here["measured"]
    assert "50 output tokens/s" in here["measured"]
    assert "measured" not in t4
    summary = reply.structured["summary"]
    assert f"Measured here: {E2B} on {L4}; the other 1 row is only predicted." in summary
    assert f"E2B on {L4} is cheapest by the hour" in summary
    assert any("Published vLLM cannot serve it" in each for each in reply.structured["warnings"])


async def test_a_simulated_run_is_no_measurement_of_hardware(
    asked: Asked, settings: Settings, state_dir: Path
) -> None:
    """Its figures are told as what they are."""
    folder = measured(state_dir, "20261121-120000-quick-one", model=E2B, target=L4)
    manifest = folder.manifest()
    subject = manifest.subject.model_copy(update={"simulated": True})
    folder.create(manifest.model_copy(update={"subject": subject}))
    async with asked(settings) as ask:
        question = ask("how does the performance compare to ACA T4?")
        reply = await question.call("compare_targets", models=["e2b"], targets=[L4, "aca-t4"])
    assert "simulated engine" in reply.data["rows"][0]["measured"]
    assert any("no hardware was there" in each for each in reply.structured["warnings"])


async def test_a_simulated_run_makes_nobody_the_fastest(
    asked: Asked, settings: Settings, state_dir: Path
) -> None:
    """A speed above all that was measured is borne out by hardware alone."""
    model, rtx = "google/gemma-4-26B-A4B-it-qat-w4a16-ct", "cloud-run-rtx-pro-6000"
    folder = measured(state_dir, "20261121-120000-quick-one", model=model, target=rtx)
    real = folder.manifest()
    subject = real.subject.model_copy(update={"simulated": True})
    fastest = []
    for manifest in (real.model_copy(update={"subject": subject}), real):
        folder.create(manifest)
        async with asked(settings) as ask:
            question = ask("how does the performance compare to ACA T4?")
            reply = await question.call("compare_targets", models=["26b qat"], targets=[rtx, L4])
        fastest.append(reply.data["fastest"])
    assert fastest == [f"{model} on {L4}", f"{model} on {rtx}"]


@typed(
    "compare aws vs gcp vs azure performance", "compare price/performance across AWS,GCP,and Azure"
)
async def test_each_cloud_is_told_at_its_best_and_with_what_is_known_of_it(
    asked: Asked, words: str
) -> None:
    """Clouds are targets by name; of AWS one machine is known, its price from an article."""
    async with asked() as ask:
        reply = await ask(words).call(
            "compare_targets", models=["e4b"], targets=["AWS", "GCP", "Azure"], users=4
        )
    assert {row["place"].partition("-")[0] for row in reply.data["rows"]} == {
        "ec2", "cloud", "gke", "tpu", "aca",
    }  # fmt: skip
    for title in ("AWS: ", "Google Cloud: ", "Azure: "):
        assert title in reply.structured["summary"]


@typed(
    "Comparing the Gemma 4 2B model's performance to the Gemma 4 4B and 12B model, both running"
    " on a Cloud TPU v6e-4"
)
async def test_three_sizes_on_four_chips(asked: Asked, words: str) -> None:
    """The larger the slower."""
    async with asked() as ask:
        reply = await ask(words).call(
            "compare_targets", models=["Gemma 4 2B", "4B", "12B"], targets=["Cloud TPU v6e-4"]
        )
    speeds = [middle(row["tokens_per_second_per_user"]) for row in reply.data["rows"]]
    assert speeds == sorted(speeds, reverse=True)


@typed("print tpu_v6e4_vs_v6e1_comparison.md")
async def test_a_comparison_is_printed_be_it_there_or_not(
    asked: Asked, settings: Settings, state_dir: Path, words: str
) -> None:
    """Its name says what is compared; matrix, scaling, saturation and crossovers are in its text.

    Four chips are 2.5 times as fast as one at every load: 62.5 % of what their number promises,
    and no crossover. A newer run of another model is left alone.
    """
    both_sizes(state_dir)
    later = "20261121-140000-quick-one"
    measured(state_dir, later, model=E2B, target="tpu-v6e-1", accelerator="v6e")
    async with asked(settings) as ask:
        made = await ask(words).call("compare_benchmarks", file=PRINTED)
        again = await ask(words).call("compare_benchmarks", file=PRINTED)
    assert (made.data["made_now"], again.data["made_now"]) == (True, False)
    assert made.data["text"] == again.data["text"]
    kept = state_dir / "real" / "benchmarks" / PRINTED
    assert (made.data["file"], kept.read_text()) == (str(kept), made.data["text"])
    text = made.data["text"]
    assert E2B.rpartition("/")[2] not in text
    for part in ("## Throughput", "## Saturation", "## Scaling by load", "## Crossovers"):
        assert part in text
    assert "| 128 in flight | 2.5 | 3 | 62.5 % |" in text, text
    assert "None: one run is the better one at every load" in text


async def test_a_comparison_that_cannot_be_made_says_what_there_is(
    asked: Asked, settings: Settings, state_dir: Path
) -> None:
    """Without runs of both sides there is nothing to print; kept comparisons are named."""
    both_sizes(state_dir)
    async with asked(settings) as ask:
        await ask("print tpu_v6e4_vs_v6e1_comparison.md").call("compare_benchmarks", file=PRINTED)
        question = ask("print tpu_v6e4_vs_v6e1_comparison.md")
        missing = await question.call("compare_benchmarks", file="l4_vs_t4_comparison.md")
        strange = await question.call("compare_benchmarks", file="../journal.db")
    assert missing.code == "NOT_FOUND"
    assert PRINTED in missing.structured["fix"]
    assert strange.code == "INVALID_ARGUMENT"


@typed("what are high level recommendations for choosing the model and TPU for inference?")
async def test_choosing_begins_without_a_model(asked: Asked, words: str) -> None:
    """Every model with where it is served best."""
    async with asked() as ask:
        reply = await ask(words).call("recommend_deployment", targets=["TPU"])
    options = {each["model"]: each for each in reply.data["models"]}
    assert all(each["target"].startswith("tpu-") for each in options.values())
    assert {"E2B", "12B", "31B"} <= options.keys()
    assert options["31B"]["target"] != "tpu-v6e-1"
    tpus = [one for one in places().values() if one.deployable_by == "tpu"]
    cheapest = min(price(one).usd_per_hour or 0 for one in tpus)
    assert options["E2B"]["$/h"] == pytest.approx(cheapest)
    for quality in ("small", "medium", "large"):
        assert re.search(rf"{quality}: \S+ on tpu-", reply.structured["summary"])
