"""Everything that a VM needs is looked at before anything is made or paid."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from backends.tpu import plan, zones
from backends.tpu.site import Place, Site
from core.records import Preflight
from core.settings import GooglePlane
from tests.backends.preflights import row, the_only_failure
from tests.backends.tpu.planned import planned
from tests.backends.tpu.planted import NO_CHIP, ZONE, foreign, ours, rule_of_others
from tests.backends.tpu.sites import fault, offline, opened
from tests.google_plane import Controls

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]
ME: Final[dict[str, Any]] = {"google_allowed_addresses": ("203.0.113.7",)}


async def checked(site: Site, **said: Any) -> Preflight:
    """Check a plan of a deployment named gemma."""
    return await plan.preflight(site, planned(site, **said))


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


async def without_logs(site: Site) -> None:
    """Docker would not even start the container."""
    client, resource = await site.clients.projects(), f"projects/{site.clients.project}"
    policy = await client.get_iam_policy(request={"resource": resource})
    left = [one for one in policy.bindings if one.role != "roles/logging.logWriter"]
    del policy.bindings[:]
    policy.bindings.extend(left)
    await client.set_iam_policy(request={"resource": resource, "policy": policy})


async def theirs(site: Site) -> None:
    """In any zone: it is left alone, so another name must be taken."""
    await foreign(site, "vllm-devops-gemma", zone="us-east5-a")


async def their_rule(site: Site) -> None:
    """One of ours of that name would be changed."""
    await rule_of_others(site, "vllm-devops-gemma")


class Case(NamedTuple):
    """One thing that is not as it should be, whose question says so, and what does not need it."""

    what: str
    words: str
    denied: str = ""
    said: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = ME
    before: Callable[[Site], Awaitable[None]] | None = None
    unless: tuple[Mapping[str, Any], ...] = ()
    """With these nothing fails."""


MAY: Final = "You may do what a deployment takes"
CASES: Final = {
    "nodes": Case(MAY, "roles/tpu.admin", "tpu.nodes.create",
                  unless=({"control_plane": "compute"},)),
    "instances": Case(MAY, "roles/compute.instanceAdmin.v1", "compute.instances.create",
                      unless=({"control_plane": "queued"},)),
    "rules": Case(MAY, "roles/compute.securityAdmin", "compute.firewalls.create",
                  unless=({"access": "internal"},)),
    "secrets": Case(MAY, "roles/secretmanager.admin", "secretmanager.secrets.create"),
    "account": Case("deploy as that", "roles/iam.serviceAccountUser", "iam.serviceAccounts.actAs"),
    "logs": Case("That account has its roles", "setup_target", before=without_logs),
    "network": Case("nowhere", "NETWORK/SUBNETWORK", said={"network": "nowhere/sub"}),
    "callers": Case("who may call", "GOOGLE_ALLOWED_ADDRESSES",
                    settings={"google_allowed_addresses": ("nonsense",)},
                    unless=({"access": "public"}, {"access": "internal"})),
    "image": Case("The container image is there", "never", said={"image": "vllm/vllm-tpu:never"}),
    "id": Case("The id vllm-devops-gemma", "name", before=theirs),
    "rule": Case("firewall rule", "name", before=their_rule, unless=({"access": "internal"},)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_what_is_wrong_is_the_only_failure(
    plane: GooglePlane, project: str, controls: Controls, name: str
) -> None:
    """It is named with the way out; one control plane alone, or no rule, needs less."""
    case = CASES[name]
    controls.set(project, denied_permissions=[case.denied] if case.denied else [])
    async with opened(plane, project, **case.settings) as site:
        if case.before:
            await case.before(site)
        failed = the_only_failure(await checked(site, **case.said))
        for said in case.unless:
            assert (await checked(site, **said)).failed == ()
    assert case.what in failed.what
    assert case.words in f"{failed.detail} {failed.fix}"
    assert case.denied in failed.detail


async def test_ones_own_deployment_is_no_obstacle(plane: GooglePlane, project: str) -> None:
    async with opened(plane, project, **ME) as site:
        await ours(site)
        found = await checked(site)
    assert found.failed == ()
    assert ZONE in row(found, "The id").detail


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
