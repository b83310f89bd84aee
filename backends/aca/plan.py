"""What a deployment would be: its resources, its price, its memory, and all of it as commands."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import anyio

from backends import container as backends_container
from backends.aca import app as apps
from backends.aca import container, deployment, ground, lease, secrets, storage
from backends.aca.app import Blueprint, blueprint, get_app
from backends.aca.container import gpu_of, place_of
from backends.aca.site import HF_SECRET, LEASING, SHARE, Site, as_sent, command
from backends.base import DeploymentConfig
from backends.common.keeper import plan_words
from backends.common.preflight import ECHO, always_on, by_schedule, price_doubts, tagged
from backends.compile_cache import GIB, may_carry, without_cache
from backends.container import as_yaml
from backends.lifecycle import Resource, absence, spec_lost, steps
from core.records import DeploymentSpec, ModelShape, Plan, lease_words, usd
from planner.memory import foresee
from planner.model import read_model
from planner.places import accelerator
from planner.price import Price, price

NOBODY: Final = ("YOUR_ADDRESS/32",)
"""Stands for the callers' addresses until the deployment is made."""
_NOTES: Final = (
    "yaml: `az containerapp create --name NAME --resource-group GROUP --yaml app.yaml`.",
    "The first commands are needed once; what lets you in takes minutes to have effect.",
    "A service principal gives its own object id in place of `az ad signed-in-user show`.",
    "It also gives ServicePrincipal, not User, as the type of principal.",
    "The key is made in a pipe and kept by Azure; it is in no file and no argument.",
)
_END: Final = "APP_YAML"
_EVER: Final = datetime.min.replace(tzinfo=UTC)


def base(site: Site, share: str | None) -> tuple[Resource, ...]:
    """Return what deployments stand on, in the order in which it is made; `share` is of weights."""
    return (
        ground.providers(site, share=share is not None),
        ground.group(site),
        ground.workspace(site),
        ground.environment(site),
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
    is_there: bool = False,
) -> tuple[Resource, ...]:
    """Return everything that a deployment stands on, and at last its app and what may end it.

    It was asked for at `since`; `made` are the app's values, where they are known, and `allowed`
    who may call it, as its body is shown. `is_there`: it has an app already.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    made = made or blueprint(site, spec, model)
    below = base(site, made.mount.share if made.mount else None)
    kept = (
        *((secrets.hub_token(site),) if made.needs_token else ()),
        *((secrets.registry_password(site),) if made.account else ()),
        secrets.key(site, spec.name, since),
    )
    # A deployment has nothing of its own before all that it stands on is there.
    names = tuple(one.name for one in below)
    before = (*below, *(replace(one, after=names) for one in kept))
    body = app_body(site, made, allowed)
    create = command(site, "app", name=spec.name)
    minutes, names = lease.minutes_of(site, spec), tuple(one.name for one in before)

    async def app_ends() -> int | None:
        found = await app.get()
        if found is None or found.change != "none":
            return None
        at = apps.expires_in(found.app)
        return int(at.timestamp()) if at else 0

    ends: lease.Lease | None = None
    if minutes and spec.lease != "server":
        follows = app_ends if is_there else None
        ends = lease.Lease(site=site, spec=spec, minutes=minutes, follows=follows)
    app = deployment.app(
        site,
        spec,
        model,
        since,
        ends,
        after=(*names, *(("lease",) if ends and not is_there else ())),
        body={"id": site.ground.app_id(spec.name), **body},
        command=f"{create} <<'{_END}'\n{_as_yaml(spec.name, body)}{_END}",
    )
    if ends is None:
        return (
            *before,
            app,
            *(
                (absence(lease.owned(site, spec.name)[0], after=("app",), phase=LEASING),)
                if is_there
                else ()
            ),
        )
    right, job, grant = ends.resources(*names)
    return (*before, right, job, app, grant)


def app_body(
    site: Site, made: Blueprint, addresses: tuple[str, ...] = NOBODY, kept_at: str | None = None
) -> dict[str, object]:
    """Return the app as it is sent; `kept_at` is the address of its secrets, if not Azure's own."""
    return as_sent(apps.app_of(site, made, kept_at=kept_at, addresses=addresses))


def _as_yaml(name: str, body: Mapping[str, object]) -> str:
    return as_yaml({"name": name, "type": "Microsoft.App/containerApps", **body})


