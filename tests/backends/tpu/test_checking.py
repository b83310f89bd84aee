"""Everything that a VM needs is looked at before anything is made or paid."""

from pathlib import Path
from typing import Any, Final

import pytest

from backends.tpu import plan, zones
from backends.tpu.site import Place, Site
from core.records import Check, Preflight
from core.settings import GooglePlane
from tests.backends.tpu.planned import planned
from tests.backends.tpu.planted import NO_CHIP, ZONE, foreign, ours
from tests.backends.tpu.sites import fault, offline, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio
ME: Final[dict[str, Any]] = {"google_allowed_addresses": ("203.0.113.7",)}


async def checked(site: Site, **said: Any) -> Preflight:
    """Check a plan of a deployment named gemma."""
    return await plan.preflight(site, planned(site, **said))


def row(preflight: Preflight, words: str) -> Check:
    """Give the one row whose question holds these words."""
    (found,) = [one for one in preflight.checks if words in one.what]
    return found


def the_only_failure(preflight: Preflight) -> Check:
    """Give it; what is unknown says why, what fails says what to do."""
    assert all(one.detail for one in preflight.checks)
    (failed,) = preflight.failed
    assert failed.fix
    return failed


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look that Google does not answer is not repeated for seconds."""
    monkeypatch.setattr("backends.google.errors.patient", lambda: None)


async def test_whoever_is_not_known_is_told_so_in_one_row() -> None:
    """It says more than ten that all say the same."""
    site = offline()
    unset = site.settings.model_copy(update={"google_cloud_project": None})
    wanted = planned(offline())
    site.clients._world = site.clients._world._replace(settings=unset)

    found = await plan.preflight(site, wanted)
    assert "GOOGLE_CLOUD_PROJECT" in the_only_failure(found).fix
    assert len(found.checks) == 1


async def test_a_bare_project_is_told_to_be_set_up(plane: GooglePlane, bare_project: str) -> None:
    async with opened(plane, bare_project, **ME) as site:
        found = await checked(site)
    assert "setup_target" in row(found, "APIs are enabled").fix
    assert row(found, "APIs are enabled").outcome == "fail"
    assert row(found, "The account").outcome == "unknown"


@pytest.mark.parametrize(
    ("denied", "role", "said"),
    [
        ("tpu.nodes.create", "roles/tpu.admin", {}),
        ("compute.instances.create", "roles/compute.instanceAdmin.v1", {}),
        ("compute.firewalls.create", "roles/compute.securityAdmin", {}),
        ("secretmanager.secrets.create", "roles/secretmanager.admin", {}),
    ],
)
async def test_a_permission_that_is_missing_is_named_with_its_role(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    denied: str,
    role: str,
    said: dict[str, Any],
) -> None:
    controls.set(project, denied_permissions=[denied])
    async with opened(plane, project, **ME) as site:
        failed = the_only_failure(await checked(site, **said))
    assert (denied in failed.detail, role in failed.fix) == (True, True)


@pytest.mark.parametrize(
    ("denied", "said"),
    [
        ("tpu.nodes.create", {"control_plane": "compute"}),
        ("compute.instances.create", {"control_plane": "queued"}),
        ("compute.firewalls.create", {"access": "internal"}),
    ],
)
async def test_what_is_not_wanted_needs_no_permission(
    plane: GooglePlane, project: str, controls: Controls, denied: str, said: dict[str, Any]
) -> None:
    """One control plane alone, or no firewall rule."""
    controls.set(project, denied_permissions=[denied])
    async with opened(plane, project, **ME) as site:
        assert (await checked(site, **said)).failed == ()


async def test_whoever_may_not_act_as_the_account_is_told_how(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, denied_permissions=["iam.serviceAccounts.actAs"])
    async with opened(plane, project, **ME) as site:
        failed = the_only_failure(await checked(site))
    assert "roles/iam.serviceAccountUser" in failed.fix


async def test_an_account_that_may_not_write_logs_is_found(
    plane: GooglePlane, project: str
) -> None:
    """Docker would not even start the container."""
    async with opened(plane, project, **ME) as site:
        client = await site.clients.projects()
        resource = {"resource": f"projects/{project}"}
        policy = await client.get_iam_policy(request=resource)
        left = [one for one in policy.bindings if one.role != "roles/logging.logWriter"]
        del policy.bindings[:]
        policy.bindings.extend(left)
        await client.set_iam_policy(request={**resource, "policy": policy})
        failed = the_only_failure(await checked(site))
    assert (failed.what, "setup_target" in failed.fix) == ("That account has its roles", True)


async def test_a_network_that_is_not_there_is_found(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project, **ME) as site:
        failed = the_only_failure(await checked(site, network="nowhere/sub"))
    assert "nowhere" in failed.what


async def test_callers_that_cannot_be_are_refused_before_anything_is_made(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project, google_allowed_addresses=("nonsense",)) as site:
        failed = the_only_failure(await checked(site))
        assert "GOOGLE_ALLOWED_ADDRESSES" in failed.detail
        for access in ("public", "internal"):
            assert (await checked(site, access=access)).failed == ()


async def test_an_image_that_does_not_exist_is_found(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project, **ME) as site:
        failed = the_only_failure(await checked(site, image="vllm/vllm-tpu:never"))
    assert failed.what == "The container image is there"


async def test_an_id_that_somebody_else_has_is_found_in_any_zone(
    plane: GooglePlane, project: str
) -> None:
    """It is left alone, so another name must be taken."""
    async with opened(plane, project, **ME) as site:
        await foreign(site, "vllm-devops-gemma", zone="us-east5-a")
        failed = the_only_failure(await checked(site))
    assert "The id vllm-devops-gemma" in failed.what


async def test_ones_own_deployment_is_no_obstacle(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project, **ME) as site:
        await ours(site)
        found = await checked(site)
    assert found.failed == ()
    assert ZONE in row(found, "The id").detail


async def test_a_firewall_rule_of_others_is_found(plane: GooglePlane, project: str) -> None:
    """One of ours of that name would be changed."""
    from google.cloud.compute_v1.types import Allowed, Firewall  # noqa: PLC0415  takes seconds

    async with opened(plane, project, **ME) as site:
        client = await site.clients.compute("Firewalls")
        rule = Firewall(
            name="vllm-devops-gemma",
            network="global/networks/default",
            allowed=[Allowed(I_p_protocol="tcp", ports=["8000"])],
            source_ranges=["10.0.0.0/8"],
        )
        client.insert_unary(request={"project": project, "firewall_resource": rule})
        failed = the_only_failure(await checked(site))
        assert "firewall rule" in failed.what
        assert (await checked(site, access="internal")).failed == ()


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("compute.networks.get", "The network"),
        ("compute.firewalls.get", "its firewall rule"),
        ("Projects/GetIamPolicy", "has its roles"),
        ("BatchGetServices", "APIs are enabled"),
    ],
)
@pytest.mark.parametrize("when", ["before", "hang"])
async def test_what_cannot_be_looked_at_is_unknown_and_says_why(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    words: str,
    when: str,
) -> None:
    """It is never taken for a pass, and keeps nothing else waiting."""
    monkeypatch.setattr("backends.google.setup.DEADLINE", 1.0)
    controls.set(project, faults=[fault(method, "INTERNAL", times=-1, when=when)])
    async with opened(plane, project, **ME) as site:
        found = row(await checked(site), words)
    assert (found.outcome, bool(found.detail)) == ("unknown", True)


B, A = "us-east5-b", "us-east5-a"
ONE_ZONE: Final[dict[str, Any]] = {"zones": (B,)}


async def test_quota_in_one_pool_is_enough(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Each control plane has its own; with one of them alone that one counts."""
    controls.set(project, tpu_quotas={"compute": 0})
    async with opened(plane, project, **ME) as site:
        assert (await checked(site, **ONE_ZONE)).failed == ()
        assert (await checked(site, **ONE_ZONE, control_plane="queued")).failed == ()
        failed = the_only_failure(await checked(site, **ONE_ZONE, control_plane="compute"))
    assert "TPUS-PER-TPU-FAMILY-per-project-region in us-east5: 0" in failed.detail
    assert "list_queued_resources" in failed.fix


