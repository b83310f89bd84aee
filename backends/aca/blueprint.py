"""A container app with every value decided, before it is said in anybody's words."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from backends import container
from backends.aca import probes, rules
from backends.aca.images import Account, account_for
from backends.aca.names import HF_SECRET, KEY, REGISTRY_SECRET, Ground, key_secret
from backends.aca.serving import Serving, serving_of
from backends.aca.tags import tags_of
from backends.aca.weights import Mount
from backends.container import Container, Probe, refuse_foreign_fields, refuse_length, refuse_spread
from core.errors import InvalidArgument
from core.record import Record
from core.records import DeploymentSpec, ModelShape, Target

if TYPE_CHECKING:
    from backends.aca.site import Site

Exposure = Literal["private", "public", "internal"]


class Blueprint(Record):
    """One app."""

    name: str
    ground: Ground
    """What it stands on."""
    profile: str
    """What its environment calls the workload profile."""
    profile_type: str
    tags: Mapping[str, str]
    container: Container
    """The engine's, which listens for its own replica alone."""
    guard: Container
    """What lets through to it those who have its key."""
    cpu: int
    memory_gib: int
    startup: Probe
    readiness: Probe
    liveness: Probe
    min_replicas: int
    max_replicas: int
    cooldown_seconds: int
    """How long after the last request a replica stays; also one that is still booting."""
    polling_seconds: int
    concurrency: int
    """Requests for which there is one replica."""
    exposure: Exposure
    """Who reaches it: the callers' addresses, everybody, or its environment's network."""
    mount: Mount | None = None
    needs_token: bool
    """The Hub's token must be in the vault."""
    account: Account | None = None
    """Who pulls the image, with the password in the vault; None: anybody, or the identity."""
    boot_seconds: float
    """The slowest that is foreseen, from the container's start to the first answer."""
    doubts: tuple[str, ...] = ()
    """What a person should know of these values before paying for them."""

    @property
    def path(self) -> str:
        """Its full id."""
        return self.ground.app_id(self.name)

    @property
    def kept(self) -> dict[str, str]:
        """The vault's secrets, by what the app calls them."""
        token = {HF_SECRET: HF_SECRET} if self.needs_token else {}
        password = {REGISTRY_SECRET: REGISTRY_SECRET} if self.account else {}
        return {KEY: key_secret(self.name), **token, **password}


def blueprint(
    site: "Site", spec: DeploymentSpec, model: ModelShape, *, hf_token: bool | None = None
) -> Blueprint:
    """Decide every value of the app that a spec asks for; `hf_token`: that secret is kept.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    _refuse(spec, model)
    target = site.target
    token = bool(site.settings.hf_token) if hf_token is None else hf_token
    serving = serving_of(target, spec, model, hf_token=token)
    proxy = container.guard_container(rules.rules().guard.image)
    return Blueprint(
        name=spec.name,
        ground=site.ground,
        tags=tags_of(target.name, spec),
        container=serving.container,
        guard=proxy,
        **_machine(target, spec),
        **_probes(serving, proxy),
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        cooldown_seconds=_cooldown(serving),
        polling_seconds=rules.rules().scaling.polling_seconds,
        concurrency=serving.concurrency,
        exposure=spec.access,
        mount=serving.mount,
        account=account_for(site.settings, serving.container.image, proxy.image),
        needs_token="HF_TOKEN" in serving.container.secrets,
        boot_seconds=serving.boot_seconds,
        doubts=tuple(
            filter(
                None,
                (
                    rules.region_doubt(target, site.ground.region),
                    rules.size_doubt(target, spec),
                    *serving.doubts,
                ),
            )
        ),
    )


def _machine(target: Target, spec: DeploymentSpec) -> dict[str, Any]:
    gpu, size = rules.gpu_of(target), rules.size_of(target, spec)
    return {
        "profile": gpu.profile,
        "profile_type": gpu.profile_type,
        "cpu": size.vcpu,
        "memory_gib": size.ram_gib,
    }


def _probes(serving: Serving, proxy: Container) -> dict[str, Probe]:
    """Ask the engine through its proxy: a probe comes from outside, where nothing else is.

    They are the engine's own all the same: one that fails starts its container again, and not the
    proxy's.
    """
    path, port = proxy.health, proxy.port
    return {
        "startup": probes.startup(serving.boot_seconds, path=path, port=port),
        "readiness": probes.readiness(path=path, port=port),
        "liveness": probes.liveness(path=path, port=port),
    }


def _cooldown(serving: Serving) -> int:
    """Give how long autoscaling leaves a replica alone: its time counts while it still boots.

    It cannot be shortened once a boot is over: every change of it is a new revision, which boots.
    """
    return math.ceil(max(rules.rules().scaling.cooldown_seconds, serving.scheduled_seconds))


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    rules.refuse_name(spec.name)
    refuse_spread(spec, "A replica of a container app")
    rules.refuse_replicas(spec.max_replicas)
    refuse_length(spec, model)
    refuse_foreign_fields(spec, "Container Apps")
    if spec.engine == "ollama":
        raise InvalidArgument(
            "Ollama is served on Cloud Run alone: here it would have neither a key nor an image"
            " with the model.",
            fix="Leave engine out, which is vLLM, or take target cloud-run-l4.",
        )
    if spec.port is not None:
        raise InvalidArgument(
            "A container app answers on its own address, always on port 443.", fix="Leave port out."
        )
    if spec.network is not None:
        raise InvalidArgument(
            "The network of a container app is that of its environment, chosen when that is made.",
            fix="Leave network out; make an environment in your network and name it by"
            " AZURE_CONTAINERAPPS_ENVIRONMENT (access=internal keeps an app inside of it).",
        )
