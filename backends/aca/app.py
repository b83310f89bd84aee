"""A container app: its tags, values, body and address, and how it is found again."""

import json
import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from azure.mgmt.appcontainers import models as M  # noqa: N812  what every body is made of
from azure.mgmt.appcontainers.aio import ContainerAppsAPIClient
from azure.mgmt.appcontainers.models import ContainerApp, Ingress, Secret, Template
from pydantic import ValidationError

from backends import container
from backends import lease as leases
from backends.aca import secrets as key_vault
from backends.aca.container import (
    Mount,
    gpu_of,
    place_doubts,
    place_of,
    refuse_heads,
    refuse_numbers,
    refuse_replicas,
    rules,
    size_of,
    slowest_boot,
    startup_probe,
    weights_of,
)
from backends.aca.site import (
    CONTAINER,
    HF_SECRET,
    JSON_TAG,
    KEY,
    MANAGED_TAG,
    OURS,
    READING,
    REGISTRY_SECRET,
    SPEC_TAG,
    TARGET_TAG,
    Kind,
    Site,
    every,
    is_ours,
    key_secret,
    strictly,
    tags_in,
)
from backends.common import registry
from backends.common.preflight import ECHO, caller_ranges, own_address
from backends.common.registry import reference
from backends.compile_cache import FOLDER, carried, compile_cache, may_carry
from backends.container import (
    GUARD_NAME,
    LOOPBACK,
    PORT,
    Container,
    Probe,
    hub_environment,
    own_loader,
    pinned_arguments,
    refuse_foreign_fields,
    refuse_length,
    refuse_spread,
    refuse_unkept,
    requests_at_once,
    vllm_arguments,
)
from backends.lifecycle import not_found, not_ready
from core import errors
from core.address import KEY_HEADER
from core.records import NAME_PATTERN, Access, DeploymentSpec, ModelShape, Record
from core.settings import Settings
from planner.boot import loader
from planner.places import Size, accelerator


