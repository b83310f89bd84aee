"""Models that Vertex AI's registry knows in the target's region."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from backends.cloud_abilities import RegisteredModel
from backends.cloud_run.site import Site
from backends.google.waiting import reading, strictly
from core.reply import note

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import Model

_MOST: Final = 200


async def models(site: Site) -> Sequence[RegisteredModel]:
    """Give every model of the project in the region, as the registry orders them.

    Raises:
        NotConfigured: No project is named.
        ApiDisabled, PermissionDenied, CloudError: Vertex AI does not tell.
    """
    parent = site.clients.parent
    client = await site.clients.models()
    found: list[RegisteredModel] = []
    with strictly("list the models of Vertex AI's registry"):
        async for model in await client.list_models(parent=parent, **reading()):
            if len(found) == _MOST:
                note(f"There are more models than the {_MOST} shown.")
                break
            found.append(_read(model))
    return found


def _read(model: "Model") -> RegisteredModel:
    created: Any = model.version_create_time or model.create_time  # proto-plus: a datetime
    return RegisteredModel(
        name=model.name,
        display_name=model.display_name,
        version=model.version_id,
        created_at=created.isoformat() if created else "",
        artifact=model.artifact_uri,
    )
