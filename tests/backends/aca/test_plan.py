"""A plan for Container Apps: pure, the same every time, with its price and what to know first."""

import json
from typing import Any

import pytest

from backends.aca.secrets import KEEPS_SECRETS, READS_SECRETS
from core.errors import InvalidArgument
from core.records import ModelShape, Plan
from tests.backends.aca.planned import (
    A100,
    PATCHED,
    T4,
    drawn,
    planned,
    site,
    small,
)


def _whats(plan: Plan) -> str:
    return " ".join(step.what for step in plan.steps)


def _kind(path: str) -> str:
    return path.rsplit("/providers/", 1)[-1].split("/")[1] if "/providers/" in path else path


def test_a_plan_needs_neither_subscription_nor_login() -> None:
    """Whoever only wants to know reads SUBSCRIPTION_ID where theirs will stand."""
    plan = planned()
    assert "/subscriptions/SUBSCRIPTION_ID/" in plan.steps[-1].request["id"]
    mine = site(A100, azure_subscription_id="mine")
    assert planned(mine).steps[-1].request["id"].startswith("/subscriptions/mine/")


def test_everything_is_planned_in_the_order_in_which_it_can_be_made() -> None:
    """What a deployment stands on comes first, and the app last."""
    plan = planned()
    kinds = [_kind(step.request["id"]) for step in plan.steps if "id" in step.request]
    assert kinds == [
        "/subscriptions/SUBSCRIPTION_ID/resourceGroups/vllm-devops",
        "workspaces",
        "managedEnvironments",
        "userAssignedIdentities",
        "vaults",
        "roleAssignments",
        "roleAssignments",
        "storageAccounts",
        "roleAssignments",
        "storageAccounts",
        "managedEnvironments",
        "managedEnvironments",
        kinds[-2],
        "containerApps",
    ]
    assert kinds[-2].endswith("/secrets/vllm-devops-gemma-api-key")
    assert "Microsoft.Storage" in plan.steps[0].request["namespaces"]


def test_a_model_that_needs_no_share_plans_none() -> None:
    """It would be billed every month."""
    plan = planned(**small())
    assert "storage account" not in _whats(plan)
    assert "Microsoft.Storage" not in plan.steps[0].request["namespaces"]
    assert not any("a month, also while" in warning for warning in plan.warnings)
    assert any("a month, also while" in warning for warning in planned().warnings)


def test_a_workspace_of_ones_own_is_not_made() -> None:
    """Its GUID is all that is needed of it."""
    plan = planned(site(A100, azure_log_analytics_workspace_id="guid-of-mine"))
    assert "workspace" not in _whats(plan)
    (environment,) = [one for one in plan.steps if one.what.startswith("Make the environment vllm")]
    logs = environment.request["properties"]["appLogsConfiguration"]["logAnalyticsConfiguration"]
    assert logs == {"customerId": "guid-of-mine"}
    assert "guid-of-mine" in environment.command


def test_no_plan_holds_a_key() -> None:
    """A plan is shown, logged and kept; a token of the settings is none of its business."""
    plan = planned(site(A100, hf_token="hf_secret"))
    text = plan.model_dump_json()
    assert "hf_secret" not in text
    assert "sharedKey" not in json.dumps([step.request for step in plan.steps])
    assert "accountKey" not in json.dumps([step.request for step in plan.steps])


@pytest.mark.parametrize(("target", "hourly"), [(A100, 6.354), (T4, 1.613)])
def test_the_price_is_of_a_whole_replica(target: str, hourly: float) -> None:
    """GPU, processors and memory; and that the sources disagree is said."""
    plan = planned(target, **small())
    assert plan.usd_per_hour == pytest.approx(hourly, abs=0.001)
    assert any("disagree on the price" in warning for warning in plan.warnings)


def test_a_cold_start_is_never_hidden_in_a_request() -> None:
    """A2: the ingress ends every request at 240 s, and a boot takes longer."""
    (said,) = [each for each in planned().warnings if "240 s" in each]
    assert "status_vllm" in said


def test_who_may_call_is_said() -> None:
    """The address of this machine is asked of somebody else, unless it is set."""
    assert any("api.ipify.org" in each for each in planned().warnings)
    for quiet in ({"azure_allowed_addresses": "203.0.113.0/24"}, {"rehearsal": True}):
        assert not any("ipify" in each for each in planned(site(A100, **quiet)).warnings)
    assert any("Anybody" in each for each in planned(access="public").warnings)
    assert any("cannot ask it" in each for each in planned(access="internal").warnings)


def test_an_image_by_its_tag_is_said() -> None:
    """A tag may come to mean another image; an Azure registry must let the identity in."""
    assert any("named by a tag" in each for each in planned().warnings)
    assert not any("named by a tag" in each for each in planned(image=PATCHED).warnings)
    assert any("AcrPull" in each for each in planned(image="mine.azurecr.io/vllm:1").warnings)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"max_model_len": 10_000_000}, "beyond the model's"),
        ({"port": 8000}, "own address"),
        ({"min_replicas": 3}, "more than max_replicas"),
        ({"network": "vnet/subnet"}, "that of its environment"),
        ({"engine": "ollama"}, "Cloud Run alone"),
        ({"name": "a"}, "No container app"),
        ({"engine_args": ("--api-key", "x")}, "key of its own"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(said: dict[str, Any], why: str) -> None:
    """A refusal now is cheaper than a failed revision later."""
    with pytest.raises(InvalidArgument, match=why) as refused:
        planned(shape=ModelShape(model="m", max_position_embeddings=131_072), **said)
    assert refused.value.fix


def test_a_model_that_nobody_measured_is_planned_on_the_safe_side() -> None:
    """Not knowing is said: the share, the longest boot, and vLLM's usual number of requests."""
    unknown = ModelShape(model="someone/else")
    made = drawn(shape=unknown, model="someone/else")
    assert made.mount is not None
    assert made.startup.budget_seconds == 4800
    assert made.cooldown_seconds == 4800
    assert made.concurrency == 256
    plan = planned(shape=unknown, model="someone/else")
    assert plan.memory is None
    assert any("boot takes is not known" in warning for warning in plan.warnings)


def test_the_roles_are_those_of_microsofts_list() -> None:
    """A reader for apps, and somebody who keeps secrets."""
    requests = [step.request for step in planned().steps if "roleAssign" in str(step.request)]
    kinds = [one["properties"]["roleDefinitionId"].rsplit("/", 1)[-1] for one in requests][:2]
    assert kinds == [READS_SECRETS.id, KEEPS_SECRETS.id]
    assert requests[0]["properties"]["principalType"] == "ServicePrincipal"
    assert "principalType" not in requests[1]["properties"]
