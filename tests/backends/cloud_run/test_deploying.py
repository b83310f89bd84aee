"""Deployments made, changed, stopped, started and deleted: each as it is told, once."""

import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from google.api_core.exceptions import NotFound as Missing
from google.cloud import run_v2
from google.cloud.devtools.cloudbuild_v1 import Build
from google.longrunning.operations_pb2 import Operation
from google.rpc.status_pb2 import Status as Refusal
from pydantic import SecretStr

from backends.cloud_run import access, build
from backends.cloud_run import service as run
from backends.cloud_run.site import Site
from backends.google.clients import HF_SECRET, SPEC_LABEL, key_secret
from backends.lifecycle import Pending, Resource, Status, advance
from core import errors
from core.records import Plan, State
from core.reply import collecting_notes
from core.settings import GooglePlane
from tests.backends.cloud_run.planned import drawn
from tests.backends.cloud_run.planned import site as offline
from tests.backends.cloud_run.planned import spec as specified
from tests.backends.cloud_run.sites import (
    OTHER,
    backend_of,
    deployed,
    fault,
    foreign_service,
    opened,
    planned,
    settled,
)
from tests.backends.google_secrets import keep_key
from tests.google_plane import Controls
from tests.soon import soon

pytestmark = pytest.mark.anyio
CREATE, UPDATE = (f"google.cloud.run.v2.Services/{verb}Service" for verb in ("Create", "Update"))
KEY = key_secret("gemma")


async def test_a_plan_becomes_a_service_with_a_key_that_it_may_read(
    site: Site, controls: Controls
) -> None:
    """The image is pinned, nobody else is let in; the same again changes nothing."""
    for _ in range(2):
        await backend_of(site).apply(planned(site))
    async with opened(controls.plane, site.clients.project) as another:
        await backend_of(another).apply(planned(another))
    service, seen = await run.get_service(site, "gemma"), controls.get(site.clients.project)
    assert "@sha256:" in service.template.containers[0].image
    assert (seen["services"], seen["secrets"][KEY]["versions"]) == (["gemma"], 1)
    assert not service.invoker_iam_disabled
    assert not [call for call in seen["calls"] if call.endswith("Services/SetIamPolicy")]
    assert [call for call in seen["calls"] if call in {CREATE, UPDATE}] == [CREATE]


async def test_a_public_service_of_an_older_version_is_given_its_proxy(site: Site) -> None:
    """The same plan again replaces it, and says why; before that it is told what stands open."""

    def without_proxy(service: run_v2.Service) -> None:
        engine, _proxy = service.template.containers
        engine.ports = [run_v2.ContainerPort(container_port=8000)]
        service.template.containers = [engine]

    plan = planned(site, access="public")
    await backend_of(site).apply(plan)
    await run.change_service(site, "gemma", run.Change("take it away", without_proxy, run.is_open))
    await settled(site)
    assert "POST /invocations computes" in (await access.access(site, "gemma")).protection
    with collecting_notes() as notes:
        await backend_of(site).apply(plan)
    service = await run.get_service(site, "gemma")
    assert any("a new revision with a proxy" in note for note in notes)
    assert [one.name for one in service.template.containers] == ["vllm", "guard"]
    assert "/invocations" not in (await access.access(site, "gemma")).protection


async def test_what_is_another_targets_or_a_strangers_is_left_alone(
    site: Site, controls: Controls
) -> None:
    """Neither replaced nor changed nor deleted; its target is named, its key stays."""
    project = site.clients.project
    async with opened(controls.plane, project, target=OTHER) as other:
        await backend_of(other).apply(planned(other))
    await foreign_service(site, "stranger")
    before = controls.get(project)["calls"].count(UPDATE)
    with pytest.raises(errors.NotOurs, match=OTHER.name):
        await backend_of(site).apply(planned(site))
    for name, kind in {"nobody": errors.DeploymentNotFound, "stranger": errors.NotOurs,
                       "gemma": errors.DeploymentNotFound}.items():  # fmt: skip
        with pytest.raises(kind):
            await backend_of(site).stop(name)
    with pytest.raises(errors.NotOurs):
        await backend_of(site).delete("stranger")
    deleted = await backend_of(site).delete("gemma")
    assert (deleted.gone, deleted.removed) == (True, ())
    seen = controls.get(project)
    assert seen["services"] == ["gemma", "stranger"]
    assert KEY in seen["secrets"]
    assert seen["calls"].count(UPDATE) == before


@pytest.mark.parametrize("kept", [False, True])
async def test_a_refused_service_leaves_no_key_behind_that_this_call_made(
    site: Site, controls: Controls, *, kept: bool
) -> None:
    """Without quota there is no service; a key of an earlier life outlives the refusal."""
    if kept:
        await keep_key(site, "gemma")
    controls.set(site.clients.project, quotas={"l4": 0})
    with pytest.raises(errors.QuotaExceeded):
        await backend_of(site).apply(planned(site))
    seen = controls.get(site.clients.project)
    assert (seen["services"], list(seen["secrets"])) == ([], [KEY] if kept else [])