async def test_chips_of_the_deployment_itself_do_not_stand_in_its_way(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """They go before new ones are asked for."""
    controls.set(project, tpu_quotas={"tpu": 4, "compute": 0})
    async with opened(plane, project, "tpu-v6e-4", **ME) as site:
        await ours(site)
        assert (await checked(site, **ONE_ZONE)).failed == ()


async def test_a_way_of_giving_that_was_refused_here_stands_against_a_place(
    plane: GooglePlane, project: str, tmp_path: Path
) -> None:
    async with opened(plane, project, "tpu-v6e-1-flex", folder=tmp_path, **ME) as site:
        for kind in site.planes:
            await zones.remember_outcome(site, Place(B, kind), "ZONE_REFUSED", "not supported")
        failed = the_only_failure(await checked(site, **ONE_ZONE))
        assert "as flex-start" in failed.what
        assert "not supported" in failed.detail
        assert (await checked(site, zones=(B, A))).failed == ()


async def test_places_that_each_lack_something_else_are_none(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """One has the hardware, the other the quota."""
    controls.set(
        project,
        tpu_zones={B: {"accelerators": ()}, A: {}},
        tpu_quotas={f"tpu@{A}": 0, "compute": 0},
    )
    async with opened(plane, project, **ME) as site:
        failed = the_only_failure(await checked(site, zones=(B, A)))
    assert all(zone in failed.detail for zone in (A, B))


async def test_capacity_is_never_promised(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A zone without a free chip passes: only asking tells."""
    controls.set(project, tpu_zones={B: NO_CHIP})
    async with opened(plane, project, **ME) as site:
        found = row(await checked(site, **ONE_ZONE), "A place may give")
    assert (found.outcome, "only by asking" in found.detail) == ("pass", True)


async def test_quota_that_cannot_be_read_is_unknown_and_no_pass(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, faults=[fault("GetQuotaInfo", "PERMISSION_DENIED", times=-1)])
    async with opened(plane, project, **ME) as site:
        found = row(await checked(site), "A place may give")
    assert (found.outcome, "Not known" in found.detail) == ("unknown", True)
