"""One place after the other is asked; what gave no chip is given back; the first chip ends it."""

from datetime import timedelta
from pathlib import Path

import pytest

from backends.google.clients import EXPIRES_LABEL, MANAGED_BY
from backends.lifecycle import remove
from backends.tpu import search, zones
from backends.tpu.site import ChipState, Ended, Place, Search, vm_id
from core.errors import (
    ApiDisabled,
    CloudRefused,
    CloudUnavailable,
    NoCapacity,
    NotAuthenticated,
    OpsError,
    PermissionDenied,
    QuotaExceeded,
    ZoneRefused,
)
from tests.backends.tpu.fake_planes import BEGIN, Cloud, Script
from tests.backends.tpu.searches import (
    PLACES,
    WAIT_SECONDS,
    A,
    B,
    C,
    D,
    carried_on,
    of,
    outcomes,
    site_on,
    wanted,
)

pytestmark = pytest.mark.anyio

NEVER = Script(after=1e9)
REFUSALS = (NoCapacity, QuotaExceeded, ZoneRefused, CloudRefused)


async def searched(
    folder: Path, scripts: dict[Place, Script], places: tuple[Place, ...] = PLACES
) -> tuple[Cloud, Search]:
    """Search to the end."""
    cloud = Cloud(scripts=scripts)
    site = site_on(cloud, folder)
    wanted(site, cloud, places)
    return cloud, await carried_on(site, cloud)


async def test_the_first_place_that_gives_a_chip_ends_the_search(tmp_path: Path) -> None:
    """Nobody else is asked."""
    cloud, kept = await searched(tmp_path, {})
    assert outcomes(kept) == [(A, "GIVEN")]
    assert kept.placed == A
    assert cloud.asked == cloud.alive() == [A]


@pytest.mark.parametrize("place", PLACES)
async def test_a_chip_is_found_wherever_it_is(tmp_path: Path, place: Place) -> None:
    """What was asked for before is given back first; at the end one chip is there, no leftover."""
    cloud, kept = await searched(tmp_path, {one: NEVER for one in PLACES if one != place})
    number = PLACES.index(place) + 1
    assert outcomes(kept) == [(one, "TIMED_OUT") for one in PLACES[: number - 1]] + [
        (place, "GIVEN")
    ]
    assert cloud.asked == list(PLACES[:number])
    assert cloud.alive() == [place]
    assert all(one.returned for one in kept.attempts)


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_place_that_refuses_at_once_is_passed_over_at_once(
    tmp_path: Path, kind: type[OpsError]
) -> None:
    """Its code and Google's words are kept; the next one is asked without a wait."""
    refuse = kind("No.", cause="Google's words.", fix="Ask elsewhere.")
    cloud, kept = await searched(tmp_path, {A: Script(refuse=refuse)})
    assert outcomes(kept) == [(A, refuse.code), (B, "GIVEN")]
    assert kept.attempts[0].detail == "Google's words."
    assert cloud.now - BEGIN <= timedelta(seconds=75)


@pytest.mark.parametrize("becomes", [ChipState.FAILED, None])
async def test_a_request_that_fails_later_tells_why_and_leaves_no_leftover(
    tmp_path: Path, becomes: ChipState | None
) -> None:
    """A leftover is deleted, and one that Google deletes itself is explained by its operation."""
    fails = Script(becomes=becomes, after=90, refusal=NoCapacity("", cause="No more.", fix="Wait."))
    cloud, kept = await searched(tmp_path, {A: fails})
    assert outcomes(kept) == [(A, "NO_CAPACITY"), (B, "GIVEN")]
    assert kept.attempts[0].detail == "No more."
    assert cloud.alive() == [B]


async def test_what_the_operation_refuses_in_a_moment_is_known_at_once(tmp_path: Path) -> None:
    """Google took the call, and says in the operation alone that it gives none."""
    refusal = NoCapacity("", cause="No more.", fix="Wait.")
    cloud = Cloud(scripts={A: Script(becomes=ChipState.FAILED, after=0, refusal=refusal)})
    site = site_on(cloud, tmp_path)
    kept = await search.carry_on(site, wanted(site, cloud), (), seconds=0)
    assert outcomes(await search.carry_on(site, kept, (), seconds=0)) == [(A, "NO_CAPACITY")]


async def test_a_leftover_without_an_error_is_read_by_its_words(tmp_path: Path) -> None:
    """Otherwise it is only said to have failed."""
    words = 'FLEX_START provisioning model is not supported for accelerator type "v6e-1"'
    scripts = {
        A: Script(becomes=ChipState.FAILED, why=words),
        B: Script(becomes=ChipState.FAILED, why="Odd."),
    }
    _, kept = await searched(tmp_path, scripts)
    assert outcomes(kept) == [(A, "ZONE_REFUSED"), (B, "FAILED"), (C, "GIVEN")]
    assert kept.attempts[1].detail == "Odd."