async def test_another_spec_replaces_the_whole_and_keeps_key_and_others_labels(
    site: Site, controls: Controls
) -> None:
    """A ttl that is left out is no longer there; a person's own label is."""
    await backend_of(site).apply(planned(site, ttl_minutes=60))
    client, service = await site.clients.run(), await run.get_service(site, "gemma")
    service.labels["cost-centre"] = "42"
    await client.update_service(service=service)
    await backend_of(site).apply(planned(site, max_model_len=2048))
    service = await run.get_service(site, "gemma")
    assert "2048" in " ".join(service.template.containers[0].args)
    assert service.labels["cost-centre"] == "42"
    assert "vllm-devops-expires" not in service.labels
    assert controls.get(site.clients.project)["secrets"][KEY]["versions"] == 1


async def test_a_token_of_the_settings_is_kept_for_the_hub_and_stays_when_it_is_deleted(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The service has it by reference; one that is kept already stays as it is."""
    controls.set(project, boot_seconds=0.1)
    async with opened(plane, project, hf_token=SecretStr("hf_first")) as site:
        await deployed(site)
        service = await run.get_service(site, "gemma")
        deleted = await backend_of(site).delete("gemma")
    named = {one.name: one.value_source for one in service.template.containers[0].env}
    assert named["HF_TOKEN"].secret_key_ref.secret.endswith(HF_SECRET)
    assert [one.usd_per_month for one in deleted.stays] == [0.06]
    assert HF_SECRET in deleted.stays[0].how_to_remove
    async with opened(plane, project, hf_token=SecretStr("hf_second")) as site:
        await backend_of(site).apply(planned(site, name="qwen"))
    assert controls.get(project)["secrets"][HF_SECRET]["versions"] == 1


async def _invokers(site: Site, name: str) -> list[str]:
    client = await site.clients.run()
    policy = await client.get_iam_policy(request={"resource": run.service_path(site, name)})
    return [member for binding in policy.bindings for member in binding.members]


async def test_only_the_named_account_is_let_in(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Private lets in whom ID tokens are minted for, also where a server died before; public
    asks nobody, and an account that there is not is noted."""
    account = f"vllm-devops-runtime@{project}.iam.gserviceaccount.com"
    async with opened(plane, project, google_service_account=account) as site:
        backend, plan = backend_of(site), planned(site)
        where, now = backend.pending.where, datetime.now(UTC)
        backend.pending.keep(Pending(spec=plan.spec, model=plan.model, where=where, since=now))
        before = await backend.describe("gemma")
        assert before.phase
        assert before.phase.name in backend.waits_in
        await backend.go_on("gemma")
        assert backend.pending.get("gemma") is None
        await backend_of(site).apply(planned(site, name="open", access="public"))
        assert await _invokers(site, "gemma") == [f"serviceAccount:{account}"]
        assert await _invokers(site, "open") == []
        assert (await run.get_service(site, "open")).invoker_iam_disabled
    nobody = f"nobody@{project}.iam.gserviceaccount.com"
    async with opened(plane, project, google_service_account=nobody) as site:
        with collecting_notes() as notes:
            await backend_of(site).apply(planned(site, name="third"))
    assert "third" in controls.get(project)["services"]
    assert any(nobody in text for text in notes)


async def test_an_image_that_is_not_there_is_refused_before_anything_is_made(
    site: Site, controls: Controls
) -> None:
    with pytest.raises(errors.CloudRefused):
        await backend_of(site).apply(planned(site, image="nobody/nothing:never"))
    seen = controls.get(site.clients.project)
    assert not seen["secrets"]
    assert not [call for call in seen["calls"] if call.endswith(("/CreateSecret", CREATE))]


async def test_one_that_failed_is_tried_anew(site: Site, controls: Controls) -> None:
    """The same spec makes another revision, for the first stays failed."""
    controls.set(site.clients.project, rollout="image-missing")
    await backend_of(site).apply(planned(site))
    await settled(site)
    controls.set(site.clients.project, rollout="ok")
    with collecting_notes() as notes:
        await backend_of(site).apply(planned(site))
    assert len(controls.get(site.clients.project)["revisions"]) == 2
    assert not notes


async def test_what_the_operation_says_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a deployment would be waited for that nobody makes."""
    where = offline(google_cloud_project="mine")
    ended = Operation(name="one", done=True, error=Refusal(code=8, message="No quota."))

    class Refusing:
        """A client of a Cloud Run that takes a service and then says no."""

        async def create_service(self, **_: Any) -> Any:
            return SimpleNamespace(operation=Operation(name="one"))

        async def get_service(self, **_: Any) -> Any:
            raise Missing("There is none.")

        async def get_operation(self, *_: Any, **__: Any) -> Operation:
            return ended

    async def refusing() -> Refusing:
        return Refusing()

    monkeypatch.setattr(where.clients, "run", refusing)
    made = run.Rollout(where, drawn(where, image=f"example.com/vllm@sha256:{'0' * 64}"))
    service = Resource(
        name="service", title="it", get=made.get, put=made.put, status=made.status
    )  # fmt: skip
    with pytest.raises(errors.QuotaExceeded, match="create the service gemma"):
        await advance((service,), seconds=2.0)


async def test_scaling_changes_the_service_and_what_it_says_of_itself(
    site: Site, controls: Controls
) -> None:
    """No revision is made, by a new plan neither; more than the quota is refused."""
    await deployed(site, max_replicas=3)
    await backend_of(site).scale("gemma", min_replicas=1, max_replicas=2)
    service = await run.get_service(site, "gemma")
    spec = run.read_spec(service)
    assert (service.scaling.min_instance_count, service.scaling.max_instance_count) == (1, 2)
    assert spec == planned(site, min_replicas=1, max_replicas=2).spec
    assert service.labels[SPEC_LABEL] == spec.fingerprint
    await backend_of(site).apply(planned(site, max_replicas=1))
    assert (await run.get_service(site, "gemma")).scaling.max_instance_count == 1
    with pytest.raises(errors.QuotaExceeded):
        await backend_of(site).scale("gemma", min_replicas=0, max_replicas=9)
    assert run.read_spec(await run.get_service(site, "gemma")) == planned(site).spec
    assert len(controls.get(site.clients.project)["revisions"]) == 1


async def test_more_than_the_revision_was_made_for_boots_another(
    site: Site, controls: Controls
) -> None:
    await deployed(site)
    with collecting_notes() as notes:
        await backend_of(site).scale("gemma", min_replicas=0, max_replicas=2)
    assert (await run.get_service(site, "gemma")).template.scaling.max_instance_count == 2
    assert len(controls.get(site.clients.project)["revisions"]) == 2
    assert notes


@pytest.mark.parametrize("again", ["start", "scale"])
async def test_what_is_started_again_has_its_time_anew(
    site: Site, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """Else what was stopped for its age would run for ever once it is started."""
    await deployed(site, ttl_minutes=5)
    await backend_of(site).stop("gemma")
    later = time.time() + 7200
    monkeypatch.setattr("backends.cloud_run.service.time.time", lambda: later)
    if again == "start":
        await backend_of(site).start("gemma")
    else:
        await backend_of(site).scale("gemma", min_replicas=0, max_replicas=1)
    after = (await backend_of(site).describe("gemma")).expires_at
    assert after == datetime.fromtimestamp(int(later) + 300, UTC)


async def test_a_stop_is_no_instance_by_hand_and_a_start_what_was_asked_for(site: Site) -> None:
    """At least and at most are as before, each twice is harmless; at most none is a stop too."""
    await deployed(site, min_replicas=1, max_replicas=2)
    for _ in range(2):
        await backend_of(site).stop("gemma")
        assert run.is_stopped(await run.get_service(site, "gemma"))
    for _ in range(2):
        await backend_of(site).start("gemma")
        service = await run.get_service(site, "gemma")
        now = service.scaling
        assert not run.is_stopped(service)
        assert (now.min_instance_count, now.max_instance_count) == (1, 2)
    await backend_of(site).scale("gemma", min_replicas=0, max_replicas=0)
    assert run.is_stopped(await run.get_service(site, "gemma"))
    await backend_of(site).apply(planned(site, min_replicas=1, max_replicas=2))
    assert not run.is_stopped(await run.get_service(site, "gemma"))


async def test_a_change_by_somebody_else_is_read_anew_once(site: Site, controls: Controls) -> None:
    """ABORTED by its etag is tried again, twice is told; what was undone is no success."""
    await deployed(site)
    project = site.clients.project
    controls.set(project, faults=[fault("UpdateService", "ABORTED")])
    await backend_of(site).stop("gemma")
    controls.set(project, faults=[fault("UpdateService", "ABORTED", times=2)])
    with pytest.raises(errors.ConcurrentChange):
        await backend_of(site).start("gemma")
    old = await run.get_service(site, "gemma")
    await backend_of(site).start("gemma")
    old.labels["mine"] = "too-late"
    with pytest.raises(errors.ConcurrentChange):
        await run.write_service(site, old, "write what was read before")
    undone = run.Change("label it", lambda one: one.labels.update(a="b"), lambda _one: False)
    with pytest.raises(errors.ConcurrentChange, match="undone it"):
        await run.change_service(site, "gemma", undone)


async def test_a_deletion_takes_service_and_key_and_is_read_back(
    site: Site, controls: Controls
) -> None:
    """A second one finds nothing; a key that a dead server left goes as well."""
    await deployed(site)
    assert len((await backend_of(site).delete("gemma")).removed) == 2
    again = await backend_of(site).delete("gemma")
    assert (again.gone, again.removed) == (True, ())
    await keep_key(site, "gemma")
    assert (await backend_of(site).delete("gemma")).removed == (f"its key (secret {KEY})",)
    seen = controls.get(site.clients.project)
    assert (seen["services"], seen["secrets"]) == ([], {})


async def test_weights_in_a_bucket_stay_with_their_price(site: Site, controls: Controls) -> None:
    """A bucket that cannot be read is named all the same."""
    folder = f"gs://{site.clients.project}/models/gemma"
    controls.set(site.clients.project, rollout="image-missing")
    await backend_of(site).apply(planned(site, weights=folder))
    await settled(site)
    with collecting_notes() as notes:
        deleted = await backend_of(site).delete("gemma")
    assert notes
    assert folder in deleted.stays[0].what
    assert folder in deleted.stays[0].how_to_remove


def small(site: Site) -> Plan:
    """Plan a model that fits into an image."""
    return planned(site, model="gemma3:4b", engine="ollama")


async def _built(site: Site) -> None:
    await soon(
        lambda: build.latest_build(site, "gemma"),
        lambda build: build is not None and build.status.name == "SUCCESS",
        waiting_for="the build",
    )


async def test_a_build_comes_first_and_the_service_follows(site: Site, controls: Controls) -> None:
    """The service runs the image of that build, without a key; going on twice is harmless, and
    the image stays until it is purged."""
    project = site.clients.project
    controls.set(project, boot_seconds=2.0)
    for _ in range(2):
        await backend_of(site).apply(small(site))
    seen = await backend_of(site).describe("gemma")
    assert (seen.state, seen.phase and seen.phase.name) == (State.CREATING, "building image")
    assert [one.name for one in await backend_of(site).list()] == ["gemma"]
    await _built(site)
    for _ in range(2):
        await backend_of(site).go_on("gemma")
    await settled(site)
    service = await run.get_service(site, "gemma")
    image = f"us-east4-docker.pkg.dev/{project}/vllm-devops/gemma@sha256:"
    assert service.template.containers[0].image.startswith(image)
    assert (await access.access(site, "gemma")).api_key is None
    there = controls.get(project)
    assert (len(there["builds"]), there["secrets"], there["calls"].count(CREATE)) == (1, {}, 1)
    assert await backend_of(site).purge("gemma") == ()
    deleted = await backend_of(site).delete("gemma")
    assert "GB" in deleted.stays[0].what
    assert await backend_of(site).purge("gemma") == (
        "its image vllm-devops/gemma, if one was built",
    )
    assert not controls.get(project)["images"]


async def test_a_deletion_while_it_is_built_ends_the_build(site: Site, controls: Controls) -> None:
    """Nothing comes of it later."""
    controls.set(site.clients.project, boot_seconds=30)
    await backend_of(site).apply(small(site))
    deleted = await backend_of(site).delete("gemma")
    await backend_of(site).go_on("gemma")
    with pytest.raises(errors.DeploymentNotFound):
        await backend_of(site).describe("gemma")
    assert deleted.removed == ("its build, if one is under way",)
    last = await build.latest_build(site, "gemma")
    assert last
    assert last.status.name == "CANCELLED"


@pytest.mark.parametrize(
    "words", ["The API has not been used in project 1 before or it is disabled.", "Denied."]
)
async def test_a_project_that_cannot_build_has_nothing_of_a_build(
    site: Site, controls: Controls, words: str
) -> None:
    """Neither an API that is off nor a role that is missing stops a deletion."""
    answers = [
        fault(method, "PERMISSION_DENIED", message=words, times=-1)
        for method in ("ArtifactRegistry/*", "CloudBuild/*")
    ]
    controls.set(site.clients.project, faults=answers)
    assert await backend_of(site).purge("gemma") == ()
    assert (await backend_of(site).delete("gemma")).gone


def test_a_build_that_failed_is_a_failure_and_says_why() -> None:
    """Else its deployment would wait for ever."""
    wanted = specified("gemma3:4b", engine="ollama")
    image, states = build.image_of_build(offline(), wanted, project="mine"), Build.Status
    ended = Build(status=states.FAILURE, failure_info={"detail": "no such model"})
    assert image.status(ended) is Status.FAILED
    assert image.status(Build(status=states.WORKING)) is Status.PENDING
    assert image.why
    assert "no such model" in image.why(ended).cause
