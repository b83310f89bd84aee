"""The limits as data: every row is sound, and agrees with the planner's."""

import re
from typing import Any

import pytest

from backends.cloud_run import container
from backends.container import flag_value, spreads_model
from core.errors import InvalidArgument
from core.records import NAME_PATTERN, Target
from planner.places import Size
from tests.backends.cloud_run.planned import L4, RTX, drawn, planned, site


@pytest.mark.parametrize("target", [L4, RTX])
def test_every_size_that_the_planner_offers_is_one_that_cloud_run_gives(target: str) -> None:
    """Two tables of one thing must not drift apart."""
    named = site(target).target
    place = container.place_of(named)
    for size in place.sizes:
        container.refuse_size(container.gpu_of(named), place, size, Size(vcpu=0, ram_gib=0))
    assert container.place_of(named).name == target
    limit = container.place_of(named).startup_seconds_max
    assert limit == container.rules().limits.startup_seconds


def test_a_target_whose_gpu_cloud_run_does_not_have_is_refused() -> None:
    """A made-up target says so at once, and names those that there are."""
    for accelerator in ("nvidia-h100", None):
        odd = Target(name="odd", backend="cloud_run", description="", accelerator=accelerator)
        with pytest.raises(InvalidArgument) as refused:
            container.place_of(odd)
        assert "nvidia-l4" in refused.value.fix


@pytest.mark.parametrize("name", ["a", "gemma-4", "a" * 40])
def test_a_deployments_name_is_a_services_name(name: str) -> None:
    """Whatever the tools take as a name, Cloud Run takes too."""
    assert re.fullmatch(NAME_PATTERN, name)
    container.refuse_name(name)


@pytest.mark.parametrize("name", ["", "4gemma", "Gemma", "gemma-", "a_b", "a" * 50])
def test_what_no_service_can_be_called_is_refused(name: str) -> None:
    """The pattern is Cloud Run's own."""
    with pytest.raises(InvalidArgument):
        container.refuse_name(name)


def test_a_region_that_is_not_listed_is_a_warning_and_what_is_no_region_is_refused() -> None:
    """Google adds regions often, and knows which."""
    for target, region in ((L4, "europe-north1"), (RTX, "us-east4")):
        made = planned(site(target, google_cloud_location=region))
        (warning,) = [one for one in made.warnings if region in one]
        assert "us-central1" in warning
    for name in ("europe", "us-east4-a", "Frankfurt"):
        with pytest.raises(InvalidArgument, match="no region of Google Cloud"):
            drawn(site(L4, google_cloud_location=name))


@pytest.mark.parametrize(
    ("target", "said", "size"),
    [
        (L4, {"cpu": 8}, (8, 32)),
        (L4, {"cpu": 6}, (6, 24)),
        (L4, {"memory_gib": 24}, (8, 24)),
        (L4, {"cpu": 8, "memory_gib": 20}, (8, 20)),
        (RTX, {"cpu": 30}, (30, 80)),
        (RTX, {"memory_gib": 176}, (44, 176)),
    ],
)
def test_processors_and_memory_that_are_asked_for_are_given(
    target: str, said: dict[str, Any], size: tuple[int, int]
) -> None:
    """What is left out fits the rest; where Google names no largest size, more is doubted."""
    made = planned(target, model="google/gemma-4-E2B-it", **said)
    limits = made.steps[-1].request["service"]["template"]["containers"][0]["resources"]["limits"]
    assert (limits["cpu"], limits["memory"]) == (str(size[0]), f"{size[1]}Gi")
    doubted = any("names no largest size" in warning for warning in made.warnings)
    assert doubted == (target == RTX)


def test_memory_that_is_asked_for_is_paid_for() -> None:
    small = planned(L4, model="gemma3:4b", engine="ollama")
    large = planned(L4, model="gemma3:4b", engine="ollama", cpu=8, memory_gib=32)
    assert (large.usd_per_hour or 0) > (small.usd_per_hour or 0)


@pytest.mark.parametrize(
    "said",
    [
        {"cpu": 2},
        {"cpu": 5},
        {"cpu": 16},
        {"cpu": 4.5},
        {"memory_gib": 8},
        {"memory_gib": 40},
        {"memory_gib": 16.5},
        {"cpu": 4, "memory_gib": 32},
        {"cpu": 8, "access": "public"},
    ],
)
def test_processors_and_memory_that_cloud_run_does_not_give_are_refused(
    said: dict[str, Any],
) -> None:
    with pytest.raises(InvalidArgument):
        drawn(L4, **said)


def test_a_region_by_invitation_is_a_warning() -> None:
    """Google's page and what projects see disagree, so that the quota decides."""
    invited = planned(site(L4, google_cloud_location="us-central1"))
    assert any("invitation" in warning for warning in invited.warnings)
    assert not any("invitation" in warning for warning in planned(L4).warnings)
    assert drawn(site(L4, google_cloud_location="europe-west1")).region == "europe-west1"


def test_the_last_word_on_a_flag_wins() -> None:
    """As vLLM reads its command line."""
    words = ("--load-format", "auto", "--Load", "--load_format=runai_streamer", "--end")
    assert flag_value(words, "--load-format") == "runai_streamer"
    assert flag_value(words, "--end") == ""
    assert flag_value(words, "--none") is None
    assert spreads_model(("-dp", "2"))
    assert not spreads_model(("--tensor-parallel-size", "1"))
