"""The limits as data: every row is sound, and agrees with the planner's."""

import re

import pytest

from backends.aca import container
from core.errors import InvalidArgument
from core.records import Target
from planner.flags import Flags, resolve
from planner.model import read_model
from planner.places import accelerator
from tests.backends.aca.planned import A100, QAT_12B, T4, drawn, planned, site, spec

targets = pytest.mark.parametrize("target", [A100, T4])


@targets
def test_the_size_and_the_boot_are_those_that_the_planner_reckons_with(target: str) -> None:
    """Two tables of one thing must not drift apart."""
    named = site(target).target
    place = container.place_of(named)
    assert place.name == target
    assert place.sizes == (container.size_of(named, spec()),)
    assert place.startup_seconds_max == container.rules().startup_probe.most_seconds
    assert container.gpu_of(named).profile_type in " ".join(place.limits)


@targets
def test_the_usual_number_of_requests_is_the_planners(target: str) -> None:
    """It decides how many requests one replica is given at once."""
    gpu = container.gpu_of(site(target).target)
    device = accelerator(container.place_of(site(target).target).accelerator)
    known = resolve(read_model(QAT_12B), device, Flags())
    assert known.max_num_seqs == gpu.max_num_seqs


def test_a_target_whose_gpu_container_apps_do_not_have_is_refused() -> None:
    """A made-up target says so at once, and names those that there are."""
    for odd in ("h100", None):
        unknown = Target(name="odd", backend="aca", description="", accelerator=odd)
        with pytest.raises(InvalidArgument) as refused:
            container.place_of(unknown)
        assert "a100-80" in refused.value.fix


@pytest.mark.parametrize("name", ["ab", "gemma-4", "a1-b2-c3", "a" * 32])
def test_a_name_that_an_app_can_have_is_taken(name: str) -> None:
    """Two letters at least, thirty-two at most."""
    container.refuse_name(name)


@pytest.mark.parametrize("name", ["", "a", "4gemma", "Gemma", "gemma-", "a--b", "a_b", "a" * 33])
def test_what_no_app_can_be_called_is_refused(name: str) -> None:
    """The tools' own rule takes forty characters and double hyphens; Azure does not."""
    with pytest.raises(InvalidArgument, match="No container app"):
        container.refuse_name(name)
    if re.fullmatch(r"[a-z][a-z0-9-]{0,38}[a-z0-9]|[a-z]", name):
        with pytest.raises(InvalidArgument, match="No container app"):
            drawn(name=name)


def test_more_replicas_than_an_app_has_are_refused() -> None:
    """A revision has a thousand; and never fewer at most than at least."""
    assert drawn(max_replicas=1000).max_replicas == 1000
    with pytest.raises(InvalidArgument, match="1000 replicas at most"):
        drawn(max_replicas=1001)
    with pytest.raises(InvalidArgument, match="more than max_replicas"):
        drawn(min_replicas=3, max_replicas=2)


def test_a_region_that_is_not_on_microsofts_page_is_a_warning() -> None:
    """A12: the page is of 2025, and Azure itself is asked by the check."""
    elsewhere = planned(site(A100, azure_location="norwayeast"))
    assert any("norwayeast is not on" in warning for warning in elsewhere.warnings)
    assert not any("is not on" in warning for warning in planned(A100).warnings)
    assert drawn(site(A100, azure_location="West US 3")).ground.region == "westus3"


@targets
def test_every_image_is_one_that_the_hosts_driver_runs(target: str) -> None:
    """Microsoft names no driver: CUDA 12.9 runs on every one of CUDA 12, and on newer ones."""
    gpu = container.gpu_of(site(target).target)
    assert gpu.image == f"vllm/vllm-openai:v{gpu.vllm}-cu129"
    assert gpu.cuda == "12.9"
