"""What a preflight asks for is what a whole life takes: no permission less, and none more."""

from typing import Any, Final

import pytest

from backends.cloud_run import checks
from backends.common.preflight import read_needs
from tests.backends.cloud_run.sites import opened, planned
from tests.conversation import Agent, agent_of
from tests.stories.chips import HERE
from tests.stories.conftest import Azure, Cloud
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio

VLLM: Final = {"model": MODEL, "max_model_len": 4096}
_CHIP: Final = {**VLLM, "zones": [HERE]}
GOOGLE: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("cloud-run-l4", VLLM),
    ("cloud-run-l4", {"model": "gemma3:4b", "engine": "ollama"}),
    ("cloud-run-l4", {**VLLM, "schedule": "Mon-Fri 08:55-18:00 Europe/Berlin"}),
    ("tpu-v6e-1", {**_CHIP, "control_plane": "compute"}),
    ("tpu-v6e-1", {**_CHIP, "control_plane": "queued", "lease": "cloud"}),
    ("tpu-v6e-1-flex", {**_CHIP, "control_plane": "queued"}),
)
RARELY: Final = frozenset(
    {
        "cloudscheduler.jobs.update",  # another schedule, or another number that it keeps
        "compute.firewalls.update",  # other addresses are let in than before
        "compute.globalOperations.get",  # a firewall rule that takes a while
        "compute.zoneOperations.list",  # a VM that was refused a moment after it was asked for
    }
)
"""What no usual life takes, though a deployment may."""
WITHOUT_HARM: Final = frozenset(
    {
        "cloudquotas.quotas.get",  # what cannot be read refuses nobody
        "cloudscheduler.jobs.get",
        "cloudscheduler.jobs.list",
        "microsoft.app/jobs/read",
    }
)
"""Where no service is, a job that a dead server left is looked for; who may not is told so."""
NOT_ASKED: Final = frozenset(
    name.lower()
    for row in read_needs("aca")["permissions"]
    for name in row["names"]
    if row["needed_by"] in {"share", "questions"}
)
"""A share of an earlier deployment is looked at too, and what only makes a row unknown."""
RARELY_ON_AZURE: Final = frozenset(
    name.lower()
    for name in (
        "Microsoft.App/containerApps/listSecrets/action",  # another deployment is put in its place
        "Microsoft.App/containerApps/revisions/activate/action",  # one that was switched off
        "Microsoft.App/containerApps/revisions/deactivate/action",  # one that failed
        "Microsoft.App/locations/managedEnvironmentOperationStatuses/read",  # or the next
        "Microsoft.App/locations/managedEnvironmentOperationResults/read",
        "Microsoft.Storage/register/action",  # with a share alone
    )
)


@pytest.mark.life
@pytest.mark.parametrize(("target", "wish"), GOOGLE)
async def test_google_is_asked_for_what_the_calls_take(
    cloud: Cloud, target: str, wish: dict[str, Any]
) -> None:
    """Deploy, look, read logs, scale, stop, start, destroy and purge take what was asked for."""
    async with agent_of(cloud.settings) as agent:
        await _checked(agent, cloud, target, wish)
        seen = cloud.controls.get(cloud.project)
        asked, before = set(seen["tested"]), len(seen["needed"])
        await _lives(agent, target, wish)
    every = cloud.controls.get(cloud.project)["needed"]
    assert sorted(set(every[before:]) - asked - WITHOUT_HARM) == []
    assert asked - set(every) <= RARELY


@pytest.mark.parametrize(
    ("target", "permission"),
    [
        ("cloud-run-l4", "run.revisions.get"),
        ("cloud-run-l4", "run.routes.invoke"),
        ("cloud-run-l4", "secretmanager.versions.get"),
        ("cloud-run-l4", "cloudbuild.builds.list"),
        ("cloud-run-l4", "artifactregistry.dockerimages.list"),
        ("tpu-v6e-1", "tpu.nodes.list"),
        ("tpu-v6e-1", "tpu.acceleratortypes.get"),
        ("tpu-v6e-1", "tpu.operations.get"),
    ],
)
async def test_a_permission_that_a_look_takes_is_missed_before_anything_is_made(
    cloud: Cloud, target: str, permission: str
) -> None:
    """A role of one's own may let somebody make what they cannot look at."""
    cloud.set(denied_permissions=[permission])
    async with agent_of(cloud.settings) as agent:
        plan = await agent.call("plan_deployment", model=MODEL, target=target, check=True)
    [row] = [
        one for one in plan.data["checks"] if one["what"] == "You may do what a deployment takes"
    ]
    assert (row["outcome"], permission in row["detail"]) == ("fail", True), row