def tags_of(target: str, spec: DeploymentSpec) -> dict[str, str]:
    """Return the tags of an app.

    Raises:
        InvalidArgument: What is asked for is too long for tags.
    """
    limits = rules().limits
    said = json.dumps(spec.model_dump(mode="json", exclude_defaults=True), separators=(",", ":"))
    # ASCII without spaces: nothing is counted twice, and no part is trimmed at its ends.
    text, room = said.replace(" ", "\\u0020"), limits.tag_characters
    count = -(-(len(text) + len(f"{limits.json_tags}:")) // room)
    if count > limits.json_tags:
        raise errors.InvalidArgument(
            f"What is asked for takes {len(text):,} characters, more than an app's tags hold.",
            fix="Shorten engine_args, or keep long values in a file of the image.",
        )
    whole = f"{count}:{text}"
    parts = [whole[start : start + room] for start in range(0, len(whole), room)]
    return {
        **OURS,
        TARGET_TAG: target,
        SPEC_TAG: spec.fingerprint,
        **{f"{JSON_TAG}-{number}": part for number, part in enumerate(parts)},
    }


def target_in(app: ContainerApp) -> str | None:
    return tags_in(app.tags).get(TARGET_TAG)


def fingerprint_in(app: ContainerApp) -> str | None:
    return tags_in(app.tags).get(SPEC_TAG)


def expires_in(app: ContainerApp) -> datetime | None:
    """Return when its time ends; None where nobody said."""
    held = leases.read(tags_in(app.tags))
    return datetime.fromtimestamp(held.ends, UTC) if held else None


def spec_in(tags: Mapping[str, str] | None) -> DeploymentSpec | None:
    """Return what was asked for; None where the tags do not say it, or were changed since."""
    held = tags_in(tags)
    # Later parts of a longer one that stood there before are not counted.
    count, colon, first = held.get(f"{JSON_TAG}-0", "").partition(":")
    if not (colon and count.isdecimal()):
        return None
    rest = [held.get(f"{JSON_TAG}-{number}", "") for number in range(1, int(count))]
    try:
        return DeploymentSpec.model_validate_json("".join((first, *rest)))
    except ValidationError:
        return None


def spec_as_running(app: ContainerApp) -> DeploymentSpec | None:
    """Return what was asked for, with the Hub's files where this app has them.

    Where they lie unless somebody says is a matter of size, and of what was known at the time.
    """
    spec = spec_in(app.tags)
    if spec is None or not spec.from_hub:
        return spec
    where = "hub:share" if app.template and app.template.volumes else "hub:disk"
    return spec.model_copy(update={"weights": where})


APPS: Final = Kind("container app", ContainerAppsAPIClient, "container_apps")
_AZURE: Final = ".azurecr.io"


def registry_of(image: str) -> str:
    return reference(image.partition("@")[0]).registry


def registry_of_azure(image: str) -> str | None:
    """Return the Azure registry that an image is pulled from with our identity; None for others."""
    server = registry_of(image)
    return server if server.endswith(_AZURE) else None


class Account(NamedTuple):
    server: str
    username: str


def account_for(settings: Settings, *images: str) -> Account | None:
    """Return the account to pull images with; None where all are of other registries."""
    server, username = settings.registry_server, settings.registry_username
    if not username or not settings.registry_password:
        return None
    asked = {registry_of(image) for image in images}
    return Account(server, username) if registry_of(f"{server}/x/x") in asked else None


async def pinned(site: Site, image: str) -> str | None:
    """Return the image as NAME@sha256:…; None where its registry cannot be asked.

    Raises:
        CloudRefused: The registry has no such image, or shows it to nobody.
    """
    plane = await site.clients.plane()
    password, account = site.settings.registry_password, account_for(site.settings, image)
    of_azure = reference(image).registry.endswith(_AZURE)
    return await registry.pinned(
        image,
        plane.http if plane else None,
        # One of Azure's is shown to whoever logs in there, which nobody does here.
        refusals=() if of_azure else {401, 403, 404},
        fix="Correct the name or tag; Container Apps pull what is public, and from a registry of"
        " Azure what the identity vllm-devops may read (AcrPull).",
        login=(account.username, password.get_secret_value()) if account and password else None,
    )


def images_of(app: ContainerApp) -> tuple[str, ...]:
    return tuple(one.image or "" for one in containers_of(app))


def version(site: Site, app: ContainerApp) -> str | None:
    own, images = gpu_of(site.target), images_of(app)
    return container.version_of(images[0], own.image, own.vllm) if images else None


def label(site: Site, image: str | None) -> str:
    own = gpu_of(site.target)
    named = container.version_of(image, own.image, own.vllm) if image else None
    name = "simulated vLLM" if site.rehearsed else "vLLM"
    return f"{name} {named or '(version not known)'}"


class Blueprint(Record):
    spec: DeploymentSpec
    container: Container
    """The engine's, which listens for its own replica alone."""
    guard: Container
    """What lets through to it those who have its key."""
    size: Size
    startup: Probe
    cooldown_seconds: int
    """How long after the last request a replica stays; also one that is still booting."""
    concurrency: int
    """Requests for which there is one replica."""
    mount: Mount | None = None
    store: str = ""
    """The folder of the mount in which what it compiles is carried; empty where nothing is."""
    account: Account | None = None
    """Who pulls the image, with the password in the vault; None: anybody, or the identity."""
    boot_seconds: float
    """The slowest that is foreseen, from the container's start to the first answer."""
    doubts: tuple[str, ...] = ()
    """What a person should know of these values before paying for them."""

    @property
    def needs_token(self) -> bool:
        return HF_SECRET in self.container.secrets.values()

    @property
    def vault_secrets(self) -> dict[str, str]:
        """The vault's secrets, by what the app calls them."""
        token = {HF_SECRET: HF_SECRET} if self.needs_token else {}
        password = {REGISTRY_SECRET: REGISTRY_SECRET} if self.account else {}
        return {KEY: key_secret(self.spec.name), **token, **password}


def blueprint(
    site: Site,
    spec: DeploymentSpec,
    model: ModelShape,
    *,
    hf_token: bool | None = None,
    carry: bool = True,
) -> Blueprint:
    """Decide every value of the app that a spec asks for; `hf_token`: that secret is kept.

    `carry`: what it compiles is, where it may be and there is a share that it writes to.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    _refuse(spec, model)
    target, chosen, place = site.target, rules(), place_of(site.target)
    gpu, size, weights = gpu_of(target), size_of(target, spec), weights_of(spec, model, place)
    refuse_heads(spec, model, accelerator(place.accelerator))
    if not model.layers:
        refuse_numbers(spec, accelerator(place.accelerator))
    slowest = slowest_boot(spec, model, place, weights)
    from_hub = weights.kind == "hub"
    token = bool(site.settings.hf_token) if hf_token is None else hf_token
    engine = Container(
        image=spec.image or gpu.image,
        command=("vllm",),
        args=vllm_arguments(
            spec,
            weights.model,
            *(() if spec.image or own_loader(spec) else loader(weights.boot_source).args),
            *pinned_arguments(spec, model, place, gpu.vllm),
            host=LOOPBACK,
        ),
        env={
            **weights.env,
            **(hub_environment(chosen.hub, size.ram_gib) if from_hub else {}),
            **spec.variables,
        },
        secrets={"VLLM_API_KEY": KEY, **({"HF_TOKEN": HF_SECRET} if from_hub and token else {})},
        port=PORT,
        health="/health",
    )
    store = ""
    if carry and weights.persistent and not may_carry(spec):
        store = f"{chosen.share.mount_path}/{FOLDER}/{spec.name}"
        gpu_name = str(target.accelerator)
        found = compile_cache(spec, image=engine.image, accelerator=gpu_name, store=store)
        engine = carried(engine, found)
    idle = spec.max_idle_minutes and spec.max_idle_minutes * 60
    if idle and idle < slowest.whole:
        raise errors.InvalidArgument(
            f"{spec.max_idle_minutes} minutes are shorter than a boot may take, which counts too:"
            " it would be ended before it answers.",
            fix=f"Give max_idle_minutes {math.ceil(slowest.whole / 60)} or more.",
        )
    proxy = container.guard_container(chosen.guard.image)
    return Blueprint(
        spec=spec,
        container=engine,
        guard=proxy,
        size=size,
        startup=startup_probe(target, slowest.inside),
        # Its time counts while a replica still boots; it cannot be shortened once a boot is over,
        # as every change of it is a new revision, which boots.
        cooldown_seconds=idle or math.ceil(max(chosen.scaling.cooldown_seconds, slowest.whole)),
        concurrency=requests_at_once(spec, model, place, gpu.max_num_seqs),
        mount=weights.mount,
        store=store,
        account=account_for(site.settings, engine.image, proxy.image),
        boot_seconds=slowest.inside,
        doubts=(
            *place_doubts(target, spec, site.ground.region),
            *weights.doubts,
            *slowest.doubts,
        ),
    )


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    for refused, why, fix in (
        (
            not re.fullmatch(rules().limits.app_name, spec.name),
            f"No container app can be called {spec.name!r}.",
            "Use 2 to 32 lower-case letters, digits and single hyphens, a letter first.",
        ),
        (
            spec.engine == "ollama",
            (
                "Ollama is served on Cloud Run alone: here it would have neither a key nor an image"
                " with the model."
            ),
            "Leave engine out, which is vLLM, or take target cloud-run-l4.",
        ),
        (
            spec.network is not None,
            "The network of a container app is that of its environment, chosen when that is made.",
            (
                "Leave network out; make an environment in your network and name it by"
                " AZURE_CONTAINERAPPS_ENVIRONMENT (access=internal keeps an app inside of it)."
            ),
        ),
    ):
        if refused:
            raise errors.InvalidArgument(why, fix=fix)
    refuse_unkept(spec)
    refuse_spread(spec, "A replica of a container app")
    refuse_replicas(spec.max_replicas)
    refuse_length(spec, model)
    refuse_foreign_fields(spec, "Container Apps")


_VOLUME: Final = "weights"
_TIMED: Final = "schedule-"


def app_of(
    site: Site,
    made: Blueprint,
    *,
    kept_at: str | None = None,
    addresses: tuple[str, ...] = (),
    ends: Mapping[str, str] | None = None,
) -> ContainerApp:
    """Type the app, as it is created; its name is said beside it. Raises what `ingress_of` does.

    `kept_at` is the address of the vault with its secrets, if not Azure's own, `addresses` are who
    may call a private one, and `ends` the tags of when its time is over, as only who applies knows.
    """
    ground, identity = site.ground, site.ground.identity_id
    vault = kept_at or f"https://{ground.vault}.vault.azure.net"
    configuration = M.Configuration(
        active_revisions_mode="Single",
        max_inactive_revisions=rules().scaling.inactive_revisions,
        ingress=ingress_of(made, addresses),
        secrets=[
            Secret(name=name, key_vault_url=f"{vault}/secrets/{secret}", identity=identity)
            for name, secret in made.vault_secrets.items()
        ],
        registries=_registries(made, identity) or None,
        # The platform reads secrets and images with it; what runs in the container may not.
        identity_settings=[M.IdentitySettings(identity=identity, lifecycle="None")],
    )
    return ContainerApp(
        location=ground.region,
        tags={**tags_of(site.target.name, made.spec), **(ends or {})},
        identity=M.ManagedServiceIdentity(
            type="UserAssigned", user_assigned_identities={identity: M.UserAssignedIdentity()}
        ),
        properties=M.ContainerAppProperties(
            environment_id=ground.environment_id,
            workload_profile_name=gpu_of(site.target).profile,
            configuration=configuration,
            template=_template(made),
        ),
    )


def ingress_of(made: Blueprint, addresses: tuple[str, ...]) -> Ingress:
    """Type who reaches it, and how.

    Raises:
        InvalidArgument: It is private, and nobody may call it: Azure would let everybody in.
    """
    private = made.spec.access == "private"
    if private and not addresses:
        raise errors.InvalidArgument(
            "Nobody's address may call a private deployment.",
            fix="Set AZURE_ALLOWED_ADDRESSES to your addresses or ranges, separated by commas.",
        )
    return Ingress(
        external=made.spec.access != "internal",
        target_port=made.guard.port,
        transport="http",
        allow_insecure=False,
        traffic=[M.TrafficWeight(weight=100, latest_revision=True)],
        ip_security_restrictions=restrictions_of(addresses) if private else None,
    )


def restrictions_of(addresses: Iterable[str]) -> list[M.IpSecurityRestrictionRule]:
    """Type who may call: these addresses, and then nobody else."""
    return [
        M.IpSecurityRestrictionRule(
            name=f"caller-{number}", ip_address_range=address, action="Allow"
        )
        for number, address in enumerate(addresses)
    ]


def _registries(made: Blueprint, identity: str) -> list[M.RegistryCredentials]:
    account, images = made.account, (made.container.image, made.guard.image)
    own = {server for image in images if (server := registry_of_azure(image))}
    rows = [
        M.RegistryCredentials(server=server, identity=identity)
        for server in sorted(own - {account.server if account else ""})
    ]
    if account:
        login = {"username": account.username, "password_secret_ref": REGISTRY_SECRET}
        rows.append(M.RegistryCredentials(server=account.server, **login))
    return rows


def _template(made: Blueprint) -> Template:
    mount, proxy, chosen, size = made.mount, made.guard, rules(), made.size
    # The engine first: the GPU is given to the first container alone.
    own = chosen.guard
    engine = _container(CONTAINER, made.container, size.vcpu - own.vcpu, size.ram_gib - own.ram_gib)
    # The engine is asked through its proxy: a probe comes from outside, where nothing else is. They
    # are the engine's own all the same: one that fails starts its container again.
    probes = (
        ("Startup", made.startup),
        ("Readiness", chosen.readiness_probe),
        ("Liveness", chosen.liveness_probe),
    )
    engine.probes = [
        M.ContainerAppProbe(
            type=kind,
            http_get=M.ContainerAppProbeHttpGet(path=proxy.health, port=proxy.port, scheme="HTTP"),
            period_seconds=probe.period_seconds,
            timeout_seconds=probe.timeout_seconds,
            failure_threshold=probe.failures,
        )
        for kind, probe in probes
    ]
    volume = None
    if mount:
        engine.volume_mounts = [M.VolumeMount(volume_name=_VOLUME, mount_path=mount.path)]
        volume = M.Volume(
            name=_VOLUME,
            storage_type="AzureFile",
            storage_name=mount.link,
            mount_options=chosen.share.mount_options,
        )
    requests = M.HttpScaleRule(metadata={"concurrentRequests": str(made.concurrency)})
    return Template(
        containers=[engine, _container(GUARD_NAME, proxy, own.vcpu, own.ram_gib)],
        scale=M.Scale(
            min_replicas=least_of(made.spec),
            max_replicas=made.spec.max_replicas,
            cooldown_period=made.cooldown_seconds,
            polling_interval=chosen.scaling.polling_seconds,
            rules=[M.ScaleRule(name="requests", http=requests), *schedule_rules(made.spec)],
        ),
        volumes=[volume] if volume else None,
    )


def least_of(spec: DeploymentSpec) -> int:
    """Return the least replicas that an app has by itself; those of a schedule come by rules."""
    return 0 if spec.schedule else spec.min_replicas


def schedule_rules(spec: DeploymentSpec) -> list[M.ScaleRule]:
    """Return a rule for each time of a schedule; of several rules the highest number holds.

    Source: keda.sh/docs/latest/scalers/cron (2026-11), which Container Apps take as a custom rule.
    """
    if spec.times is None:
        return []
    zone, warm = spec.times.zone, str(spec.warm_replicas)
    rows = [
        {"timezone": zone, "start": one.begin, "end": one.end, "desiredReplicas": warm}
        for one in spec.times.windows
    ]
    return [
        M.ScaleRule(name=f"{_TIMED}{place}", custom=M.CustomScaleRule(type="cron", metadata=row))
        for place, row in enumerate(rows, 1)
    ]


def with_times(scale: M.Scale, spec: DeploymentSpec) -> M.Scale:
    others = [one for one in scale.rules or () if not _is_timed(one)]
    changed = M.Scale(scale.as_dict())
    changed.min_replicas, changed.max_replicas = least_of(spec), spec.max_replicas
    changed.rules = [*others, *schedule_rules(spec)]
    return changed


def scales(app: ContainerApp, spec: DeploymentSpec) -> bool:
    scale = scale_of(app)
    there, wanted = (
        {one.name: one.custom and one.custom.metadata for one in rules if _is_timed(one)}
        for rules in (scale.rules or (), schedule_rules(spec))
    )
    count = (scale.min_replicas or 0), scale.max_replicas
    return (count, there) == ((least_of(spec), spec.max_replicas), wanted)


def _is_timed(rule: M.ScaleRule) -> bool:
    return (rule.name or "").startswith(_TIMED)


def _container(name: str, said: Container, vcpu: float, ram_gib: float) -> M.Container:
    plain = [M.EnvironmentVar(name=key, value=value) for key, value in said.env.items()]
    secret = [M.EnvironmentVar(name=key, secret_ref=ref) for key, ref in said.secrets.items()]
    return M.Container(
        name=name,
        image=said.image,
        command=list(said.command),
        args=list(said.args),
        env=[*plain, *secret],
        resources=M.ContainerResources(cpu=vcpu, memory=f"{ram_gib}Gi"),
    )


def containers_of(app: ContainerApp) -> Sequence[M.Container]:
    return (app.template.containers if app.template else None) or ()


def scale_of(app: ContainerApp) -> M.Scale:
    return (app.template.scale if app.template else None) or M.Scale()


def carries(app: ContainerApp) -> bool:
    rows = next(iter(containers_of(app)), M.Container()).env or ()
    return any(one.name == "COMPILE_CACHE" for one in rows)


def patch_of(
    app: ContainerApp,
    *,
    tags: Mapping[str, str] | None = None,
    template: Template | None = None,
    ingress: Ingress | None = None,
) -> ContainerApp:
    """Return a body that changes these alone; it says where the app is, or Azure refuses it.

    Lists are replaced as wholes, so `template` and `ingress` are what was read, edited.
    """
    configuration = M.Configuration(ingress=ingress) if ingress else None
    properties = M.ContainerAppProperties(template=template, configuration=configuration)
    return ContainerApp(
        location=app.location,
        tags={**(app.tags or {}), **(tags or {})},
        properties=properties if template or ingress else None,
    )


def copy_template(app: ContainerApp) -> Template:
    template = Template(app.template.as_dict(exclude_readonly=True))
    template.revision_suffix = new_suffix()
    return template


def new_suffix() -> str:
    """Name a revision anew: one that keeps the name of another is refused, or is the other."""
    return f"r{time.time_ns() // 1_000_000:x}"


def is_guarded(app: ContainerApp, secrets: Mapping[str, str]) -> bool:
    """Whether an app has its proxy and gives its container these secrets as these variables.

    A PUT that was made of what Azure shows may have lost them, and then it answers everybody.
    """
    held = {secret.name for secret in app.configuration.secrets or ()}
    given = {
        (variable.name, variable.secret_ref)
        for one in containers_of(app)
        for variable in one.env or ()
        if variable.secret_ref in held
    }
    return _has_proxy(app) and secrets.items() <= given


def _has_proxy(app: ContainerApp) -> bool:
    return GUARD_NAME in {one.name for one in containers_of(app)}


async def replacement(site: Site, wanted: ContainerApp, now: ContainerApp) -> ContainerApp:
    """Return a body that makes an app what is wanted, with everything of others that it holds.

    A secret without its value would be deleted, so values are fetched of those that are not kept
    in a vault.
    """
    was, will = now.configuration, wanted.configuration
    others = {
        name: text
        for name, text in (now.tags or {}).items()
        if name.lower() != MANAGED_TAG and not name.lower().startswith("vllm-devops-")
    }
    wanted.tags = {**others, **(wanted.tags or {})}
    if wanted.identity and now.identity:
        mine = wanted.identity.user_assigned_identities or {}
        theirs = set(now.identity.user_assigned_identities or {})
        known = {each.lower() for each in mine}
        wanted.identity.user_assigned_identities = mine | {
            each: M.UserAssignedIdentity() for each in theirs if each.lower() not in known
        }
    known = {secret.name for secret in will.secrets or ()}
    rest = [secret for secret in was.secrets or () if secret.name not in known]
    values: dict[str, str] = {}
    if any(not secret.key_vault_url for secret in rest):
        apps, names = (await site.clients.apps()).container_apps, (site.ground.resource_group,)
        with strictly(f"read the secrets of {now.name}"):
            found = await apps.list_secrets(*names, str(now.name), **READING)
        values = {str(one.name): one.value for one in found.value or () if one.value is not None}
    will.secrets = [
        *(will.secrets or ()),
        *(
            Secret(name=one.name, key_vault_url=one.key_vault_url, identity=one.identity)
            if one.key_vault_url
            else Secret(name=one.name, value=values[str(one.name)])
            for one in rest
            if one.key_vault_url or one.name in values
        ),
    ]
    will.registries = will.registries or was.registries
    return wanted


async def list_apps(site: Site) -> Sequence[ContainerApp]:
    pages = (await APPS.call(site, "list_by_resource_group"))(site.ground.resource_group, **READING)
    found = await every("list the container apps", pages)
    return [app for app in found if is_this_targets(site, app)]


async def find_app(site: Site, name: str) -> ContainerApp | None:
    """Return the app of that name, whoever made it; None if there is none.

    Raises:
        ApiDisabled: The provider is not registered.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        return None
    found: ContainerApp | None = await APPS.find(site, site.ground.app_id(name))
    return found


async def find_any(site: Site, name: str) -> ContainerApp | None:
    """Return what `find_app` does, and None where the provider is not registered yet."""
    try:
        return await find_app(site, name)
    except errors.ApiDisabled:
        return None


async def get_app(site: Site, name: str) -> ContainerApp:
    """Return the app of a deployment.

    Raises:
        DeploymentNotFound: There is none, or it is another target's.
        NotReady: What the app stands on is still being made.
        NotOurs: An app of that name was not made here.
    """
    app = await find_app(site, name)
    waiting = site.pending.get(name)
    if app is None and waiting:
        raise not_ready(name, site.target, f"{name} has no app yet ({waiting.phase}).")
    return own_app(site, name, app)


async def get_spec(site: Site, name: str) -> DeploymentSpec | None:
    """Return what was asked for, None where the app does not say it any more.

    Raises:
        DeploymentNotFound: There is no such app.
    """
    app, waiting = await find_any(site, name), site.pending.get(name)
    if waiting and (app is None or is_this_targets(site, app)):
        return waiting.spec
    return spec_in(own_app(site, name, app).tags)


def own_app(site: Site, name: str, app: ContainerApp | None) -> ContainerApp:
    """Return an app that was read, if it is a deployment of this target.

    Raises:
        DeploymentNotFound: There is none, or it is another target's.
        NotOurs: It was not made here.
    """
    if app is not None and not is_ours(app):
        raise errors.NotOurs(
            f"The app {name} in {site.ground.resource_group} was not made here: it is left alone.",
            fix="Take another name; or tag it managed-by=vllm-devops-agent to hand it over.",
        )
    if app is None or not is_this_targets(site, app):
        where = f": it is on {target_in(app) or 'another target'}" if app else ""
        raise not_found(name, site.target, where)
    return app


def is_this_targets(site: Site, app: ContainerApp) -> bool:
    return is_ours(app) and target_in(app) == site.target.name


def created_at(app: ContainerApp, otherwise: datetime) -> datetime:
    """Return when an app was made, or what it is given where Azure does not say it."""
    made = app.system_data.created_at if app.system_data else None
    return made.astimezone(UTC) if made else otherwise


_SETTING: Final = "AZURE_ALLOWED_ADDRESSES"


async def callers(site: Site) -> tuple[str, ...]:
    """Return whom a private deployment lets in, as CIDR ranges in the order of the setting.

    No IPv6: learn.microsoft.com/azure/container-apps/ip-restrictions (2026-11-21).

    Raises:
        InvalidArgument: A range that is set is none.
        CloudUnavailable: None is set, and nobody says which address this machine has.
    """
    if said := site.settings.azure_allowed_addresses:
        return caller_ranges(said, _SETTING, "an ingress of Container Apps knows no IPv6")
    plane = await site.clients.plane()
    url = f"{plane.http}/rehearsal/address" if plane else ECHO
    return (await own_address(url, _SETTING, own=plane is not None),)


async def access_of(site: Site, app: ContainerApp) -> Access:
    """Return the address of an app and the engine's key.

    Raises:
        NotReady: Azure has not given it an address yet.
        NotFound: Its key is missing.
    """
    name, url = str(app.name), url_of(site, app)
    if url is None:
        raise not_ready(name, site.target, f"{name} has no address yet.")
    keyed = any(one.secret_ref == KEY for each in containers_of(app) for one in each.env or ())
    return Access(
        base_url=url,
        api_key=await key_vault.read(site, key_secret(name)) if keyed else None,
        header_commands={KEY_HEADER: key_vault.read_command(site, key_secret(name))}
        if keyed
        else {},
        protection=_protection(app, keyed=keyed),
    )


def url_of(site: Site, app: ContainerApp) -> str | None:
    ingress = ingress_in(app)
    if ingress is None or not ingress.fqdn:
        return None
    return f"{'http' if site.rehearsed else 'https'}://{ingress.fqdn}"


def is_external(app: ContainerApp) -> bool:
    ingress = ingress_in(app)
    return bool(ingress and ingress.external)


def allowed(app: ContainerApp) -> tuple[str, ...]:
    ingress = ingress_in(app)
    let_in = (ingress.ip_security_restrictions if ingress else None) or ()
    return tuple(str(rule.ip_address_range) for rule in let_in if rule.action == "Allow")


def ingress_in(app: ContainerApp) -> Ingress | None:
    return app.configuration.ingress if app.configuration else None


def _protection(app: ContainerApp, *, keyed: bool) -> str:
    ranges, key = ", ".join(allowed(app)), "the engine behind it has no key"
    if keyed and not _has_proxy(app):
        key = "the engine's key protects /v1 alone: deploy_vllm again puts a proxy before it"
    elif keyed:
        key = "a proxy lets through those with the engine's key alone, and everybody to /health"
    if not is_external(app):
        return f"HTTPS; it answers only inside its environment's network; {key}."
    if ranges:
        return f"HTTPS; Azure lets in {ranges} and nobody else; {key}."
    return f"HTTPS; open to the internet: {key}; each request may start a paid replica."
