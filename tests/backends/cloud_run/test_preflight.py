"""A preflight fails for what is wrong and for nothing else, and changes nothing."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import pytest
from pydantic import SecretStr

from backends.cloud_run import checks
from backends.cloud_run.site import Site
from backends.google import secrets, setup
from backends.lifecycle import advance
from core.errors import CloudRefused, PermissionDenied, QuotaExceeded
from core.records import Preflight
from core.settings import GooglePlane
from tests.backends.cloud_run.planned import L4, RTX, planned, typed
from tests.backends.cloud_run.planned import site as offline
from tests.backends.cloud_run.shelf import TWO, below, model, store
from tests.backends.cloud_run.sites import backend_of, deployed, fault, opened
from tests.backends.preflights import row, the_only_failure
from tests.google_plane import Controls

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]

WHOLE: Final = "Google would take this service"
OLLAMA: Final[Mapping[str, Any]] = {"engine": "ollama", "model": "gemma3:4b"}
FRESH: Final = {"rtx-pro-6000": 1, "cpu": 20, "memory_gib": 40}
"""A project that is new to billing, which was given one of the larger GPU."""
ROLES: Final = "It may push what it builds"
QUOTAS: Final = {"l4": "The quota allows", "cpu": "many vCPU", "memory_gib": "much memory"}
READS: Final = (
    *("Projects/GetProject", "ServiceUsage/BatchGetServices", "Projects/TestIamPermissions"),
    *("IAM/GetServiceAccount", "IAM/TestIamPermissions", "SecretManagerService/GetSecretVersion"),
    *("CloudQuotas/GetQuotaInfo", "Services/GetService", "Services/CreateService"),
)
FORBIDDEN: Final = "Violates constraint constraints/run.allowedIngress."


async def checked(site: Site, **said: Any) -> Preflight:
    """Check a plan of a deployment named gemma."""
    return await checks.preflight(site, planned(site, **said))


async def without_builder(site: Site) -> None:
    """Delete the account, as a project has it that was set up before there was one."""
    project = site.clients.project
    email = f"vllm-devops-builder@{project}.iam.gserviceaccount.com"
    client = await site.clients.iam()
    await client.delete_service_account(name=f"projects/{project}/serviceAccounts/{email}")


async def emptied(client: Any, resource: str, role: str) -> None:
    """Take a role from everybody."""
    policy = await client.get_iam_policy(request={"resource": resource})
    left = [one for one in policy.bindings if one.role != role]
    del policy.bindings[:]
    policy.bindings.extend(left)
    await client.set_iam_policy(request={"resource": resource, "policy": policy})


async def without_pusher(site: Site) -> None:
    place = f"{site.clients.parent}/repositories/vllm-devops"
    await emptied(await site.clients.repositories(), place, "roles/artifactregistry.writer")


async def without_writer(site: Site) -> None:
    place = f"projects/{site.clients.project}"
    await emptied(await site.clients.projects(), place, "roles/logging.logWriter")


async def with_unread_token(site: Site) -> None:
    """Keep a token as somebody would by hand: nobody is let in."""
    client, project = await site.clients.secrets(), f"projects/{site.clients.project}"
    asked: dict[str, Any] = {"replication": {"automatic": {}}}
    await client.create_secret(
        request={"parent": project, "secret_id": "hf-token", "secret": asked}
    )
    value = {"parent": f"{project}/secrets/hf-token", "payload": {"data": b"hf_x"}}
    await client.add_secret_version(request=value)


def taken(**labels: str) -> Callable[[Site], Awaitable[object]]:
    """Make a service of the same name, with these labels."""

    async def before(site: Site) -> None:
        service = typed(site)
        service.labels = labels
        run = await site.clients.run()
        made = {"parent": site.clients.parent, "service_id": "gemma", "service": service}
        await run.create_service(request=made)

    return before


def kept(
    files: Mapping[str, bytes], *, readable: bool = True
) -> Callable[[Site], Awaitable[object]]:
    """Keep weights in a bucket."""

    async def before(site: Site) -> None:
        bucket = f"{site.clients.project}-weights"
        await store(site, bucket, below("gemma", files))
        if readable:
            await advance((checks.reader(site, bucket),), seconds=5)

    return before


class Case(NamedTuple):
    """One thing that is not as it should be: whose question says so, and with which words."""

    what: str
    words: tuple[str, ...]
    knobs: Mapping[str, Any] = {}
    said: Mapping[str, Any] = {}
    settings: Mapping[str, Any] = {}
    before: Callable[[Site], Awaitable[object]] | None = None
    target: str = L4


def denied(permission: str) -> dict[str, Any]:
    return {"denied_permissions": [permission]}


MAY: Final = "You may do what a deployment takes"
WEIGHTS: Final = {"weights": "gs://{project}-weights/gemma"}
FAILURES: Final = {
    "run": Case(MAY, ("run.services.create", "owner for roles/run.admin."),
         denied("run.services.create")),
    "keys": Case(MAY, ("secretmanager.versions.add", "roles/secretmanager.admin"),
         denied("secretmanager.versions.add")),
    "log": Case(MAY, ("roles/logging.viewer",), denied("logging.logEntries.list")),
    "act as": Case("deploy as that account", ("roles/iam.serviceAccountUser",),
         denied("iam.serviceAccounts.actAs")),
    "project": Case("is there", ("GOOGLE_CLOUD_PROJECT",), denied("resourcemanager.projects.get")),
    "token": Case("Hub's token", ("save_hf_token",), settings={"hf_token": "hf_x"}),
    "unread token": Case("Hub's token", ("may not read",), before=with_unread_token),
    "quota": Case("The quota allows 4 at once", ("max_replicas 3",), {"quotas": {"l4": 3}},
         {"max_replicas": 4}),
    "no quota": Case("The quota allows", ("console.cloud.google.com",), {"quotas": {"l4": 0}}),
    "vcpu": Case("many vCPU", ("max_replicas 1 or less",), {"quotas": {"cpu": 12}},
         {"max_replicas": 3}),
    "memory": Case("much memory", ("MemAllocPerProjectRegion is 40 GiB", "80 GiB asked for",
         "?project={project}"), {"quotas": FRESH}, target=RTX),
    "image": Case("image is there", ("nobody/nothing:1",), said={"image": "nobody/nothing:1"}),
    "name": Case("gemma is free or yours", ("not made here",), before=taken(team="theirs")),
    "name of another target": Case("gemma is free or yours", (RTX,),
         before=taken(**{"managed-by": "vllm-devops-agent", "vllm-devops-target": RTX})),
    "region": Case(WHOLE, ("not supported in region europe-north1",),
         settings={"google_cloud_location": "europe-north1"}),
    "organisation": Case(WHOLE, (FORBIDDEN,), {"faults": [fault("Services/CreateService",
         "FAILED_PRECONDITION", message=FORBIDDEN)]}),
    "no builder": Case("vllm-devops-builder", ("setup_target",), said=OLLAMA,
         before=without_builder ),
    "push": Case(ROLES, ("Missing: roles of vllm-devops-builder on that repository",), said=OLLAMA,
         before=without_pusher),
    "build log": Case(ROLES, ("Missing: roles of vllm-devops-builder in the project",), said=OLLAMA,
         before=without_writer ),
    "part of a model": Case("holds a whole model", (TWO,), said=WEIGHTS,
         before=kept({name: held for name, held in model().items() if name != TWO})),
    "no weights": Case("holds a whole model", ("No weights",), said=WEIGHTS, before=kept({})),
    "unread bucket": Case("Instances may read", ("roles/storage.objectViewer", "BUCKET_NAME="),
         said=WEIGHTS, before=kept(model(), readable=False)),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILURES)
async def test_what_is_wrong_is_the_only_failure(
    plane: GooglePlane, project: str, controls: Controls, name: str
) -> None:
    """It is named with the way out, and nothing was made by asking."""
    case = FAILURES[name]
    said = {key: str(one).format(project=project) if key == "weights" else one
            for key, one in case.said.items()}  # fmt: skip
    where = offline(case.target).target
    async with opened(plane, project, target=where, **case.settings) as site:
        if case.before:
            await case.before(site)
        controls.set(project, **case.knobs)
        seen = there(controls, project)
        failed = the_only_failure(await checked(site, **said))
    assert case.what in failed.what
    for words in case.words:
        assert words.format(project=project) in f"{failed.detail} {failed.fix}"
    assert "hf_x" not in repr(failed)
    assert there(controls, project) == seen


def there(controls: Controls, project: str) -> Mapping[str, Any]:
    """Give what there is of a project, without the calls that were made."""
    asked = {"calls", "needed", "tested", "knobs"}
    return {name: held for name, held in controls.get(project).items() if name not in asked}


PASSES: Final = {
    "l4": Case("The quota allows", ("is 3",), {"quotas": {"l4": 3}}),
    "rtx": Case("The quota allows", ("is 1",), {"quotas": {"rtx-pro-6000": 1}}, target=RTX),
    "built": Case("image is there", ("Cloud Build",), said=OLLAMA),
    "builder": Case(ROLES, ("It is.",), said=OLLAMA),
    "image": Case("image is there", ("ollama/ollama@sha256:",), said={**OLLAMA,
         "image": "ollama/ollama:0.40.0"}, before=without_builder),
    "whole model": Case("holds a whole model", ("",), said=WEIGHTS, before=kept(model())),
    "our own": Case("gemma is free", ("would be changed",), said={"max_num_seqs": 7},
         before=taken(**{"managed-by": "vllm-devops-agent", "vllm-devops-target": L4})),
    "kept token": Case("Hub's token", ("may read it",), before=lambda site: secrets.keep(site,
         "hf-token", SecretStr("hf_x"))),
}  # fmt: skip


@pytest.mark.parametrize("name", PASSES)
async def test_what_is_right_passes_and_only_the_hub_is_not_asked(
    plane: GooglePlane, project: str, controls: Controls, name: str
) -> None:
    """In a rehearsal nobody asks the Hub; what comes from elsewhere does not need it."""
    case = PASSES[name]
    said = {key: str(one).format(project=project) if key == "weights" else one
            for key, one in case.said.items()}  # fmt: skip
    controls.set(project, **{"quotas": {"l4": 3}, **case.knobs})
    async with opened(plane, project, target=offline(case.target).target) as site:
        if case.before:
            await case.before(site)
        found = await checked(site, **said)
    unknown = [one.what for one in found.checks if one.outcome != "pass"]
    assert unknown == (
        [] if "weights" in said or "engine" in said else
        ["google/gemma-4-E4B-it can be fetched from the Hub"]
    )  # fmt: skip
    assert all(words in row(found, case.what).detail for words in case.words)


async def test_a_bare_project_fails_for_its_apis_and_passes_nothing_it_could_not_see(
    plane: GooglePlane, bare_project: str
) -> None:
    async with opened(plane, bare_project) as site:
        found = await checked(site)
    failed = the_only_failure(found)
    assert failed.what == "Its APIs are enabled"
    assert "run.googleapis.com" in failed.fix
    assert {row(found, one).outcome for one in (WHOLE, "The quota allows")} == {"unknown"}


@pytest.mark.parametrize("name", ["name", "name of another target"])
async def test_what_google_would_refuse_is_told_also_of_a_service_that_is_not_ours(
    plane: GooglePlane, project: str, controls: Controls, name: str
) -> None:
    """It is judged, not taken: that its name is somebody else's is another row."""
    async with opened(plane, project) as site:
        before = FAILURES[name].before
        assert before
        await before(site)
        refusal = fault("Services/UpdateService", "FAILED_PRECONDITION", message=FORBIDDEN)
        controls.set(project, faults=[refusal])
        found = await checked(site)
    assert the_only_failure(found).what == "The name gemma is free or yours"
    assert FORBIDDEN in row(found, WHOLE).detail


