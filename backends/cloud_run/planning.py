"""What a deployment on Cloud Run would be: its steps, price, memory and what to know first."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from backends.cloud_run import ollama, rules, text
from backends.cloud_run.blueprint import Blueprint, blueprint
from backends.cloud_run.service import service_of
from backends.common.costs import always_on, price_doubts, tagged
from backends.google import slim
from backends.google.failing import not_configured
from backends.google.names import DEPLOYMENT_LABEL, MANAGED_BY, key_secret
from backends.google.sent import as_sent
from core.plans import MemoryPlan, Plan, PlannedStep
from core.records import DeploymentSpec, ModelShape
from planner.accelerators import accelerator
from planner.foresee import foresee
from planner.price import Price, price

if TYPE_CHECKING:
    from backends.cloud_run.site import Site


def engine_name(site: "Site") -> tuple[str, str]:
    """Give the engine that would serve and, where no project is set, what to do first."""
    gpu = rules.gpu_of(site.target)
    missing = "" if site.clients.configured else not_configured().fix
    return f"vLLM {gpu.vllm} ({gpu.image})", missing


def make_plan(site: "Site", spec: DeploymentSpec, model: ModelShape) -> Plan:
    """Say which secret, grant, image and service would be made; nothing is asked of anybody.

    Raises:
        InvalidArgument: Cloud Run or the model cannot take the spec.
    """
    made = blueprint(site, spec, model)
    costs = price(rules.place_of(site.target), made.instance)
    return Plan(
        spec=spec,
        target=site.target,
        model=model,
        steps=(*_before(made, spec), _service(made)),
        usd_per_hour=costs.usd_per_hour,
        memory=_memory(site, spec, model),
        warnings=tuple(_warnings(made, spec, costs)),
    )


def _before(made: Blueprint, spec: DeploymentSpec) -> tuple[PlannedStep, ...]:
    if spec.engine == "ollama":
        return () if spec.image else (_build(made, spec),)
    return _key(made), _grant(made)


def _build(made: Blueprint, spec: DeploymentSpec) -> PlannedStep:
    where = {"project": made.project, "region": made.region}
    return PlannedStep(
        what=f"Build the image with the model, {made.container.image}, unless it is there.",
        request={"projectId": made.project, "build": as_sent(ollama.build_of(spec, **where))},
        command=ollama.submit(spec, **where),
    )


def _key(made: Blueprint) -> PlannedStep:
    slim.opened("google.cloud.secretmanager_v1")
    from google.cloud import secretmanager_v1

    request = secretmanager_v1.CreateSecretRequest(
        parent=f"projects/{made.project}",
        secret_id=key_secret(made.name),
        secret=secretmanager_v1.Secret(
            labels={"managed-by": MANAGED_BY, DEPLOYMENT_LABEL: made.name},
            replication=secretmanager_v1.Replication(
                automatic=secretmanager_v1.Replication.Automatic()
            ),
        ),
    )
    return PlannedStep(
        what="Keep a random key for the engine in Secret Manager, unless it has one.",
        request=as_sent(request),
        command=text.key(made),
    )


def _grant(made: Blueprint) -> PlannedStep:
    reader = {"role": text.ACCESSOR, "members": [f"serviceAccount:{made.service_account}"]}
    secret = f"projects/{made.project}/secrets/{key_secret(made.name)}"
    return PlannedStep(
        what="Let the account that instances run as read that key, and nobody else.",
        request={"resource": secret, "policy": {"bindings": [reader]}},
        command=text.grants(made),
    )


def _service(made: Blueprint) -> PlannedStep:
    request: dict[str, Any] = {
        "parent": made.parent,
        "serviceId": made.name,
        "service": as_sent(service_of(made)),
    }
    return PlannedStep(
        what=f"Create the service {made.name}, or replace what runs under that name.",
        request=request,
        command=text.deploy(made),
    )


def _memory(site: "Site", spec: DeploymentSpec, model: ModelShape) -> MemoryPlan | None:
    if spec.engine == "ollama":
        return None
    version = None if spec.image else rules.gpu_of(site.target).vllm
    device = accelerator(rules.place_of(site.target).accelerator)
    return foresee(spec, model, device, vllm_version=version)


def _warnings(made: Blueprint, spec: DeploymentSpec, costs: Price) -> Iterator[str]:
    yield from made.doubts
    if made.min_instances:
        yield always_on(made.min_instances, costs, called="instances")
    yield from price_doubts(costs)
    if spec.engine != "ollama" or spec.image:
        yield from tagged(made.container.image)
    if made.public:
        yield (
            "Anybody on the internet reaches it (access=public): a proxy before the engine lets"
            " through those with its key alone, and every request, also a refused one, keeps a GPU"
            " awake at your cost."
        )
    if made.network and made.network.all_traffic:
        yield (
            f"All traffic leaves through {made.network.subnetwork}: it needs Private Google"
            " Access, or nothing of Google's is reached."
        )
