"""What a person types around a manifest: to prepare, make, watch, ask and remove it."""

import shlex
from collections.abc import Iterator
from typing import Final

from core.settings import Settings
from operations.commands import Command, command
from operations.kubernetes.gke_fitting import rules
from operations.kubernetes.manifests import PORT, Serving

_LWS: Final = "v0.8.0"
"""Source: lws.sigs.k8s.io's page on installation, read 2026-11."""
_CLUSTER: Final = '--cluster="${CLUSTER:?Set CLUSTER to the name of your cluster.}"'
_TOKEN: Final = '"${HF_TOKEN:?Set HF_TOKEN first.}"'  # noqa: S105  a variable's name
_SLOW: Final = (
    "The hosts talk over the network for every token: one host with two L4 is faster, where the"
    " model fits on it."
)

_USUAL_DISK_GIB: Final = 93
"""Of a node where nobody says: 100 GB."""


def steps(settings: Settings, serving: Serving, machine_type: str) -> tuple[Command, ...]:
    """Give every command, in order.

    Flags: gcloud's reference of `container node-pools create` and of `storage buckets
    add-iam-policy-binding`, kubectl's of `create secret generic`, `rollout status` and `wait`,
    read 2026-11.
    """
    return (
        _node_pool(settings, serving, machine_type),
        *_before(settings, serving),
        *_making(serving),
        *_asking(serving),
    )


def notes(serving: Serving) -> tuple[str, ...]:
    """Warn of what only the cluster's owner can see."""
    return tuple(_notes(serving))


def _notes(serving: Serving) -> Iterator[str]:
    yield "Nothing was made: apply the manifest yourself. Its node bills until its pool shrinks."
    if "@" not in serving.image:
        yield f"{serving.image} is a tag, which may move: give `image` by digest to pin it."
    if 2 * serving.disk_gib > _USUAL_DISK_GIB:
        yield (
            f"It keeps {serving.disk_gib} GiB on its node's boot disk, of which pods get about"
            " half: with nodes of your own, one larger than GKE's usual 100 GB (the command takes"
            f" {rules().node_disk_gb})."
        )
    if serving.hosts > 1:
        yield _SLOW
    if serving.volume and serving.volume.claim:
        many = ", and every host must be able to mount it" if serving.hosts > 1 else ""
        yield f"The claim {serving.volume.claim} must hold the files already{many}."


def _node_pool(settings: Settings, serving: Serving, machine_type: str) -> Command:
    region, project = settings.google_cloud_location, settings.google_cloud_project
    card = f"type={serving.accelerator},count={serving.gpus},gpu-driver-version=latest"
    words = [
        f"--machine-type={machine_type}",
        f"--accelerator={card}",
        f"--disk-size={rules().node_disk_gb}",
        "--enable-image-streaming",
        "--enable-autoscaling",
        "--num-nodes=0",
        "--min-nodes=0",
        f"--max-nodes={serving.hosts}",
        "--workload-metadata=GKE_METADATA",
        *([f"--location={region}"] if region else []),
        *([f"--project={project}"] if project else []),
    ]
    head = f"gcloud container node-pools create vllm-l4-{serving.gpus} {_CLUSTER}"
    what = "Make nodes for it in a standard cluster; an Autopilot cluster makes its own."
    return Command(what=what, command=f"{head} {shlex.join(words)}")


def _before(settings: Settings, serving: Serving) -> Iterator[Command]:
    space = f"--namespace={serving.namespace}"
    if serving.hosts > 1:
        where = f"https://github.com/kubernetes-sigs/lws/releases/download/{_LWS}/manifests.yaml"
        words = ("kubectl", "apply", "--server-side", "-f", where)
        yield command("Install LeaderWorkerSet, once for each cluster.", *words)
    if serving.namespace != "default":
        made = f"kubectl create namespace {serving.namespace} --dry-run=client -o yaml"
        yield Command(what="Make the namespace.", command=f"{made} | kubectl apply -f -")
    keep = f"kubectl create secret generic {serving.api_key_secret} {space}"
    key = "openssl rand -hex 32 | tr -d '\\n'"
    yield Command(
        what="Make a key for its API, which is shown to nobody.",
        command=f"{key} | {keep} --from-file=api-key=/dev/stdin",
    )
    if serving.volume is None:
        keep = f"kubectl create secret generic hf-token {space} --from-file=token=/dev/stdin"
        yield Command(
            what="Only for a gated model: keep a Hub token.",
            command=f"printf %s {_TOKEN} | {keep}",
        )
    elif serving.volume.bucket:
        yield _reading(settings, serving, serving.volume.bucket)


def _reading(settings: Settings, serving: Serving, bucket: str) -> Command:
    """Let the pods' own identity read the bucket; GKE federates it, no key is needed."""
    named = settings.google_cloud_project
    project = shlex.quote(named) if named else '"$(gcloud config get-value project)"'
    pool = 'workloadIdentityPools/"$PROJECT".svc.id.goog'
    number = '"$(gcloud projects describe "$PROJECT" --format=\'value(projectNumber)\')"'
    member = (
        f"principal://iam.googleapis.com/projects/{number}/locations/global/{pool}"
        f"/subject/ns/{serving.namespace}/sa/{serving.name}"
    )
    bind = f"gcloud storage buckets add-iam-policy-binding gs://{bucket}"
    return Command(
        what="Let its service account read the bucket; the cluster needs the GCS FUSE CSI driver.",
        command=f"PROJECT={project}; {bind} --role=roles/storage.objectViewer --member={member}",
    )


def _making(serving: Serving) -> Iterator[Command]:
    space, file = f"--namespace={serving.namespace}", f"{serving.name}.yaml"
    limit = f"--timeout={serving.rollout_seconds}s"
    yield command(f"Save the manifest as {file}, and apply it.", "kubectl", "apply", "-f", file)
    watched = (
        ("rollout", "status", f"deployment/{serving.name}")
        if serving.hosts == 1
        else ("wait", f"leaderworkerset/{serving.name}", "--for=condition=Available")
    )
    yield command("Wait until it answers.", "kubectl", *watched, space, limit)


def _asking(serving: Serving) -> Iterator[Command]:
    space, ports = f"--namespace={serving.namespace}", f"{PORT}:{PORT}"
    secret = f"kubectl get secret {serving.api_key_secret} {space}"
    key = f"{secret} -o jsonpath='{{.data.api-key}}' | base64 -d"
    yield command(
        "Reach it from here, in a terminal of its own.",
        *("kubectl", "port-forward", f"service/{serving.service}", ports, space),
    )
    yield Command(
        what="Ask it which models it serves.",
        command=f'curl -sS http://127.0.0.1:{PORT}/v1/models -H "Authorization: Bearer $({key})"',
    )
    yield command(
        "Remove it; the node pool shrinks by itself.",
        *("kubectl", "delete", "--ignore-not-found", "-f", f"{serving.name}.yaml"),
    )
    yield command(
        "Remove its key.",
        *("kubectl", "delete", "secret", serving.api_key_secret, space, "--ignore-not-found"),
    )
