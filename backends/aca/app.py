"""A container app: every value decided, typed for Azure's SDK, and found again by name."""

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

from azure.core.exceptions import ResourceNotFoundError
from azure.mgmt.appcontainers import models as M  # noqa: N812  what every body is made of
from azure.mgmt.appcontainers.models import ContainerApp, Ingress, Secret, Template

from backends import container
from backends.aca import resources
from backends.aca.container import (
    Mount,
    gpu_of,
    refuse_name,
    refuse_replicas,
    region_doubt,
    rules,
    running_probe,
    serving_of,
    size_doubt,
    size_of,
    startup_probe,
)
from backends.aca.resources import MANAGED_TAG, or_none, tags_of
from backends.aca.site import (
    CONTAINER,
    EXPIRES_TAG,
    HF_SECRET,
    KEY,
    REGISTRY_SECRET,
    Ground,
    Site,
    key_secret,
    reading,
    strictly,
    translated,
)
from backends.common import registry
from backends.common.registry import Reference, reference
from backends.container import (
    GUARD_NAME,
    Container,
    Probe,
    refuse_foreign_fields,
    refuse_length,
    refuse_spread,
)
from core.errors import (
    ApiDisabled,
    CloudRefused,
    DeploymentNotFound,
    InvalidArgument,
    NextStep,
    NotOurs,
    NotReady,
)
from core.records import NAME_PATTERN, DeploymentSpec, ModelShape, Record
from core.settings import Settings

_AZURE: Final = ".azurecr.io"

_pins: Final[dict[tuple[str, str], str]] = {}
"""Digests found by this process, so that a plan, its check and its deployment mean one image."""


def registry_of_azure(image: str) -> str | None:
    """Return the Azure registry that an image is pulled from with our identity; None for others."""
    server = reference(image.partition("@")[0]).registry
    return server if server.endswith(_AZURE) else None


class Account(NamedTuple):
    """Who pulls from a registry; the password is kept in the vault."""

    server: str
    username: str


def account_for(settings: Settings, *images: str) -> Account | None:
    """Return the account to pull images with; None where all are of other registries."""
    server, username = settings.registry_server, settings.registry_username
    if not username or not settings.registry_password:
        return None
    asked = {reference(image.partition("@")[0]).registry for image in images}
    return Account(server, username) if reference(f"{server}/x/x").registry in asked else None


async def pinned(site: Site, image: str) -> str | None:
    """Return the image as NAME@sha256:…; None where its registry cannot be asked.

    Raises:
        CloudRefused: The registry has no such image, or shows it to nobody.
    """
    if "@" in image:
        return image
    wanted = reference(image)
    plane = await site.clients.plane()
    base = plane.http if plane else f"https://{wanted.registry}"
    if (base, image) not in _pins:
        password = site.settings.registry_password
        account = account_for(site.settings, image)
        login = (account.username, password.get_secret_value()) if account and password else None
        said = await registry.ask_registry(base, wanted, login=login)
        digest = _read_images(said, wanted) if said else None
        if digest is None:
            return None
        _pins[base, image] = f"{wanted.name}@{digest}"
    return _pins[base, image]


def _read_images(said: registry.RegistryAnswer, wanted: Reference) -> str | None:
    if wanted.registry.endswith(_AZURE):
        return said.digest  # shown to whoever logs in there, which nobody does here
    if said.status in {401, 403, 404}:
        raise CloudRefused(
            f"{wanted.registry} has no image {wanted.path}:{wanted.tag} that all may pull.",
            cause=f"Its registry answers {said.status}.",
            fix="Correct the name or tag; Container Apps pull what is public, and from a registry"
            " of Azure what the identity vllm-devops may read (AcrPull).",
        )
    return said.digest


def image_of(app: ContainerApp) -> str | None:
    """Return the image of the engine's container, which is the first."""
    return next(iter(images_of(app)), None)


def images_of(app: ContainerApp) -> tuple[str, ...]:
    """Return the images of an app's containers."""
    template = app.properties.template if app.properties else None
    return tuple(one.image or "" for one in (template.containers if template else None) or ())


def version_of(site: Site, app: ContainerApp) -> str | None:
    """Return vLLM's version: by the image's tag, or as the target's own image has it."""
    return version(site, image_of(app))