@pytest.mark.parametrize("method", READS)
async def test_what_google_does_not_answer_is_unknown_and_never_a_pass(
    plane: GooglePlane, project: str, controls: Controls, method: str
) -> None:
    controls.set(project, faults=[fault(method, "UNAVAILABLE", times=-1)])
    async with opened(plane, project) as site:
        found = await checked(site)
    assert found.failed == ()
    unknown = [one for one in found.checks if one.outcome == "unknown"]
    assert len(unknown) >= 2
    assert all(one.detail for one in unknown)


async def test_what_takes_too_long_is_unknown_and_the_rest_is_told(
    plane: GooglePlane, project: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "DEADLINE", 2.0)
    controls.set(project, faults=[fault("Projects/GetProject", when="hang")])
    async with opened(plane, project) as site:
        found = await checked(site)
    late = row(found, f"project {project}")
    assert late.outcome == "unknown"
    assert "within 2 s" in late.detail
    assert row(found, "APIs").outcome == "pass"


async def test_a_region_by_invitation_and_a_silent_registry_are_unknown(
    plane: GooglePlane, project: str
) -> None:
    async with opened(plane, project, google_cloud_location="us-central1") as site:
        found = row(await checked(site), "us-central1 has")
    assert found.outcome == "unknown"
    assert "invitation" in found.detail
    silent = plane.model_copy(update={"http": "http://127.0.0.1:9"})
    async with opened(silent, project) as site:
        assert row(await checked(site), "image").outcome == "unknown"


