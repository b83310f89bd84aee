"""A service of Cloud Run with every value decided, before it is said in anybody's words."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from backends.cloud_run import ollama, probes, rules
from backends.cloud_run.names import SPEC_ANNOTATION
from backends.cloud_run.serving import Container, Serving, vllm_serving
from backends.common import containers
from backends.common.containers import Probe
from backends.common.words import refuse_length, refuse_others, refuse_spread
from backends.google.names import DEPLOYMENT_LABEL as DEPLOYMENT_LABEL  # noqa: PLC0414  said here too
from backends.google.names import MANAGED_BY as MANAGED_BY  # noqa: PLC0414  said here too
from backends.google.names import NO_PROJECT, SPEC_LABEL, TARGET_LABEL
from backends.google.names import key_secret as key_secret  # noqa: PLC0414  said here too
from backends.google.names import runtime_account as runtime_account  # noqa: PLC0414  said here too
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec, ModelShape
from planner.places import Size

if TYPE_CHECKING:
    from backends.cloud_run.site import Site


class Network(Record):
    """Direct VPC: the subnetwork that instances are attached to."""

    network: str
    subnetwork: str
    all_traffic: bool
    """Whether what goes to the internet takes that way too."""


class Blueprint(Record):
    """One service."""

    name: str
    project: str
    region: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    container: Container
    gpu: str
    size: Size
    """Of the engine's container."""
    guard: containers.Container | None = None
    """The container before the engine's, where the engine's key is its only wall."""
    concurrency: int
    """Requests that one instance is given at once."""
    min_instances: int
    max_instances: int
    timeout_seconds: int
    startup: Probe
    liveness: Probe
    network: Network | None
    service_account: str
    launch_stage: str | None = None
    """Of the API, for what is not yet generally available; None is left to Google."""
    public: bool
    """Anybody may call it who has the engine's key; Google checks nobody's identity."""
    doubts: tuple[str, ...] = ()
    """What a person should know of these values before paying for them."""

    @property
    def parent(self) -> str:
        """What it is created in."""
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def instance(self) -> Size:
        """What all containers of an instance have together, which is what is paid."""
        more = rules.rules().guard
        if self.guard is None:
            return self.size
        return Size(vcpu=self.size.vcpu + more.vcpu, ram_gib=self.size.ram_gib + more.ram_gib)

    @property
    def path(self) -> str:
        """Its full name."""
        return f"{self.parent}/services/{self.name}"


def blueprint(
    site: "Site", spec: DeploymentSpec, model: ModelShape, *, hf_token: bool | None = None
) -> Blueprint:
    """Decide every value of the service that a spec asks for; `hf_token`: that secret is kept.

    Raises:
        InvalidArgument: Cloud Run or the model cannot take the spec.
    """
    _refuse(spec, model)
    target, region = site.target, site.clients.region
    serving = _serving(site, spec, model, hf_token=hf_token)
    container, doubt = serving.container, rules.region_doubt(target, region)
    return Blueprint(
        name=spec.name,
        project=_project(site),
        region=region,
        labels=_labels(target.name, spec),
        annotations={SPEC_ANNOTATION: spec.model_dump_json(exclude_defaults=True)},
        container=container,
        gpu=target.accelerator or "",
        size=serving.size,
        guard=serving.guard,
        concurrency=serving.concurrency,
        min_instances=spec.min_replicas,
        max_instances=spec.max_replicas,
        timeout_seconds=rules.rules().limits.timeout_seconds,
        startup=probes.startup(serving.boot_seconds, path=container.health, port=container.port),
        liveness=probes.liveness(path=container.health, port=container.port),
        network=_network(spec, serving),
        service_account=runtime_account(_project(site)),
        launch_stage=spec.launch_stage,
        public=spec.access == "public",
        doubts=tuple(filter(None, (doubt, *serving.doubts))),
    )


def _project(site: "Site") -> str:
    return site.clients.project if site.clients.configured else NO_PROJECT


def _serving(
    site: "Site", spec: DeploymentSpec, model: ModelShape, *, hf_token: bool | None
) -> Serving:
    if spec.engine == "ollama":
        region = site.clients.region
        return ollama.serving(site.target, spec, project=_project(site), region=region)
    token = bool(site.settings.hf_token) if hf_token is None else hf_token
    return vllm_serving(site.target, spec, model, hf_token=token)


def _labels(target: str, spec: DeploymentSpec) -> dict[str, str]:
    return {"managed-by": MANAGED_BY, TARGET_LABEL: target, SPEC_LABEL: spec.fingerprint}


def _network(spec: DeploymentSpec, serving: Serving) -> Network | None:
    """Attach to a subnetwork; what must reach the internet does not go through it."""
    if spec.network is None:
        return None
    network, slash, subnetwork = spec.network.partition("/")
    if not (network and slash and subnetwork) or "/" in subnetwork:
        raise InvalidArgument(
            f"{spec.network} names no subnetwork.", fix="Give network=NETWORK/SUBNETWORK."
        )
    return Network(network=network, subnetwork=subnetwork, all_traffic=not serving.needs_internet)


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    rules.refuse_name(spec.name)
    refuse_spread(spec, "An instance of Cloud Run")
    refuse_length(spec, model)
    refuse_others(spec, "Cloud Run")
    if spec.build_machine and (spec.engine != "ollama" or spec.image):
        raise InvalidArgument(
            "Nothing is built here: build_machine is for the image of engine=ollama.",
            fix="Leave build_machine out.",
        )
    if spec.port is not None:
        raise InvalidArgument(
            "Cloud Run answers on its own address, always on port 443.", fix="Leave port out."
        )
    if spec.access == "internal":
        raise InvalidArgument(
            "A service of Cloud Run is not kept inside a network here.",
            fix="Take access=private: it answers only whom Google knows and you have let in.",
        )
