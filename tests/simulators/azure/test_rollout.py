"""From a template to a revision that serves, or to the state and words of one that does not."""

import pytest
from azure.core.exceptions import HttpResponseError

from backends.aca.site import Clients
from tests.azure_plane import Controls
from tests.simulators.azure.apps import Apps, caller, probe, scale, url_of, wanted

pytestmark = pytest.mark.anyio


@pytest.fixture
def apps(clients: Clients, controls: Controls) -> Apps:
    return Apps(clients, controls)


async def test_a_revision_boots_once_also_where_no_replica_need_be_there(apps: Apps) -> None:
    """Its events are those of Azure, in order; at the end it is healthy and asked."""
    app = await apps.ready()
    revision = await apps.revision_until(lambda one: one.running_state == "RunningAtMaxScale")
    assert revision.health_state == "Healthy"
    assert revision.provisioning_state == "Provisioned"
    assert revision.replicas == 1
    events = apps.controls.get(apps.subscription)["events"]
    boot = [
        "AssigningReplica",
        "PullingImage",
        "PulledImage",
        "ContainerCreated",
        "ContainerStarted",
        "RevisionReady",
    ]
    assert [one for one in events if one in boot] == boot
    async with caller() as http:
        assert (await http.get(f"{url_of(app)}/v1/models")).status_code == 200


async def test_an_app_has_succeeded_before_its_model_answers(apps: Apps) -> None:
    """The operation ends with the revision's provisioning; the replica is still booting."""
    apps.set(boot_seconds=30)
    app = await apps.put()
    assert app.provisioning_state == "Succeeded"
    assert not app.latest_ready_revision_name
    revision = await apps.revision()
    assert (revision.running_state, revision.health_state) == ("Activating", "None")
    replica = (await apps.replicas())[0]
    container = replica.containers[0]
    assert not container.ready
    assert container.log_stream_endpoint.startswith(apps.controls.plane.http)


async def test_an_image_that_is_not_there_fails_the_change(apps: Apps) -> None:
    """The operation fails with Azure's code, the revision says why, and nothing runs."""
    apps.set(rollout="image-missing")
    with pytest.raises(HttpResponseError) as refused:
        await apps.put()
    assert "ContainerAppOperationError" in str(refused.value)
    assert "MANIFEST_UNKNOWN" in refused.value.message
    assert (await apps.get()).provisioning_state == "Failed"
    revision = await apps.revision()
    assert (revision.provisioning_state, revision.active) == ("Failed", False)
    assert "MANIFEST_UNKNOWN" in revision.provisioning_error
    assert await apps.replicas() == []


async def test_a_replica_waits_for_a_gpu_as_long_as_it_takes(apps: Apps) -> None:
    """Nothing is billed and no container begins before it has a host."""
    apps.set(rollout="no-host")
    await apps.put()
    await apps.until_event("AssigningReplicaFailed")
    seen = apps.controls.get(apps.subscription)
    assert "ContainerStarted" not in seen["events"]
    assert [one["billed_from"] for one in seen["replicas"]] == [None]
    replica = (await apps.replicas())[0]
    assert "Waiting for infrastructure" in replica.running_state_details
    apps.set(rollout="ok")
    await apps.until(lambda one: bool(one.latest_ready_revision_name))


@pytest.mark.parametrize("quota", ["quotas", "environment_quotas"])
async def test_a_replica_beyond_the_quota_waits_until_another_ends(apps: Apps, quota: str) -> None:
    """The quota is enforced when a replica is scheduled: the app is made all the same."""
    apps.set(**{quota: {"a100": 1}})
    await apps.ready(name="first")
    await apps.put(name="second")
    events = await apps.until_event("AssigningReplicaFailed")
    assert events.count("ContainerStarted") == 1
    replica = (await apps.replicas(name="second"))[0]
    assert "Maximum Allowed GPUs exceeded" in replica.running_state_details
    await apps.act("delete", "first")
    await apps.until(lambda one: bool(one.latest_ready_revision_name), "second")


async def test_a_boot_beyond_its_probes_is_begun_again_and_again(apps: Apps) -> None:
    """The container ends by its probe, backs off, and the revision has failed to activate."""
    apps.set(rollout="probe-fails", probe_scale=0.002)
    await apps.put(wanted(apps.clients, probe=probe(period=1, failures=3)))
    revision = await apps.revision_until(lambda one: one.running_state == "ActivationFailed")
    assert revision.health_state == "Unhealthy"
    replica = (await apps.replicas())[0]
    assert replica.containers[0].restart_count >= 2
    told = apps.controls.get(apps.subscription)
    assert "ContainerTerminated" in told["events"]
    assert "ContainerBackOff" in told["events"]
    assert any("failed startup probe, will be restarted" in one for one in told["log"])
    assert any("reason 'ProbeFailure'" in one for one in told["log"])


