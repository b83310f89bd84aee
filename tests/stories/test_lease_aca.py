"""A lease on Container Apps: Azure itself ends what nobody attends to, as an agent hears of it."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import pytest

from backends.aca import lease
from core.settings import Settings
from tests.conversation import agent_of
from tests.soon import soon
from tests.stories.conftest import Azure
from tests.stories.troubles import (
    APP,
    ONE,
    WISH,
    asked,
    becomes,
    called,
    deploys,
    destroyed,
    named,
    refused,
    seen,
    trouble,
)

__all__ = ["trouble"]

pytestmark = pytest.mark.anyio

NOTHING_ENDS: Final = "Nothing in the cloud ends one:"
JOB: Final = "/microsoft.app/jobs/lease-one"
GRANT: Final = "/containerapps/one/providers/microsoft.authorization/roleassignments/"


def elsewhere(azure: Azure, tmp_path: Path) -> Settings:
    """Return the settings of another machine, which knows nothing."""
    folder = tmp_path / "elsewhere"
    return azure.settings.model_copy(update={"vllm_devops_state_dir": folder})


async def test_a_deployment_is_stopped_by_azure_after_its_server_died(
    trouble: Azure, tmp_path: Path
) -> None:
    """Another machine sees it stopped, and nothing is billed any more."""
    async with agent_of(trouble.settings) as agent:
        made = await deploys(agent, ttl_minutes=90, min_replicas=1)
        assert NOTHING_ENDS not in made.text, made
        ready = await becomes(agent, "ready")
        assert ready.data["lease"] == "cloud", ready
    async with agent_of(elsewhere(trouble, tmp_path)) as agent:
        trouble.set(clock_ahead_seconds=80 * 60)
        assert (await becomes(agent, "ready")).data["lease"] == "cloud"
        assert trouble.get()["executions"] == []
        trouble.set(clock_ahead_seconds=92 * 60)
        await seen(agent, lambda reply: reply.state == "stopped")
        assert trouble.get()["replicas"] == []
        await destroyed(agent, trouble)
    assert named(trouble, JOB) == named(trouble, GRANT) == []


async def test_money_ends_it_as_time_does(trouble: Azure) -> None:
    """$8.86 an hour, the most that any source says, is what it may cost; the ttl would be later."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, ttl_minutes=600, max_usd=8.86, min_replicas=1)
        await becomes(agent, "ready")
        trouble.set(clock_ahead_seconds=62 * 60)
        await seen(agent, lambda reply: reply.state == "stopped")
        await destroyed(agent, trouble)


async def test_a_yes_to_money_that_one_boot_may_use_up_is_asked_with_that_doubt(
    trouble: Azure,
) -> None:
    """$5 buy 33 minutes at the dearest price, and a boot may take 35; a schedule ends with it."""
    async with agent_of(trouble.settings.model_copy(update={"confirm": "token"})) as agent:
        wish = {"target": "aca-a100", "name": "one", "model": "12b qat", "max_usd": 5}
        asked = await agent.call("deploy_vllm", **wish, schedule="Mon-Fri 08:00-18:00")
        assert asked.code == "CONFIRMATION_REQUIRED", asked
        (doubt,) = asked.data["doubts"]
        assert doubt.startswith("its time may be over before it answers")
        assert "; until then warm Mon-Fri 08:00-18:00" in asked.data["what"]
        enough = await agent.call("deploy_vllm", **{**wish, "max_usd": 20})
        assert not enough.data["doubts"]


@pytest.mark.parametrize(
    ("method", "left", "says"),
    [
        ("PUT Microsoft.App/jobs", (0, 0, 0), "No deployment named 'one'"),
        (f"PUT {APP}", (1, 0, 0), "Its job lease-one is left"),
        ("PUT Microsoft.Authorization/roleAssignments", (1, 1, 0), NOTHING_ENDS),
    ],
)
async def test_a_server_that_dies_on_its_way_leaves_nothing_unsaid(
    trouble: Azure, tmp_path: Path, method: str, left: tuple[int, int, int], says: str
) -> None:
    """Another machine tells what is there of it, and takes it away."""
    trouble.set(faults=[{"method": method, "when": "hang", "times": -1}])
    async with agent_of(trouble.settings) as agent, anyio.create_task_group() as tasks:
        wish = {**WISH, "ttl_minutes": 90, "min_replicas": 1}
        tasks.start_soon(lambda: agent.call("deploy_vllm", **wish))
        await called(trouble, method)
        tasks.cancel_scope.cancel()
    trouble.set(faults=[])
    assert tuple(len(named(trouble, one)) for one in (JOB, f"{APP}/one/r", GRANT)) == left
    async with agent_of(elsewhere(trouble, tmp_path)) as agent:
        told = await agent.call("status_vllm", **ONE)
        assert says in told.text, told
        await destroyed(agent, trouble)
    assert named(trouble, JOB) == named(trouble, GRANT) == []


