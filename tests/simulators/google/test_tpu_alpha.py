"""REST v2alpha1 of the simulated TPU API: what v2 cannot express, and the same queue behind it."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import httpx2
import pytest

from core.settings import GooglePlane
from simulators.google import tpu_queue
from tests.backends.discovery import document, faults
from tests.simulators.google.tpus import ZONE, Tpus, parent_of, tpus_of, wanted_body, wanted_node

pytestmark = pytest.mark.anyio

_FORMATS = {"google-datetime": "datetime", "google-duration": "duration", "int64": "int64"}
_NO_FLEX = "us-east1-d"


class Alpha:
    """v2alpha1 of one project."""

    def __init__(self, http: httpx2.AsyncClient, tpus: Tpus) -> None:
        self._http = http
        self.tpus = tpus
        self.root = f"{tpus.controls.plane.http}/v2alpha1"

    async def ask(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        reply = await self._http.request(method, f"{self.root}/{path}", **more)
        return reply.status_code, reply.json()

    async def create(
        self, body: dict[str, Any] | None = None, zone: str = ZONE, short: str = "one"
    ) -> tuple[int, Any]:
        sent = wanted_body(self.tpus.project, zone) if body is None else body
        path = f"{parent_of(self.tpus.project, zone)}/queuedResources"
        return await self.ask("POST", path, json=sent, params={"queuedResourceId": short})

    async def ended(self, name: str) -> Any:
        with anyio.fail_after(20):
            while True:
                _status, operation = await self.ask("GET", name)
                if operation.get("done"):
                    return operation
                await anyio.sleep(0.02)


@pytest.fixture
async def alpha(plane: GooglePlane, bare_project: str) -> AsyncIterator[Alpha]:
    async with (
        tpus_of(plane, bare_project) as tpus,
        httpx2.AsyncClient(trust_env=False, timeout=30) as http,
    ):
        yield Alpha(http, tpus)


def _kind(rule: dict[str, Any]) -> Any:
    """A type of the discovery document, in the words of ours."""
    if rule.get("readOnly"):
        return "out"
    if "enum" in rule:
        return sorted(rule["enum"])
    if rule.get("type") == "array":
        return f"[{_kind(rule['items'])}]"
    if rule.get("type") == "object":
        return f"{{{_kind(rule['additionalProperties'])}}}"
    return rule.get("$ref") or _FORMATS.get(rule.get("format", ""), rule["type"])


def test_the_rules_are_those_of_the_discovery_document() -> None:
    """Every schema that is reached, with each of its fields."""
    schemas = document("tpu.v2alpha1")
    for name, fields in tpu_queue.shapes().items():
        known = schemas[name].get("properties", {})
        assert fields == {field: _kind(rule) for field, rule in known.items()}, name


async def test_flex_start_gets_its_chips(alpha: Alpha) -> None:
    """What it is asked with is told by v2alpha1; v2 sees the same resource."""
    status, begun = await alpha.create()
    assert status == 200
    done = await alpha.ended(begun["name"])
    assert done["metadata"]["verb"] == "create"
    assert done["response"]["name"] == alpha.tpus.name()
    await alpha.tpus.reaches("ACTIVE")
    _status, told = await alpha.ask("GET", alpha.tpus.name())
    assert told["provisioningModel"] == "FLEX_START"
    assert told["runDuration"] == {"maxRunDuration": "14400s"}
    assert told["state"] == {"state": "ACTIVE"}
    [spec] = told["tpu"]["nodeSpec"]
    assert spec["node"]["bootDiskConfig"] == {"diskSizeGb": "300"}
    assert dict((await alpha.tpus.node()).labels) == {"managed-by": "a-test"}


async def test_its_answers_are_of_the_discovery_document(alpha: Alpha) -> None:
    """But for what only Google sets."""
    _status, begun = await alpha.create()
    assert faults("tpu.v2alpha1", "Operation", begun) == []
    _status, told = await alpha.ask("GET", alpha.tpus.name())
    sent = {name: told[name] for name in told if name not in {"name", "createTime", "state"}}
    assert faults("tpu.v2alpha1", "QueuedResource", sent) == []
    assert faults("tpu.v2alpha1", "QueuedResourceState", told["state"]) == []


async def test_it_counts_as_preemptible(alpha: Alpha) -> None:
    """The pool of on-demand chips does not matter."""
    alpha.tpus.set(tpu_quotas={"tpu-preemptible": 0})
    status, told = await alpha.create()
    assert (status, told["error"]["status"]) == (429, "RESOURCE_EXHAUSTED")
    assert told["error"]["message"].startswith("Quota limit 'TPUV6EPreemptible")
    [detail] = told["error"]["details"]
    assert detail["@type"].endswith("google.rpc.QuotaFailure")
    alpha.tpus.set(tpu_quotas={"tpu": 0})
    assert (await alpha.create())[0] == 200


async def test_a_zone_without_flex_start_says_so_later(alpha: Alpha) -> None:
    """In the operation, some seconds on; nothing is left of the request."""
    status, begun = await alpha.create(zone=_NO_FLEX)
    assert (status, "done" in begun) == (200, False)
    done = await alpha.ended(begun["name"])
    assert done["error"] == {
        "code": 3,
        "message": "FLEX_START provisioning model is not supported for accelerator type"
        f' "v6e-4" in location "{_NO_FLEX}"',
    }
    status, _told = await alpha.ask("GET", alpha.tpus.name(zone=_NO_FLEX))
    assert (status, alpha.tpus.seen("tpus")) == (404, {})


async def test_its_time_ends_it(alpha: Alpha) -> None:
    """The node is gone, a leftover stays."""
    alpha.tpus.set(tpu_clock=60)
    alpha.tpus.set(tpu_provision_seconds=0)
    await alpha.create()
    await alpha.tpus.reaches("ACTIVE")
    alpha.tpus.set(tpu_clock=1_000_000, tpu_run_clock=1_000_000)
    await alpha.tpus.reaches("SUSPENDED")
    state = (await alpha.tpus.get()).state
    assert state.state_initiator.name == "SERVICE"
    assert alpha.tpus.seen("nodes") == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spott": {}}, 'Unknown name "spott"'),
        ({"provisioningModel": "FLEX"}, "provisioning_model"),
        ({"state": {"state": "ACTIVE"}}, "output only"),
        ({"runDuration": {"maxRunDuration": 14400}}, "max_run_duration"),
        ({"runDuration": {"maxRunDuration": "4h"}}, "max_run_duration"),
        ({"runDuration": {"maxRunDuration": "604801s"}}, "7 days"),
        ({"runDuration": {}}, "requires run_duration"),
        ({"provisioningModel": "SPOT"}, "only supported for FLEX_START"),
        ({"spot": {}}, "incompatible with spot requests"),
        ({"spot": {}, "guaranteed": {}}, "Only one of"),
        ({"bestEffort": {}}, "best effort"),
        ({"tpu": {"nodeSpec": {}}}, "node_spec"),
        ({"queueingPolicy": {"validUntilDuration": "-1s"}}, "valid_until"),
    ],
)
async def test_what_cannot_be_is_refused(alpha: Alpha, changes: dict[str, Any], words: str) -> None:
    """With the words of Google's own parser where they are known."""
    status, told = await alpha.create(wanted_body(alpha.tpus.project, **changes))
    assert (status, told["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert words in told["error"]["message"]
    assert alpha.tpus.seen("queued_resources") == {}


async def test_a_node_is_judged_as_well(alpha: Alpha) -> None:
    """Numbers as text, no field that only Google sets, no model that is not for nodes."""
    body = wanted_body(alpha.tpus.project)
    for changes in (
        {"bootDiskConfig": {"diskSizeGb": 300}},
        {"health": "FINE"},
        {"name": "mine"},
        {"schedulingConfig": {"provisioningModel": "FLEX_START"}},
        {"tags": ["one", 2]},
        {"labels": {"one": 2}},
        {"networkConfig": {"enableExternalIps": "true"}},
    ):
        node = wanted_body(alpha.tpus.project)["tpu"]["nodeSpec"][0]["node"]
        body["tpu"]["nodeSpec"][0]["node"] = {**node, **changes}
        assert faults("tpu.v2alpha1", "QueuedResource", body)
        assert (await alpha.create(body))[0] == 400, changes


async def test_spot_and_standard_may_be_asked_for_too(alpha: Alpha) -> None:
    """As v2 does; reserved chips there are none."""
    for model, pool in (("SPOT", "spot"), ("STANDARD", "on-demand")):
        body = wanted_body(alpha.tpus.project, provisioningModel=model)
        del body["runDuration"]
        assert (await alpha.create(body, short="two"))[0] == 200
        [row] = alpha.tpus.seen("tpus").values()
        assert row["provisioning"] == pool
        await alpha.tpus.delete("two")
        await alpha.tpus.gone("two")
    body = wanted_body(alpha.tpus.project, provisioningModel="RESERVATION_BOUND")
    assert (await alpha.create(body))[1]["error"]["status"] == "FAILED_PRECONDITION"


async def test_it_is_listed_and_deleted(alpha: Alpha) -> None:
    """By force; those of v2 are there as well."""
    await alpha.tpus.active("first", node=wanted_node())
    many = f"{alpha.tpus.parent}/queuedResources"
    _status, page = await alpha.ask("GET", many, params={"pageSize": "5"})
    assert [one["name"] for one in page["queuedResources"]] == [alpha.tpus.name("first")]
    status, _told = await alpha.ask("DELETE", alpha.tpus.name("first"))
    assert status == 400
    path, force = alpha.tpus.name("first"), {"force": "true"}
    _status, begun = await alpha.ask("DELETE", path, params=force)
    done = await alpha.ended(begun["name"])
    assert done["response"] == {
        "@type": "type.googleapis.com/google.cloud.tpu.v2alpha1.QueuedResource",
        "name": path,
    }
    assert await alpha.ask("GET", many) == (200, {})


async def test_calls_are_admitted_as_any(alpha: Alpha) -> None:
    """By what is enabled, by permissions, and by the parameters that are known."""
    path = alpha.tpus.name()
    status, told = await alpha.ask("GET", path, params={"forse": "true"})
    assert (status, 'Unknown name "forse"' in told["error"]["message"]) == (400, True)
    alpha.tpus.set(denied_permissions=["tpu.nodes.create"])
    status, told = await alpha.create()
    assert status == 403
    alpha.tpus.set(faults=[{"method": "*v2alpha1.Tpu/Get*", "status": "UNAVAILABLE"}])
    assert (await alpha.ask("GET", path))[0] == 503
    assert (await alpha.ask("GET", path))[0] == 404
    assert "google.cloud.tpu.v2alpha1.Tpu/GetQueuedResource" in alpha.tpus.seen("calls")


async def test_an_error_after_the_effect_leaves_the_request(alpha: Alpha) -> None:
    """As when an answer is lost."""
    method = "google.cloud.tpu.v2alpha1.Tpu/CreateQueuedResource"
    fault = {"method": method, "status": "UNAVAILABLE", "when": "after"}
    alpha.tpus.set(faults=[fault])
    assert (await alpha.create())[0] == 503
    await alpha.tpus.reaches("ACTIVE")


async def test_a_project_without_the_api_is_told_why(plane: GooglePlane, bare_project: str) -> None:
    """The reason stands in the details."""
    url = f"{plane.http}/v2alpha1/{parent_of(bare_project)}/queuedResources"
    async with httpx2.AsyncClient(trust_env=False) as http:
        reply = await http.get(url)
    [detail] = reply.json()["error"]["details"]
    assert (reply.status_code, detail["reason"]) == (403, "SERVICE_DISABLED")