async def test_what_a_deployment_was_refused_is_named_at_once_with_all_else_that_is_missing(
    cloud: Cloud,
) -> None:
    """The call that the refusal names says every permission that has to be asked for."""
    missing = ["run.services.create", "secretmanager.secrets.create"]
    cloud.set(denied_permissions=missing)
    async with agent_of(cloud.settings) as agent:
        refused = await agent.call("deploy_vllm", target="cloud-run-l4", name="one", **VLLM)
        assert refused.code == "PERMISSION_DENIED", refused
        assert "downloads" not in refused.text  # nothing starts
        [step] = refused.structured["next"]
        plan = await agent.call(step["tool"], **step["arguments"])
    [row] = [one for one in plan.data["checks"] if one["outcome"] == "fail"]
    assert all(permission in row["detail"] for permission in missing), row


async def _checked(agent: Agent, cloud: Cloud | None, target: str, wish: dict[str, Any]) -> None:
    if cloud and "engine" in wish:  # which plan_deployment does not take
        async with opened(cloud.controls.plane, cloud.project) as site:
            found = await checks.preflight(site, planned(site, **wish))
        assert not found.failed, found
        return
    plan = await agent.call("plan_deployment", target=target, check=True, **wish)
    assert not plan.failed, plan
    assert not [row for row in plan.data["checks"] if row["outcome"] == "fail"], plan


async def _lives(agent: Agent, target: str, wish: dict[str, Any], *, purge: bool = True) -> None:
    life = Life(agent, target, at="http")
    await life.call("deploy_vllm", **wish)
    await life.becomes("ready")
    assert (await life.call("verify_model_health")).data["healthy"]
    await life.call("query_gemma4", prompt="What is Gemma?", max_tokens=8)
    await life.call("get_logs", lines=50)
    await life.call("get_logs", contains="vLLM")
    await agent.call("list_deployments", target=target)
    if not target.startswith("tpu"):
        await life.call("update_vllm_scaling", min_replicas=0, max_replicas=2)
        await life.becomes_one_of("ready", "asleep")
        await life.call("stop_vllm")
        await life.becomes("stopped")
        await life.call("start_vllm")
        await life.becomes_one_of("ready", "asleep")
    assert (await life.call("destroy_vllm", purge=purge)).data["gone"]


@pytest.mark.life
@pytest.mark.parametrize("before", ["empty", "prepared"])
async def test_azure_is_asked_for_what_the_calls_take(bare_azure: Azure, before: str) -> None:
    """From an empty subscription, and on what is there already."""
    bare_azure.set(prepared=before == "prepared")
    async with agent_of(bare_azure.settings) as agent:
        await _checked(agent, None, "aca-a100", VLLM)
        await _lives(agent, "aca-a100", VLLM, purge=False)
    taken = {one.lower() for one in bare_azure.get()["needed"]}
    asked, rows = set[str](), read_needs("aca")["permissions"]
    for row in rows:
        if row["needed_by"] in (
            {"every"} if before == "prepared" else {"every", "ground", "register"}
        ):
            asked |= {name.lower() for name in row["names"]}
    assert sorted(taken - asked - NOT_ASKED - WITHOUT_HARM) == []
    assert sorted(asked - taken - RARELY_ON_AZURE) == []


async def test_a_role_on_the_group_alone_does_not_register_providers(bare_azure: Azure) -> None:
    """Registering is asked of the subscription, where the call is made."""
    bare_azure.set(group_alone=True)
    async with agent_of(bare_azure.settings) as agent:
        plan = await agent.call("plan_deployment", target="aca-a100", check=True, **VLLM)
        [row] = [
            one for one in plan.data["checks"] if one["what"] == "Its providers are registered"
        ]
        assert (row["outcome"], "Microsoft.KeyVault/register" in row["detail"]) == ("fail", True)
        bare_azure.set(prepared=True)
        plan = await agent.call("plan_deployment", target="aca-a100", check=True, **VLLM)
        assert not [one for one in plan.data["checks"] if one["outcome"] == "fail"], plan
