"""What Google's own SDKs say of a message: its fields, their behaviour, its enums and its names.

proto-plus drops the options of a field and keeps the vendor's generated docstring, which begins
with Required or Output only: those words are what is read here.
"""

import base64
import functools
import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import grpc
from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.longrunning import operations_pb2
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.recorded import Call

_CLIENTS: Final = (
    "run_v2:services", "run_v2:revisions", "secretmanager_v1:secret_manager_service",
    "monitoring_v3:metric_service", "logging_v2:logging_service_v2",
    "cloudquotas_v1:cloud_quotas", "devtools.cloudbuild_v1:cloud_build", "iam_admin_v1:iam",
    "resourcemanager_v3:projects", "service_usage_v1:service_usage",
    "artifactregistry_v1:artifact_registry", "tpu_v2:tpu",
    "scheduler_v1:cloud_scheduler",
)  # fmt: skip
_POLICIES: Final[Mapping[str, tuple[Any, Any]]] = {
    "SetIamPolicy": (iam_policy_pb2.SetIamPolicyRequest, policy_pb2.Policy),
    "GetIamPolicy": (iam_policy_pb2.GetIamPolicyRequest, policy_pb2.Policy),
    "TestIamPermissions": (
        iam_policy_pb2.TestIamPermissionsRequest,
        iam_policy_pb2.TestIamPermissionsResponse,
    ),
}
_OPERATIONS: Final[Mapping[str, tuple[Any, Any]]] = {
    "GetOperation": (operations_pb2.GetOperationRequest, operations_pb2.Operation),
    "WaitOperation": (operations_pb2.WaitOperationRequest, operations_pb2.Operation),
}
_REST: Final = (
    (r".*/aggregated/instances$", "InstanceAggregatedList", ""),
    (r".*/aggregated/disks$", "DiskAggregatedList", ""),
    (r".*/zones/[^/]+/disks$", "DiskList", "Disk"),
    (r".*/disks/[^/]+$", "Disk", ""),
    (r".*/zones/[^/]+/instances$", "InstanceList", "Instance"),
    (r".*/instances/[^/]+$", "Instance", ""),
    (r".*/aggregated/machineTypes$", "MachineTypeAggregatedList", ""),
    (r".*/machineTypes$", "MachineTypeList", ""),
    (r".*/machineTypes/[^/]+$", "MachineType", ""),
    (r".*/global/firewalls$", "FirewallList", "Firewall"),
    (r".*/firewalls/[^/]+$", "Firewall", "Firewall"),
    (r".*/operations/[^/]+(/wait)?$", "Operation", ""),
    (r".*/regions/[^/]+$", "Region", ""),
    (r".*/zones/[^/]+$", "Zone", ""),
    (r".*/networks/[^/]+$", "Network", ""),
    (r".*/compute/v1/projects/[^/]+$", "Project", ""),
)
"""Path of Compute Engine, what GET gives, what POST and PATCH take; those give an Operation."""


class _Listening(grpc.Channel):
    """Notes which class is behind each method."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[Any, Any]] = {}

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        *_: Any,
        **__: Any,
    ) -> Any:
        asked = getattr(request_serializer, "__self__", None)
        answered = getattr(response_deserializer, "__self__", None)
        if asked is not None:
            self.seen[method.removeprefix("/")] = (asked, answered)
        return self._nothing

    def _nothing(self, *_: Any, **__: Any) -> Any:
        return self._nothing

    unary_stream = stream_unary = stream_stream = subscribe = unsubscribe = close = _nothing


@functools.cache
def methods() -> Mapping[str, tuple[Any, Any]]:
    """Return the classes of request and answer of each method, as the SDK's clients use them."""
    listening = _Listening()
    for client in _CLIENTS:
        package, service = client.split(":")
        module = importlib.import_module(
            f"google.cloud.{package}.services.{service}.transports.grpc"
        )
        name = next(
            one for one in dir(module) if one.endswith("GrpcTransport") and "Async" not in one
        )
        kind = getattr(module, name)
        if kind.__module__ != module.__name__:
            kind = next(
                one for one in vars(module).values()
                if isinstance(one, type) and one.__module__ == module.__name__
                and one.__name__.endswith("GrpcTransport")
            )  # fmt: skip
        transport = kind(channel=listening)
        transport._stubs.clear()
        transport._logged_channel = listening
        for attribute, value in vars(kind).items():
            if isinstance(value, property):
                getattr(transport, attribute)
    return listening.seen


def faults(call: Call) -> list[str] | None:
    """Return everything in a call that the SDK does not know; nothing where no SDK knows it."""
    if call.kind == "http":
        return _rest_faults(call)
    kinds = _kinds(call.method)
    if kinds is None:
        return None
    asked, answered = kinds
    found = list(_judged(asked, call.message("asked"), f"{call.method} asks", asks=True))
    if call.status == "OK" and answered is not None:
        found += _judged(answered, call.message("answered"), f"{call.method} answers", asks=False)
    return found