def version(site: Site, image: str | None) -> str | None:
    """Return the version of vLLM in an image."""
    own = gpu_of(site.target)
    return container.version_of(image, own.image, own.vllm) if image else None


def label_of(site: Site, app: ContainerApp) -> str:
    """Return the engine's name for people."""
    return label(site, image_of(app))


def label(site: Site, image: str | None) -> str:
    """Return the name of the engine in an image for people."""
    name = "simulated vLLM" if site.rehearsed else "vLLM"
    return f"{name} {version(site, image) or '(version not known)'}"


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
    site: Site, spec: DeploymentSpec, model: ModelShape, *, hf_token: bool | None = None
) -> Blueprint:
    """Decide every value of the app that a spec asks for; `hf_token`: that secret is kept.

    Raises:
        InvalidArgument: Container Apps or the model cannot take the spec.
    """
    _refuse(spec, model)
    target, chosen = site.target, rules()
    token = bool(site.settings.hf_token) if hf_token is None else hf_token
    serving = serving_of(target, spec, model, hf_token=token)
    gpu, size = gpu_of(target), size_of(target, spec)
    proxy = container.guard_container(chosen.guard.image)
    # The engine is asked through its proxy: a probe comes from outside, where nothing else is. They
    # are the engine's own all the same: one that fails starts its container again.
    asked: dict[str, Any] = {"path": proxy.health, "port": proxy.port}
    doubts = (region_doubt(target, site.ground.region), size_doubt(target, spec), *serving.doubts)
    return Blueprint(
        name=spec.name,
        ground=site.ground,
        tags=tags_of(target.name, spec),
        container=serving.container,
        guard=proxy,
        profile=gpu.profile,
        profile_type=gpu.profile_type,
        cpu=size.vcpu,
        memory_gib=size.ram_gib,
        startup=startup_probe(serving.boot_seconds, **asked),
        readiness=running_probe(chosen.readiness_probe, **asked),
        liveness=running_probe(chosen.liveness_probe, **asked),
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        # Its time counts while a replica still boots; it cannot be shortened once a boot is over,
        # as every change of it is a new revision, which boots.
        cooldown_seconds=math.ceil(max(chosen.scaling.cooldown_seconds, serving.scheduled_seconds)),
        polling_seconds=chosen.scaling.polling_seconds,
        concurrency=serving.concurrency,
        exposure=spec.access,
        mount=serving.mount,
        account=account_for(site.settings, serving.container.image, proxy.image),
        needs_token="HF_TOKEN" in serving.container.secrets,
        boot_seconds=serving.boot_seconds,
        doubts=tuple(filter(None, doubts)),
    )


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    refuse_name(spec.name)
    refuse_spread(spec, "A replica of a container app")
    refuse_replicas(spec.max_replicas)
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


VOLUME: Final = "weights"


def app_of(
    drawn: Blueprint,
    *,
    kept_at: str | None = None,
    addresses: tuple[str, ...] = (),
    expires_at: int | None = None,
    image: str | None = None,
) -> M.ContainerApp:
    """Type the app, as it is created; its name is said beside it.

    Args:
        drawn: The values.
        kept_at: The address of the vault with its secrets, if not Azure's own.
        addresses: Who may call a private one.
        expires_at: When its ttl ends, in seconds since 1970: a tag, as only who applies knows.
        image: The same image by its digest, where that is known.

    Raises:
        InvalidArgument: It is private, and nobody may call it: Azure would let everybody in.
    """
    expiry = {EXPIRES_TAG: str(expires_at)} if expires_at else {}
    return M.ContainerApp(
        location=drawn.ground.region,
        tags={**drawn.tags, **expiry},
        identity=M.ManagedServiceIdentity(
            type="UserAssigned",
            user_assigned_identities={drawn.ground.identity_id: M.UserAssignedIdentity()},
        ),
        properties=M.ContainerAppProperties(
            environment_id=drawn.ground.environment_id,
            workload_profile_name=drawn.profile,
            configuration=_configuration(drawn, kept_at, ingress_of(drawn, addresses)),
            template=_template(drawn, image or drawn.container.image),
        ),
    )