def make_plan(site: Site, spec: DeploymentSpec, model: ModelShape) -> Plan:
    """Say what would be made, from the resource group to the app; nothing is asked of anybody.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    made, place = blueprint(site, spec, model), place_of(site.target)
    costs = price(place, made.size)
    allowed = site.settings.azure_allowed_addresses or NOBODY
    version = None if spec.image else gpu_of(site.target).vllm
    return Plan(
        spec=spec,
        target=site.target,
        model=model,
        steps=steps(wanted(site, spec, model, _EVER, made=made, allowed=allowed)),
        usd_per_hour=costs.usd_per_hour,
        usd_per_hour_highest=costs.usd_per_hour_highest,
        memory=foresee(
            spec, model, accelerator(place.accelerator), vllm_version=version, pinned=True
        ),
        warnings=tuple(_warnings(site, made, costs)),
    )


_REACH: Final = {
    "public": "access=public: anybody reaches it; also who is refused keeps a GPU awake.",
    "internal": "access=internal: tools outside its environment's network cannot ask it.",
}


def _warnings(site: Site, made: Blueprint, costs: Price) -> Iterator[str]:
    spec, ground = made.spec, site.ground
    yield from made.doubts
    if spec.min_replicas and not spec.schedule:
        yield always_on(spec, costs, called="replicas")
    else:
        yield from _asleep(made, costs)
    yield from by_schedule(spec, costs, idle_minutes=made.cooldown_seconds / 60)
    yield from price_doubts(costs)
    time = lease_words(spec, costs.usd_per_hour_highest)
    yield from plan_words(spec, time, "Azure", "a job of Azure's")
    yield from tagged(made.container.image)
    server = apps.registry_of_azure(made.container.image)
    if server and not (made.account and made.account.server == server):
        yield f"{server} must let the identity {ground.identity} pull (AcrPull) before it deploys."
    if spec.access in _REACH:
        yield _REACH[spec.access]
    elif not site.settings.azure_allowed_addresses and not site.rehearsed:
        asked = f"asked of {urlsplit(ECHO).hostname}"
        yield f"Only this machine's address ({asked}) is let in; or set AZURE_ALLOWED_ADDRESSES."
    yield _carrying(made)
    if made.mount:
        low, high = container.rules().share.usd_per_month
        cost = f"${low:.0f} to ${high:.0f} a month, also while nothing runs"
        yield f"The share {made.mount.share} costs {cost}; destroy_vllm leaves it."


def _carrying(made: Blueprint) -> str:
    if made.store:
        share = f"about {GIB:g} GiB of it, {usd(storage.usd_per_month(GIB))}"
        where = f"{made.store} of the share {SHARE} ({share} of its price a month)"
        return f"What it compiles is carried to its next boot in {where}."
    why = may_carry(made.spec) or "no share that it may write to: weights=hub:share has one"
    return f"Every boot compiles anew: nothing is carried ({why})."


def _asleep(made: Blueprint, costs: Price) -> Iterator[str]:
    minutes, seconds = made.cooldown_seconds / 60, container.rules().limits.request_seconds
    boot, cost = made.boot_seconds / 60, ""
    if (hourly := costs.usd_per_hour) is not None:
        least, most = hourly * minutes / 60, hourly * (minutes + boot) / 60
        cost = f": ${least:,.2f} for each wake, up to ${most:,.2f} with the boot"
    yield f"A replica stays for {minutes:.0f} min after its last request{cost}."
    yield f"A request ends after {seconds} s: status_vllm waits for a boot of up to {boot:.0f} min."


async def config(site: Site, name: str) -> DeploymentConfig:
    """Write what runs under a name as commands and YAML, with the image that it runs.

    Raises:
        DeploymentNotFound: Nothing of that name was made here.
        NotFound: What was asked for cannot be read any more.
    """
    app = await get_app(site, name)
    spec = apps.spec_as_running(app)
    if spec is None:
        raise spec_lost(name, command(site, "app-show", name=name))
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    held = (app.configuration.secrets if app.configuration else None) or ()
    reads_hub = HF_SECRET in {secret.name for secret in held}
    drawn = blueprint(site, spec, model, hf_token=reads_hub, carry=apps.carries(app))
    ran = zip(("container", "guard"), apps.images_of(app), strict=False)
    made = drawn.model_copy(
        update={part: getattr(drawn, part).model_copy(update={"image": one}) for part, one in ran}
    )
    let_in, mount = apps.allowed(app) or NOBODY, made.mount
    every = wanted(site, spec, model, _EVER, made=made, allowed=let_in)
    how = ":ro" if mount and mount.read_only else ""
    mounted = (f"/mnt/{mount.share}:{mount.path}{how}",) if mount else ()
    return DeploymentConfig(
        command="\n".join(one.command for one in every if one.command and one.put),
        docker_run=backends_container.docker_command(name, without_cache(made.container), *mounted),
        yaml=_as_yaml(name, app_body(site, made, let_in, await site.clients.secrets_url())),
        notes=_NOTES,
    )