def _kinds(method: str) -> tuple[Any, Any] | None:
    service, _, name = method.partition("/")
    if service == "google.longrunning.Operations" or name in {"GetOperation", "WaitOperation"}:
        return _OPERATIONS.get(name)
    return _POLICIES.get(name) or methods().get(method)


def _judged(kind: Any, raw: bytes, at: str, *, asks: bool) -> Iterator[str]:
    plain = kind.pb() if hasattr(kind, "pb") else kind
    try:
        message = plain.FromString(raw)
    except DecodeError:
        yield f"{at}: no {plain.DESCRIPTOR.full_name}"
        return
    yield from _message(message, at, asks=asks)


def _message(message: Any, at: str, *, asks: bool) -> Iterator[str]:
    if message.DESCRIPTOR.full_name == "google.protobuf.Any":
        return
    unknown = UnknownFieldSet(message)
    for number in range(len(unknown)):
        yield f"{at}: unknown field {unknown[number].field_number}"
    words = behaviour(message.DESCRIPTOR.full_name) if asks else {}
    echoes = "/Update" in at  # what was read may be sent back. source: google.aip.dev/203
    present = {field.name for field, _ in message.ListFields()}
    for name, word in words.items():
        if word == "Required" and name not in present and _must_be_seen(message, name):
            yield f"{at}.{name}: missing"
        if word == "Output only" and name in present and not echoes:
            yield f"{at}.{name}: only Google writes it"
    for field, value in message.ListFields():
        yield from _field(field, value, f"{at}.{field.name}", asks=asks)


def _must_be_seen(message: Any, name: str) -> bool:
    """Whether a value that is left out cannot be meant: 0 and false are not sent either."""
    field = message.DESCRIPTOR.fields_by_name.get(name)
    return field is not None and (
        field.message_type is not None or field.type == FieldDescriptor.TYPE_STRING
    )


def _field(field: Any, value: Any, at: str, *, asks: bool) -> Iterator[str]:
    values = value if field.is_repeated else [value]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        inner = field.message_type.fields_by_name["value"]
        if inner.message_type is not None:
            for key in value:
                yield from _message(value[key], f"{at}[{key}]", asks=asks)
        return
    for one in values:
        if field.message_type is not None:
            yield from _message(one, at, asks=asks)
        elif field.enum_type is not None and one not in field.enum_type.values_by_number:
            yield f"{at}: {one} is none of {field.enum_type.name}"


@functools.cache
def behaviour(full_name: str) -> Mapping[str, str]:
    """Return the fields of a message that the vendor's docstring calls Required or Output only."""
    kind = _classes().get(full_name)
    if kind is None:
        return {}
    said = re.findall(
        r"^ {8}(\w+) \([^)]*(?:\([^)]*\)[^)]*)*\):\n\s+(Required|Output only)\.",
        kind.__doc__ or "",
        re.MULTILINE,
    )
    return dict(said)


@functools.cache
def _classes() -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for client in _CLIENTS:
        types = importlib.import_module(f"google.cloud.{client.partition(':')[0]}.types")
        for one in vars(types).values():
            if isinstance(one, type) and hasattr(one, "pb") and hasattr(one, "meta"):
                for each in _nested(one):
                    found[each.pb().DESCRIPTOR.full_name] = each
    return found


def _nested(kind: Any) -> Iterator[Any]:
    yield kind
    for one in vars(kind).values():
        if isinstance(one, type) and hasattr(one, "pb") and hasattr(one, "meta"):
            yield from _nested(one)


def _rest_faults(call: Call) -> list[str] | None:
    from google.cloud import compute_v1  # noqa: PLC0415  takes seconds

    path = call.path
    row = next(
        (row for row in _REST if "/compute/v1/" in path and re.fullmatch(row[0], path)), None
    )
    if row is None:
        return None
    _, given, taken = row
    found: list[str] = []
    if call.asked and taken:
        found += _json(getattr(compute_v1, taken), call.asked, f"{call.method} {taken}")
    if call.status.startswith("2") and call.answered:
        kind = given if call.method == "GET" else "Operation"
        found += _json(getattr(compute_v1, kind), call.answered, f"{call.method} answers {kind}")
    return found


def _json(kind: Any, body: str, at: str) -> list[str]:
    try:
        json_format.Parse(body, kind.pb()())
    except json_format.ParseError as error:
        return [f"{at}: {error}"]
    return []


def changed(call: Call, change: Callable[[Any], None]) -> Call:
    """Return the call with another request: a planted fault."""
    kinds = _kinds(call.method)
    assert kinds
    asked = kinds[0]
    plain = asked.pb() if hasattr(asked, "pb") else asked
    message = plain.FromString(call.message("asked"))
    change(message)
    sent = base64.b64encode(message.SerializeToString()).decode()
    return Call(**{name: getattr(call, name) for name in Call.__slots__} | {"asked": sent})