async def test_what_a_dead_server_began_is_made_whole_by_the_next_one(trouble: Azure) -> None:
    trouble.set(faults=[{"method": "PUT Microsoft.Authorization/roleAssignments", "when": "hang"}])
    async with agent_of(trouble.settings) as agent, anyio.create_task_group() as tasks:
        wish = {**WISH, "ttl_minutes": 90, "min_replicas": 1}
        tasks.start_soon(lambda: agent.call("deploy_vllm", **wish))
        await called(trouble, "PUT Microsoft.Authorization/roleAssignments")
        tasks.cancel_scope.cancel()
    async with agent_of(trouble.settings) as agent:
        await seen(agent, lambda reply: reply.data.get("lease") == "cloud")
        await destroyed(agent, trouble)


async def test_the_job_may_stop_its_own_app_and_nothing_else(trouble: Azure) -> None:
    """A table of what it might try besides, all of which Azure refuses."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, ttl_minutes=90, min_replicas=1)
        await becomes(agent, "ready")
        await asked(agent, "deploy_vllm", **{**WISH, "name": "two"})
        plane, sub = trouble.controls.plane, trouble.subscription
        principal = _principal(trouble)
        url = f"{plane.http}/rehearsal/subscriptions/{sub}/token"
        trust = ssl.create_default_context(cafile=plane.ca)
        asks: dict[str, Any] = {"trust_env": False, "verify": trust, "timeout": 30}
        token = httpx2.post(url, json={"scopes": [], "oid": principal}, **asks).json()
        headers = {"Authorization": f"Bearer {token['access_token']}"}
        group = f"/subscriptions/{sub}/resourceGroups/vllm-devops"
        apps, rights = f"{group}/providers/{APP}", "providers/Microsoft.Authorization"

        def status(method: str, path: str) -> int:
            whole = f"{plane.arm}{path}?api-version=2026-07-01"
            body: dict[str, str] | None = {} if method in {"PUT", "PATCH"} else None
            return httpx2.request(method, whole, json=body, headers=headers, **asks).status_code

        tried = {
            (method, path): status(method, path)
            for method, path in (
                ("GET", f"{apps}/two"),
                ("POST", f"{apps}/two/stop"),
                ("POST", f"{apps}/one/start"),
                ("POST", f"{apps}/one/listSecrets"),
                ("POST", f"{apps}/one/getAuthtoken"),
                ("PUT", f"{apps}/one"),
                ("PATCH", f"{apps}/one"),
                ("DELETE", f"{apps}/one"),
                ("GET", f"{apps}/one/revisions"),
                ("GET", apps),
                ("GET", group),
                ("DELETE", group),
                ("GET", f"{group}/providers/Microsoft.App/jobs/lease-one"),
                ("PUT", f"{group}/providers/Microsoft.App/jobs/lease-one"),
                ("DELETE", f"{group}/providers/Microsoft.App/jobs/lease-one"),
                ("GET", f"{group}/providers/Microsoft.App/managedEnvironments"),
                ("GET", f"{group}/providers/Microsoft.KeyVault/vaults"),
                ("GET", f"{group}/providers/Microsoft.Storage/storageAccounts"),
                ("PUT", f"{apps}/one/{rights}/roleAssignments/x"),
                ("DELETE", f"{apps}/one/{rights}/roleAssignments/x"),
                ("PUT", f"{group}/{rights}/roleDefinitions/x"),
            )
        }
        assert set(tried.values()) == {403}, tried
        assert status("GET", f"{apps}/one") == 200
        assert status("POST", f"{apps}/one/stop") == 202
        await asked(agent, "destroy_vllm")
        await asked(agent, "destroy_vllm", name="two")


async def test_more_time_moves_the_job_and_a_new_start_does_too(trouble: Azure) -> None:
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, ttl_minutes=90, min_replicas=1)
        first = await becomes(agent, "ready")
        later = await asked(agent, "update_vllm_scaling", ttl_minutes=240)
        assert later.data["lease"] == "cloud", later
        assert _ends(later.data) - _ends(first.data) > 140 * 60
        trouble.set(clock_ahead_seconds=100 * 60)
        assert (await becomes(agent, "ready")).data["lease"] == "cloud"
        assert trouble.get()["executions"] == []
        trouble.set(clock_ahead_seconds=242 * 60)
        await seen(agent, lambda reply: reply.state == "stopped")
        trouble.set(clock_ahead_seconds=0)
        await asked(agent, "start_vllm")
        again = await becomes(agent, "ready")
        assert again.data["lease"] == "cloud", again
        assert _ends(again.data) >= _ends(later.data)  # as long as was said last
        await destroyed(agent, trouble)


async def test_an_end_that_was_given_later_begins_anew_with_each_start(trouble: Azure) -> None:
    """As long as was said last: an end in the past would stop what is started, each time."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, min_replicas=1)
        await becomes(agent, "ready")
        await asked(agent, "update_vllm_scaling", ttl_minutes=90)
        sooner = await asked(agent, "update_vllm_scaling", ttl_minutes=9)
        await asked(agent, "stop_vllm")
        stopped = await seen(agent, lambda reply: reply.state == "stopped")
        kept = await asked(agent, "update_vllm_scaling", ttl_minutes=14)
        assert (kept.state, _ends(kept.data)) == ("stopped", _ends(stopped.data))
        assert "one is stopped: nothing runs of it" in kept.text
        await asked(agent, "start_vllm")
        again = await becomes(agent, "ready")
        assert 5 * 60 <= _ends(again.data) - _ends(sooner.data) < 13 * 60
        assert again.data["lease"] == "cloud", again
        await destroyed(agent, trouble)


