"""A plan is applied once: what stands stays, what is another's as well, what is old goes first."""

from pathlib import Path

import pytest

from backends.google import secrets
from backends.google.clients import HF_SECRET, SPEC_LABEL
from backends.tpu import compute, status
from backends.tpu.site import ChipState, key_secret, vm_id
from core.errors import Busy, CloudUnavailable, NotOurs, OpsError, PermissionDenied
from core.records import State
from core.settings import GooglePlane
from tests.backends.tpu.fake_planes import Cloud, Script
from tests.backends.tpu.searches import PLACES, A, B, D, before, of, planned
from tests.backends.tpu.sites import fault, on
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

WAITS = {place: Script(after=1e9) for place in PLACES}
RUNS = {place: Script(after=0, delete_seconds=0) for place in PLACES}
NO = Script(refuse=PermissionDenied("No.", cause="tpu.nodes.create", fix="Ask the owner."))


async def test_a_chip_is_asked_for_with_all_that_it_needs(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Key, firewall rule and one request; the image by its digest; nobody waits for a chip.

    The Hub's token is looked at once, the key as it is wanted and as it is made.
    """
    cloud = Cloud(scripts=dict(WAITS))
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        assert cloud.asked == [A]
        assert "@sha256:" in of(site).blueprint.container.image
        assert await compute.let_in(site, "gemma") == ("127.0.0.1/32",)
        assert await secrets.read(site, key_secret("gemma"))
        assert not await secrets.exists(site, HF_SECRET)
        assert (await status.describe(site, "gemma")).state is State.QUEUED
    seen = controls.get(project)
    assert key_secret("gemma") in seen["secrets"]
    calls = [call.rpartition("/")[2] for call in seen["calls"]]
    assert calls[: calls.index("CreateSecret")].count("GetSecret") == 3


@pytest.mark.parametrize("scripts", [WAITS, RUNS], ids=["waits", "runs"])
async def test_the_same_again_changes_nothing(
    plane: GooglePlane, project: str, scripts: dict[object, Script]
) -> None:
    """Neither while it waits nor once it runs."""
    cloud = Cloud(scripts=dict(scripts))  # type: ignore[arg-type]  # keys are places
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        kept = of(site)
        await on(site).apply(planned(site))
        assert cloud.asked == [A]
        assert of(site) == kept


async def test_another_spec_is_asked_for_once_the_former_is_gone(
    plane: GooglePlane, project: str
) -> None:
    """It is deleted first; its key goes on to be the deployment's."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        key = await secrets.read(site, key_secret("gemma"))
        cloud.scripts[A] = Script(after=0, delete_seconds=1e9)
        await on(site).apply(planned(site, max_model_len=2048))
        assert of(site).replacing == (A,)
        assert of(site).attempts == ()
        cloud.scripts[A] = Script(after=0, delete_seconds=0)
        await on(site).apply(planned(site, max_model_len=2048))
        assert cloud.asked == [A]
        await on(site).go_on("gemma")
        assert cloud.asked == [A, A]
        assert cloud.rows[A].labels[SPEC_LABEL] == of(site).blueprint.labels[SPEC_LABEL]
        assert await secrets.read(site, key_secret("gemma")) == key


async def test_a_search_for_another_spec_is_ended_first(plane: GooglePlane, project: str) -> None:
    """Its request is given back before the new one is made."""
    cloud = Cloud(scripts={**WAITS, A: Script(after=1e9, delete_seconds=0)})
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        await on(site).apply(planned(site, max_model_len=2048))
        await on(site).apply(planned(site, max_model_len=2048))
        assert cloud.asked in ([A, A], [A])
        assert of(site).blueprint.spec.max_model_len == 2048


async def test_a_strangers_vm_of_that_id_is_left_alone(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Wherever it is; nothing is made."""
    cloud = Cloud()
    async with before(plane, project, cloud) as site:
        cloud.plant(D, vm_id("gemma"), owner="somebody")
        with pytest.raises(NotOurs, match="not made here"):
            await on(site).apply(planned(site))
        assert cloud.asked == cloud.touched == []
        assert cloud.rows[D].deleted is None
        assert site.records.get("gemma") is None
    assert controls.get(project)["secrets"] == {}


async def test_a_name_of_another_target_is_refused(
    plane: GooglePlane, project: str, tmp_path: Path
) -> None:
    """One name is one VM id, one key and one rule; it is told which target has it."""
    cloud = Cloud(scripts=dict(WAITS))
    async with (
        before(plane, project, cloud, tmp_path) as site,
        before(plane, project, cloud, tmp_path, target="tpu-v6e-4") as other,
        before(plane, project, cloud, target="tpu-v6e-4") as elsewhere,
    ):
        await on(site).apply(planned(site))
        for one in (other, elsewhere):
            with pytest.raises(NotOurs, match="tpu-v6e-1"):
                await on(one).apply(planned(one))
    assert cloud.asked == [A]


async def test_a_name_that_another_target_searches_for_is_refused(
    plane: GooglePlane, project: str, tmp_path: Path
) -> None:
    """Though nothing of it is in the cloud yet; and one that is at it keeps the other out."""
    cloud = Cloud(scripts={A: Script(refuse=CloudUnavailable("Down.", fix="Wait."))})
    async with (
        before(plane, project, cloud, tmp_path) as site,
        before(plane, project, cloud, tmp_path, target="tpu-v6e-4") as other,
    ):
        await on(site).apply(planned(site))
        with pytest.raises(NotOurs, match="tpu-v6e-1"):
            await on(other).apply(planned(other))
        async with site.records.locked("gemma"):
            with pytest.raises(Busy):
                async with other.records.locked("gemma", seconds=0.1):
                    raise AssertionError
    assert cloud.asked == []


@pytest.mark.parametrize("after", [0, 1e9])
async def test_what_another_machine_made_is_gone_on_with(
    plane: GooglePlane, project: str, after: float
) -> None:
    """The same spec, deployed from here, asks for no second chip."""
    cloud = Cloud(scripts={A: Script(after=after)})
    async with before(plane, project, cloud) as there, before(plane, project, cloud) as here:
        await on(there).apply(planned(there))
        await on(here).apply(planned(here))
        assert cloud.asked == [A]
        assert of(here).placed == (None if after else A)
        assert [one.place for one in of(here).attempts] == [A]


async def test_a_leftover_is_deleted_before_another_chip_is_asked_for(
    plane: GooglePlane, project: str
) -> None:
    """One that was preempted, deployed again, begins anew."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site, control_plane="queued"))
        assert of(site).placed == B
        cloud.scripts[B] = Script(
            becomes=ChipState.SUSPENDED, after=0, was_given=True, delete_seconds=1e9
        )
        first = cloud.rows[B]
        await on(site).apply(planned(site, control_plane="queued"))
        assert first.deleted
        cloud.scripts[B] = Script(after=0, delete_seconds=0)
        await on(site).go_on("gemma")
        assert cloud.asked[:2] == [B, B]
        assert of(site).placed == B


async def test_a_vm_that_is_gone_by_itself_is_asked_for_anew(
    plane: GooglePlane, project: str
) -> None:
    """As after its time was over."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        del cloud.rows[A]
        await on(site).apply(planned(site))
        assert cloud.asked == [A, A]


async def test_what_no_place_allows_is_an_error_that_leaves_nothing(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Its code, its words and its fix are Google's; key and firewall rule are taken back."""
    cloud = Cloud(scripts=dict.fromkeys(PLACES, NO))
    async with before(plane, project, cloud) as site:
        with pytest.raises(PermissionDenied) as caught:
            await on(site).apply(planned(site))
        assert "tpu.nodes.create" in caught.value.cause
        assert "Ask the owner." in caught.value.fix
        assert site.records.get("gemma") is None
    seen = controls.get(project)
    assert (seen["secrets"], seen["firewalls"]) == ({}, [])


async def test_a_rule_that_cannot_be_made_takes_its_key_along(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Nothing is asked for then."""
    cloud = Cloud()
    async with before(plane, project, cloud) as site:
        controls.set(project, faults=[fault("firewalls.insert", "PERMISSION_DENIED")])
        with pytest.raises(OpsError):
            await on(site).apply(planned(site))
        assert cloud.asked == []
        assert site.records.get("gemma") is None
    assert controls.get(project)["secrets"] == {}


async def test_a_deployment_inside_its_network_has_no_rule(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """One that an earlier spec left is closed."""
    cloud = Cloud(scripts=dict(RUNS))
    async with before(plane, project, cloud) as site:
        await on(site).apply(planned(site))
        assert controls.get(project)["firewalls"]
        await on(site).apply(planned(site, access="internal"))
        assert controls.get(project)["firewalls"] == []


async def test_a_token_of_the_settings_is_kept(plane: GooglePlane, project: str) -> None:
    """And shown to the container by its name only."""
    cloud = Cloud(scripts=dict(WAITS))
    async with before(plane, project, cloud, hf_token="hf_x") as site:
        await on(site).apply(planned(site))
        assert (await secrets.read(site, HF_SECRET)).get_secret_value() == "hf_x"
        assert HF_SECRET in of(site).blueprint.container.secrets.values()
