"""The limits as data: every row is sound, and agrees with the planner's."""

import re

import pytest

from backends.cloud_run import rules
from backends.common.words import said, spread_in
from core.errors import InvalidArgument
from core.records import NAME_PATTERN, Target
from tests.backends.cloud_run.planned import L4, RTX, drawn, planned, site


@pytest.mark.parametrize("target", [L4, RTX])
def test_every_size_that_the_planner_offers_is_one_that_cloud_run_gives(target: str) -> None:
    """Two tables of one thing must not drift apart."""
    named = site(target).target
    for size in rules.place_of(named).sizes:
        rules.refuse_size(rules.gpu_of(named), size)
    assert rules.place_of(named).name == target
    limit = rules.place_of(named).startup_seconds_max
    assert limit == rules.rules().limits.startup_seconds


def test_a_target_whose_gpu_cloud_run_does_not_have_is_refused() -> None:
    """A made-up target says so at once, and names those that there are."""
    for accelerator in ("nvidia-h100", None):
        odd = Target(name="odd", backend="cloud_run", description="", accelerator=accelerator)
        with pytest.raises(InvalidArgument) as refused:
            rules.place_of(odd)
        assert "nvidia-l4" in refused.value.fix


@pytest.mark.parametrize("name", ["a", "gemma-4", "a" * 40])
def test_a_deployments_name_is_a_services_name(name: str) -> None:
    """Whatever the tools take as a name, Cloud Run takes too."""
    assert re.fullmatch(NAME_PATTERN, name)
    rules.refuse_name(name)


@pytest.mark.parametrize("name", ["", "4gemma", "Gemma", "gemma-", "a_b", "a" * 50])
def test_what_no_service_can_be_called_is_refused(name: str) -> None:
    """The pattern is Cloud Run's own."""
    with pytest.raises(InvalidArgument):
        rules.refuse_name(name)


def test_a_region_without_the_gpu_is_refused_and_others_are_named() -> None:
    """R: the deploy would fail only after minutes."""
    nowhere = site(L4, google_cloud_location="europe-north1")
    with pytest.raises(InvalidArgument, match="europe-north1") as refused:
        drawn(nowhere)
    assert "us-east4" in refused.value.fix
    with pytest.raises(InvalidArgument):
        drawn(site(RTX, google_cloud_location="us-east4"))


def test_a_region_by_invitation_is_a_warning() -> None:
    """Google's page and what projects see disagree, so that the quota decides."""
    invited = planned(site(L4, google_cloud_location="us-central1"))
    assert any("invitation" in warning for warning in invited.warnings)
    assert not any("invitation" in warning for warning in planned(L4).warnings)
    assert drawn(site(L4, google_cloud_location="europe-west1")).region == "europe-west1"


def test_the_last_word_on_a_flag_wins() -> None:
    """As vLLM reads its command line."""
    words = ("--load-format", "auto", "--Load", "--load_format=runai_streamer", "--end")
    assert said(words, "--load-format") == "runai_streamer"
    assert said(words, "--end") == ""
    assert said(words, "--none") is None
    assert spread_in(("-dp", "2"))
    assert not spread_in(("--tensor-parallel-size", "1"))
