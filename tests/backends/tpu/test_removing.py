"""What is deleted is seen to be gone, wherever it is; what is not ours stays as it was."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from backends.google import secrets
from backends.google.clients import HF_SECRET
from backends.tpu import status
from backends.tpu.backend import TpuBackend
from backends.tpu.site import ChipState, Site, key_secret, vm_id
from core.errors import CloudUnavailable, DeploymentNotFound, NotOurs, PermissionDenied
from core.records import State
from core.reply import collecting_notes
from core.settings import GooglePlane
from tests.backends.google_secrets import keep_key
from tests.backends.tpu.fake_planes import Cloud, FakePlane, Script
from tests.backends.tpu.searches import PLACES, A, B, C, D, before, of, planned
from tests.backends.tpu.sites import fault, on
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

WAITS = {place: Script(after=1e9, delete_seconds=0) for place in PLACES}
RUNS = {place: Script(after=0, delete_seconds=0) for place in PLACES}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TpuBackend, "delete_seconds", 1.0)


async def nothing_left(site: Site, controls: Controls) -> bool:
    """Whether neither key nor rule nor anything that is remembered is there."""
    seen = controls.get(site.clients.project)
    return not (seen["secrets"] or seen["firewalls"] or site.records.get("gemma"))


@pytest.mark.parametrize(
    ("scripts", "what"),
    [(WAITS, "its request for a chip in us-east5-a"), (RUNS, "its instance in us-east5-a")],
    ids=["waits", "runs"],
)
async def test_a_deployment_goes_with_all_that_was_its_own(
    plane: GooglePlane, project: str, controls: Controls, scripts: dict[object, Script], what: str
) -> None:
    """Chip, rule and key, each named; a second time there is nothing, which is no error."""
    cloud = Cloud(scripts=dict(scripts))  # type: ignore[arg-type]  # keys are places
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        deleted = await on(site).delete("gemma")
        assert deleted.gone
        assert [one.split(" (")[0] for one in deleted.removed] == [
            what,
            "its firewall rule vllm-devops-gemma",
            "its key",
        ]
        assert deleted.stays == ()
        assert cloud.alive() == []
        assert await nothing_left(site, controls)
        again = await on(site).delete("gemma")
        assert (again.gone, again.removed) == (True, ())
        with pytest.raises(DeploymentNotFound):
            await status.describe(site, "gemma")


async def test_a_search_that_is_ended_asks_nobody_any_more(
    plane: GooglePlane, project: str
) -> None:
    """Whoever followed it finds nothing to do."""
    cloud = Cloud(scripts=dict(WAITS))
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        await on(site).delete("gemma")
        await on(site).go_on("gemma")
        assert cloud.asked == [A]


async def test_a_deletion_that_takes_long_is_finished_by_a_later_look(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Until the chip is seen to be gone it is told as being deleted, and its key stays."""
    cloud = Cloud(scripts={A: Script(after=0, delete_seconds=600)})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        deleted = await on(site).delete("gemma")
        assert (deleted.gone, deleted.removed) == (False, ())
        assert (await status.describe(site, "gemma")).state is State.DELETING
        await on(site).go_on("gemma")
        assert await secrets.exists(site, key_secret("gemma"))
        cloud.wait(600)
        await on(site).go_on("gemma")
        assert await nothing_left(site, controls)


async def test_a_server_that_remembers_nothing_takes_the_rest_while_the_chip_still_goes(
    plane: GooglePlane, project: str, controls: Controls, tmp_path: Path
) -> None:
    """Nobody would look for key and rule later: no record names them."""
    cloud = Cloud(scripts={A: Script(after=0, delete_seconds=600)})
    async with (
        before(plane, project, cloud, tmp_path / "one") as site,
        before(plane, project, cloud, tmp_path / "two") as other,
    ):
        await on(site).apply(planned(site))
        assert not (await on(other).delete("gemma")).gone
        assert await nothing_left(other, controls)


async def test_what_was_seen_to_be_gone_is_listed_no_more(plane: GooglePlane, project: str) -> None:
    """Though a list of a moment ago has it as being deleted."""
    cloud = Cloud(scripts={A: Script(after=0, delete_seconds=600)})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        await on(site).delete("gemma")
        assert [one.state for one in await status.list_deployments(site)] == [State.DELETING]
        cloud.wait(600)
        await on(site).go_on("gemma")
        assert await status.list_deployments(site) == []


async def test_what_was_asked_for_without_an_answer_may_come_yet(
    plane: GooglePlane, project: str
) -> None:
    """No list has it: it is gone once it is certain that nothing came of it."""
    cloud = Cloud(scripts={A: Script(refuse=CloudUnavailable("Down.", fix="Wait."))})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        assert list(of(site).left) == [A]
        assert not (await on(site).delete("gemma")).gone
        assert list(of(site).left) == [A]


