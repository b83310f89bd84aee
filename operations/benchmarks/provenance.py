"""What only the owner of a deployment knows, for the record of a benchmark."""

from backends.base import Backend, Predicts, RemembersSpec
from benchmark.records import Provenance
from core.records import Deployment
from core.redaction import redact
from operations.resolve import Found
from operations.runtime import Runtime


async def provenance(runtime: Runtime, found: Found) -> Provenance:
    """Gather spec, plan, hardware and price of a deployment; no secret is in it."""
    backend, deployment = found
    spec = await backend.spec(found.name) if isinstance(backend, RemembersSpec) else None
    accelerator, count = _accelerators(backend)
    return Provenance(
        target=deployment.target,
        deployment=found.name,
        deployment_spec=redact(spec.model_dump(exclude_none=True), runtime.secrets)
        if spec
        else None,
        revision=deployment.revision,
        accelerator=accelerator,
        accelerator_count=count,
        usd_per_hour=usd_per_hour(deployment),
        price_source=f"the price of the target {deployment.target}",
    )


def usd_per_hour(deployment: Deployment) -> float | None:
    """Give the price of all its replicas together."""
    if deployment.usd_per_hour is None:
        return None
    return deployment.usd_per_hour * max(1, deployment.replicas)


def _accelerators(backend: Backend) -> tuple[str | None, int | None]:
    known = backend.hardware_known() if isinstance(backend, Predicts) else None
    if known:
        return known[0].name, known[1]
    target = backend.target
    return target.accelerator, target.accelerator_count or None
