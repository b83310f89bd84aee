"""A blueprint as Azure's SDK types it."""

from typing import TYPE_CHECKING, Final

from backends.aca.blueprint import Blueprint
from backends.aca.bodies import restrictions_of
from backends.aca.images import registry_of_azure
from backends.aca.names import CONTAINER, EXPIRES_TAG, REGISTRY_SECRET
from backends.aca.rules import rules
from backends.aca.weights import Mount
from backends.common import slim
from backends.container import GUARD_NAME, Probe
from core.errors import InvalidArgument

if TYPE_CHECKING:
    from azure.mgmt.appcontainers import models as M  # noqa: N812  as Microsoft's documents say

VOLUME: Final = "weights"


def app_of(
    drawn: Blueprint,
    *,
    vault_url: str,
    addresses: tuple[str, ...] = (),
    expires_at: int | None = None,
    image: str | None = None,
) -> "M.ContainerApp":
    """Type the app, as it is created; its name is said beside it.

    Args:
        drawn: The values.
        vault_url: Of the vault with its secrets, without a slash at the end.
        addresses: Who may call a private one.
        expires_at: When its ttl ends, in seconds since 1970: a tag, as only who applies knows.
        image: The same image by its digest, where that is known.

    Raises:
        InvalidArgument: It is private, and nobody may call it: Azure would let everybody in.
    """
    slim.opened("azure.mgmt.appcontainers")
    from azure.mgmt.appcontainers import models as M  # noqa: N812

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
            configuration=_configuration(drawn, vault_url, ingress_of(drawn, addresses)),
            template=_template(drawn, image or drawn.container.image),
        ),
    )


def ingress_of(drawn: Blueprint, addresses: tuple[str, ...]) -> "M.Ingress":
    """Type who reaches it, and how.

    Raises:
        InvalidArgument: It is private, and nobody may call it: Azure would let everybody in.
    """
    from azure.mgmt.appcontainers import models as M  # noqa: N812

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


def _configuration(drawn: Blueprint, vault_url: str, ingress: "M.Ingress") -> "M.Configuration":
    from azure.mgmt.appcontainers import models as M  # noqa: N812

    identity = drawn.ground.identity_id
    return M.Configuration(
        active_revisions_mode="Single",
        max_inactive_revisions=rules().scaling.inactive_revisions,
        ingress=ingress,
        secrets=[
            M.Secret(name=name, key_vault_url=f"{vault_url}/secrets/{secret}", identity=identity)
            for name, secret in drawn.kept.items()
        ],
        registries=_registries(drawn),
        # The platform reads secrets and images with it; what runs in the container may not.
        identity_settings=[M.IdentitySettings(identity=identity, lifecycle="None")],
    )


def _registries(drawn: Blueprint) -> "list[M.RegistryCredentials] | None":
    from azure.mgmt.appcontainers import models as M  # noqa: N812

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


def _template(drawn: Blueprint, image: str) -> "M.Template":
    from azure.mgmt.appcontainers import models as M  # noqa: N812

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


def _container(drawn: Blueprint, image: str) -> "M.Container":
    from azure.mgmt.appcontainers import models as M  # noqa: N812

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


def _guard(drawn: Blueprint) -> "M.Container":
    from azure.mgmt.appcontainers import models as M  # noqa: N812

    container, size = drawn.guard, rules().guard
    return M.Container(
        name=GUARD_NAME,
        image=container.image,
        command=list(container.command),
        args=list(container.args),
        env=[M.EnvironmentVar(name=name, value=value) for name, value in container.env.items()],
        resources=M.ContainerResources(cpu=size.vcpu, memory=f"{size.ram_gib}Gi"),
    )


def is_open(app: "M.ContainerApp") -> bool:
    """Whether requests reach an engine that asks for its key at some paths alone."""
    template = app.properties.template if app.properties else None
    return GUARD_NAME not in {one.name for one in (template.containers if template else None) or ()}


def _probe(kind: str, probe: Probe) -> "M.ContainerAppProbe":
    from azure.mgmt.appcontainers import models as M  # noqa: N812

    return M.ContainerAppProbe(
        type=kind,
        http_get=M.ContainerAppProbeHttpGet(path=probe.path, port=probe.port, scheme="HTTP"),
        period_seconds=probe.period_seconds,
        timeout_seconds=probe.timeout_seconds,
        failure_threshold=probe.failures,
    )


def _volume(mount: Mount) -> "M.Volume":
    from azure.mgmt.appcontainers import models as M  # noqa: N812

    return M.Volume(
        name=VOLUME,
        storage_type="AzureFile",
        storage_name=mount.link,
        mount_options=rules().share.mount_options,
    )
