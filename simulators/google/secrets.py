"""Secret Manager v1: secrets, their versions, and who may read them."""

import base64
import re
import time
from typing import Any, ClassVar, Final

import grpc.aio
from google.cloud.secretmanager_v1.types import (
    AccessSecretVersionResponse,
    SecretPayload,
    SecretVersion,
)
from google.iam.v1.policy_pb2 import Policy
from google_crc32c import value as crc32c

from simulators.google.serving import refusal
from simulators.google.state import Project, Secret, Version, World
from simulators.google.store import Kind, serve

_MAX_BYTES: Final = 65_536
"""Of one payload. Source: docs.cloud.google.com/secret-manager/quotas, read 2026-11."""
_ACCESS: Final = "secretmanager.versions.access"
_LABEL: Final = re.compile(r"[a-z0-9_-]{0,63}")


class _Secrets(Kind):
    """A secret; a grant on it takes its time to be in effect."""

    types = "google.cloud.secretmanager_v1.types"
    noun, parent, collection = "Secret", "projects/*", "secrets"
    permission = "secretmanager.secrets"
    table = "secrets"
    identifier = r"[A-Za-z0-9_-]{1,255}"
    policies = by_number = True

    def key(self, _project: Project, name: str) -> str:
        return name.rpartition("/")[2]

    def as_message(self, _project: Project, row: Secret) -> Any:
        return row.message

    async def begin(self, _world: World, project: Project, request: Any, made: Any) -> Any:
        for label in made.labels.items():
            if not all(_LABEL.fullmatch(word) for word in label):
                raise refusal("label", label=": ".join(label))
        project.secrets[request.secret_id] = Secret(message=made)
        return made

    def check_etag(self, kept: Any, asked: str) -> None:
        if asked and asked != kept.etag:
            raise refusal("secret-etag")

    def policy(self, project: Project, name: str) -> Policy:
        found: Policy = self.find(project, name).policy
        return found

    def keep_policy(self, project: Project, name: str, policy: Policy) -> None:
        kept = self.find(project, name)
        kept.former_policy, kept.policy, kept.policy_since = kept.policy, policy, time.time()


_SECRETS = _Secrets()


class _Versions(Kind):
    """A version, which is always enabled."""

    types = _Secrets.types
    noun, parent, collection = "SecretVersion", "projects/*/secrets/*", "versions"
    permission = "secretmanager.versions"
    verbs = ("Get",)
    by_number = True
    more: ClassVar = {"AddSecretVersion": "add", "AccessSecretVersion": "access"}

    def find(self, project: Project, name: str) -> Any:
        full = self.full(project, name)
        secret, _, number = full.partition("/versions/")
        versions = _SECRETS.find(project, secret).versions
        for one in reversed(versions):
            if number in {"latest", str(one.number)}:
                return secret, one
        raise refusal("missing", name=full)

    def as_message(self, _project: Project, row: tuple[str, Version]) -> SecretVersion:
        secret, found = row
        return SecretVersion(
            name=f"{secret}/versions/{found.number}",
            state=SecretVersion.State.ENABLED,
        )

    async def add(self, _world: World, project: Project, request: Any) -> Any:
        secret, payload = _SECRETS.find(project, request.parent), request.payload
        if not 0 < len(payload.data) <= _MAX_BYTES:
            raise refusal("secret-size", most=_MAX_BYTES)
        if "data_crc32c" in payload and payload.data_crc32c != crc32c(payload.data):
            raise refusal("secret-checksum")
        data = base64.b64encode(payload.data).decode("ascii")
        secret.versions.append(Version(number=len(secret.versions) + 1, data=data))
        return self.as_message(project, (secret.message.name, secret.versions[-1]))

    async def access(
        self, _world: World, project: Project, request: Any
    ) -> AccessSecretVersionResponse:
        row = self.find(project, request.name)
        data = base64.b64decode(row[1].data)
        return AccessSecretVersionResponse(
            name=self.as_message(project, row).name,
            payload=SecretPayload(data=data, data_crc32c=crc32c(data)),
        )


_VERSIONS = _Versions()


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    service = "google.cloud.secretmanager.v1.SecretManagerService"
    serve(server, world, service, "secretmanager", _SECRETS, _VERSIONS)


def value_for(project: Project, secret_id: str, version: str, email: str) -> str:
    """Return a secret's value to a container that runs as `email`.

    Raises:
        Refused: There is none, or this account may not read it.
    """
    name = f"projects/{project.number}/secrets/{secret_id}/versions/{version}"
    _name, found = _VERSIONS.find(project, name)
    secret = project.secrets[secret_id]
    spread = time.time() - secret.policy_since >= project.knobs.grant_seconds
    own = secret.policy if spread else secret.former_policy
    if not project.grants(email, _ACCESS, own, project.policy):
        raise refusal("not-permitted", permission=_ACCESS, resource=name)
    return base64.b64decode(found.data).decode()