def ingress_of(drawn: Blueprint, addresses: tuple[str, ...]) -> M.Ingress:
    """Type who reaches it, and how.

    Raises:
        InvalidArgument: It is private, and nobody may call it: Azure would let everybody in.
    """
    if drawn.exposure == "private" and not addresses:
        raise InvalidArgument(
            "Nobody's address may call a private deployment.",
            fix="Set AZURE_ALLOWED_ADDRESSES to your addresses or ranges, separated by commas.",
        )
    if len(addresses) > rules().limits.addresses:
        raise InvalidArgument(
            f"{len(addresses)} addresses are more than {rules().limits.addresses}.",
            fix="Join them to ranges in AZURE_ALLOWED_ADDRESSES.",
        )
    kept = restrictions_of(addresses) if drawn.exposure == "private" else []
    return M.Ingress(
        external=drawn.exposure != "internal",
        target_port=drawn.guard.port,
        transport="http",
        allow_insecure=False,
        traffic=[M.TrafficWeight(weight=100, latest_revision=True)],
        ip_security_restrictions=kept or None,
    )


def restrictions_of(addresses: Iterable[str]) -> list[M.IpSecurityRestrictionRule]:
    """Type who may call: these addresses, and then nobody else."""
    return [
        M.IpSecurityRestrictionRule(
            name=f"caller-{number}", ip_address_range=address, action="Allow"
        )
        for number, address in enumerate(addresses)
    ]


def _configuration(drawn: Blueprint, kept_at: str | None, ingress: M.Ingress) -> M.Configuration:
    identity = drawn.ground.identity_id
    kept_at = kept_at or f"https://{drawn.ground.vault}.vault.azure.net"
    return M.Configuration(
        active_revisions_mode="Single",
        max_inactive_revisions=rules().scaling.inactive_revisions,
        ingress=ingress,
        secrets=[
            M.Secret(name=name, key_vault_url=f"{kept_at}/secrets/{secret}", identity=identity)
            for name, secret in drawn.kept.items()
        ],
        registries=_registries(drawn),
        # The platform reads secrets and images with it; what runs in the container may not.
        identity_settings=[M.IdentitySettings(identity=identity, lifecycle="None")],
    )


def _registries(drawn: Blueprint) -> list[M.RegistryCredentials] | None:
    account, images = drawn.account, (drawn.container.image, drawn.guard.image)
    own = {server for image in images if (server := registry_of_azure(image))}
    rows = [
        M.RegistryCredentials(server=server, identity=drawn.ground.identity_id)
        for server in sorted(own - {account.server if account else ""})
    ]
    if account:
        rows.append(
            M.RegistryCredentials(
                server=account.server,
                username=account.username,
                password_secret_ref=REGISTRY_SECRET,
            )
        )
    return rows or None


def _template(drawn: Blueprint, image: str) -> M.Template:
    return M.Template(
        # The engine first: the GPU is given to the first container alone.
        containers=[_container(drawn, image), _guard(drawn)],
        scale=M.Scale(
            min_replicas=drawn.min_replicas,
            max_replicas=drawn.max_replicas,
            cooldown_period=drawn.cooldown_seconds,
            polling_interval=drawn.polling_seconds,
            rules=[
                M.ScaleRule(
                    name="requests",
                    http=M.HttpScaleRule(metadata={"concurrentRequests": str(drawn.concurrency)}),
                )
            ],
        ),
        volumes=[_volume(drawn.mount)] if drawn.mount else None,
    )


def _container(drawn: Blueprint, image: str) -> M.Container:
    container, mount, proxy = drawn.container, drawn.mount, rules().guard
    plain = [M.EnvironmentVar(name=name, value=value) for name, value in container.env.items()]
    kept = [
        M.EnvironmentVar(name=name, secret_ref=secret) for name, secret in container.secrets.items()
    ]
    return M.Container(
        name=CONTAINER,
        image=image,
        command=list(container.command),
        args=list(container.args),
        env=[*plain, *kept],
        resources=M.ContainerResources(
            cpu=drawn.cpu - proxy.vcpu, memory=f"{drawn.memory_gib - proxy.ram_gib}Gi"
        ),
        probes=[
            _probe("Startup", drawn.startup),
            _probe("Readiness", drawn.readiness),
            _probe("Liveness", drawn.liveness),
        ],
        volume_mounts=[M.VolumeMount(volume_name=VOLUME, mount_path=mount.path)] if mount else None,
    )