async def test_quotas_that_are_not_told_are_unknown(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, faults=[fault("GetQuotaInfo", "PERMISSION_DENIED", times=-1)])
    async with opened(plane, project) as site:
        found = await checked(site)
    assert {row(found, words).outcome for words in QUOTAS.values()} == {"unknown"}
    assert found.failed == ()


@pytest.mark.parametrize("knob", QUOTAS)
async def test_a_quota_that_is_exactly_enough_may_not_do_for_a_change(
    plane: GooglePlane, project: str, controls: Controls, knob: str
) -> None:
    """A rollout takes more for a moment; the first deployment has nothing beside it."""
    async with opened(plane, project) as site:
        limits = planned(site).steps[-1].request["service"]["template"]["containers"][0]
        said = limits["resources"]["limits"]
        exact = {"l4": 1, "cpu": int(said["cpu"]), "memory_gib": int(said["memory"][:-2])}
        controls.set(project, quotas={knob: exact[knob]})
        assert row(await checked(site), QUOTAS[knob]).outcome == "pass"
        await deployed(site)
        found = await checked(site, max_num_seqs=7)
    assert found.failed == ()
    told = row(found, QUOTAS[knob])
    assert told.outcome == "unknown"
    assert "three times" in told.detail
    assert "destroy_vllm" in told.fix
    assert "raise the quota" in told.fix


