"""A spec made into a VM with a chip, every value decided: pure."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from backends.container import refuse_foreign_fields, refuse_length
from backends.google.clients import (
    DEPLOYMENT_LABEL,
    MANAGED_BY,
    NO_PROJECT,
    SPEC_LABEL,
    TARGET_LABEL,
    runtime_account,
)
from backends.tpu import rules
from backends.tpu.blueprint import Blueprint
from backends.tpu.names import vm_id
from backends.tpu.searched import Searched, has_small_disk, searched
from backends.tpu.serving import Serving, serving
from core.errors import InvalidArgument
from core.records import DeploymentSpec, ModelShape

if TYPE_CHECKING:
    from backends.tpu.site import Site


def blueprint(
    site: "Site", spec: DeploymentSpec, model: ModelShape, *, hf_token: bool | None = None
) -> Blueprint:
    """Decide every value of the VM that a spec asks for; `hf_token`: that secret is kept.

    Its own `spec`, drawn again, gives the same.

    Raises:
        InvalidArgument: The platform or the model cannot take the spec.
    """
    _refuse(spec, model)
    minutes = rules.run_minutes(spec, site.offered)
    token = bool(site.settings.hf_token) if hf_token is None else hf_token
    small = has_small_disk(site, spec)
    served = serving(spec, model, site.offered, hf_token=token, small_disk=small)
    search = searched(site, spec, on_node=served.on_node)
    whole = served.spec.model_copy(update={"ttl_minutes": minutes})
    return Blueprint(
        spec=whole,
        id=vm_id(spec.name),
        labels=_labels(site.target.name, whole),
        **_machine(site),
        places=search.places,
        reason=search.reason,
        wait_seconds=search.wait_seconds,
        run_seconds=minutes * 60 or None,
        disk_gb=served.disk_gb,
        **_network(spec),
        container=served.container,
        boot_seconds=served.boot_seconds,
        doubts=(*search.doubts, *served.doubts, *_doubts(whole, search, served)),
    )


def _machine(site: "Site") -> Mapping[str, Any]:
    """Give what the target and its project alone decide."""
    offered, generation = site.offered, rules.generation_of(site.offered)
    project = site.clients.project if site.clients.configured else NO_PROJECT
    return {
        "project": project,
        "service_account": runtime_account(project),
        "accelerator": site.accelerator,
        "machine_type": generation.machine_type.format(count=offered.count),
        "chips": offered.count,
        "provisioning": site.provisioning,
        "runtime_version": generation.runtime_version,
        "image": generation.image,
        "disk_type": generation.disk_type,
    }


def _network(spec: DeploymentSpec) -> Mapping[str, Any]:
    """Give where it is reached, and by whom."""
    network, subnetwork = rules.network_of(spec)
    return {
        "network": network,
        "subnetwork": subnetwork,
        "external_ip": _has_external_ip(spec),
        "opened": spec.access != "internal",
        "anybody": spec.access == "public",
        "tls": spec.access != "internal",
    }


def _labels(target: str, spec: DeploymentSpec) -> dict[str, str]:
    return {
        "managed-by": MANAGED_BY,
        TARGET_LABEL: target,
        DEPLOYMENT_LABEL: spec.name,
        SPEC_LABEL: spec.fingerprint,
    }


def _has_external_ip(spec: DeploymentSpec) -> bool:
    """Say no only inside a network of one's own: without one nothing outside Google is reached."""
    return not (spec.access == "internal" and spec.network)


def _doubts(spec: DeploymentSpec, search: Searched, served: Serving) -> Iterator[str]:
    if not _has_external_ip(spec):
        yield (
            f"The VM has no address of its own: {spec.network} needs Cloud NAT, or neither Docker"
            " Hub nor the Hugging Face Hub is reached."
        )
    if not served.on_node:
        yield search.reason


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    refuse_length(spec, model)
    refuse_foreign_fields(spec, "Cloud TPU")
    if spec.engine == "ollama":
        raise InvalidArgument(
            "Ollama has no build for TPUs.",
            fix="Leave engine out, which is vLLM, or take target cloud-run-l4.",
        )
    if spec.port is not None:
        raise InvalidArgument(
            "A VM with TPUs answers on port 8000, which its firewall rule and tunnel name.",
            fix="Leave port out.",
        )
    if (spec.min_replicas, spec.max_replicas) != (1, 1):
        raise InvalidArgument(
            "A deployment on TPUs is one VM.",
            fix="Leave min_replicas and max_replicas out; deploy a second name for a second one.",
        )
    if any(re.search(r"[\x00-\x1f\x7f]", word) for word in spec.engine_args):
        raise InvalidArgument(
            "A word of engine_args has a control character, such as a new line.",
            fix="Put long text, such as a chat template, into the image or the model's folder.",
        )