async def test_what_is_deployed_again_while_it_is_being_deleted_waits_for_that(
    plane: GooglePlane, project: str
) -> None:
    """There are never two."""
    cloud = Cloud(scripts={A: Script(after=0, delete_seconds=600)})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        await on(site).delete("gemma")
        await on(site).apply(planned(site))
        assert cloud.asked == [A]
        assert of(site).replacing == (A,)
        cloud.wait(600)
        await on(site).go_on("gemma")
        assert cloud.asked == [A, A]


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_every_chip_of_it_goes_wherever_it_is(
    plane: GooglePlane, project: str, controls: Controls, where: str
) -> None:
    """Found by its label, leftovers as well, in zones that this machine never asked."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as there:
        await on(there).apply(planned(there))
        labels = cloud.rows[A].labels
        cloud.plant(D, vm_id("gemma"), **labels)
        cloud.scripts[D] = Script(becomes=ChipState.SUSPENDED, after=0, delete_seconds=0)
        if where == "here":
            assert (await on(there).delete("gemma")).gone
        else:
            async with before(plane, project, cloud) as here:
                deleted = await on(here).delete("gemma")
                assert len(deleted.removed) == 3
                assert await nothing_left(here, controls)
        assert cloud.alive() == []


async def test_nothing_of_others_is_touched(
    plane: GooglePlane, project: str, tmp_path: Path, controls: Controls
) -> None:
    """A stranger's VM of that id, another deployment's, and another target's of the same name."""
    cloud = Cloud(scripts=dict(RUNS))
    async with (
        before(plane, project, cloud, tmp_path) as site,
        before(plane, project, cloud, tmp_path, target="tpu-v6e-4") as other,
    ):
        cloud.plant(C, vm_id("gemma"), owner="somebody")
        with pytest.raises(NotOurs):
            await on(site).delete("gemma")
        del cloud.rows[C]
        await on(site).apply(planned(site))
        held = controls.get(project)["secrets"]
        gone = await on(other).delete("gemma")
        assert (gone.gone, gone.removed) == (True, ())
        assert cloud.alive() == [A]
        assert controls.get(project)["secrets"] == held
        cloud.plant(C, vm_id("gemma"), owner="somebody")
        with collecting_notes() as notes:
            assert (await on(site).delete("gemma")).gone
        assert cloud.alive() == [C]
        assert cloud.touched == []
        assert any("left alone" in said for said in notes)


async def test_a_key_that_a_dead_server_left_goes_as_well(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """It had come no further than that."""
    async with before(plane, project, Cloud()) as site:
        await keep_key(site, "gemma")
        deleted = await on(site).delete("gemma")
        assert [one.split(" (")[0] for one in deleted.removed] == ["its key"]
        assert await nothing_left(site, controls)


async def test_the_token_of_the_hub_stays_and_is_named(plane: GooglePlane, project: str) -> None:
    """Other deployments may read it."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as site:
        await secrets.keep(site, HF_SECRET, SecretStr("hf_x"))
        await on(site).apply(planned(site))
        stays = (await on(site).delete("gemma")).stays
        assert [HF_SECRET in one.what for one in stays] == [True]
        assert await secrets.exists(site, HF_SECRET)


async def test_a_deletion_that_is_refused_says_so_and_is_gone_on_with(
    plane: GooglePlane, project: str
) -> None:
    """It is still remembered that it was to go."""
    cloud = Cloud(scripts={A: Script(after=0, delete_seconds=0)})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        cloud.scripts[A].undeletable = PermissionDenied("No.", fix="Ask.")
        with pytest.raises(PermissionDenied):
            await on(site).delete("gemma")
        await on(site).go_on("gemma")
        told = await status.describe(site, "gemma")
        assert told.state is State.FAILED
        assert str(A) in f"{of(site).failure}"
        cloud.scripts[A].undeletable = None
        assert (await on(site).delete("gemma")).gone
        assert cloud.alive() == []


async def test_a_key_that_cannot_be_removed_is_told_and_removed_by_the_next_call(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """What is gone by then is said."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        refused = fault("SecretManagerService/DeleteSecret", "PERMISSION_DENIED")
        controls.set(project, faults=[refused])
        with pytest.raises(PermissionDenied) as caught:
            await on(site).delete("gemma")
        assert "Gone by then: its instance" in caught.value.fix
        assert (await on(site).delete("gemma")).gone
        assert await nothing_left(site, controls)


async def test_where_the_lists_fail_what_is_remembered_is_deleted_all_the_same(
    plane: GooglePlane, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That there may be more is noted; of one that nobody remembers it is an error."""

    async def broken(_plane: FakePlane) -> object:
        raise CloudUnavailable("Down.", fix="Wait.")

    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        monkeypatch.setattr(FakePlane, "list", broken)
        with collecting_notes() as notes:
            assert (await on(site).delete("gemma")).gone
        assert cloud.alive() == []
        assert any("not known" in said for said in notes)
        with pytest.raises(CloudUnavailable):
            await on(site).delete("gemma")


@pytest.mark.parametrize(("seconds", "said"), [(0, "was deleted"), (600, "being deleted")])
async def test_what_is_overdue_is_deleted_and_said(
    plane: GooglePlane, project: str, seconds: float, said: str
) -> None:
    """In one sentence, as it was seen."""
    cloud = Cloud(scripts={A: Script(after=0, delete_seconds=seconds)})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        assert said in await on(site).end("gemma")


async def test_a_name_that_cannot_be_one_is_nowhere(plane: GooglePlane, project: str) -> None:
    """Nothing is asked for it."""
    cloud = Cloud()
    async with before(plane, project, cloud) as site:
        assert (await on(site).delete("../gemma")).gone
    assert cloud.calls == 0
    assert B not in cloud.rows
