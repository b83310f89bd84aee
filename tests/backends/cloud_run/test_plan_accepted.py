"""What is sent is what Google takes: by its own documents, and by a cloud that refuses alike."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from google.cloud import run_v2
from google.protobuf.json_format import MessageToDict
from pydantic import SecretStr

from backends.cloud_run.checks import shared
from backends.cloud_run.service import blueprint, service_of
from backends.google import clients, secrets
from backends.lifecycle import set_up
from core.settings import GooglePlane
from planner.model import read_model
from tests.backends.cloud_run.planned import BUCKET, L4, RTX, site, spec
from tests.backends.cloud_run.sites import opened
from tests.backends.discovery import faults
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

_WISHES: dict[str, dict[str, Any]] = {
    "hub": {},
    "bucket": {"weights": BUCKET, "network": "default/default"},
    "public": {"access": "public"},
    "ollama": {"engine": "ollama", "model": "gemma3:4b", "image": "ollama/ollama:0.40.0"},
}


@pytest.mark.parametrize("target", [L4, RTX])
@pytest.mark.parametrize("wish", _WISHES)
async def test_every_plan_passes_a_dry_run(
    plane: GooglePlane, project: str, controls: Controls, target: str, wish: str
) -> None:
    """Probes, sizes, limits and names are within what is taken; nothing is made by asking."""
    controls.set(project, quotas={"l4": 3, "rtx-pro-6000": 1})
    async with opened(plane, project, target=site(target).target) as there:
        wanted = spec(**_WISHES[wish])
        made = blueprint(there, wanted, read_model(wanted.model))
        container = made.container.model_copy(update={"secrets": {}})
        typed = service_of(made.model_copy(update={"container": container}))
        client = await there.clients.run()
        request = run_v2.CreateServiceRequest(
            parent=made.parent, service_id=made.name, service=typed, validate_only=True
        )
        await client.create_service(request, timeout=20)
    assert not controls.get(project)["services"]


BODIES: Final = {
    "BatchEnableServicesRequest": ("serviceusage.v1", "BatchEnableServicesRequest", None),
    "CreateServiceAccountRequest": ("iam.v1", "CreateServiceAccountRequest", None),
    "SetIamPolicyRequest": ("cloudresourcemanager.v3", "SetIamPolicyRequest", None),
    "CreateRepositoryRequest": ("artifactregistry.v1", "Repository", "repository"),
    "CreateSecretRequest": ("secretmanager.v1", "Secret", "secret"),
    "AddSecretVersionRequest": ("secretmanager.v1", "AddSecretVersionRequest", None),
}
"""By message: its document, its schema, and the field that is the body; services and builds have
modules of their own."""
IN_THE_PATH: Final = ("parent", "name", "resource", "repositoryId", "secretId")


def body_of(message: Any, field: str | None) -> Any:
    said = MessageToDict(getattr(message, "_pb", message))
    rest = {name: value for name, value in said.items() if name not in IN_THE_PATH}
    return rest[field] if field else rest


async def test_setting_up_and_keeping_a_token_sends_only_what_google_knows(
    plane: GooglePlane, bare_project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    ending = clients._ending

    def watched(method: Callable[..., Any]) -> Callable[..., Any]:
        call = ending(method)

        async def told(request: Any, *args: Any, **kwargs: Any) -> Any:
            sent.append(request)
            return await call(request, *args, **kwargs)

        return told

    monkeypatch.setattr(clients, "_ending", watched)
    async with opened(plane, bare_project) as site:
        await set_up(shared(site), seconds=30)
        await secrets.keep(site, "hf-token", SecretStr(f"hf_{'a' * 34}"))
    seen = {type(message).__name__ for message in sent}
    assert set(BODIES) <= seen, seen
    for message in sent:
        if known := BODIES.get(type(message).__name__):
            api, schema, field = known
            assert not faults(api, schema, body_of(message, field)), message
