"""What nobody needs any more in a project of Google: found everywhere, priced, and removed."""

from collections import Counter
from typing import Any, Final

import pytest
from google.cloud.artifactregistry_v1 import Repository
from google.cloud.iam_admin_v1 import CreateRoleRequest, Role, ServiceAccount
from google.cloud.run_v2 import Container, RevisionTemplate, Service, ServiceScaling
from google.cloud.secretmanager_v1 import Replication, Secret
from pydantic import SecretStr

from backends.cloud_run.build import build_of
from backends.common.preflight import read_needs
from backends.google import lease, leftovers, secrets
from backends.google.clients import DEPLOYMENT_LABEL, MANAGED_BY, TARGET_LABEL
from backends.tpu import compute
from backends.tpu.site import ChipState, Request, Site
from core.errors import InvalidArgument, NotFound, NotOurs
from core.records import DeploymentSpec
from tests.backends.cloud_run import sites as run_sites
from tests.backends.tpu.orders import becomes, foreign_node
from tests.backends.tpu.planned import drawn
from tests.backends.tpu.planted import NO_CHIP, foreign, ours, rule_of_others, until
from tests.backends.tpu.sites import opened
from tests.conversation import Agent, Reply, agent_of
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = [pytest.mark.anyio, pytest.mark.life, pytest.mark.usefixtures("every_cloud")]

TARGET: Final = "cloud-run-l4"
HERE: Final = "us-east5-b"
FULL: Final = "us-east5-a"
"""A zone without chips."""
REGIONS: Final = ("us-east4", "us-central1", "us-west1", "europe-north1")
ENDS: Final = 2_000_000_000
DISKS: Final = {
    "pd-standard": 4.0,
    "pd-balanced": 10.0,
    "pd-ssd": 17.0,
    "hyperdisk-balanced": 8.0 + 1000 * 0.005 + 100 * 0.04,
}
"""What 100 GiB of each cost a month in us-east5; the last with more than comes with it."""


async def left(agent: Agent) -> Reply:
    found = await agent.call("get_system_status", leftovers=True, target=TARGET)
    assert not found.failed, found
    return found


def ids(found: Reply) -> list[str]:
    return [row["id"] for row in found.data["leftovers"]]


def kinds(found: Reply) -> Counter[str]:
    return Counter(row["kind"] for row in found.data["leftovers"])


async def removed(agent: Agent, resource: str) -> Reply:
    return await agent.call("destroy_vllm", target=TARGET, leftover=resource)


async def planted(cloud: Cloud) -> None:
    """Leave forty of ours of which no deployment is there, and forty of others."""
    plane, project = cloud.controls.plane, cloud.project
    await on_cloud_run(cloud)
    async with opened(plane, project) as site:
        await on_tpus(site)
        await of_others(cloud, site)


async def on_cloud_run(cloud: Cloud) -> None:
    """Plant a service with its key in a region of its own, 8 jobs, 8 keys and 6 images."""
    plane, project = cloud.controls.plane, cloud.project
    for number, region in enumerate(REGIONS * 2):
        async with run_sites.opened(plane, project, google_cloud_location=region) as site:
            for made in (
                lease.job(site, f"dead-{number}", ENDS),
                secrets.key(site, f"gone-{number}")[0],
            ):
                assert made.put
                await made.put()
    for number, region in enumerate(REGIONS[:2] * 3):
        async with run_sites.opened(plane, project, google_cloud_location=region) as site:
            name = f"built-{number}"
            spec = DeploymentSpec(name=name, model="gemma3:4b", engine="ollama")
            await built(site, build_of(spec, project=project, region=region))
    async with run_sites.opened(plane, project, google_cloud_location="europe-west4") as site:
        wish = run_sites.planned(site, name="far", min_replicas=1, ttl_minutes=60)
        await run_sites.backend_of(site).apply(wish)


async def built(site: Any, build: Any) -> None:
    client, parent = await site.clients.build(), site.clients.parent
    request = {"parent": parent, "project_id": site.clients.project, "build": build}
    await (await client.create_build(request=request)).result()