async def test_a_deployment_that_a_preflight_would_fail_is_refused_and_makes_nothing(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Whoever does not ask first is told the same: the quota in units of people, the account."""
    controls.set(project, quotas=FRESH)
    async with opened(plane, project, target=offline(RTX).target) as site:
        with pytest.raises(QuotaExceeded) as quota:
            await backend_of(site).apply(planned(site))
    assert "MemAllocPerProjectRegion: 80 GiB asked for, 40 GiB allowed" in quota.value.fix
    async with opened(plane, project) as site:
        controls.set(project, denied_permissions=["iam.serviceAccounts.actAs"])
        assert "vllm-devops-builder" in row(await checked(site, **OLLAMA), "build as that").fix
        with pytest.raises(PermissionDenied):
            await backend_of(site).apply(planned(site, **OLLAMA))
        controls.set(project, denied_permissions=[])
        await without_builder(site)
        with pytest.raises(CloudRefused) as refused:
            await backend_of(site).apply(planned(site, **OLLAMA))
    assert "setup_target" in refused.value.fix
    seen = controls.get(project)
    assert (seen["services"], seen["secrets"], seen["builds"]) == ([], {}, [])


async def test_without_a_project_one_row_says_what_to_set(plane: GooglePlane) -> None:
    async with opened(plane, "p") as site:
        plan = planned(site)
        unset = site.settings.model_copy(update={"google_cloud_project": None})
        site.clients._world = site.clients._world._replace(google=None, settings=unset)
        (only,) = (await checks.preflight(site, plan)).checks
    assert only.outcome == "fail"
    assert "GOOGLE_CLOUD_PROJECT" in only.fix
