"""A blueprint as the YAML that `gcloud run services replace` takes."""

import json
from typing import Any, Final

from backends.cloud_run import rules
from backends.cloud_run.blueprint import Blueprint, Network
from backends.cloud_run.service import ENGINE, VOLUME
from backends.cloud_run.weights import Mount
from backends.common import containers
from backends.common.containers import Probe
from backends.common.guard import NAME
from backends.common.written import as_yaml

_RUN: Final = "run.googleapis.com"


def yaml(made: Blueprint) -> str:
    """Write the service, every value as it is typed for the API."""
    service = {
        "apiVersion": "serving.knative.dev/v1",
        "kind": "Service",
        "metadata": {
            "name": made.name,
            "labels": {**made.labels, "cloud.googleapis.com/location": made.region},
            "annotations": {**made.annotations, **_service_annotations(made)},
        },
        "spec": {
            "template": {
                "metadata": {
                    "labels": dict(made.labels),
                    "annotations": _revision_annotations(made),
                },
                "spec": _revision(made),
            }
        },
    }
    return as_yaml(service)


def egress(network: Network) -> str:
    """Say which traffic leaves through a network."""
    return "all-traffic" if network.all_traffic else "private-ranges-only"


def _service_annotations(made: Blueprint) -> dict[str, str]:
    public = {f"{_RUN}/invoker-iam-disabled": "true"} if made.public else {}
    stage = {f"{_RUN}/launch-stage": made.launch_stage.upper()} if made.launch_stage else {}
    return {
        f"{_RUN}/ingress": "all",
        f"{_RUN}/minScale": str(made.min_instances),
        f"{_RUN}/maxScale": str(made.max_instances),
        **public,
        **stage,
    }


def _revision_annotations(made: Blueprint) -> dict[str, str]:
    return {
        "autoscaling.knative.dev/maxScale": str(made.max_instances),
        f"{_RUN}/cpu-throttling": "false",
        f"{_RUN}/startup-cpu-boost": "true",
        f"{_RUN}/execution-environment": "gen2",
        f"{_RUN}/gpu-zonal-redundancy-disabled": "true",
        **({f"{_RUN}/container-dependencies": json.dumps({NAME: [ENGINE]})} if made.guard else {}),
        **(_attached(made.network) if made.network else {}),
    }


def _attached(network: Network) -> dict[str, str]:
    interface = {"network": network.network, "subnetwork": network.subnetwork}
    return {
        f"{_RUN}/network-interfaces": json.dumps([interface]),
        f"{_RUN}/vpc-access-egress": egress(network),
    }


def _revision(made: Blueprint) -> dict[str, Any]:
    mount = made.container.mount
    return {
        "containerConcurrency": made.concurrency,
        "timeoutSeconds": made.timeout_seconds,
        "serviceAccountName": made.service_account,
        "nodeSelector": {f"{_RUN}/accelerator": made.gpu},
        "containers": [_container(made), *([_guard(made.guard)] if made.guard else [])],
        **({"volumes": [_volume(mount)]} if mount else {}),
    }


def _container(made: Blueprint) -> dict[str, Any]:
    container, size = made.container, made.size
    limits = {"cpu": str(size.vcpu), "memory": f"{size.ram_gib}Gi", "nvidia.com/gpu": "1"}
    plain = [{"name": name, "value": value} for name, value in container.env.items()]
    kept = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": "latest"}}}
        for name, secret in container.secrets.items()
    ]
    mounted = [{"name": VOLUME, "mountPath": container.mount.path}] if container.mount else []
    return {
        **({"name": ENGINE} if made.guard else {}),
        "image": container.image,
        "command": list(container.command),
        "args": list(container.args),
        **({} if made.guard else {"ports": [{"containerPort": container.port}]}),
        "env": [*plain, *kept],
        "resources": {"limits": limits},
        **({"volumeMounts": mounted} if mounted else {}),
        "startupProbe": _probe(made.startup),
        "livenessProbe": _probe(made.liveness),
    }


def _guard(container: containers.Container) -> dict[str, Any]:
    size = rules.rules().guard
    return {
        "name": NAME,
        "image": container.image,
        "command": list(container.command),
        "args": list(container.args),
        "ports": [{"containerPort": container.port}],
        "env": [{"name": name, "value": value} for name, value in container.env.items()],
        "resources": {"limits": {"cpu": str(size.vcpu), "memory": f"{size.ram_gib}Gi"}},
    }


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "httpGet": {"path": probe.path, "port": probe.port},
        "initialDelaySeconds": probe.initial_delay_seconds,
        "periodSeconds": probe.period_seconds,
        "timeoutSeconds": probe.timeout_seconds,
        "failureThreshold": probe.failures,
    }


def _volume(mount: Mount) -> dict[str, Any]:
    attributes = {"bucketName": mount.bucket, "mountOptions": ",".join(mount.options)}
    source = {"driver": f"gcsfuse.{_RUN}", "readOnly": True, "volumeAttributes": attributes}
    return {"name": VOLUME, "csi": source}
