"""What a deployment would be: its resources, price and memory, as `az` commands and as YAML."""

import shlex
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import anyio
from azure.mgmt.appcontainers.models import ContainerApp

from backends import container as backends_container
from backends.aca import container, deployment, environment, secrets, storage
from backends.aca.access import allowed
from backends.aca.app import (
    Blueprint,
    app_of,
    blueprint,
    get_app,
    images_of,
    registry_of_azure,
    spec_as_running,
)
from backends.aca.resources import as_sent, here
from backends.aca.site import HF_SECRET, Site
from backends.base import DeploymentConfig
from backends.common import preflight
from backends.common.preflight import always_on, price_doubts, tagged
from backends.container import as_yaml
from backends.lifecycle import Resource, steps
from core.errors import NotFound
from core.records import DeploymentSpec, MemoryPlan, ModelShape, Plan
from planner.memory import foresee
from planner.model import read_model
from planner.places import accelerator
from planner.price import Price, price

NOBODY: Final = ("YOUR_ADDRESS/32",)
"""Stands for the callers' addresses until the deployment is made."""
_SAVE: Final = (
    "yaml is the app for Container Apps: save it as app.yaml, then"
    " `az containerapp create --name NAME --resource-group GROUP --yaml app.yaml`."
)
_ONCE: Final = (
    "The first commands make what every deployment of the region stands on, and are needed once;"
    " what lets you in takes minutes to have effect. `az ad signed-in-user show` knows people: a"
    " service principal puts its own object id there, and ServicePrincipal for User."
)
_KEY: Final = "The key is made in a pipe and kept by Azure; it is in no file and no argument."
_END: Final = "APP_YAML"
_EVER: Final = datetime.min.replace(tzinfo=UTC)


def ground(site: Site, share: str | None) -> tuple[Resource, ...]:
    """Return what deployments stand on, in the order in which it is made; `share` is of weights."""
    return (
        environment.providers(site, share=share is not None),
        environment.group(site),
        environment.workspace(site),
        environment.environment(site),
        *secrets.base(site),
        *(storage.base(site, share) if share else ()),
    )


def wanted(
    site: Site,
    spec: DeploymentSpec,
    model: ModelShape,
    since: datetime,
    *,
    made: Blueprint | None = None,
    allowed: tuple[str, ...] = NOBODY,
) -> tuple[Resource, ...]:
    """Return everything that a deployment stands on, and at last its app.

    Args:
        site: The target.
        spec: What is asked for.
        model: Its model.
        since: When it was asked for.
        made: The app's values, where they are known.
        allowed: Who may call it, as its body is shown.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    made = made or blueprint(site, spec, model)
    below = ground(site, made.mount.share if made.mount else None)
    kept = (
        *((secrets.hub_token(site),) if made.needs_token else ()),
        *((secrets.registry_password(site),) if made.account else ()),
        secrets.key(site, spec.name, since),
    )
    # A deployment has nothing of its own before all that it stands on is there.
    names = tuple(one.name for one in below)
    before = (*below, *(replace(one, after=names) for one in kept))
    body = app_body(made, allowed)
    app = deployment.app(
        site,
        spec,
        model,
        since,
        after=[one.name for one in before],
        body={"id": made.path, **body},
        command=_deploy_command(made, body),
    )
    return (*before, app)


def make_plan(site: Site, spec: DeploymentSpec, model: ModelShape) -> Plan:
    """Say what would be made, from the resource group to the app; nothing is asked of anybody.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    made = blueprint(site, spec, model)
    costs = price(container.place_of(site.target), container.size_of(site.target, spec))
    allowed = site.settings.azure_allowed_addresses or NOBODY
    return Plan(
        spec=spec,
        target=site.target,
        model=model,
        steps=steps(wanted(site, spec, model, _EVER, made=made, allowed=allowed)),
        usd_per_hour=costs.usd_per_hour,
        memory=_memory(site, spec, model),
        warnings=tuple(_warnings(site, made, costs)),
    )


def _memory(site: Site, spec: DeploymentSpec, model: ModelShape) -> MemoryPlan | None:
    version = None if spec.image else container.gpu_of(site.target).vllm
    device = accelerator(container.place_of(site.target).accelerator)
    chosen = container.decide_precision(spec, model, device).spec
    return foresee(chosen, model, device, vllm_version=version)


def _warnings(site: Site, made: Blueprint, costs: Price) -> Iterator[str]:
    yield from made.doubts
    if made.min_replicas:
        yield always_on(made.min_replicas, costs, called="replicas")
    yield from _asleep(made, costs)
    yield from price_doubts(costs)
    yield from tagged(made.container.image)
    yield from _images(made)
    yield from _callers(site, made)
    if made.mount:
        low, high = container.rules().share.usd_per_month
        yield (
            f"The share {made.mount.share} costs about ${low:.0f} to ${high:.0f} a month, also"
            " while nothing runs; destroy_vllm leaves it, as other deployments may use it."
        )


