"""Kubernetes objects that serve a model on GKE, as plain data; the same input, the same output.

Every attribute is one of the models that the PyPI package `kubernetes` 37 carries; those of
LeaderWorkerSet are read off its Go types (kubernetes-sigs/lws, api/leaderworkerset/v1, 2026-11).
"""

from typing import Any, Final

from core.records import Record

Object = dict[str, Any]

PORT: Final = 8000
MASTER_PORT: Final = 29501
"""Where the hosts of one replica meet; vLLM's own default."""
WEIGHTS: Final = "/weights"
_CACHE: Final = "/cache"
_SET_NAME: Final = "leaderworkerset.sigs.k8s.io/name"
_WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"
_WAIT: Final = """\
import os, socket, sys, time
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    try:
        socket.create_connection((os.environ["LWS_LEADER_ADDRESS"], {port}), 5).close()
        sys.exit(0)
    except OSError:
        time.sleep(2)
sys.exit("The leader did not listen in time.")
"""
"""A worker whose rendezvous times out restarts, and its whole group with it."""


class Volume(Record):
    """Weights that are mounted, read-only, at `WEIGHTS`."""

    bucket: str | None = None
    claim: str | None = None
    options: str = ""
    """Of gcsfuse, separated by commas."""


class Serving(Record):
    """Everything that the objects say."""

    name: str
    namespace: str
    image: str
    args: tuple[str, ...]
    """Of `vllm serve`, the model first."""
    accelerator: str
    gpus: int
    """Of each pod."""
    hosts: int
    """Pods that one replica is spread over."""
    cpu: str
    memory: str
    shm: str
    disk_gib: int
    """Of the node's disk, that a pod fills."""
    volume: Volume | None
    """None downloads from the Hub."""
    startup_seconds: int
    rollout_seconds: int
    period_seconds: int
    grace_seconds: int

    @property
    def service(self) -> str:
        """Its Service; a LeaderWorkerSet makes one of its own name for its pods."""
        return self.name if self.hosts == 1 else f"{self.name}-api"

    @property
    def api_key_secret(self) -> str:
        """The Secret with the engine's key."""
        return f"{self.name}-api-key"


def objects(serving: Serving) -> tuple[Object, ...]:
    """Give the objects in the order in which they are made."""
    account = (_account(serving),) if _mounts_bucket(serving) else ()
    workload = _deployment(serving) if serving.hosts == 1 else _leader_worker_set(serving)
    return (*account, workload, _service(serving))


def _metadata(serving: Serving, name: str) -> Object:
    return {"name": name, "namespace": serving.namespace, "labels": _labels(serving)}


def _labels(serving: Serving) -> Object:
    return {
        "app.kubernetes.io/name": serving.name,
        "app.kubernetes.io/component": "vllm",
        "app.kubernetes.io/managed-by": "vllm-devops-agent",
    }


def _account(serving: Serving) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(serving, serving.name),
    }


def _deployment(serving: Serving) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(serving, serving.name),
        "spec": {
            "replicas": 1,
            # A second pod would wait for a second GPU while the first still runs.
            "strategy": {"type": "Recreate"},
            "progressDeadlineSeconds": serving.rollout_seconds,
            "selector": {"matchLabels": {"app.kubernetes.io/name": serving.name}},
            "template": _pod(serving, serving.args, answers=True),
        },
    }


def _leader_worker_set(serving: Serving) -> Object:
    group = ("--nnodes", str(serving.hosts), "--node-rank", "$(LWS_WORKER_INDEX)")
    meet = ("--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", str(MASTER_PORT))
    args = (*serving.args, *group, *meet)
    worker = _pod(serving, (*args, "--headless"), answers=False)
    worker["spec"]["initContainers"] = [_waiting(serving)]
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _metadata(serving, serving.name),
        "spec": {
            "replicas": 1,
            "leaderWorkerTemplate": {
                "size": serving.hosts,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _pod(serving, args, answers=True),
                "workerTemplate": worker,
            },
        },
    }


