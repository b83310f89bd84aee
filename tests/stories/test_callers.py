"""Whoever deploys on Google can also call it, and their calls are billed to the project."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core import processes
from core.settings import GooglePlane
from tests.conversation import Agent, Reply, agent_of
from tests.stories.conftest import Cloud
from tests.stories.life import MODEL, Life

pytestmark = pytest.mark.anyio

TARGET = "cloud-run-l4"
PERSON = "owner@example.com"
WANTED = {"model": MODEL, "target": TARGET, "name": "one", "max_model_len": 4096}


@pytest.fixture
async def person(cloud: Cloud) -> AsyncIterator[Agent]:
    """An agent whose owner is logged in as a person; whether they have gcloud is theirs to set."""
    cloud.set(identity_kind="user", identity=PERSON)
    async with agent_of(cloud.settings) as agent:
        yield agent


async def test_a_person_who_could_not_call_it_is_refused_before_anything_bills(
    person: Agent, cloud: Cloud
) -> None:
    """Neither key nor service is made, and the fix can be typed as it stands."""
    refused = await person.call("deploy_vllm", **WANTED)
    assert (refused.failed, refused.code) == (True, "NOT_AUTHENTICATED")
    assert "Nothing was made" in refused.text
    for part in ("gcloud auth login", "service-accounts create", "GOOGLE_SERVICE_ACCOUNT"):
        assert part in refused.structured["fix"]
    assert cloud.is_empty()
    row = await _row(person)
    assert (row["outcome"], "gcloud auth login" in row["fix"]) == ("fail", True)


async def test_a_public_service_asks_for_no_id_token(person: Agent) -> None:
    """Then there is no row, and a person may deploy it."""
    plan = await person.call(
        "plan_deployment", model=MODEL, target=TARGET, access="public", check=True
    )
    assert "You can call what you deploy" not in plan.text


async def test_a_person_calls_with_the_bare_token_of_gcloud(
    person: Agent, cloud: Cloud, plane: GooglePlane
) -> None:
    """It answers, is measured, and the printed command works where the same person is logged in."""
    cloud.set(gcloud=PERSON)
    assert (await _row(person))["outcome"] == "pass"
    life = Life(person, TARGET)
    await life.begins(max_model_len=4096)
    assert (await life.call("verify_model_health")).data["healthy"]
    small = {"contexts": [16], "concurrencies": [1], "cell_seconds": 0.3, "output_tokens": 4}
    assert (await life.call("run_benchmark", wait_s=40, **small)).data["state"] == "done"
    endpoint = await life.call("get_endpoint")
    assert "--audiences" not in endpoint.text
    await _works_as_printed(endpoint, plane, cloud)


@pytest.mark.parametrize("kind", ["user", "service_account"])
async def test_a_service_account_is_asked_for_by_impersonation(
    cloud: Cloud, plane: GooglePlane, kind: str
) -> None:
    """The printed command names it and the audience, which a person's gcloud then takes."""
    account = f"vllm-devops-runtime@{cloud.project}.iam.gserviceaccount.com"
    cloud.set(identity_kind=kind, identity=PERSON if kind == "user" else "", gcloud=PERSON)
    settings = cloud.settings.model_copy(update={"google_service_account": account})
    async with agent_of(settings) as agent:
        life = Life(agent, TARGET)
        await life.begins(max_model_len=4096)
        endpoint = await life.call("get_endpoint")
        assert f"--impersonate-service-account={account}" in endpoint.text
        await _works_as_printed(endpoint, plane, cloud)


async def test_a_machine_is_told_to_ask_its_metadata_server(cloud: Cloud) -> None:
    """Whoever is logged in to gcloud there."""
    async with agent_of(cloud.settings) as agent:
        life = Life(agent, TARGET)
        await life.begins(max_model_len=4096)
        endpoint = await life.call("get_endpoint")
    assert "metadata.google.internal" in endpoint.text
    assert "print-identity-token" not in endpoint.text


@pytest.mark.parametrize("quota_project", ["", "somebody-elses"])
async def test_a_persons_calls_are_billed_to_the_project(
    person: Agent, cloud: Cloud, quota_project: str
) -> None:
    """Whatever the login says: no quota project, or another's where nothing is enabled."""
    cloud.set(quota_project=quota_project, gcloud=PERSON)
    plan = await person.call("plan_deployment", model=MODEL, target=TARGET, check=True)
    assert [row["outcome"] for row in plan.data["checks"]].count("unknown") == 1, plan  # the Hub
    assert not [row for row in plan.data["checks"] if row["outcome"] == "fail"], plan
    assert not (await person.call("check_gpu_quotas", target=TARGET)).failed


async def test_a_person_who_may_not_bill_the_project_is_told_which_role(
    person: Agent, cloud: Cloud
) -> None:
    """And not to set up what is set up."""
    cloud.set(denied_permissions=["serviceusage.services.use"], gcloud=PERSON)
    refused = await person.call("deploy_vllm", **WANTED)
    assert (refused.failed, refused.code) == (True, "PERMISSION_DENIED")
    assert "roles/serviceusage.serviceUsageConsumer" in refused.structured["fix"]
    assert "setup_target" not in refused.structured["fix"]


async def _row(agent: Agent) -> dict[str, str]:
    plan = await agent.call("plan_deployment", model=MODEL, target=TARGET, check=True)
    [row] = [one for one in plan.data["checks"] if one["what"] == "You can call what you deploy"]
    return dict(row)


async def _works_as_printed(endpoint: Reply, plane: GooglePlane, cloud: Cloud) -> None:
    """Run what is printed, for curl and for Python, on a machine with the simulated gcloud."""
    programs = (Path(plane.programs) / cloud.project, Path(sys.executable).parent)
    path = ":".join((*map(str, programs), "/usr/bin", "/bin"))
    said = await processes.run(("/bin/sh", "-c", endpoint.data["curl"]), env={"PATH": path})
    assert MODEL in said.stdout, said
    answered = await processes.run(("/bin/sh", "-c", endpoint.data["python"]), env={"PATH": path})
    assert answered.stdout.strip(), answered