def _asleep(made: Blueprint, costs: Price) -> Iterator[str]:
    """Say what sleeping and waking mean, where it may sleep."""
    if made.min_replicas:
        return
    minutes, seconds = made.cooldown_seconds / 60, container.rules().limits.request_seconds
    price = costs.usd_per_hour
    most = minutes + made.boot_seconds / 60
    cost = (
        ""
        if price is None
        else f", ${price * minutes / 60:,.2f} for each wake, up to ${price * most / 60:,.2f} with"
        " the boot"
    )
    yield (
        f"A replica stays for {minutes:.0f} min after its last request{cost}: with less,"
        " autoscaling would end it while it boots."
    )
    yield (
        f"A request ends after {seconds} s, also one that wakes it: a boot of up to"
        f" {made.boot_seconds / 60:.0f} min is waited for with status_vllm, and long answers are"
        " streamed."
    )


def _images(made: Blueprint) -> Iterator[str]:
    server = registry_of_azure(made.container.image)
    if server and not (made.account and made.account.server == server):
        yield (
            f"{server} must let the identity {made.ground.identity} pull (AcrPull) before"
            " this is deployed."
        )


def _callers(site: Site, made: Blueprint) -> Iterator[str]:
    if made.exposure == "public":
        yield (
            "Anybody on the internet reaches it (access=public): a proxy before the engine lets"
            " through those with its key alone, and every request, also a refused one, keeps a GPU"
            " awake at your cost."
        )
    elif made.exposure == "internal":
        yield (
            "Only its environment's network reaches it (access=internal): tools on this machine"
            " cannot ask it."
        )
    elif not site.settings.azure_allowed_addresses and not site.rehearsed:
        yield (
            "It answers this machine's address alone, which is asked of"
            f" {urlsplit(preflight.ECHO).hostname} when it is deployed;"
            " AZURE_ALLOWED_ADDRESSES says"
            " others."
        )


def _deploy_command(made: Blueprint, body: dict[str, object]) -> str:
    """Create or replace the app in one command, its YAML between two words."""
    named = ("--name", made.name, *here(made.ground))
    command = shlex.join(("az", "containerapp", "create", *named, "--yaml", "/dev/stdin"))
    return f"{command} <<'{_END}'\n{_as_yaml(made, body)}{_END}"


def _as_yaml(made: Blueprint, body: dict[str, object]) -> str:
    return as_yaml({"name": made.name, "type": "Microsoft.App/containerApps", **body})


def app_body(
    made: Blueprint, addresses: tuple[str, ...] = NOBODY, kept_at: str | None = None
) -> dict[str, object]:
    """Return the app as it is sent; `kept_at` is the address of its secrets, if not Azure's own."""
    return as_sent(app_of(made, kept_at=kept_at, addresses=addresses))


async def config(site: Site, name: str) -> DeploymentConfig:
    """Write what runs under a name as commands and YAML, with the image that it runs.

    Raises:
        DeploymentNotFound: Nothing of that name was made here.
        NotFound: What was asked for cannot be read any more.
    """
    app = await get_app(site, name)
    spec = spec_as_running(app)
    if spec is None:
        show = ("az", "containerapp", "show", "--name", name, *here(site.ground))
        raise NotFound(
            f"What was asked for when {name} was made cannot be read any more.",
            fix=f"Read the app itself: `{shlex.join((*show, '--output', 'yaml'))}`.",
        )
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    held = (app.configuration.secrets if app.configuration else None) or ()
    reads_hub = HF_SECRET in {secret.name for secret in held}
    made = _as_running(blueprint(site, spec, model, hf_token=reads_hub), app)
    let_in, mount = allowed(app) or NOBODY, made.mount
    every = wanted(site, spec, model, _EVER, made=made, allowed=let_in)
    how = ":ro" if mount and mount.read_only else ""
    mounted = (f"/mnt/{mount.share}:{mount.path}{how}",) if mount else ()
    return DeploymentConfig(
        command="\n".join(one.command for one in every if one.command and one.put),
        docker_run=backends_container.docker_command(made.name, made.container, *mounted),
        yaml=_as_yaml(made, app_body(made, let_in, await secrets.address(site))),
        notes=(_SAVE, _ONCE, _KEY),
    )


def _as_running(made: Blueprint, app: ContainerApp) -> Blueprint:
    """Return it with the images that run, pinned as they may be."""
    containers = {"container": made.container, "guard": made.guard}
    running = zip(containers.items(), images_of(app), strict=False)
    changed = {name: one.model_copy(update={"image": image}) for (name, one), image in running}
    return made.model_copy(update=changed)
