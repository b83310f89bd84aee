"""The judges of the vendors' schemas see each planted fault, and nothing in what is right."""

import base64
import json
from collections.abc import Callable
from typing import Any, Final

import pytest
from google.cloud import run_v2

from tests import vendor_azure, vendor_google
from tests.backends.aca import armschema
from tests.backends.aca.planned import sent, small
from tests.recorded import Call

_APP: Final = "/subscriptions/s/resourceGroups/g/providers/Microsoft.App/containerApps/one"


def put(body: Any) -> Call:
    """Return the call that makes a container app."""
    return Call(
        kind="http", method="PUT", path=_APP, asked=json.dumps(body), status="201", answered=""
    )


def created() -> Call:
    """Return the call that makes a service of Cloud Run."""
    service = run_v2.Service(
        template=run_v2.RevisionTemplate(
            containers=[run_v2.Container(image="docker.io/vllm/vllm-openai:v0.32.0")]
        )
    )
    request = run_v2.CreateServiceRequest(
        parent="projects/p/locations/l", service=service, service_id="one"
    )
    return Call(
        kind="grpc",
        method="google.cloud.run.v2.Services/CreateService",
        asked=base64.b64encode(run_v2.CreateServiceRequest.serialize(request)).decode(),
        status="OK",
        answered="",
    )


def test_what_is_right_has_no_faults() -> None:
    """A plan's own app, and a small service."""
    assert vendor_azure.faults(put(sent(**small()))) == []
    assert vendor_google.faults(created()) == []


def _unknown_number(message: Any) -> None:
    message.MergeFromString(b"\xfa\x3e\x01x")


PLANTED: Final[dict[str, Callable[[Any], None]]] = {
    "unknown field": _unknown_number,
    "unknown field within": lambda m: m.service.template.MergeFromString(b"\xfa\x3e\x01x"),
    "missing": lambda m: m.ClearField("parent"),
    "missing within": lambda m: m.service.ClearField("template"),
    "missing deeper": lambda m: m.service.template.containers[0].ClearField("image"),
    "only Google writes it": lambda m: setattr(m.service, "uid", "x"),
    "only Google writes it, number": lambda m: setattr(m.service, "generation", 3),
    "no such word": lambda m: setattr(m.service, "ingress", 77),
    "no such word within": lambda m: setattr(m.service.template, "execution_environment", 9),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_seen_in_a_message(fault: str) -> None:
    """One thing wrong, one fault."""
    found = vendor_google.faults(vendor_google.changed(created(), PLANTED[fault]))
    assert found
    assert len(found) == 1, found


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("propertie",), {}),
        (("Location",), "swedencentral"),
        (("location",), None),
        (("properties", "provisioningState"), "Succeeded"),
        (("properties", "latestRevisionName"), "one--1"),
        (("properties", "template", "containers", 0, "Image"), "x"),
        (("properties", "template", "containers", 0, "resources", "cpu"), "24"),
        (("properties", "template", "scale", "minReplicas"), "0"),
        (("properties", "configuration", "activeRevisionsMode"), "Sometimes"),
        (("properties", "configuration", "ingress", "transport"), 5),
    ],
)
def test_a_planted_fault_is_seen_in_a_body(path: tuple[Any, ...], value: object) -> None:
    """Unknown keys, another case, read-only ones, what is missing, other types and words."""
    body: Any = sent(**small())
    at = body
    for step in path[:-1]:
        at = at[step]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    assert vendor_azure.faults(put(body))


def test_a_planted_fault_is_seen_in_an_answer() -> None:
    """What a simulator gives is held to the same."""
    told = {**sent(**small()), "id": _APP, "name": "one", "type": "Microsoft.App/containerApps"}
    told["properties"]["runningState"] = "Running"
    call = Call(
        kind="http", method="GET", path=_APP, asked="", status="200", answered=json.dumps(told)
    )
    assert vendor_azure.faults(call)


@pytest.mark.skipif(not armschema.HERE, reason=armschema.WHY_NOT)
def test_microsofts_schema_was_asked_too() -> None:
    """The models know a word that the schema of the older version does not."""
    body = sent(**small())
    body["properties"]["template"]["scale"]["pollingIntervals"] = 5
    found = vendor_azure.faults(put(body)) or []
    assert [fault for fault in found if fault.endswith("pollingIntervals: unknown")]