async def test_a_chip_that_was_taken_while_it_was_made_is_not_given(tmp_path: Path) -> None:
    """It never ran: its leftover goes, and the next place is asked."""
    scripts = {B: Script(becomes=ChipState.SUSPENDED, taken_by="service", making=30)}
    cloud, kept = await searched(tmp_path, scripts, (B, C))
    assert outcomes(kept) == [(B, "PREEMPTED"), (C, "GIVEN")]
    assert cloud.alive() == [C]


async def test_a_chip_that_ran_and_was_taken_while_nobody_looked_was_given(tmp_path: Path) -> None:
    """The search is over: that it was preempted is for the next look to tell."""
    scripts = {B: Script(becomes=ChipState.SUSPENDED, taken_by="service", was_given=True)}
    cloud, kept = await searched(tmp_path, scripts, (B, C))
    assert outcomes(kept) == [(B, "GIVEN")]
    assert kept.placed == B
    assert cloud.asked == [B]


@pytest.mark.parametrize("code", ["PREEMPTED", "EXPIRED"])
async def test_a_vm_that_came_and_went_while_nobody_looked_was_given(
    tmp_path: Path, code: str
) -> None:
    """Its request did not fail, and a system's operation says what ended it."""
    ended = Ended(code, BEGIN, "Ended.")  # type: ignore[arg-type]  # one of its codes
    _, kept = await searched(tmp_path, {A: Script(becomes=None, ended=ended)})
    assert outcomes(kept) == [(A, "GIVEN")]
    assert kept.placed == A


async def test_who_deletes_the_request_elsewhere_ends_the_search(tmp_path: Path) -> None:
    """A person who takes it back wants no chip in another zone either."""
    ended = Ended("DELETED_ELSEWHERE", BEGIN, "Somebody deleted it.")
    cloud, kept = await searched(tmp_path, {A: Script(becomes=None, ended=ended)})
    assert outcomes(kept) == [(A, "DELETED_ELSEWHERE")]
    cloud, kept = await searched(
        tmp_path, {B: Script(becomes=ChipState.SUSPENDED, taken_by="user")}, (B, C)
    )
    assert outcomes(kept) == [(B, "DELETED_ELSEWHERE")]
    assert cloud.asked == [B]


async def test_a_request_that_vanishes_is_told_as_such(tmp_path: Path) -> None:
    """Nothing says why; the next place is asked."""
    _, kept = await searched(tmp_path, {A: Script(becomes=None, after=100)})
    assert outcomes(kept) == [(A, "VANISHED"), (B, "GIVEN")]


async def test_a_vm_that_is_being_made_is_waited_for_longer(tmp_path: Path) -> None:
    """It has its chip: half an hour more, then it is given back as well."""
    late = WAIT_SECONDS + 1200
    _, kept = await searched(tmp_path, {A: Script(after=late, making=late - 60)})
    assert outcomes(kept) == [(A, "GIVEN")]
    _, kept = await searched(tmp_path, {A: Script(after=1e9, making=1e9 - 60)})
    assert outcomes(kept) == [(A, "TIMED_OUT"), (B, "GIVEN")]


async def test_a_deletion_that_takes_ten_minutes_is_waited_for(tmp_path: Path) -> None:
    """Nobody else is asked before it is seen to be gone."""
    cloud = Cloud(scripts={A: Script(after=1e9, delete_seconds=600)})
    site = site_on(cloud, tmp_path)
    wanted(site, cloud)
    await carried_on(site, cloud)
    began = of(site).attempts[1].since
    assert began >= BEGIN + timedelta(seconds=WAIT_SECONDS + 600)


async def test_what_is_not_of_this_search_is_left_as_it_is(tmp_path: Path) -> None:
    """Whether it is a stranger's, or ours with another spec, or another target's."""
    cloud = Cloud()
    site = site_on(cloud, tmp_path)
    kept = wanted(site, cloud)
    cloud.plant(A, kept.blueprint.id, owner="somebody")
    kept = await carried_on(site, cloud)
    assert outcomes(kept) == [(A, "NOT_OURS"), (B, "GIVEN")]
    assert cloud.touched == []
    assert cloud.rows[A].deleted is None


@pytest.mark.parametrize("label", ["vllm-devops-spec", "vllm-devops-target"])
async def test_one_of_another_spec_is_not_taken_for_the_one_asked_for(
    tmp_path: Path, label: str
) -> None:
    """Nor that of another target: another machine put it there meanwhile."""
    cloud = Cloud()
    site = site_on(cloud, tmp_path)
    kept = wanted(site, cloud)
    labels = {**kept.blueprint.labels, label: "another"}
    assert labels["managed-by"] == MANAGED_BY
    cloud.plant(A, kept.blueprint.id, **labels)
    kept = await search.carry_on(site, kept, (), seconds=0)
    await search.carry_on(site, kept, (), seconds=0)
    assert outcomes(of(site)) == [(A, "NOT_OURS")]
    assert cloud.rows[A].deleted is None