async def test_more_replicas_use_up_the_money_sooner_and_fewer_later(trouble: Azure) -> None:
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, max_usd=8.86 * 2, min_replicas=1)
        first = await becomes(agent, "ready")
        await asked(agent, "update_vllm_scaling", min_replicas=1, max_replicas=2)
        then = await seen(agent, lambda reply: reply.state == "ready")
        assert 55 * 60 < _ends(first.data) - _ends(then.data) < 65 * 60
        assert then.data["lease"] == "cloud", then
        await asked(agent, "update_vllm_scaling", min_replicas=1, max_replicas=1)
        fewer = await seen(agent, lambda reply: reply.state == "ready")
        assert abs(_ends(first.data) - _ends(fewer.data)) < 5 * 60
        assert fewer.data["lease"] == "cloud", fewer
        await destroyed(agent, trouble)


async def test_other_limits_leave_the_revision_as_it_is(trouble: Azure) -> None:
    """Tag and job move alone; no limit is no job. An idle time is in the template: it boots."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent, ttl_minutes=90, min_replicas=0)
        first = await becomes(agent, "ready")
        replica = first.data["instance"]
        longer = await asked(agent, "deploy_vllm", **WISH, ttl_minutes=240)
        assert _ends(longer.data) - _ends(first.data) > 140 * 60
        await seen(agent, lambda reply: reply.data.get("lease") == "cloud")
        paid = await asked(agent, "deploy_vllm", **WISH, max_usd=8.86)
        assert "counts from now" in paid.text
        assert _ends(paid.data) < _ends(first.data)
        spent = await agent.call("deploy_vllm", **WISH, max_usd=0.001)
        assert spent.code == "INVALID_ARGUMENT"
        reset = ["ttl_minutes", "max_usd"]
        never = await asked(agent, "deploy_vllm", **WISH, reset=reset)
        assert "expires_at" not in never.data
        await soon(_jobs(trouble), [].__eq__, waiting_for="its job to go")
        assert (await becomes(agent, "ready")).data["instance"] == replica
        await soon(  # the same call makes whole what a slow Azure had not done by the last
            lambda: asked(agent, "deploy_vllm", **WISH, ttl_minutes=60),
            lambda reply: reply.data.get("lease") == "cloud",
            waiting_for="its lease",
        )
        assert (await becomes(agent, "ready")).data["instance"] == replica
    careful = trouble.settings.model_copy(update={"confirm": "always"})
    async with agent_of(careful) as agent:
        limits = await agent.call("deploy_vllm", **WISH, ttl_minutes=120)
        assert "stopped 2 h after it is deployed, boot included" in limits.text
        assert "starts anew" not in limits.text
        idle = await agent.call("deploy_vllm", **WISH, max_idle_minutes=60)
        assert "its engine starts anew" in idle.text
        more = await agent.call("deploy_vllm", **WISH, max_replicas=2)
        assert "as before" in more.text
        assert "its engine starts anew" in more.text
    async with agent_of(trouble.settings) as agent:
        await destroyed(agent, trouble)


@pytest.mark.parametrize(
    ("denied", "lacks"),
    [
        ("Microsoft.App/jobs/read", "is not seen"),
        ("Microsoft.App/jobs/write", "is missing"),
        ("Microsoft.Authorization/roleAssignments/write", "may not stop it"),
    ],
)
async def test_without_the_right_a_server_ends_it_and_that_is_said(
    trouble: Azure, denied: str, lacks: str
) -> None:
    """Once, with what an owner may do about it; unless it was to be Azure: then nothing is made."""
    trouble.set(denied_actions=[denied])
    async with agent_of(trouble.settings) as agent:
        no = await refused(
            agent, "deploy_vllm", "PERMISSION_DENIED", **WISH, ttl_minutes=90, lease="cloud"
        )
        assert denied in no.text
        assert named(trouble, JOB) == named(trouble, "/containerapps/") == []
        made = await deploys(agent, ttl_minutes=90, min_replicas=1)
        [said] = [one for one in made.structured["warnings"] if denied in one]
        assert said.startswith(NOTHING_ENDS)
        assert f"{lacks}: you lack {denied}" in said
        assert "make setup) and run `az role assignment create" in made.text
        ready = await becomes(agent, "ready")
        assert ready.data["lease"] == "server"
        assert NOTHING_ENDS in ready.text
        await destroyed(agent, trouble)


async def test_a_job_that_did_not_stop_it_is_read(
    trouble: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it never started, or failed: Azure does not end what its time is over for."""

    async def ran() -> str:
        return "".join(str(one["status"]) for one in trouble.get()["executions"])

    async with agent_of(trouble.settings) as agent:
        await deploys(agent, ttl_minutes=90, min_replicas=1)
        await becomes(agent, "ready")
        later = datetime.now(UTC) + timedelta(minutes=96)
        monkeypatch.setattr(lease, "utc_now", lambda: later)
        looked = await asked(agent, "status_vllm")
        assert f"{NOTHING_ENDS} its job lease-one has not started" in looked.text
        refuses = {"method": f"POST {APP}/stop", "status": 409, "code": "Conflict", "times": -1}
        trouble.set(faults=[refuses], clock_ahead_seconds=92 * 60)
        await soon(ran, "Failed".__eq__, waiting_for="its job")
        failed = await asked(agent, "status_vllm")
        assert "and is Failed (exit code 1)" in failed.text
        assert failed.data["lease"] == "server"
        trouble.set(faults=[], clock_ahead_seconds=0)
        again = await asked(agent, "update_vllm_scaling", ttl_minutes=240)
        assert again.data["lease"] == "cloud", again
        await destroyed(agent, trouble)


