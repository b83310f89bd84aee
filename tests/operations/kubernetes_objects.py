"""Whether Kubernetes would take an object: by the client's models, attribute by attribute.

`kubernetes` carries a class for each type of the API, made of its OpenAPI document, with every
attribute's name and type, and refuses a required one that is missing. LeaderWorkerSet is no part of
it: its fields are read off its Go types (kubernetes-sigs/lws, api/leaderworkerset/v1, 2026-11).
"""

import re
from typing import Any, Final

from kubernetes import client

_PODS: Final = "V1PodTemplateSpec"
_LWS: Final[dict[str, dict[str, str]]] = {
    "LeaderWorkerSet": {
        "apiVersion": "str",
        "kind": "str",
        "metadata": "V1ObjectMeta",
        "spec": "LeaderWorkerSetSpec",
    },
    "LeaderWorkerSetSpec": {
        "replicas": "int",
        "leaderWorkerTemplate": "LeaderWorkerTemplate",
        "rolloutStrategy": "RolloutStrategy",
        "startupPolicy": "str",
        "networkConfig": "NetworkConfig",
    },
    "LeaderWorkerTemplate": {
        "leaderTemplate": _PODS,
        "workerTemplate": _PODS,
        "size": "int",
        "restartPolicy": "str",
        "subGroupPolicy": "SubGroupPolicy",
        "volumeClaimTemplates": "list[V1PersistentVolumeClaim]",
    },
    "RolloutStrategy": {"type": "str", "rollingUpdateConfiguration": "object"},
    "SubGroupPolicy": {"subGroupPolicyType": "str", "subGroupSize": "int"},
    "NetworkConfig": {"subdomainPolicy": "str"},
}
_REQUIRED: Final = {
    "LeaderWorkerSetSpec": {"leaderWorkerTemplate"},
    "LeaderWorkerTemplate": {"workerTemplate"},
}
_RESTARTS: Final = {"RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None", "Default"}
_SIMPLE: Final[dict[str, type]] = {"str": str, "int": int, "bool": bool, "float": float}


def check(made: dict[str, Any]) -> None:
    """Go through an object as its API version and kind say.

    Raises:
        AssertionError: An attribute does not exist or has another type.
        ValueError: A required one is missing.
    """
    if made["kind"] == "LeaderWorkerSet":
        assert made["apiVersion"] == "leaderworkerset.x-k8s.io/v1"
        assert made["spec"]["leaderWorkerTemplate"]["restartPolicy"] in _RESTARTS
        _walk("LeaderWorkerSet", made, "LeaderWorkerSet")
        return
    versions = {"apps/v1": "V1", "v1": "V1"}
    _walk(f"{versions[made['apiVersion']]}{made['kind']}", made, made["kind"])


def _walk(kind: str, value: Any, path: str) -> None:
    listed = re.fullmatch(r"[Ll]ist\[(.+)\]", kind)
    mapped = re.fullmatch(r"Dict\[str, (.+)\]", kind)
    if listed:
        assert isinstance(value, list), path
        for number, item in enumerate(value):
            _walk(listed[1], item, f"{path}[{number}]")
    elif mapped:
        assert isinstance(value, dict), path
        for name, item in value.items():
            _walk(mapped[1], item, f"{path}.{name}")
    elif kind in _SIMPLE:
        assert type(value) is _SIMPLE[kind], f"{path}: {value!r} is no {kind}"
    elif kind != "object":  # a number or a name, such as a probe's port
        _fields(kind, value, path)


def _fields(kind: str, value: Any, path: str) -> None:
    assert isinstance(value, dict), path
    types = _LWS.get(kind) or _types(kind)
    for name, item in value.items():
        assert name in types, f"{path}.{name}: {kind} has no such field"
        _walk(types[name], item, f"{path}.{name}")
    assert _REQUIRED.get(kind, set()) <= set(value), path
    if kind not in _LWS:
        getattr(client, kind).model_validate(value)


def _types(kind: str) -> dict[str, str]:
    model = getattr(client, kind)
    return {json: model.openapi_types[name] for name, json in model.attribute_map.items()}