@pytest.mark.parametrize("kind", [ApiDisabled, PermissionDenied])
async def test_a_control_plane_that_refuses_altogether_is_asked_once(
    tmp_path: Path, kind: type[OpsError]
) -> None:
    """The other one is asked everywhere."""
    refuse = Script(refuse=kind("No.", cause="Enable it.", fix="Enable it."))
    scripts = {A: refuse, B: NEVER, C: refuse}
    _, kept = await searched(tmp_path, scripts)
    assert outcomes(kept) == [(A, kind.code), (B, "TIMED_OUT"), (D, "GIVEN")]


async def test_a_request_that_may_not_be_looked_at_any_more_is_not_passed_over(
    tmp_path: Path,
) -> None:
    """It is there: only a place at which nothing was asked for is passed over unseen."""
    unseen = Script(unseen=PermissionDenied("No.", fix="Ask."))
    _, kept = await searched(tmp_path / "before", {A: unseen})
    assert outcomes(kept) == [(A, "PERMISSION_DENIED"), (B, "GIVEN")]
    cloud = Cloud(scripts={A: Script(after=1e9)})
    site = site_on(cloud, tmp_path)
    kept = await search.carry_on(site, wanted(site, cloud), (), seconds=0)
    kept = await search.carry_on(site, kept, (), seconds=0)
    assert cloud.asked == [A]
    cloud.scripts[A] = unseen
    with pytest.raises(PermissionDenied):
        await search.carry_on(site, kept, (), seconds=0)
    assert outcomes(of(site)) == [(A, "")]


async def test_what_a_stranger_has_put_there_meanwhile_is_not_given_back(tmp_path: Path) -> None:
    """Nothing of ours is there any more."""
    cloud = Cloud()
    site = site_on(cloud, tmp_path)
    cloud.plant(A, vm_id("gemma"), owner="somebody")
    assert (await remove([search.held(site, "gemma", {A: None})], seconds=0)).gone
    assert cloud.rows[A].deleted is None


async def test_a_search_over_every_place_ends_without_a_chip(tmp_path: Path) -> None:
    """Nothing is left, and nothing is asked again."""
    cloud, kept = await searched(tmp_path, dict.fromkeys(PLACES, NEVER))
    assert outcomes(kept) == [(place, "TIMED_OUT") for place in PLACES]
    assert kept.placed is None
    assert cloud.alive() == []
    assert await search.carry_on(site_on(cloud, tmp_path), kept, (), seconds=0) is kept


async def test_who_is_not_logged_in_any_more_asks_later(tmp_path: Path) -> None:
    """It is not the place's fault."""
    cloud = Cloud(scripts={A: Script(refuse=NotAuthenticated("Who?", fix="Log in."))})
    site = site_on(cloud, tmp_path)
    kept = await search.carry_on(site, wanted(site, cloud), (), seconds=0)
    with pytest.raises(NotAuthenticated):
        await search.carry_on(site, kept, (), seconds=0)
    assert outcomes(of(site)) == [(A, "")]
    cloud.scripts.clear()
    assert outcomes(await carried_on(site, cloud)) == [(A, "GIVEN")]


async def test_a_cloud_that_never_answers_is_asked_as_long_as_the_place_is_waited_for(
    tmp_path: Path,
) -> None:
    """Then the next place has its turn, once it is certain that nothing came of the first."""
    scripts = {A: Script(refuse=CloudUnavailable("Down.", fix="Wait."))}
    cloud, kept = await searched(tmp_path, scripts)
    assert outcomes(kept) == [(A, "TIMED_OUT"), (B, "GIVEN")]
    assert cloud.now - BEGIN >= timedelta(seconds=WAIT_SECONDS)


async def test_how_each_place_ended_is_remembered(tmp_path: Path) -> None:
    """Of each zone and control plane, with Google's words and the time."""
    scripts = {A: Script(refuse=ZoneRefused("No.", cause="Never here.", fix="Ask elsewhere."))}
    cloud, _ = await searched(tmp_path, {**scripts, B: NEVER})
    found = zones.outcomes_of(site_on(cloud, tmp_path))
    ends = {A: "ZONE_REFUSED", B: "TIMED_OUT", C: "GIVEN"}
    assert {place: one.outcome for place, one in found.items()} == ends
    assert (found[A].detail, found[A].at) == ("Never here.", BEGIN)


async def test_the_label_tells_when_it_ends_at_the_latest(tmp_path: Path) -> None:
    """After the wait and the run; one that is to run for ever has none."""
    cloud = Cloud()
    site = site_on(cloud, tmp_path)
    wanted(site, cloud, ttl_minutes=60)
    await carried_on(site, cloud)
    until = BEGIN + timedelta(seconds=WAIT_SECONDS + 3600)
    assert cloud.rows[A].labels[EXPIRES_LABEL] == str(int(until.timestamp()))
    other = Cloud()
    site = site_on(other, tmp_path / "other")
    wanted(site, other, ttl_minutes=0)
    await carried_on(site, other)
    assert EXPIRES_LABEL not in other.rows[A].labels
