"""Plans made of a profile and what a person changes of it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmark.profiles import PROFILES, plan_of
from benchmark.records import Arrivals, Limits, Profile
from core.errors import CommandNotFound, InvalidArgument

LIMITS = {"ttft_seconds": 0.5}


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_makes_a_plan(profile: Profile) -> None:
    """With nothing but the limits that a search needs."""
    plan = plan_of(profile, limits=LIMITS)
    assert (plan.profile, bool(plan.contexts), bool(plan.loads)) == (profile, True, True)
    if profile in {"standard", "full", "article"}:  # powers of two to 16,384 tokens, 2,048 users
        assert plan.contexts == tuple(2**n for n in range(3, 15))
        assert [load.concurrency for load in plan.loads] == [2**n for n in range(12)]


def test_quick_takes_a_few_minutes_and_full_is_narrower_than_standard() -> None:
    """Even if every cell takes all of its time; a publication has no gaps."""
    quick, full, standard = plan_of(), plan_of("full"), plan_of("standard")
    assert (len(quick.contexts), len(quick.loads)) == (3, 4)
    assert 12 * (quick.stop.max_seconds + quick.stop.warmup_max_seconds) < 200
    assert full.stop.relative_half_width < standard.stop.relative_half_width
    assert (full.stop_saturated, standard.stop_saturated) == (False, True)


def test_article_is_one_burst_of_one_prompt_and_one_token() -> None:
    """Sixty seconds, as the published scripts have it, in every cell."""
    plan = plan_of("article")
    assert {load.arrivals for load in plan.loads} == {Arrivals.ONCE}
    assert (plan.workload.prefix_share, plan.workload.output_tokens) == (1.0, 1)
    assert plan.stop.request_timeout_seconds == 60
    assert plan.stop_saturated is False


def test_what_is_said_replaces_what_the_profile_says() -> None:
    """In ascending order, each once; what is None says nothing."""
    plan = plan_of(
        "standard",
        contexts=[512, 8, 8],
        concurrencies=[4, 1],
        output_tokens=16,
        cell_seconds=2.0,
        limits={"ttft_seconds": 0.3},
        seed=7,
        workers=None,
        max_cost_usd=2.5,
    )
    assert plan.contexts == (8, 512)
    assert [load.concurrency for load in plan.loads] == [1, 4]
    assert (plan.workload.output_tokens, plan.workload.seed) == (16, 7)
    assert (plan.stop.min_seconds, plan.stop.max_seconds) == (2.0, 2.0)
    assert plan.limits == Limits(ttft_seconds=0.3)
    assert (plan.workers, plan.max_cost_usd) == (None, 2.5)


def test_rates_make_open_loops_and_bursts() -> None:
    """Poisson unless said otherwise, which a tool always says; bursts have a size and a rate."""
    loads = plan_of(requests_per_second=[4, 2]).loads
    assert [(x.arrivals, x.requests_per_second, x.concurrency) for x in loads] == [
        (Arrivals.POISSON, 2.0, None),
        (Arrivals.POISSON, 4.0, None),
    ]
    assert plan_of(requests_per_second=[1], arrivals="constant").loads[0].arrivals == "constant"
    bursts = plan_of(requests_per_second=[2, 4], concurrencies=[8], arrivals="bursts").loads
    assert [(x.concurrency, x.requests_per_second) for x in bursts] == [(8, 2.0), (8, 4.0)]
    assert plan_of(arrivals="poisson") == plan_of()


def test_a_dataset_names_its_row_by_the_mean_of_its_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is found from every folder."""
    file = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": letter * length}) for letter, length in (("a", 38), ("b", 118))]
    file.write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    plan = plan_of(dataset="prompts.jsonl")
    assert plan.contexts == (20,)
    assert plan.workload.dataset == str(file.resolve())
    assert plan.workload.api == "completion"
    assert plan.workload.prefix_share == pytest.approx(0, abs=0.01)


def test_a_dataset_of_conversations_is_asked_as_chats_and_says_what_they_share(
    tmp_path: Path,
) -> None:
    """Turn by turn: of 1, 2 and 3 messages of the same length the cache may know 3 of 6."""
    said = [{"role": "user", "content": letter * 2_000} for letter in "abc"]
    file = tmp_path / "turns.jsonl"
    file.write_text("\n".join(json.dumps({"messages": said[:turns]}) for turns in (3, 1, 2)))
    work = plan_of(dataset=str(file)).workload
    assert work.api == "chat"
    assert work.prefix_share == pytest.approx(0.5, abs=0.01)
    with pytest.raises(InvalidArgument, match="which the completion API does not take"):
        plan_of(dataset=str(file), api="completion")
    with pytest.raises(InvalidArgument, match="share what they share"):
        plan_of(dataset=str(file), prefix_share=0.9)


@pytest.mark.parametrize(
    ("profile", "overrides", "named"),
    [
        ("slow", {}, "slow"),
        ("quick", {"colour": "red"}, "colour"),
        ("quick", {"contexts": []}, "contexts"),
        ("quick", {"contexts": [0]}, "contexts"),
        ("quick", {"contexts": [1.5]}, "contexts"),
        ("quick", {"concurrencies": [-1]}, "concurrencies"),
        ("quick", {"requests_per_second": [0.0]}, "requests_per_second"),
        ("quick", {"requests_per_second": [float("nan")]}, "requests_per_second"),
        ("quick", {"requests_per_second": [1.0], "concurrencies": [8]}, "users or a rate"),
        ("quick", {"requests_per_second": [1.0], "arrivals": "bursts"}, "Bursts"),
        ("quick", {"requests_per_second": [1.0], "arrivals": "once"}, "once"),
        ("quick", {"output_tokens": 0}, "output_tokens"),
        ("quick", {"prefix_share": 1.5}, "prefix_share"),
        ("quick", {"max_cost_usd": -1.0}, "max_cost_usd"),
        ("quick", {"max_minutes": 0.0}, "max_minutes"),
        ("quick", {"limits": {"ttft_seconds": 0.0}}, "ttft_seconds"),
        ("quick", {"limits": {"patience": 1.0}}, "patience"),
        ("quick", {"workers": 0}, "workers"),
        ("quick", {"nodes": 3}, "cluster"),
        ("quick", {"insecure_cluster": True}, "cluster"),
        ("quick", {"cluster": "ray://user:secret@10.0.0.7"}, "ray://HOST:10001"),
        ("quick", {"dataset": "no/such/file.jsonl"}, "file.jsonl"),
        ("quick", {"dataset": "a.jsonl", "contexts": [8]}, "contexts"),
        ("article", {"requests_per_second": [2.0]}, "requests_per_second"),
        (
            "find-capacity",
            {
                "limits": LIMITS,
                "requests_per_second": [1.0],
                "concurrencies": [4],
                "arrivals": "bursts",
            },
            "bursts",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(
    profile: Any, overrides: dict[str, Any], named: str
) -> None:
    """The error names the argument and what to do."""
    with pytest.raises(InvalidArgument) as refused:
        plan_of(profile, **overrides)
    assert named in f"{refused.value.summary} {refused.value.fix}"
    assert refused.value.fix


def test_without_ray_a_cluster_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else goes on without it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CommandNotFound, match="needs Ray") as refused:
        plan_of("quick", cluster="auto")
    assert "requirements-ray.txt" in refused.value.fix
    assert plan_of("quick").cluster is None