async def on_tpus(site: Site) -> None:
    """Plant 2 requests that failed, a node of a target that is no more, an
    instance that was stopped, 4 keys, 5 rules and 4 disks."""
    for number in range(2):
        await ours(site, f"failed-{number}", zone=FULL)
        await until(site, f"vllm-devops-failed-{number}", ChipState.FAILED, zone=FULL)
    lost = {"managed-by": MANAGED_BY, DEPLOYMENT_LABEL: "lost", TARGET_LABEL: "tpu-of-old"}
    await foreign_node(site, "vllm-devops-lost", **lost)
    await ours(site, "halted", plane="compute")
    await becomes(site.planes["compute"], ChipState.RUNNING, "vllm-devops-halted", HERE)
    await asked(site, f"zones/{HERE}/instances/vllm-devops-halted/stop")
    for number in range(4):
        key = secrets.key(site, f"chipless-{number}")[0]
        assert key.put
        await key.put()
    for number in range(5):
        name = f"ruled-{number}"
        made = drawn(site, zones=(HERE,))
        made = made.model_copy(
            update={
                "id": f"vllm-devops-{name}",
                "spec": made.spec.model_copy(update={"name": name}),
            }
        )
        rule = compute.firewall_rule(site, name, made, ("192.0.2.1/32",))
        assert rule.put
        await rule.put()
        labels = {**made.labels, DEPLOYMENT_LABEL: name}
        disk = {"name": made.id, "sizeGb": "100", "labels": labels}
        if number:
            kind = f"zones/{HERE}/diskTypes/{[*DISKS][number - 1]}"
            fast = {"provisionedIops": "4000", "provisionedThroughput": "240"}
            more = fast if kind.endswith("hyperdisk-balanced") else {}
            await asked(site, f"zones/{HERE}/disks", json={**disk, "type": kind, **more})


async def asked(site: Site, path: str, **more: Any) -> None:
    await compute.call(site.clients, "plant it", "POST", path, **more)


async def of_others(cloud: Cloud, site: Site) -> None:
    """Plant forty that are like ours in all but the mark."""
    project, clients = site.clients.project, site.clients
    parent = f"projects/{project}"
    east = f"{parent}/locations/us-east4"
    async with run_sites.opened(  # which has clients that TPUs do not need
        cloud.controls.plane, project
    ) as near:
        run, jobs = await near.clients.run(), await near.clients.scheduler()
        registry = await near.clients.repositories()
        off = ServiceScaling(scaling_mode=ServiceScaling.ScalingMode.MANUAL)
        for number, region in enumerate(REGIONS[:3]):
            template = RevisionTemplate(
                containers=[Container(image="us-docker.pkg.dev/cloudrun/container/hello")],
                service_account=f"vllm-devops-runtime@{project}.iam.gserviceaccount.com",
            )
            service = Service(template=template, scaling=off, labels={"managed-by": "terraform"})
            where = f"{parent}/locations/{region}"
            await run.create_service(parent=where, service=service, service_id=f"theirs-{number}")
        for number in range(6):
            job: Any = {
                "name": f"{east}/jobs/vllm-lease-theirs-{number}",
                "schedule": "0 0 1 1 *",
                "http_target": {"uri": "https://example.com", "http_method": "GET"},
            }
            await jobs.create_job(parent=east, job=job)
        for number in range(2):
            made = Repository(format_=Repository.Format.DOCKER, labels={"managed-by": "them"})
            await registry.create_repository(
                parent=east, repository=made, repository_id=f"theirs-{number}"
            )
        spec = DeploymentSpec(name="mine", model="gemma3:4b", engine="ollama")
        build = build_of(spec, project=project, region="us-east4")
        pushed = build.images[0].rpartition(":")[0] + ":v1"
        build.images[0], build.steps[1].args[2] = pushed, pushed
        await built(near, build)
    keys, iam = await clients.secrets(), await clients.iam()
    for number in range(10):
        secret = Secret(
            labels={"managed-by": "them", DEPLOYMENT_LABEL: f"theirs-{number}"},
            replication=Replication(automatic=Replication.Automatic()),
        )
        name = f"vllm-devops-theirs-{number}-api-key"
        await keys.create_secret(parent=parent, secret_id=name, secret=secret)
    for number in range(3):
        account = ServiceAccount(display_name="theirs", description="Made by them.")
        await iam.create_service_account(
            name=parent, account_id=f"vllm-devops-caller{number}", service_account=account
        )
    for number in range(2):
        role = Role(title="vllm-devops-agent: theirs", included_permissions=["run.services.get"])
        made_role = CreateRoleRequest(parent=parent, role_id=f"vllmDevops{number}", role=role)
        await iam.create_role(made_role)
    for number in range(4):
        await rule_of_others(site, f"vllm-devops-their{number}", description="managed-by=them")
    for number in range(5):
        disk = {"name": f"theirs-{number}", "sizeGb": "10", "labels": {"team": "theirs"}}
        await asked(site, f"zones/{HERE}/disks", json=disk)
    for number in range(2):
        await foreign(site, f"theirs-{number}", zone=FULL)
    await foreign_node(site, "theirs", team="theirs")
    chip = drawn(site, zones=(HERE,), control_plane="compute").model_copy(update={"id": "theirs"})
    await site.planes["compute"].create(Request(chip, HERE, "", {"team": "theirs"}))
    await becomes(site.planes["compute"], ChipState.RUNNING, "theirs", HERE)