def _guard(drawn: Blueprint) -> M.Container:
    container, size = drawn.guard, rules().guard
    return M.Container(
        name=GUARD_NAME,
        image=container.image,
        command=list(container.command),
        args=list(container.args),
        env=[M.EnvironmentVar(name=name, value=value) for name, value in container.env.items()],
        resources=M.ContainerResources(cpu=size.vcpu, memory=f"{size.ram_gib}Gi"),
    )


def is_open(app: M.ContainerApp) -> bool:
    """Whether requests reach an engine that asks for its key at some paths alone."""
    template = app.properties.template if app.properties else None
    return GUARD_NAME not in {one.name for one in (template.containers if template else None) or ()}


def _probe(kind: str, probe: Probe) -> M.ContainerAppProbe:
    return M.ContainerAppProbe(
        type=kind,
        http_get=M.ContainerAppProbeHttpGet(path=probe.path, port=probe.port, scheme="HTTP"),
        period_seconds=probe.period_seconds,
        timeout_seconds=probe.timeout_seconds,
        failure_threshold=probe.failures,
    )


def _volume(mount: Mount) -> M.Volume:
    return M.Volume(
        name=VOLUME,
        storage_type="AzureFile",
        storage_name=mount.link,
        mount_options=rules().share.mount_options,
    )


_OWN_TAGS: Final = "vllm-devops-"


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
    return M.ContainerApp(
        location=app.location,
        tags={**(app.tags or {}), **(tags or {})},
        properties=properties if template or ingress else None,
    )


def copy_template(app: ContainerApp) -> Template:
    """Return a copy of an app's template, for a revision of its own."""
    assert app.properties
    assert app.properties.template
    template = M.Template(app.properties.template.as_dict(exclude_readonly=True))
    template.revision_suffix = new_suffix()
    return template


def copy_ingress(app: ContainerApp) -> Ingress | None:
    """Return a copy of an app's ingress; None where it has none."""
    configuration = app.properties.configuration if app.properties else None
    if configuration is None or configuration.ingress is None:
        return None
    return M.Ingress(configuration.ingress.as_dict(exclude_readonly=True))


def gives(app: ContainerApp, secrets: Mapping[str, str]) -> bool:
    """Whether an app still has these secrets, and gives them to its container as these variables.

    A PUT that was made of what Azure shows may have lost them.
    """
    template = app.properties.template if app.properties else None
    held = {secret.name for secret in _parts(app).secrets or ()}
    given = {
        (variable.name, variable.secret_ref)
        for container in (template.containers if template else None) or ()
        for variable in container.env or ()
        if variable.secret_ref in held
    }
    return secrets.items() <= given


def spec_as_running(app: ContainerApp) -> DeploymentSpec | None:
    """Return what was asked for, with the Hub's files where this app has them.

    Where they lie unless somebody says is a matter of size, and of what was known at the time.
    """
    spec = resources.spec_from_tags(app.tags)
    if spec is None or not spec.from_hub:
        return spec
    template = app.properties.template if app.properties else None
    where = "hub:share" if template and template.volumes else "hub:disk"
    return spec.model_copy(update={"weights": where})


def new_suffix() -> str:
    """Name a revision anew: one that keeps the name of another is refused, or is the other."""
    return f"r{time.time_ns() // 1_000_000:x}"


def suffix_in(app: ContainerApp) -> str | None:
    """Return what the newest revision was named for."""
    template = app.properties.template if app.properties else None
    return template.revision_suffix if template else None


async def replacement(site: Site, wanted: ContainerApp, now: ContainerApp) -> ContainerApp:
    """Return a body that makes an app what is wanted, with everything of others that it holds.

    A secret without its value would be deleted, so values are fetched of those that are not kept
    in a vault.
    """
    was, will = _parts(now), _parts(wanted)
    others = {
        name: text
        for name, text in (now.tags or {}).items()
        if name.lower() != MANAGED_TAG and not name.lower().startswith(_OWN_TAGS)
    }
    wanted.tags = {**others, **(wanted.tags or {})}
    _keep_identities(wanted, now)
    will.secrets = [*(will.secrets or ()), *await _other_secrets(site, wanted, now)]
    will.registries = will.registries or was.registries
    return wanted


