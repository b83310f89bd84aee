"""Everything that a VM needs of its project is looked at before anything is made or paid."""

from typing import Any, Final

import pytest

from backends.tpu import plan
from core.settings import GooglePlane
from tests.backends.tpu.planned import planned
from tests.backends.tpu.planted import ZONE, foreign, ours
from tests.backends.tpu.preflights import checked, row, the_only_failure
from tests.backends.tpu.sites import fault, offline, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

ME: Final[dict[str, Any]] = {"google_allowed_addresses": ("203.0.113.7",)}


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


async def test_a_vm_without_an_address_of_its_own_may_reach_nothing(
    plane: GooglePlane, project: str
) -> None:
    """Neither image nor model would come: whether there is NAT nobody knows."""
    async with opened(plane, project, **ME) as site:
        found = await checked(site, access="internal", network="default/default")
        asked = row(found, "reaches the internet")
    assert (asked.outcome, "Cloud NAT" in asked.fix) == ("unknown", True)


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
        client = await site.clients.compute("firewalls", "Firewalls")
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
    monkeypatch.setattr("backends.tpu.plan._DEADLINE", 1.0)
    controls.set(project, faults=[fault(method, "INTERNAL", times=-1, when=when)])
    async with opened(plane, project, **ME) as site:
        found = row(await checked(site), words)
    assert (found.outcome, bool(found.detail)) == ("unknown", True)