OURS: Final = Counter(
    {
        "Cloud Run service": 1,
        "Cloud Scheduler job": 8,
        "secret": 12,
        "image": 6,
        "queued resource": 2,
        "instance": 1,
        "firewall rule": 5,
        "disk": 4,
        "TPU node": 1,
    }
)
SHARED: Final = Counter({"secret": 1, "service account": 4, "role": 2, "repository": 4})
"""What stays when nothing of ours is there; a fifth repository has an image of others."""
LIVING: Final = 1 + 2 + 3 + 4 + 2 + 4
"""A service, its job and key and those of the one far away, and what all share."""
OTHERS: Final = {
    "Cloud Run service": 3,
    "Cloud Scheduler job": 6,
    "secret": 10,
    "image": 1,
    "repository": 3,
    "queued resource": 2,
    "TPU node": 1,
    "instance": 1,
    "firewall rule": 4,
    "disk": 6,
    "service account": 3,
    "role": 2,
}


def seen(cloud: Cloud) -> dict[str, Any]:
    """Return what is there, whoever made it, by kind."""
    there = cloud.controls.get(cloud.project)
    kept = ("services", "secrets", "jobs", "images", "firewalls", "vms", "queued_resources")
    return {kind: there[kind] for kind in (*kept, "nodes", "accounts", "roles")}


async def test_forty_of_ours_are_found_beside_forty_of_others(cloud: Cloud) -> None:
    """Each is removed and seen to be gone; what is others', or a deployment's, is refused."""
    cloud.set(tpu_clock=6000, tpu_zones={HERE: {}, FULL: NO_CHIP})
    assert sum(OURS.values()) == 40 <= sum(OTHERS.values())
    settings = cloud.settings.model_copy(update={"hf_token": SecretStr("hf_" + "a" * 34)})
    async with agent_of(settings) as agent:
        life = Life(agent, TARGET, at="http")
        await life.call("deploy_vllm", model=MODEL, max_model_len=4096, ttl_minutes=600)
        await life.becomes("ready")
        await planted(cloud)
        before = seen(cloud)
        found = await left(agent)
        assert kinds(found) == OURS, found
        assert found.data["others"] == {f"project {cloud.project}": OTHERS}
        assert found.data["not_seen"] == []
        rows = {row["id"]: row for row in found.data["leftovers"]}
        assert not [one for one in rows if one.endswith(("/one", "-one", "-one-api-key"))]
        (far,) = [row for row in rows.values() if row["kind"] == "Cloud Run service"]
        assert (far["where"], "no target looks in europe-west4" in far["why"]) == (
            "europe-west4",
            True,
        )
        assert far["usd_per_month"] > 300
        job_usd = {r["usd_per_month"] for r in rows.values() if r["kind"] == "Cloud Scheduler job"}
        assert job_usd == {0.1}
        of_kind: dict[str, list[float]] = {}
        for row in rows.values():
            of_kind.setdefault(row["kind"], []).append(row["usd_per_month"])
        assert sorted(of_kind["disk"]) == sorted(DISKS.values())
        assert of_kind["instance"] == [200 * 0.08]  # of one that was stopped its disk alone bills
        assert of_kind["TPU node"] == [round(2.7219 * 730, 2)]
        assert found.data["price_not_known"] == 0
        assert found.data["usd_per_month"] == round(sum(map(sum, of_kind.values())), 2)
        await others_are_refused(agent, cloud, rows)
        assert seen(cloud) == before
        await every_one_goes(agent, cloud, found)
        assert ids(await left(agent)) == []
        assert (await life.call("verify_model_health")).data["healthy"]
        await life.call("destroy_vllm")
        rest = await left(agent)
        assert kinds(rest) == SHARED, rest
        await every_one_goes(agent, cloud, rest)
        last = await left(agent)
        assert ids(last) == []
        assert last.data["others"] == found.data["others"]


