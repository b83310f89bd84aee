"""One place after the other is asked; what gave no chip is given back; the first chip ends it."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import pytest

from backends.google.clients import MANAGED_BY
from backends.lease import EXPIRES
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


def refused(kind: type[OpsError], words: str = "Google's words.") -> Script:
    return Script(refuse=kind("No.", cause=words, fix="Ask elsewhere."))


def taken(by: Literal["user", "service"], **said: Any) -> Script:
    return Script(becomes=ChipState.SUSPENDED, taken_by=by, **said)


def over(code: Any) -> Script:
    """One that came and went by itself while nobody looked."""
    return Script(becomes=None, ended=Ended(code, BEGIN, "Ended."))


class Case(NamedTuple):
    """What each place does, how each of them ended, and what is there then."""

    scripts: Mapping[Place, Script]
    ends: tuple[tuple[Place, str], ...]
    alive: tuple[Place, ...] | None = None
    """None: where the last one was given, or nowhere."""
    places: tuple[Place, ...] = PLACES
    detail: str = ""
    """Google's words on the first."""
    within: float = 1e9
    """Seconds that it takes at most."""


_LATE: Final = WAIT_SECONDS + 1200
_FAILS: Final[dict[str, Any]] = {
    "after": 90,
    "refusal": NoCapacity("", cause="No more.", fix="Wait."),
}
_FLEX: Final = 'FLEX_START provisioning model is not supported for accelerator type "v6e-1"'
CASES: Final = {
    "the first that gives one ends it": Case({}, ((A, "GIVEN"),)),
    **{f"found in {place}": Case({one: NEVER for one in PLACES if one != place}, (*((one,
         "TIMED_OUT") for one in PLACES[: PLACES.index(place)]), (place,
         "GIVEN"))) for place in PLACES },
    "nowhere": Case(dict.fromkeys(PLACES, NEVER), tuple((one, "TIMED_OUT") for one in PLACES)),
    # The next one is asked without a wait.
    **{f"{kind.code} at once": Case({A: refused(kind)}, ((A, kind.code), (B, "GIVEN")),
         detail="Google's words.", within=75 ) for kind in REFUSALS },
    # A leftover is deleted, and one that Google deletes itself is explained by its operation.
    **{f"fails later as {one}": Case({A: Script(becomes=one, **_FAILS)}, ((A, "NO_CAPACITY"), (B,
         "GIVEN")), detail="No more.") for one in (ChipState.FAILED, None) },
    "a leftover is read by its words": Case({A: Script(becomes=ChipState.FAILED, why=_FLEX),
         B: Script(becomes=ChipState.FAILED, why="Odd.")}, ((A, "ZONE_REFUSED"), (B, "FAILED"),
         (C, "GIVEN"))),
    # It never ran.
    "taken while it was made": Case({B: taken("service", making=30)}, ((B, "PREEMPTED"), (C,
         "GIVEN")), places=(B, C)),
    # That it was preempted is for the next look to tell.
    "ran and was taken": Case({B: taken("service", was_given=True)}, ((B, "GIVEN"),), places=(B,
         C)),
    **{f"came and went, {code}": Case({A: over(code)}, ((A, "GIVEN"),),
         alive=()) for code in ("PREEMPTED", "EXPIRED") },
    # A person who takes it back wants no chip in another zone either.
    "deleted elsewhere": Case({A: over("DELETED_ELSEWHERE")}, ((A, "DELETED_ELSEWHERE"),),
         alive=()),
    "suspended by a person": Case({B: taken("user")}, ((B, "DELETED_ELSEWHERE"),), alive=(B,),
         places=(B, C)),
    "vanished": Case({A: Script(becomes=None, after=100)}, ((A, "VANISHED"), (B, "GIVEN"))),
    # It has its chip: half an hour more, then it is given back as well.
    "being made is waited for": Case({A: Script(after=_LATE, making=_LATE - 60)}, ((A, "GIVEN"),)),
    "made for ever": Case({A: Script(after=1e9, making=1e9 - 60)}, ((A, "TIMED_OUT"), (B,
         "GIVEN"))),
    # The other control plane is asked everywhere.
    **{f"a plane with {kind.code} is asked once": Case({A: refused(kind), B: NEVER,
         C: refused(kind)}, ((A, kind.code), (B, "TIMED_OUT"), (D,
         "GIVEN"))) for kind in (ApiDisabled, PermissionDenied) },
    # Once it is certain that nothing came of the first.
    "a cloud that never answers": Case({A: refused(CloudUnavailable)}, ((A, "TIMED_OUT"), (B,
         "GIVEN"))),
    "may not be looked at": Case({A: Script(unseen=PermissionDenied("No.", fix="Ask."))}, ((A,
         "PERMISSION_DENIED"), (B, "GIVEN"))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_one_place_after_the_other_is_asked(tmp_path: Path, name: str) -> None:
    """What gave no chip is given back first; at the end there is one chip at most, no leftover."""
    case = CASES[name]
    cloud, kept = await searched(tmp_path, dict(case.scripts), case.places)
    place, outcome = case.ends[-1]
    assert tuple(outcomes(kept)) == case.ends
    assert (kept.placed == place) == (outcome in {"GIVEN", "DELETED_ELSEWHERE"})
    assert all(one.returned for one in kept.attempts)
    there = (place,) if outcome == "GIVEN" else ()
    assert cloud.alive() == list(there if case.alive is None else case.alive)
    assert case.detail in kept.attempts[0].detail
    assert (cloud.now - BEGIN).total_seconds() <= case.within
    calls = cloud.calls
    assert await search.carry_on(site_on(cloud, tmp_path), kept, (), seconds=0) is kept
    assert cloud.calls == calls


async def test_what_every_zone_says_in_the_same_words_is_told_once(tmp_path: Path) -> None:
    """Each place has its line, and what one says otherwise stands there."""
    said = "The zone {} does not have enough resources available to fulfil the request."
    words = {A: said.format("us-east5-a"), B: said.format("us-east5-a"), C: "Later."}
    scripts = {one: Script(refuse=NoCapacity("", cause=why, fix="")) for one, why in words.items()}
    again = {D: Script(refuse=NoCapacity("", cause=said.format("us-east5-b"), fix=""))}
    _, kept = await searched(tmp_path, {**scripts, **again}, (A, B, C, D))
    lines = search.history(kept)
    assert [line.count("enough resources") for line in lines] == [1, 0, 0, 0]
    assert lines[2].endswith("NO_CAPACITY. Later.")
    assert lines[3].endswith("us-east5-b (queued resource): NO_CAPACITY. In the same words.")


async def test_what_the_operation_refuses_in_a_moment_is_known_at_once(tmp_path: Path) -> None:
    """Google took the call, and says in the operation alone that it gives none."""
    refusal = NoCapacity("", cause="No more.", fix="Wait.")
    cloud = Cloud(scripts={A: Script(becomes=ChipState.FAILED, after=0, refusal=refusal)})
    site = site_on(cloud, tmp_path)
    kept = await search.carry_on(site, wanted(site, cloud), (), seconds=0)
    assert outcomes(await search.carry_on(site, kept, (), seconds=0)) == [(A, "NO_CAPACITY")]


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


async def test_a_request_that_may_not_be_looked_at_any_more_is_not_passed_over(
    tmp_path: Path,
) -> None:
    """It is there: only a place at which nothing was asked for is passed over unseen."""
    unseen = Script(unseen=PermissionDenied("No.", fix="Ask."))
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
    assert (await remove([search.chips_at(site, "gemma", {A: None})], seconds=0)).gone
    assert cloud.rows[A].deleted is None


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
    assert cloud.rows[A].labels[EXPIRES] == str(int(until.timestamp()))
    other = Cloud()
    site = site_on(other, tmp_path / "other")
    wanted(site, other, ttl_minutes=0)
    await carried_on(site, other)
    assert EXPIRES not in other.rows[A].labels
