"""Bodies that change an app which exists: what is not changed goes along as it was read."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from backends.aca import tags
from backends.aca.failing import strictly
from backends.aca.site import Site
from backends.aca.tags import MANAGED_TAG
from backends.aca.waiting import reading
from core.records import DeploymentSpec

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp, Ingress, Secret, Template

_OWN_TAGS: Final = "vllm-devops-"


def patch_of(
    app: "ContainerApp",
    *,
    tags: Mapping[str, str] | None = None,
    template: "Template | None" = None,
    ingress: "Ingress | None" = None,
) -> "ContainerApp":
    """Give a body that changes these alone; it says where the app is, or Azure refuses it.

    Lists are replaced as wholes, so `template` and `ingress` are what was read, edited.
    """
    from azure.mgmt.appcontainers import models

    configuration = models.Configuration(ingress=ingress) if ingress else None
    properties = models.ContainerAppProperties(template=template, configuration=configuration)
    return models.ContainerApp(
        location=app.location,
        tags={**(app.tags or {}), **(tags or {})},
        properties=properties if template or ingress else None,
    )


def template_of(app: "ContainerApp") -> "Template":
    """Give a copy of an app's template, for a revision of its own."""
    from azure.mgmt.appcontainers import models

    assert app.properties
    assert app.properties.template
    template = models.Template(app.properties.template.as_dict(exclude_readonly=True))
    template.revision_suffix = suffix()
    return template


def ingress_of(app: "ContainerApp") -> "Ingress | None":
    """Give a copy of an app's ingress; None where it has none."""
    from azure.mgmt.appcontainers import models

    configuration = app.properties.configuration if app.properties else None
    if configuration is None or configuration.ingress is None:
        return None
    return models.Ingress(configuration.ingress.as_dict(exclude_readonly=True))


def gives(app: "ContainerApp", secrets: Mapping[str, str]) -> bool:
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


def spec_as_running(app: "ContainerApp") -> DeploymentSpec | None:
    """Return what was asked for, with the Hub's files where this app has them.

    Where they lie unless somebody says is a matter of size, and of what was known at the time.
    """
    spec = tags.spec_in(app.tags)
    if spec is None or not spec.from_hub:
        return spec
    template = app.properties.template if app.properties else None
    where = "hub:share" if template and template.volumes else "hub:disk"
    return spec.model_copy(update={"weights": where})


def suffix() -> str:
    """Name a revision anew: one that keeps the name of another is refused, or is the other."""
    return f"r{time.time_ns() // 1_000_000:x}"


def suffix_in(app: "ContainerApp") -> str | None:
    """Give what the newest revision was named for."""
    template = app.properties.template if app.properties else None
    return template.revision_suffix if template else None


async def replacement(site: Site, wanted: "ContainerApp", now: "ContainerApp") -> "ContainerApp":
    """Give a body that makes an app what is wanted, with everything of others that it holds.

    A secret without its value would be deleted, so values are fetched of those that are not kept
    in a vault.

    Raises:
        CloudError: Azure does not tell the secrets.
    """
    was, will = _parts(now), _parts(wanted)
    others = {name: text for name, text in (now.tags or {}).items() if not _is_own(name)}
    wanted.tags = {**others, **(wanted.tags or {})}
    _keep_identities(wanted, now)
    will.secrets = [*(will.secrets or ()), *await _other_secrets(site, wanted, now)]
    will.registries = will.registries or was.registries
    return wanted


def _keep_identities(wanted: "ContainerApp", now: "ContainerApp") -> None:
    from azure.mgmt.appcontainers import models

    if wanted.identity is None or now.identity is None:
        return
    known = {each.lower() for each in wanted.identity.user_assigned_identities or {}}
    others = {
        each: models.UserAssignedIdentity()
        for each in now.identity.user_assigned_identities or {}
        if each.lower() not in known
    }
    wanted.identity.user_assigned_identities = {
        **(wanted.identity.user_assigned_identities or {}),
        **others,
    }


async def _other_secrets(site: Site, wanted: "ContainerApp", now: "ContainerApp") -> "list[Secret]":
    from azure.mgmt.appcontainers import models

    known = {secret.name for secret in _parts(wanted).secrets or ()}
    others = [secret for secret in _parts(now).secrets or () if secret.name not in known]
    plain = [secret.name for secret in others if not secret.key_vault_url]
    values = await _values(site, str(now.name)) if plain else {}
    return [
        models.Secret(name=each.name, key_vault_url=each.key_vault_url, identity=each.identity)
        if each.key_vault_url
        else models.Secret(name=each.name, value=values[str(each.name)])
        for each in others
        if each.key_vault_url or each.name in values
    ]


async def _values(site: Site, name: str) -> Mapping[str, str]:
    apps = await site.clients.apps()
    with strictly(f"read the secrets of {name}"):
        found = await apps.container_apps.list_secrets(
            site.ground.resource_group, name, **reading()
        )
    return {str(one.name): one.value for one in found.value or () if one.value is not None}


def _parts(app: "ContainerApp") -> Any:
    """Give an app's configuration."""
    assert app.properties
    assert app.properties.configuration
    return app.properties.configuration


def _is_own(tag: str) -> bool:
    return tag.lower() == MANAGED_TAG or tag.lower().startswith(_OWN_TAGS)