async def test_an_engine_that_ends_by_itself_leaves_its_status(apps: Apps) -> None:
    """What it wrote is in the console's log, how it ended in the system's."""
    apps.set(engine_environment={"SIMULATED_ENGINE_FAIL": "hub-gated"}, probe_scale=0.002)
    await apps.put()
    await apps.until_event("ContainerTerminated")
    log = apps.controls.get(apps.subscription)["log"]
    assert any("terminated with exit code '1' and reason 'Error'" in one for one in log)
    assert any("gated repo" in one for one in log)


async def test_a_container_on_another_port_is_never_healthy(apps: Apps) -> None:
    """What the ingress and the probe ask is not where the engine listens."""
    apps.set(probe_scale=0.002)
    app = wanted(apps.clients, probe=probe(period=1, failures=2))
    app.properties.template.containers[0].args[-1] = "8001"
    await apps.put(app)
    await apps.until_event("ContainerTerminated")
    assert not (await apps.get()).latest_ready_revision_name


async def test_the_revision_before_serves_until_the_new_one_is_ready(apps: Apps) -> None:
    """Then it is inactive, and its replica is gone."""
    first = await apps.ready()
    apps.set(boot_seconds=30)
    await apps.put(wanted(apps.clients, "--max-num-seqs", "4"))
    after = await apps.get()
    assert after.latest_revision_name != first.latest_revision_name
    assert after.latest_ready_revision_name == first.latest_revision_name
    async with caller() as http:
        assert (await http.get(f"{url_of(after)}/v1/models")).status_code == 200
    assert len(apps.controls.get(apps.subscription)["replicas"]) == 2


async def test_a_revision_that_is_replaced_ends(apps: Apps) -> None:
    """In single mode one revision is active: the newest that was ready."""
    first = await apps.ready()
    second = await apps.ready(wanted(apps.clients, "--max-num-seqs", "4"))
    rows = await apps.until_replicas(1)
    assert rows[0]["revision"] == second.latest_revision_name
    old = await apps.revision_until(
        lambda one: one.running_state == "Stopped", str(first.latest_revision_name)
    )
    assert old.active is False


async def test_a_revision_that_is_activated_again_lives_on_beside_the_newest(apps: Apps) -> None:
    """With replicas that are always there it bills until it is deactivated."""
    apps.set(quotas={"a100": 3}, environment_quotas={"a100": 3})
    first = await apps.ready(wanted(apps.clients, scale=scale(1)))
    old = str(first.latest_revision_name)
    await apps.ready(wanted(apps.clients, scale=scale(0)))
    await apps.until_replicas(1)
    revisions = (await apps.clients.apps()).container_apps_revisions
    await revisions.activate_revision(apps.clients.group, "one", old)
    await apps.until_replicas(2)
    await apps.revision_until(lambda one: one.running_state == "RunningAtMaxScale", old)
    third = await apps.ready(wanted(apps.clients, "--max-num-seqs", "4"))
    rows = await apps.until_replicas(2)
    assert {row["revision"] for row in rows} == {old, third.latest_revision_name}
    await revisions.deactivate_revision(apps.clients.group, "one", old)
    await apps.until_replicas(1)


async def test_a_revision_that_is_restarted_has_new_replicas(apps: Apps) -> None:
    """As many as before, and none of them is the same."""
    app = await apps.ready(wanted(apps.clients, scale=scale(1)))
    before = (await apps.replicas())[0].name
    revisions = (await apps.clients.apps()).container_apps_revisions
    await revisions.restart_revision(apps.clients.group, "one", str(app.latest_revision_name))
    after = [one.name for one in await apps.replicas()]
    assert len(after) == 1
    assert after != [before]


async def test_an_older_revision_that_never_was_ready_ends_with_the_newest(apps: Apps) -> None:
    """Until then it goes on, with a replica that is billed."""
    apps.set(engine_environment={"SIMULATED_ENGINE_FAIL": "hub-gated"})
    failing = str((await apps.put(wanted(apps.clients, scale=scale(1)))).latest_revision_name)
    await apps.until_event("ContainerTerminated")
    apps.set(engine_environment={})
    newest = await apps.ready(wanted(apps.clients, "--max-num-seqs", "4"))
    rows = await apps.until_replicas(1)
    assert rows[0]["revision"] == newest.latest_revision_name
    assert (await apps.revision(failing)).active is False


async def test_a_change_that_waits_for_its_boot_expires_and_the_boot_goes_on(apps: Apps) -> None:
    """The app is called failed, and refuses other changes no longer, while its replica runs."""
    apps.set(patience_seconds=0.3, boot_seconds=1.5)
    with pytest.raises(HttpResponseError, match="Operation expired"):
        await apps.put()
    app = await apps.get()
    assert (app.provisioning_state, app.latest_ready_revision_name) == ("Failed", None)
    assert len(await apps.replicas()) == 1
    await apps.until(lambda one: bool(one.latest_ready_revision_name))
    assert (await apps.get()).provisioning_state == "Failed"
