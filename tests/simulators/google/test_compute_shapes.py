"""What the simulated Compute Engine knows of bodies is what Google's document says."""

import json
from collections.abc import AsyncIterator, Mapping
from importlib import resources
from typing import Any

import httpx2
import pytest

from core.settings import GooglePlane
from simulators.google.compute_serving import shapes
from tests.google_plane import Controls
from tests.simulators.google.compute import IMAGE, ZONE, Compute, compute_of, instance

pytestmark = pytest.mark.anyio

_ANONYMOUS = {
    "MetadataItem": ("Metadata", "items"),
    "FirewallRule": ("Firewall", "allowed"),
}
"""Objects that have no name in the document: in which schema, below which list."""
_LONG = {"int64", "uint64"}


@pytest.fixture(scope="module")
def schemas() -> Mapping[str, Any]:
    folder = resources.files("googleapiclient") / "discovery_cache" / "documents"
    document = json.loads((folder / "compute.v1.json").read_text(encoding="utf-8"))
    found: Mapping[str, Any] = document["schemas"]
    return found


@pytest.fixture
async def compute(plane: GooglePlane, project: str, controls: Controls) -> AsyncIterator[Compute]:
    controls.set(project, tpu_clock=1200)
    async with compute_of(plane, project) as compute:
        yield compute


@pytest.mark.parametrize("name", shapes())
def test_every_shape_has_exactly_the_fields_of_the_document(
    schemas: Mapping[str, Any], name: str
) -> None:
    """With their types, and what only Google sets marked."""
    assert shapes()[name] == {
        field: _kind(rule) for field, rule in _properties(schemas, name).items()
    }


def _properties(schemas: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if name in _ANONYMOUS:
        owner, field = _ANONYMOUS[name]
        inner: Mapping[str, Any] = schemas[owner]["properties"][field]["items"]["properties"]
        return inner
    properties: Mapping[str, Any] = schemas[name]["properties"]
    return properties


def _kind(rule: Mapping[str, Any]) -> Any:
    if rule.get("readOnly"):
        return "out"
    if "$ref" in rule:
        return rule["$ref"]
    if rule["type"] == "array":
        return f"[{_kind(rule['items'])}]"
    if rule["type"] == "object":
        return _object(rule)
    if "enum" in rule:
        return rule["enum"]
    return "int64" if rule.get("format") in _LONG else rule["type"]


def _object(rule: Mapping[str, Any]) -> str:
    if "additionalProperties" in rule:
        return f"{{{_kind(rule['additionalProperties'])}}}"
    return "MetadataItem" if "key" in rule["properties"] else "FirewallRule"


_BODY = {
    "name": "one",
    "machineType": f"zones/{ZONE}/machineTypes/ct6e-standard-1t",
    "disks": [{"boot": True, "initializeParams": {"sourceImage": IMAGE, "diskSizeGb": "200"}}],
    "networkInterfaces": [{"network": "global/networks/default"}],
    "scheduling": {"onHostMaintenance": "TERMINATE", "automaticRestart": False},
}


async def _answered(plane: GooglePlane, project: str, body: Any) -> tuple[int, str]:
    url = f"{plane.http}/compute/v1/projects/{project}/zones/{ZONE}/instances"
    async with httpx2.AsyncClient(trust_env=False) as client:
        reply = await client.post(url, content=json.dumps(body))
    error = reply.json().get("error", {})
    return reply.status_code, error.get("message", "")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"machine_type": "x"}, "Unknown name \"machine_type\" at 'resource': Cannot find field"),
        (
            {"scheduling": {"flexStart": True}},
            "Unknown name \"flexStart\" at 'resource.scheduling'",
        ),
        ({"scheduling": {"provisioningModel": "FLEX"}}, "provisioningModel': 'FLEX'. Must be one"),
        ({"scheduling": {"maxRunDuration": "600s"}}, "at 'resource.scheduling.maxRunDuration'"),
        ({"scheduling": {"maxRunDuration": {"seconds": "long"}}}, "(TYPE_INT64), 'long'"),
        ({"scheduling": {"automaticRestart": "false"}}, "automaticRestart' (bool), 'false'"),
        ({"labels": {"a": 1}}, "'resource.labels.a' (str), 1"),
        ({"disks": {}}, "'resource.disks' (list)"),
        ({"disks": ["boot"]}, "'resource.disks[0]' (AttachedDisk)"),
        ({"canIpForward": 1}, "'resource.canIpForward' (bool), 1"),
        ({"advancedMachineFeatures": {"threadsPerCore": True}}, "threadsPerCore' (int), True"),
    ],
)
async def test_a_body_that_google_does_not_know_is_refused(
    plane: GooglePlane, project: str, more: dict[str, Any], words: str
) -> None:
    status, message = await _answered(plane, project, {**_BODY, **more})
    assert status == 400
    assert words in message


async def test_a_body_must_be_an_object_of_json(plane: GooglePlane, project: str) -> None:
    url = f"{plane.http}/compute/v1/projects/{project}/zones/{ZONE}/instances"
    async with httpx2.AsyncClient(trust_env=False) as client:
        for content in ("[]", "{", ""):
            reply = await client.post(url, content=content)
            assert reply.status_code == 400
            assert "Invalid JSON payload" in reply.json()["error"]["message"]


async def test_what_only_google_sets_is_not_taken_from_a_body(
    plane: GooglePlane, project: str
) -> None:
    """It is left out, as is what is null."""
    more = {"status": "RUNNING", "id": "7", "kind": "x", "description": None}
    assert (await _answered(plane, project, {**_BODY, **more}))[0] == 200
    url = f"{plane.http}/compute/v1/projects/{project}/zones/{ZONE}/instances/one"
    async with httpx2.AsyncClient(trust_env=False) as client:
        told = (await client.get(url)).json()
    assert told["id"] != "7"
    assert told["kind"] == "compute#instance"
    assert "description" not in told


async def test_what_is_told_are_fields_of_the_document(
    compute: Compute, plane: GooglePlane, schemas: Mapping[str, Any]
) -> None:
    """Of an instance and of operations, well ended and failed ones."""
    await compute.inserted(instance())
    await compute.inserted(instance("two", model="SPOT"))
    base = f"{plane.http}/compute/v1/projects/{compute.project}/zones/{ZONE}"
    async with httpx2.AsyncClient(trust_env=False) as client:
        for kind, schema in (("instances", "Instance"), ("operations", "Operation")):
            for row in (await client.get(f"{base}/{kind}")).json()["items"]:
                assert _unknown(schemas, schemas[schema], row) == []


def _unknown(schemas: Mapping[str, Any], schema: Mapping[str, Any], value: Any) -> list[str]:
    """Names in a value that a schema does not have."""
    if "$ref" in schema:
        return _unknown(schemas, schemas[schema["$ref"]], value)
    if isinstance(value, list):
        return [name for one in value for name in _unknown(schemas, schema["items"], one)]
    if not isinstance(value, dict) or "additionalProperties" in schema:
        return []
    known = schema["properties"]
    inner = [
        name for key in value if key in known for name in _unknown(schemas, known[key], value[key])
    ]
    return [key for key in value if key not in known] + inner
