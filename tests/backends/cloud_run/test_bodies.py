"""Every body that a whole life sends is one that Google's discovery documents know."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from google.protobuf.json_format import MessageToDict
from pydantic import SecretStr

from backends.cloud_run.checks import shared
from backends.google import clients, secrets
from backends.lifecycle import set_up
from core.settings import GooglePlane
from tests.backends.cloud_run.sites import opened
from tests.backends.discovery import faults

pytestmark = pytest.mark.anyio

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