def _keep_identities(wanted: ContainerApp, now: ContainerApp) -> None:
    if wanted.identity is None or now.identity is None:
        return
    known = {each.lower() for each in wanted.identity.user_assigned_identities or {}}
    others = {
        each: M.UserAssignedIdentity()
        for each in now.identity.user_assigned_identities or {}
        if each.lower() not in known
    }
    wanted.identity.user_assigned_identities = {
        **(wanted.identity.user_assigned_identities or {}),
        **others,
    }


async def _other_secrets(site: Site, wanted: ContainerApp, now: ContainerApp) -> list[Secret]:
    known = {secret.name for secret in _parts(wanted).secrets or ()}
    others = [secret for secret in _parts(now).secrets or () if secret.name not in known]
    plain = [secret.name for secret in others if not secret.key_vault_url]
    values: dict[str, str] = {}
    if plain:
        apps = await site.clients.apps()
        with strictly(f"read the secrets of {now.name}"):
            found = await apps.container_apps.list_secrets(
                site.ground.resource_group, str(now.name), **reading()
            )
        values = {str(one.name): one.value for one in found.value or () if one.value is not None}
    return [
        M.Secret(name=each.name, key_vault_url=each.key_vault_url, identity=each.identity)
        if each.key_vault_url
        else M.Secret(name=each.name, value=values[str(each.name)])
        for each in others
        if each.key_vault_url or each.name in values
    ]


def _parts(app: ContainerApp) -> Any:
    """Return an app's configuration."""
    assert app.properties
    assert app.properties.configuration
    return app.properties.configuration


async def list_apps(site: Site) -> Sequence[ContainerApp]:
    """Return every app with this target's tag in the resource group; none where there is none."""
    client = await site.clients.apps()
    try:
        with translated("list the container apps"):
            pager = client.container_apps.list_by_resource_group(site.clients.group, **reading())
            return [app async for app in pager if is_this_targets(site, app)]
    except ResourceNotFoundError:
        return ()


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
        raise NotReady(
            f"{name} has no app yet ({waiting.phase}).",
            fix="Call status_vllm until it has one; destroy_vllm takes it away.",
            next_steps=(NextStep("status_vllm", {"target": site.target.name, "name": name}),),
        )
    return own_app(site, name, app)


async def find_app(site: Site, name: str) -> ContainerApp | None:
    """Return the app of that name, whoever made it; None if there is none."""
    if not re.fullmatch(NAME_PATTERN, name):
        return None
    client = await site.clients.apps()
    asked = client.container_apps.get(site.clients.group, name, **reading())
    return await or_none(f"look at the app {name}", asked)


async def get_spec(site: Site, name: str) -> DeploymentSpec | None:
    """Return what was asked for, None where the app does not say it any more.

    Raises:
        DeploymentNotFound: There is no such app.
    """
    try:
        app = await find_app(site, name)
    except ApiDisabled:  # nothing was ever made there
        app = None
    waiting = site.pending.get(name)
    if waiting and (app is None or is_this_targets(site, app)):
        return waiting.spec
    return resources.spec_from_tags(own_app(site, name, app).tags)


def own_app(site: Site, name: str, app: ContainerApp | None) -> ContainerApp:
    """Return an app that was read, if it is a deployment of this target.

    Raises:
        DeploymentNotFound, NotOurs: As `app_named` does.
    """
    if app is None:
        raise _not_found(site, name, "")
    if not resources.is_ours(app.tags):
        raise NotOurs(
            f"The app {name} in {site.clients.group} was not made here: it is left alone.",
            fix="Take another name; or tag it managed-by=vllm-devops-agent to hand it over.",
        )
    if not is_this_targets(site, app):
        where = resources.target_in(app.tags) or "another target"
        raise _not_found(site, name, f": it is on {where}")
    return app


def is_this_targets(site: Site, app: ContainerApp) -> bool:
    return resources.is_ours(app.tags) and resources.target_in(app.tags) == site.target.name


def _not_found(site: Site, name: str, where: str) -> DeploymentNotFound:
    return DeploymentNotFound(
        f"No deployment named '{name[:60]}' on {site.target.name}{where}.",
        fix="Call list_deployments for those that there are.",
        next_steps=(NextStep("list_deployments"),),
    )


def created_at(app: ContainerApp, otherwise: datetime) -> datetime:
    """Return when an app was made, or what it is given where Azure does not say it."""
    made = app.system_data.created_at if app.system_data else None
    return made.astimezone(UTC) if made else otherwise
