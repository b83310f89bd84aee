"""Whether the model answers: asked once for each revision, and only while a replica is ready."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from backends.aca import access, address
from backends.aca.site import Site
from backends.common.engine import why_silent
from core.errors import AddressNotAllowed, OpsError
from core.records import Failure

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp


async def unanswered(site: Site, app: "ContainerApp", revision: str) -> Failure | None:
    """Ask the model, unless it has answered before; None once it has, else why it has not."""
    if revision in site.answered:
        return None
    failure = await why_silent(lambda: access.access_of(site, app), "Its replica")
    if failure is None:
        site.answered.add(revision)
        site.woken[str(app.name)] = datetime.now(UTC)
        return None
    return await _with_addresses(site, app, failure)


async def _with_addresses(site: Site, app: "ContainerApp", failure: Failure) -> Failure:
    """Say of a refused address whom Azure lets in, and whom it would after another deploy_vllm."""
    if failure.code != AddressNotAllowed.code:
        return failure
    now = ", ".join(access.allowed(app))
    try:
        then = ", ".join(await address.callers(site))
    except OpsError:
        return failure
    fix = f"Call deploy_vllm again, which lets in {then}."
    if then == now:
        fix = "Add this machine's address to AZURE_ALLOWED_ADDRESSES and call deploy_vllm again."
    return failure.model_copy(update={"cause": f"{failure.cause} Let in: {now}.", "fix": fix})
