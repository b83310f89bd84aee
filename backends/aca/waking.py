"""Waking an app that has no replica: a request starts one, but does not live as long as a boot."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import anyio

from backends.aca import access, looking
from backends.aca.site import Site
from backends.common.engine import ask_models
from core.errors import EndpointError, NextStep, NotReady
from core.records import Deployment, State

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

LONGEST_REQUEST_SECONDS: Final = 225.0
"""The ingress ends every request at 240 s; source: Container Apps, about ingress (2026-11-20)."""
_PAUSE_SECONDS: Final = 2.0
_HOST_SECONDS: Final = 900.0
"""For a GPU host and the image, before the startup probe begins to count."""
_DEFAULT_BOOT_SECONDS: Final = 240.0
"""Azure's own startup probe, where an app says none."""


async def wake(site: Site, name: str) -> None:
    """Ask for the list of models, again and again until it comes.

    Raises:
        EndpointError: It did not come, and will not; what was waited for is named.
        DeploymentNotFound: There is no such app.
        CloudError: Azure cannot be asked.
    """
    app = await looking.app_named(site, name)
    opened, budget = await access.access_of(site, app), budget_seconds(app)
    deadline = anyio.current_time() + budget
    while True:
        left = deadline - anyio.current_time()
        try:
            await ask_models(
                opened, timeout=max(_PAUSE_SECONDS, min(left, LONGEST_REQUEST_SECONDS))
            )
            break
        except EndpointError as exc:
            if not exc.retryable:
                raise
            await _still_booting(site, name, exc, over=left <= 0)
        await anyio.sleep(_PAUSE_SECONDS)
    if app.latest_ready_revision_name:
        site.answered.add(app.latest_ready_revision_name)
    site.woken[name] = datetime.now(UTC)


def budget_seconds(app: "ContainerApp") -> float:
    """Give how long a replica may take to answer, as its own startup probe says."""
    containers = (app.template.containers if app.template else None) or []
    probes = [probe for one in containers for probe in one.probes or [] if probe.type == "Startup"]
    boots = [
        (probe.initial_delay_seconds or 0)
        + (probe.failure_threshold or 1) * (probe.period_seconds or 10)
        for probe in probes
    ]
    return _HOST_SECONDS + max(boots, default=_DEFAULT_BOOT_SECONDS)


async def _still_booting(site: Site, name: str, why: EndpointError, *, over: bool) -> None:
    """Go on only while it boots.

    Raises:
        NotReady: It has failed, was stopped, or its time is over.
    """
    now = await looking.describe(site, name)
    if over or now.state in {State.FAILED, State.STOPPED, State.STOPPING, State.DELETING}:
        raise _not_awake(now) from why


def _not_awake(now: Deployment) -> NotReady:
    here = {"target": now.target, "name": now.name}
    return NotReady(
        f"{now.name} was asked and did not wake: {now.summary()}",
        fix=now.failure.fix if now.failure else "Call get_logs for what it does meanwhile.",
        next_steps=(NextStep("get_logs", here), NextStep("status_vllm", {**here, "wait_s": 30})),
    )