async def test_what_a_machine_may_not_see_of_a_lease_it_does_not_deny(
    trouble: Azure, tmp_path: Path
) -> None:
    """There may be a job although no app is there: who may not look says that."""
    trouble.set(denied_actions=["Microsoft.App/jobs/read"])
    async with agent_of(elsewhere(trouble, tmp_path)) as agent:
        nothing = await agent.call("status_vllm", **ONE)
        assert nothing.code == "DEPLOYMENT_NOT_FOUND"
        assert "Whether its job lease-one is left is not known" in nothing.text


async def test_what_has_no_end_has_no_job_and_an_idle_time_needs_no_lease(trouble: Azure) -> None:
    async with agent_of(trouble.settings) as agent:
        await refused(agent, "deploy_vllm", "INVALID_ARGUMENT", **WISH, lease="cloud")
        idle = {"max_idle_minutes": 40}
        await refused(agent, "deploy_vllm", "INVALID_ARGUMENT", **WISH, **idle, min_replicas=1)
        await deploys(agent, **idle, min_replicas=0)
        ready = await becomes(agent, "ready")
        assert ready.data.get("lease") is None
        assert "PUT Microsoft.App/jobs" not in trouble.get()["calls"]
        await destroyed(agent, trouble)


def _jobs(azure: Azure) -> Any:
    async def jobs() -> list[Any]:
        return named(azure, JOB)

    return jobs


def _ends(told: dict[str, str]) -> float:
    return datetime.fromisoformat(told["expires_at"]).timestamp()


def _principal(azure: Azure) -> str:
    """Return who the job is."""
    [who] = azure.get()["principals"].values()
    return str(who)
