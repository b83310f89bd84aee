"""The nouns."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from core.records import (
    SIMULATED,
    Deleted,
    Deployment,
    DeploymentSpec,
    Failure,
    Phase,
    State,
    expiry,
    moment,
)
from tests.logs.conftest import NOW


def deployment(state: State, **more: Any) -> Deployment:
    return Deployment(
        name="one",
        target="local",
        state=state,
        since=NOW,
        model="google/gemma-4-E2B-it",
        served_model_name="google/gemma-4-E2B-it",
        engine="vLLM 0.32.0",
        revision="r",
        created_at=NOW,
        **more,
    )


@pytest.mark.parametrize("name", ["a", "gemma-4", "a" * 40, "x1"])
def test_a_name_is_what_every_cloud_accepts(name: str) -> None:
    """Lower-case letters, digits and hyphens."""
    assert DeploymentSpec(name=name, model="m").name == name


@pytest.mark.parametrize("name", ["", "A", "1a", "-a", "a-", "a_b", "a.b", "a b", "a" * 41, "a\n"])
def test_a_name_that_some_cloud_refuses_is_refused(name: str) -> None:
    """Before anything is made."""
    with pytest.raises(ValidationError):
        DeploymentSpec(name=name, model="m")


@pytest.mark.parametrize(
    "wanted",
    [
        {"max_model_len": 0},
        {"gpu_memory_utilization": 0},
        {"gpu_memory_utilization": 1.1},
        {"kv_cache_memory_bytes": "64 MB"},
        {"port": 65536},
        {"model": ""},
        {"model": "--help"},
        {"engine_args": ("a\x00b",)},
        {"no_such_flag": 1},
    ],
)
def test_a_spec_that_no_engine_can_take_is_refused(wanted: dict[str, Any]) -> None:
    """Out of range, of another form, unknown, or a flag where a model belongs."""
    with pytest.raises(ValidationError):
        DeploymentSpec.model_validate({"name": "one", "model": "m", **wanted})


@pytest.mark.parametrize(
    ("model", "served"),
    [
        ("google/gemma-4-E2B-it", "google/gemma-4-E2B-it"),
        ("/models/gemma/", "gemma"),
        ("~/gemma", "gemma"),
        ("./x/gemma", "gemma"),
    ],
)
def test_a_model_is_served_by_its_id_or_its_folders_name(model: str, served: str) -> None:
    """So that clients can ask for it."""
    assert DeploymentSpec(name="one", model=model).served_model_name == served


def test_a_fingerprint_changes_with_anything_that_is_wanted() -> None:
    """And with nothing else."""
    spec = DeploymentSpec(name="one", model="m")
    assert spec.fingerprint == DeploymentSpec(name="one", model="m").fingerprint
    changed = [
        spec.model_copy(update=update)
        for update in ({"max_model_len": 1}, {"engine_args": ("-x",)}, {"ttl_minutes": 5})
    ]
    assert len({one.fingerprint for one in (spec, *changed)}) == 4


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_sentence_and_a_next_step(state: State) -> None:
    """What stays as it is names what a person does now; the rest is waited for."""
    seen = deployment(state)
    assert seen.summary().startswith(f"one on local is {state}")
    tools = [step.tool for step in seen.next_steps()]
    assert tools
    assert (tools == ["status_vllm"]) is (not state.settled)
    assert all(step.arguments["name"] == "one" for step in seen.next_steps())


def test_what_took_less_than_a_second_so_far_is_not_announced() -> None:
    quick = Phase(name="warming", since=NOW, spent={"start": 0.2})
    long = Phase(name="warming", since=NOW, spent={"start": 12.2})
    assert "So far" not in deployment(State.LOADING, phase=quick).summary()
    assert deployment(State.LOADING, phase=long).summary().endswith("So far: start 12 s.")


def test_a_sentence_says_what_matters_most() -> None:
    """What is wrong, else what is waited for, else where it answers."""
    url = "http://127.0.0.1:8000"
    failure = Failure(code="X", cause="It broke.", fix="Mend it.")
    phase = Phase(name="loading weights", since=NOW, percent=61)
    broken = deployment(State.FAILED, failure=failure, phase=phase, url=url)
    assert broken.summary() == "one on local is failed: It broke."
    booting = deployment(State.LOADING, phase=phase, url=url)
    pace = r"one on local is loading: loading weights 61 %\. About \d+ s more at this pace\."
    assert re.fullmatch(pace, booting.summary())
    usual = phase.model_copy(update={"usual_seconds": 90.0})
    again = deployment(State.LOADING, phase=usual, url=url)
    assert again.summary().endswith("loading weights 61 %. It usually takes about 90 s.")
    ready = deployment(State.READY, url=url, replicas=2, usd_per_hour=1.05)
    head = f"one on local is ready: google/gemma-4-E2B-it at {url}; 2 replicas"
    since = f"$2.10 an hour, since {NOW:%F %H:%M} UTC"
    assert ready.summary() == f"{head}, {since}."
    known = {"min_replicas": 1, "max_replicas": 2, "last_used": "last used 02:10 UTC"}
    scaled = ready.model_copy(update=known)
    assert scaled.summary() == f"{head} of 1-2, {since}; last used 02:10 UTC."


def test_what_is_simulated_says_so() -> None:
    """Every time."""
    assert deployment(State.READY, simulated=True).warnings() == (SIMULATED,)
    assert deployment(State.READY).warnings() == ()


@pytest.mark.parametrize(
    ("gone", "removed", "sentence", "step"),
    [
        (True, ("its key", "its log"), "is gone: its key, its log.", "list_deployments"),
        (True, (), "was already gone.", "list_deployments"),
        (False, (), "is being deleted.", "destroy_vllm"),
    ],
)
def test_a_deletion_says_how_far_it_is(
    removed: tuple[str, ...], sentence: str, step: str, *, gone: bool
) -> None:
    """Gone with what it took, gone before, or not yet."""
    deleted = Deleted(name="one", target="local", gone=gone, removed=removed)
    assert deleted.summary() == f"one on local {sentence}"
    assert [one.tool for one in deleted.next_steps()] == [step]


def test_a_time_is_over_so_many_minutes_after_it_began() -> None:
    """Without one it never is."""
    began = datetime(2026, 12, 31, 23, 59, tzinfo=UTC)
    assert expiry(began, 2) == began + timedelta(minutes=2)
    assert expiry(began, None) is None


@pytest.mark.parametrize(("hours", "way"), [(1, "deploy_vllm again"), (-1, "Call stop_vllm")])
def test_what_nothing_in_the_cloud_ends_says_what_does(hours: int, way: str) -> None:
    """Before its time is over the rest of its lease can be made; afterwards that ends nothing."""
    at = datetime.now(UTC) + timedelta(hours=hours)
    seen = deployment(State.READY, expires_at=at, lease_lacks="its job is missing")
    [said] = [one for one in seen.warnings() if "Nothing in the cloud ends one" in one]
    assert way in said
    assert (seen.next_steps()[0].tool == "deploy_vllm") is (hours > 0)


@pytest.mark.parametrize(
    ("state", "ahead", "does"),
    [
        (State.READY, 0, "keeps it warm until"),
        (State.ASLEEP, 0, "is to keep it warm until"),
        (State.ASLEEP, 3, "wakes it at"),
    ],
)
def test_a_schedule_says_what_it_does_next(state: State, ahead: int, does: str) -> None:
    """Of two whole days, of which the first is today or is yet to come."""
    first = datetime.now(UTC) + timedelta(days=ahead)
    said = f"{first:%a},{first + timedelta(days=1):%a} 00:00-24:00"
    assert f"; its schedule ({said}) {does} " in deployment(state, schedule=said).summary()


@pytest.mark.parametrize(
    ("ahead", "does"), [(0, "keeps it warm until {end}"), (3, "its time is over at {end}, before ")]
)
def test_a_schedule_says_nothing_for_after_its_end(ahead: int, does: str) -> None:
    """What its lease has stopped by then no schedule wakes or keeps warm."""
    now = datetime.now(UTC)
    end, first = now + timedelta(hours=1), now + timedelta(days=ahead)
    said = f"{first:%a},{first + timedelta(days=1):%a} 00:00-24:00"
    seen = deployment(State.READY, schedule=said, expires_at=end).summary()
    assert does.format(end=moment(end)) in seen
