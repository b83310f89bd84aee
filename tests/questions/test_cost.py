"""What it costs, asked as people ask it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from core.settings import Settings
from tests.questions.planted import measured
from tests.questions.typed import typed
from tests.stories.conftest import Cloud
from tests.stories.life import Life

pytestmark = pytest.mark.anyio

Asked = Callable[..., Any]
E4B: Final = "google/gemma-4-E4B-it"
L4: Final = "cloud-run-l4"
RUN: Final = "20261121-120000-quick-one"
USD_PER_HOUR: Final = 1.4209


@typed("cost per token", "cost per 1,000 requests", "cost per active user and hour")
async def test_a_measured_cost_stands_beside_the_foreseen_one(
    asked: Asked, settings: Settings, state_dir: Path, words: str
) -> None:
    """Of a run that is kept; each figure says whence it is.

    The nearest cell to 8 users and 1,024 tokens is 8 users and 512 tokens: 400 tokens/s of 64 in
    an answer are 6.25 requests/s.
    """
    measured(state_dir, RUN, model=E4B, target=L4, accelerator="L4", usd_per_hour=USD_PER_HOUR)
    async with asked(settings) as ask:
        reply = await ask(words).call("estimate_cost", target=L4, model="e4b", users=8)
    seen, per_second = reply.data["measured"], USD_PER_HOUR / 3600
    assert (seen["run"], seen["cell"]) == (RUN, "512x8")
    assert seen["usd_per_1000_requests"] == pytest.approx(per_second * 1000 / 6.25, abs=1e-4)
    tokens = 6.25 * (512 + 64)
    assert seen["usd_per_million_tokens"] == pytest.approx(per_second * 1e6 / tokens, abs=1e-4)
    assert seen["usd_per_million_output_tokens"] == pytest.approx(per_second * 1e6 / 400, abs=1e-4)
    assert seen["usd_per_active_user_hour"] == pytest.approx(USD_PER_HOUR / 8, abs=1e-4)
    assert "as measured with 8 in flight, 512 tokens in, 64 out" in reply.structured["summary"]
    assert "predicted with 8 at once, 1,024 tokens in, 256 out" in reply.structured["summary"]
    assert reply.data["bill"]["usd_per_active_user_hour"] == pytest.approx(
        USD_PER_HOUR / 8, abs=1e-4
    )


async def test_a_spoiled_run_prices_nothing(
    asked: Asked, settings: Settings, state_dir: Path
) -> None:
    """Without a valid cell only what is foreseen is told."""
    folder = measured(state_dir, RUN, model=E4B, target=L4)
    text = folder.cells_file.read_text()
    spoiled = '"verdicts":[{"code":"OTHER_LOAD","because":"somebody asked"}]'
    folder.cells_file.write_text(text.replace('"verdicts":[]', spoiled))
    async with asked(settings) as ask:
        reply = await ask("cost per token").call("estimate_cost", target=L4, model="e4b")
    assert "measured" not in reply.data
    assert "predicted" in reply.structured["summary"]


async def test_what_is_deployed_is_what_is_priced(asked: Asked, cloud: Cloud) -> None:
    """Who has deployed one model here need not name it again."""
    async with asked(cloud.settings) as ask:
        question = ask("cost per token")
        await Life(question.agent, L4).begins()
        reply = await question.call("estimate_cost")
        await Life(question.agent, L4).ends()
        gone = await ask("cost per token").call("estimate_cost")
    assert (reply.data["target"], reply.data["model"]) == (L4, "google/gemma-4-E2B-it")
    assert gone.code == "AMBIGUOUS"


@typed("cost per month at a duty cycle")
async def test_a_month_at_a_duty_cycle_has_a_price(asked: Asked, words: str) -> None:
    """Fewer hours cost less where it sleeps; where it bills until it is deleted, that is said."""
    async with asked() as ask:
        question = ask(words)
        sleeps = await question.call("estimate_cost", target=L4, hours_per_month=73)
        stays = await question.call("estimate_cost", target="tpu-v6e-1", hours_per_month=73)
    hourly = sleeps.data["bill"]["usd_per_hour"]
    assert sleeps.data["bill"]["usd_per_month"] == pytest.approx(hourly * 73, abs=0.01)
    assert stays.data["bill"]["usd_per_month"] == pytest.approx(2.7219 * 73, abs=0.01)
    assert "10 % of a month" in sleeps.data["duty"]
    assert "sleeps for nothing" in sleeps.data["duty"]
    assert "only if it is deleted" in stays.data["duty"]


@typed("best practices for inference on this target")
async def test_best_practices_are_rules_for_what_is_deployed(
    asked: Asked, cloud: Cloud, words: str
) -> None:
    """Each rule, and whether it is followed."""
    async with asked(cloud.settings) as ask:
        question = ask(words)
        await Life(question.agent, L4).begins()
        explained = await question.call("explain_deployment", target=L4)
        await Life(question.agent, L4).ends()
    assert explained.data["practices"]
    for each in explained.data["practices"]:
        assert each["rule"]
    assert {False, True} & {each.get("followed") for each in explained.data["practices"]}
