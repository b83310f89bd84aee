"""A VM as a queued resource says it: for the SDK, and as JSON for what only v2alpha1 knows."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from backends.google import clients
from backends.google.clients import as_sent
from backends.tpu.names import ACCOUNT_SCOPE, SPEC_METADATA
from backends.tpu.planes import Request

if TYPE_CHECKING:
    from google.cloud.tpu_v2.types import Node, QueuedResource

_TPU: Final = "google.cloud.tpu_v2"


def parent_of(request: Request) -> str:
    """Name the zone in which it is asked for."""
    return f"projects/{request.made.project}/locations/{request.zone}"


def metadata_of(request: Request) -> dict[str, str]:
    """Give what the VM finds in its metadata; holds no secret: whoever is on it can read it."""
    spec = request.made.spec.model_dump_json(exclude_defaults=True)
    return {"startup-script": request.script, SPEC_METADATA: spec}


def queued_resource(request: Request) -> "QueuedResource":
    """Say it in the words of v2, which has none for flex-start."""
    clients.opened(_TPU)
    from google.cloud.tpu_v2.types import QueuedResource

    made = request.made
    node = QueuedResource.Tpu.NodeSpec(
        parent=parent_of(request), node_id=made.id, node=_node(request)
    )
    resource = QueuedResource(
        tpu=QueuedResource.Tpu(node_spec=[node]),
        queueing_policy=QueuedResource.QueueingPolicy(
            valid_until_duration=timedelta(seconds=made.wait_seconds)
        ),
    )
    if made.provisioning == "spot":
        resource.spot = QueuedResource.Spot()
    return resource


def spot(request: Request) -> dict[str, Any]:
    """Say it in the words of v2alpha1: some callers' spot tier was taken for a contradiction."""
    body = as_sent(queued_resource(request))
    del body["spot"]
    return {**body, "provisioningModel": "SPOT"}


def flex_start(request: Request) -> dict[str, Any]:
    """Say it in the words of v2alpha1: flex-start with an end, and a boot disk of a size."""
    made, body = request.made, as_sent(queued_resource(request))
    # Numbers of 64 bits are strings in JSON.
    node = body["tpu"]["nodeSpec"][0]["node"]
    node["bootDiskConfig"] = {"diskSizeGb": str(made.disk_gb)}
    body["provisioningModel"] = "FLEX_START"
    if made.run_seconds:
        body["runDuration"] = {"maxRunDuration": f"{made.run_seconds}s"}
    return body


def _node(request: Request) -> "Node":
    """Without addresses of its own it reaches neither Docker Hub nor the Hugging Face Hub."""
    from google.cloud.tpu_v2.types import NetworkConfig, Node, ServiceAccount

    made = request.made
    return Node(
        accelerator_type=made.accelerator,
        runtime_version=made.runtime_version,
        network_config=NetworkConfig(
            network=made.network,
            # Left out, Google takes one called "default", whatever the network.
            subnetwork=made.subnetwork or made.network,
            enable_external_ips=made.external_ip,
        ),
        service_account=ServiceAccount(email=made.service_account, scope=[ACCOUNT_SCOPE]),
        labels=dict(request.labels),
        metadata=metadata_of(request),
        tags=[made.id],
    )