async def others_are_refused(agent: Agent, cloud: Cloud, rows: dict[str, Any]) -> None:
    """Ask for one of each kind by its whole name, whether it is others' or lives."""
    async with run_sites.opened(cloud.controls.plane, cloud.project) as site:
        backend = run_sites.backend_of(site)
        every = [one for row in await leftovers._look_at_all(site) for one in row.things]
        assert len(every) == len(rows) + sum(OTHERS.values()) + LIVING
        for one in {(one.kind, one.ours): one for one in every if one.id not in rows}.values():
            with pytest.raises(InvalidArgument if one.ours else NotOurs):
                await backend.remove_leftover(one.id, ())
            assert (await removed(agent, one.id)).code == "NOT_FOUND"
        with pytest.raises(NotFound):
            await backend.remove_leftover(f"projects/{cloud.project}/secrets/nobody", ())


async def every_one_goes(agent: Agent, cloud: Cloud, found: Reply) -> None:
    """Remove one of each kind by the tool, and the others by what the tool calls."""
    rows = sorted(found.data["leftovers"], key=lambda row: str(row["id"]))
    first = {row["kind"]: row["id"] for row in reversed(rows)}
    async with run_sites.opened(cloud.controls.plane, cloud.project) as site:
        backend = run_sites.backend_of(site)
        for one in (str(row["id"]) for row in rows):
            if one in first.values():
                gone = await removed(agent, one)
                assert gone.data == {"id": one, "gone": True}, gone
            else:
                assert await backend.remove_leftover(one, ())


@pytest.mark.parametrize(
    ("denied", "kind", "said"),
    [
        ("secretmanager.secrets.list", "secret", "secrets"),
        ("compute.disks.list", "disk", "disks"),
        ("cloudscheduler.jobs.list", "Cloud Scheduler job", "jobs of Cloud Scheduler"),
        ("artifactregistry.repositories.list", "image", "images"),
        ("iam.roles.list", "role", "roles"),
    ],
)
async def test_what_a_login_may_not_list_is_said(
    cloud: Cloud, denied: str, kind: str, said: str
) -> None:
    """The others are found all the same."""
    await on_cloud_run(cloud)
    cloud.set(denied_permissions=[denied])
    async with agent_of(cloud.settings) as agent:
        found = await left(agent)
    (words,) = found.data["not_seen"]
    assert said in words
    assert kind not in kinds(found)
    assert len(kinds(found)) > 1


@pytest.mark.parametrize("denied", ["run.services.list", "run.locations.list", "tpu.nodes.list"])
async def test_what_may_serve_a_deployment_that_cannot_be_seen_is_not_named(
    cloud: Cloud, denied: str
) -> None:
    """Its key, its job and its image may be in use."""
    await on_cloud_run(cloud)
    cloud.set(denied_permissions=[denied])
    async with agent_of(cloud.settings) as agent:
        found = await left(agent)
    assert not kinds(found).keys() & {"role", "repository", "service account"}
    assert ("secret" in kinds(found)) == (denied == "tpu.nodes.list")
    assert found.data["not_seen"]


async def test_of_an_api_that_is_off_there_is_nothing(bare_cloud: Cloud) -> None:
    async with agent_of(bare_cloud.settings) as agent:
        found = await left(agent)
    assert ids(found) == []
    assert found.data["not_seen"] == []


async def test_a_login_that_only_reads_sees_them_and_removes_none(cloud: Cloud) -> None:
    await on_cloud_run(cloud)
    cloud.set(denied_permissions=["secretmanager.secrets.delete"])
    async with agent_of(cloud.settings) as agent:
        key = next(one for one in ids(await left(agent)) if one.endswith("gone-0-api-key"))
        refused = await removed(agent, key)
        assert refused.code == "PERMISSION_DENIED"
    async with agent_of(cloud.settings.model_copy(update={"read_only": True})) as agent:
        assert key in ids(await left(agent))
        assert (await removed(agent, key)).failed


async def test_both_backends_look_through_the_same_project_once(cloud: Cloud) -> None:
    """With the permissions that are said to be enough."""
    before = len(cloud.controls.get(cloud.project)["needed"])
    async with run_sites.opened(cloud.controls.plane, cloud.project) as site:
        await run_sites.backend_of(site).find_leftovers(())
    rows = read_needs("cloud_run")["permissions"]
    said = {name for row in rows if row["needed_by"] == "leftovers" for name in row["names"]}
    assert set(cloud.controls.get(cloud.project)["needed"][before:]) <= said
    async with agent_of(cloud.settings) as agent:
        found = await agent.call("get_system_status", leftovers=True)
    assert found.data["accounts"].count(f"project {cloud.project}") == 1
