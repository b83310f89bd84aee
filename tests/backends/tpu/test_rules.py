"""What a TPU costs and has, and what its rules and targets say, held against what else is known."""

import re
from dataclasses import replace

import pytest

from backends.tpu import status, vm
from backends.tpu.site import key_secret, vm_id
from core.errors import InvalidArgument
from core.records import NAME_PATTERN
from planner.places import places
from planner.price import price
from tests.backends.tpu.planned import EVERY, drawn, spec
from tests.backends.tpu.sites import NAMES, offline, target_of

_LONGEST = "a" + "b" * 39


def test_every_target_has_a_place_with_a_price() -> None:
    """A row of targets.toml that the planner does not know could be deployed and not planned."""
    assert set(NAMES) == set(EVERY)
    for name in EVERY:
        place = places()[name]
        assert (place.deployable_by, place.accelerator) == ("tpu", "v6e")
        assert str(place.count) == name.split("-")[2]
        assert price(place).usd_per_hour
        vm.generation_of(place)


def test_the_longest_name_makes_ids_that_google_takes() -> None:
    """Instances, nodes, tags, firewall rules and labels have 63 characters."""
    assert re.fullmatch(NAME_PATTERN, _LONGEST)
    assert len(vm_id(_LONGEST)) <= 63
    assert len(key_secret(_LONGEST)) <= 255


def test_chips_of_another_generation_are_not_taken_for_these() -> None:
    """T52: a v5e has other machines, images and quotas, and its names are refused by every zone."""
    other = places()["tpu-v6e-1"].model_copy(update={"accelerator": "v5e"})
    with pytest.raises(InvalidArgument, match="not known here"):
        vm.generation_of(other)


@pytest.mark.parametrize(
    "zone",
    ["us-east5-b", "europe-west4-a", "us-central1-ai1a", "us-south1-ai1b", "asia-northeast1-b"],
)
def test_zones_are_taken(zone: str) -> None:
    """Also those of a kind that Google's page has beside the usual ones."""
    drawn(zones=(zone,))


@pytest.mark.parametrize(
    "zone", ["us-east5", "", "us-east5-", "US-EAST5-B", "a b", "-", "../x-a1-b"]
)
def test_what_is_no_zone_is_refused(zone: str) -> None:
    """A region above all: it would be a 404 at best."""
    with pytest.raises(InvalidArgument, match="no zone"):
        drawn(zones=(zone,))


@pytest.mark.parametrize(
    ("said", "named"),
    [(None, ("default", "")), ("mine", ("mine", "")), ("mine/inner", ("mine", "inner"))],
)
def test_a_network_is_named_with_or_without_its_subnetwork(
    said: str | None, named: tuple[str, str]
) -> None:
    """A network of the automatic kind has one in each region, by its own name."""
    assert vm.network_of(spec(network=said)) == named


@pytest.mark.parametrize("said", ["a/", "/b", "a/b/c", "projects/p/x", "A", "a b"])
def test_what_is_no_network_is_refused(said: str) -> None:
    """Before a zone is asked with it."""
    with pytest.raises(InvalidArgument, match="no network"):
        vm.network_of(spec(network=said))


@pytest.mark.parametrize("target", NAMES)
def test_each_target_has_the_price_of_its_chips_and_provisioning(target: str) -> None:
    """As the planner foresees it for the same place."""
    foreseen = price(places()[target]).usd_per_hour
    assert foreseen
    assert status.usd_per_hour(offline(target)) == pytest.approx(foreseen, abs=1e-4)


def test_a_price_of_the_targets_own_wins() -> None:
    """Whoever runs the server may know better."""
    site = offline()
    own = target_of("tpu-v6e-1").model_copy(update={"usd_per_hour": 1.25})
    assert status.usd_per_hour(replace(site, target=own)) == 1.25
