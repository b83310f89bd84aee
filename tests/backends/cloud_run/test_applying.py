"""Applying a plan: key, grant and service, once, whoever else is at it."""

from datetime import UTC, datetime

import pytest
from google.cloud import run_v2
from pydantic import SecretStr

from backends.cloud_run import access
from backends.cloud_run.service import (
    Change,
    change_service,
    get_service,
    is_open,
    is_stopped,
    service_path,
)
from backends.cloud_run.site import Site
from backends.google.clients import HF_SECRET, SPEC_LABEL, key_secret
from backends.lifecycle import Pending
from core.errors import CloudRefused, NotOurs, QuotaExceeded
from core.reply import collecting_notes
from core.settings import GooglePlane
from tests.backends.cloud_run import server
from tests.backends.cloud_run.sites import (
    OTHER,
    fault,
    opened,
    planned,
    settled,
)
from tests.backends.google_secrets import keep_key
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio
CREATE, UPDATE = (f"google.cloud.run.v2.Services/{verb}Service" for verb in ("Create", "Update"))
KEY = key_secret("gemma")


@pytest.fixture(autouse=True)
def _quick(controls: Controls, project: str) -> None:
    controls.set(project, boot_seconds=0.1)


async def test_a_plan_becomes_a_service_with_a_key_that_it_may_read(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The image is pinned, the secret is granted to the runtime account, nobody else is let in."""
    async with opened(plane, project) as site:
        await server.apply(site, planned(site))
        service = await get_service(site, "gemma")
    seen = controls.get(project)
    assert "@sha256:" in service.template.containers[0].image
    assert seen["services"] == ["gemma"]
    assert seen["secrets"][KEY]["versions"] == 1
    assert not service.invoker_iam_disabled
    assert not [call for call in seen["calls"] if call.endswith("Services/SetIamPolicy")]


async def test_the_same_plan_again_changes_nothing(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Neither by this server nor by one that knows nothing of the first."""
    async with opened(plane, project) as site:
        await server.apply(site, planned(site))
        await server.apply(site, planned(site))
    async with opened(plane, project) as another:
        await server.apply(another, planned(another))
    seen = controls.get(project)
    assert [call for call in seen["calls"] if call in {CREATE, UPDATE}] == [CREATE]
    assert seen["secrets"][KEY]["versions"] == 1


async def test_a_public_service_of_an_older_version_is_given_its_proxy(
    plane: GooglePlane, project: str
) -> None:
    """The same plan again replaces it, and says why; before that it is told what stands open."""

    def without_proxy(service: run_v2.Service) -> None:
        engine, proxy = service.template.containers
        engine.ports = [run_v2.ContainerPort(container_port=8000)]
        service.template.containers = [engine]
        assert proxy.ports

    async with opened(plane, project) as site:
        plan = planned(site, access="public")
        await server.apply(site, plan)
        await change_service(site, "gemma", Change("take it away", without_proxy, is_open))
        await settled(site)
        assert "POST /invocations computes" in (await access.access(site, "gemma")).protection
        with collecting_notes() as notes:
            await server.apply(site, plan)
        service = await get_service(site, "gemma")
        said = (await access.access(site, "gemma")).protection
    assert any("a new revision with a proxy" in note for note in notes)
    assert [one.name for one in service.template.containers] == ["vllm", "guard"]
    assert "/invocations" not in said


async def test_a_deployment_of_another_target_is_left_alone(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Its target is named."""
    async with opened(plane, project, target=OTHER) as other:
        await server.apply(other, planned(other))
    async with opened(plane, project) as site:
        with pytest.raises(NotOurs, match=OTHER.name):
            await server.apply(site, planned(site))
    assert UPDATE not in controls.get(project)["calls"]


async def test_a_refused_service_leaves_no_key_behind(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Without quota there is neither service nor secret."""
    controls.set(project, quotas={"l4": 0})
    async with opened(plane, project) as site:
        with pytest.raises(QuotaExceeded):
            await server.apply(site, planned(site))
    seen = controls.get(project)
    assert not seen["services"]
    assert not seen["secrets"]


async def test_a_key_of_an_earlier_life_outlives_a_refusal(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Only what this call made is taken back."""
    async with opened(plane, project) as site:
        await keep_key(site, "gemma")
        controls.set(project, quotas={"l4": 0})
        with pytest.raises(QuotaExceeded):
            await server.apply(site, planned(site))
    assert KEY in controls.get(project)["secrets"]


async def test_an_answer_that_got_lost_is_no_failure(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """What was made all the same is seen to be there."""
    controls.set(project, faults=[fault("Services/CreateService", when="after")])
    async with opened(plane, project) as site:
        await server.apply(site, planned(site))
        controls.set(project, faults=[fault("Services/UpdateService", when="after")])
        await server.apply(site, planned(site, max_model_len=2048))
        service = await get_service(site, "gemma")
    assert service.labels[SPEC_LABEL] == planned(site, max_model_len=2048).spec.fingerprint


async def test_another_spec_replaces_the_whole_and_keeps_key_and_others_labels(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """A ttl that is left out is no longer there; a person's own label is."""
    async with opened(plane, project) as site:
        await server.apply(site, planned(site, ttl_minutes=60))
        await _label(site, "cost-centre", "42")
        await server.apply(site, planned(site, max_model_len=2048))
        service = await get_service(site, "gemma")
    assert "2048" in " ".join(service.template.containers[0].args)
    assert service.labels["cost-centre"] == "42"
    assert "vllm-devops-expires" not in service.labels
    assert controls.get(project)["secrets"][KEY]["versions"] == 1


async def test_another_number_of_replicas_boots_nothing(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """It is a change of the service, not of what runs."""
    async with opened(plane, project) as site:
        await server.apply(site, planned(site, max_replicas=2))
        await server.apply(site, planned(site, max_replicas=1))
        service = await get_service(site, "gemma")
    assert service.scaling.max_instance_count == 1
    assert service.labels[SPEC_LABEL] == planned(site).spec.fingerprint
    assert len(controls.get(project)["revisions"]) == 1


async def test_what_is_stopped_is_started_by_the_same_plan(
    plane: GooglePlane, project: str
) -> None:
    """Deploying means that it is to run."""
    async with opened(plane, project) as site:
        await server.apply(site, planned(site))
        await server.stop(site, "gemma")
        await server.apply(site, planned(site))
        service = await get_service(site, "gemma")
    assert not is_stopped(service)


async def test_a_token_of_the_settings_is_kept_for_the_hub(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The service has it by reference; one that is kept already stays as it is."""
    async with opened(plane, project, hf_token=SecretStr("hf_first")) as site:
        await server.apply(site, planned(site))
        service = await get_service(site, "gemma")
    named = {one.name: one.value_source for one in service.template.containers[0].env}
    assert named["HF_TOKEN"].secret_key_ref.secret.endswith(HF_SECRET)
    async with opened(plane, project, hf_token=SecretStr("hf_second")) as site:
        await server.apply(site, planned(site, name="qwen"))
    assert controls.get(project)["secrets"][HF_SECRET]["versions"] == 1


async def test_only_the_named_account_is_let_in(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Private lets in the account that ID tokens are minted for; public asks nobody."""
    account = f"vllm-devops-runtime@{project}.iam.gserviceaccount.com"
    async with opened(plane, project, google_service_account=account) as site:
        await server.apply(site, planned(site))
        await server.apply(site, planned(site, name="open", access="public"))
        opened_to_all = await get_service(site, "open")
        assert await _invokers(site, "gemma") == [f"serviceAccount:{account}"]
        assert await _invokers(site, "open") == []
    assert opened_to_all.invoker_iam_disabled


async def test_an_account_that_there_is_not_is_noted(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The service runs all the same; who may call it is said."""
    account = f"nobody@{project}.iam.gserviceaccount.com"
    async with opened(plane, project, google_service_account=account) as site:
        with collecting_notes() as notes:
            await server.apply(site, planned(site))
    assert controls.get(project)["services"] == ["gemma"]
    assert any(account in text for text in notes)


async def test_an_image_that_is_not_there_is_refused_before_anything_is_made(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """No key, no service."""
    async with opened(plane, project) as site:
        with pytest.raises(CloudRefused):
            await server.apply(site, planned(site, image="nobody/nothing:never"))
    seen = controls.get(project)
    assert not seen["secrets"]
    assert not [call for call in seen["calls"] if call.endswith("/CreateSecret")]
    assert CREATE not in seen["calls"]


async def test_one_that_failed_is_tried_anew(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The same spec makes another revision, for the first stays failed."""
    controls.set(project, rollout="image-missing")
    async with opened(plane, project) as site:
        await server.apply(site, planned(site))
        await settled(site)
        controls.set(project, rollout="ok")
        with collecting_notes() as notes:
            await server.apply(site, planned(site))
    assert len(controls.get(project)["revisions"]) == 2
    assert not notes


async def _label(site: Site, key: str, text: str) -> None:
    client = await site.clients.run()
    service = await get_service(site, "gemma")
    service.labels[key] = text
    await client.update_service(service=service)


async def _invokers(site: Site, name: str) -> list[str]:
    client = await site.clients.run()
    policy = await client.get_iam_policy(request={"resource": service_path(site, name)})
    return [member for binding in policy.bindings for member in binding.members]


async def test_a_step_that_was_not_waited_for_is_taken_by_whoever_looks(
    plane: GooglePlane, project: str
) -> None:
    """Who may call it is granted once the service is there."""
    account = f"vllm-devops-runtime@{project}.iam.gserviceaccount.com"
    async with opened(plane, project, google_service_account=account) as site:
        backend = server.backend_of(site)
        plan = planned(site)
        backend.pending.keep(
            Pending(
                spec=plan.spec,
                model=plan.model,
                where=backend.pending.where,
                since=datetime.now(UTC),
            )
        )
        before = await backend.describe("gemma")
        assert before.phase
        assert before.phase.name in backend.waits_in
        await backend.go_on("gemma")
        assert await _invokers(site, "gemma") == [f"serviceAccount:{account}"]
        assert backend.pending.get("gemma") is None