def _service(serving: Serving) -> Object:
    leader = {_SET_NAME: serving.name, _WORKER_INDEX: "0"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(serving, serving.service),
        "spec": {
            "type": "ClusterIP",
            "selector": {"app.kubernetes.io/name": serving.name} if serving.hosts == 1 else leader,
            "ports": [{"name": "http", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
        },
    }


def _pod(serving: Serving, args: tuple[str, ...], *, answers: bool) -> Object:
    fuse = {"annotations": {"gke-gcsfuse/volumes": "true"}} if _mounts_bucket(serving) else {}
    identity: Object = (
        {"serviceAccountName": serving.name}
        if _mounts_bucket(serving)
        else {"automountServiceAccountToken": False}
    )
    return {
        "metadata": {"labels": _labels(serving), **fuse},
        "spec": {
            **identity,
            # A Service named `vllm` would set VLLM_PORT to a URL, and vLLM would not start.
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": serving.grace_seconds,
            "nodeSelector": {"cloud.google.com/gke-accelerator": serving.accelerator},
            "tolerations": [
                {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
            ],
            "containers": [_engine(serving, args, answers=answers)],
            "volumes": _volumes(serving),
        },
    }


def _engine(serving: Serving, args: tuple[str, ...], *, answers: bool) -> Object:
    spoken = {"ports": [{"name": "http", "containerPort": PORT}], **_probes(serving)}
    sizes = {
        "cpu": serving.cpu,
        "memory": serving.memory,
        "ephemeral-storage": f"{serving.disk_gib}Gi",
        "nvidia.com/gpu": str(serving.gpus),
    }
    return {
        "name": "vllm",
        "image": serving.image,
        "command": ["vllm", "serve"],
        "args": list(args),
        "env": _environment(serving),
        **(spoken if answers else {}),
        # No limit for processors: it would only slow the engine down.
        "resources": {
            "requests": sizes,
            "limits": {name: size for name, size in sizes.items() if name != "cpu"},
        },
        "securityContext": {"allowPrivilegeEscalation": False},
        "volumeMounts": _mounts(serving),
    }


def _probes(serving: Serving) -> Object:
    health = {"path": "/health", "port": PORT}
    often = {"httpGet": health, "periodSeconds": serving.period_seconds, "timeoutSeconds": 5}
    tries = -(-serving.startup_seconds // serving.period_seconds)
    return {
        "startupProbe": {**often, "failureThreshold": tries},
        "readinessProbe": {**often, "failureThreshold": 3},
        # A long prefill may keep /health waiting: only minutes of silence are a death.
        "livenessProbe": {
            "httpGet": dict(health),
            "periodSeconds": 60,
            "timeoutSeconds": 10,
            "failureThreshold": 5,
        },
    }


def _environment(serving: Serving) -> list[Object]:
    cache = [{"name": "HF_HOME", "value": _CACHE}, {"name": "VLLM_CACHE_ROOT", "value": _CACHE}]
    key = _secret("VLLM_API_KEY", serving.api_key_secret, "api-key")
    if serving.volume:
        return [*cache, key, {"name": "HF_HUB_OFFLINE", "value": "1"}]
    return [*cache, key, _secret("HF_TOKEN", "hf-token", "token", optional=True)]


def _secret(name: str, secret: str, key: str, *, optional: bool = False) -> Object:
    may = {"optional": True} if optional else {}
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, **may}}}


def _mounts(serving: Serving) -> list[Object]:
    shm = [{"name": "shm", "mountPath": "/dev/shm"}] if _shares_memory(serving) else []  # noqa: S108  the engine's
    weights = {"name": "weights", "mountPath": WEIGHTS, "readOnly": True}
    return [
        {"name": "cache", "mountPath": _CACHE},
        *([weights] if serving.volume else []),
        *shm,
    ]


def _volumes(serving: Serving) -> list[Object]:
    shm = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": serving.shm}}
    return [
        {"name": "cache", "emptyDir": {}},
        *([_weights(serving.volume)] if serving.volume else []),
        *([shm] if _shares_memory(serving) else []),
    ]


def _weights(volume: Volume) -> Object:
    if volume.claim:
        claim = {"claimName": volume.claim, "readOnly": True}
        return {"name": "weights", "persistentVolumeClaim": claim}
    attributes = {"bucketName": volume.bucket, "mountOptions": volume.options}
    fuse = {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": True}
    return {"name": "weights", "csi": {**fuse, "volumeAttributes": attributes}}


def _waiting(serving: Serving) -> Object:
    script = _WAIT.format(seconds=serving.rollout_seconds, port=MASTER_PORT)
    return {
        "name": "wait-for-leader",
        "image": serving.image,
        "command": ["python3", "-c", script],
        "securityContext": {"allowPrivilegeEscalation": False},
    }


def _shares_memory(serving: Serving) -> bool:
    """Processes that share a model talk through /dev/shm, of which a container has 64 MiB."""
    return serving.gpus * serving.hosts > 1


def _mounts_bucket(serving: Serving) -> bool:
    return bool(serving.volume and serving.volume.bucket)
