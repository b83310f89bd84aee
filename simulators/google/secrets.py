"""Secret Manager v1: secrets, their versions, and who may read them."""

import base64
import re
import time
from typing import Any, Final

import grpc.aio
from google.cloud.secretmanager_v1.types import (
    AccessSecretVersionRequest,
    AccessSecretVersionResponse,
    AddSecretVersionRequest,
    CreateSecretRequest,
    DeleteSecretRequest,
    DestroySecretVersionRequest,
    DisableSecretVersionRequest,
    EnableSecretVersionRequest,
    GetSecretRequest,
    GetSecretVersionRequest,
    ListSecretsRequest,
    ListSecretsResponse,
    ListSecretVersionsRequest,
    ListSecretVersionsResponse,
    SecretPayload,
    SecretVersion,
)
from google.cloud.secretmanager_v1.types import Secret as SecretMessage
from google.iam.v1 import iam_policy_pb2
from google.iam.v1.policy_pb2 import Policy
from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp
from google_crc32c import value as crc32c

from simulators.google import iam, logging
from simulators.google.serving import Refused, add, invalid, not_permitted, page_of, unary
from simulators.google.state import Project, Secret, Version, World

_NAME: Final = re.compile(
    r"^projects/[^/]+(?:/locations/[^/]+)?/secrets/(?P<id>[^/]+)(?:/versions/(?P<version>[^/]+))?$"
)


def path(project: Project, name: str) -> str:
    """Give a secret's full name, which has the project's number."""
    return f"projects/{project.number}/secrets/{name}"


def parts(name: str) -> tuple[str, str]:
    """Give the id of a secret, and the version that is named (empty: none)."""
    found = _NAME.match(name)
    if found is None:
        raise invalid(f"The provided name [{name}] does not match the expected format.")
    return found["id"], found["version"] or ""


def find_secret(project: Project, name: str) -> Secret:
    """Find a secret by its full name, or by that of one of its versions."""
    kept = project.secrets.get(parts(name)[0])
    if kept is None:
        raise Refused("NOT_FOUND", f"Secret [{path(project, parts(name)[0])}] not found.")
    return kept


def find_version(project: Project, name: str, number: str) -> Version:
    """Find a version: by number, or `latest`."""
    versions = find_secret(project, path(project, name)).versions
    if number == "latest" and versions:
        return versions[-1]
    for one in versions:
        if str(one.number) == number:
            return one
    raise Refused(
        "NOT_FOUND", f"Secret Version [{path(project, name)}/versions/{number}] not found."
    )


def enabled(project: Project, name: str, found: Version) -> Version:
    """Refuse a version that is disabled or destroyed."""
    if found.state != "ENABLED":
        raise Refused(
            "FAILED_PRECONDITION",
            f"Secret Version [{path(project, name)}/versions/{found.number}] is in"
            f" {found.state} state.",
        )
    return found


def changed(project: Project, name: str, state: str) -> SecretVersion:
    """Bring a version to another state; a destroyed one stays as it is."""
    name, number = parts(name)
    found = find_version(project, name, number)
    if found.state == "DESTROYED":
        enabled(project, name, found)
    found.state = state
    if state == "DESTROYED":
        found.data = ""
    return version_told(project, name, found)


def version_told(project: Project, name: str, found: Version) -> SecretVersion:
    """Give a version as the API tells it."""
    return SecretVersion(
        name=f"{path(project, name)}/versions/{found.number}",
        create_time=Timestamp(seconds=int(found.created)),
        state=found.state,
        client_specified_payload_checksum=True,
        etag=f'"{found.number}-{found.state}"',
    )


def chosen(kept: Secret, words: str) -> bool:
    """Say whether a list with this filter has the secret."""
    try:
        return logging.holds(logging.parse(words), lambda one: _judged(kept.message, one))
    except logging.BadFilter as exc:
        raise invalid(str(exc)) from exc


def created_now() -> Timestamp:
    """Give the present, to the second."""
    return Timestamp(seconds=int(time.time()))


def _judged(message: Any, one: logging.Comparison) -> bool:
    if one.field == "name":
        return logging.compared(one.operator, message.name, one.value)
    if one.field.startswith("labels."):
        actual = dict(message.labels).get(one.field.removeprefix("labels."))
        return actual is not None and logging.compared(one.operator, actual, one.value)
    raise logging.BadFilter(f"Invalid filter: field {one.field!r} is not supported")


MAX_BYTES: Final = 65_536
"""Of one payload. Source: docs.cloud.google.com/secret-manager/quotas, read 2026-11."""
ACCESS: Final = "secretmanager.versions.access"
_ID: Final = re.compile(r"^[A-Za-z0-9_-]{1,255}$")
_LABEL: Final = re.compile(r"^[a-z0-9_-]{0,63}$")


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    add(
        server,
        world,
        "google.cloud.secretmanager.v1.SecretManagerService",
        {**_secret_methods(), **_version_methods(), **_policy_methods()},
        api="secretmanager.googleapis.com",
    )


def _secret_methods() -> dict[str, Any]:
    return {
        "CreateSecret": unary(CreateSecretRequest, SecretMessage, _create, _may("secrets.create")),
        "GetSecret": unary(GetSecretRequest, SecretMessage, _get, _may("secrets.get")),
        "ListSecrets": unary(ListSecretsRequest, ListSecretsResponse, _list, _may("secrets.list")),
        "DeleteSecret": unary(DeleteSecretRequest, Empty, _delete, _may("secrets.delete")),
    }


def _version_methods() -> dict[str, Any]:
    return {
        "AddSecretVersion": unary(
            AddSecretVersionRequest, SecretVersion, _add_version, _may("versions.add")
        ),
        "AccessSecretVersion": unary(
            AccessSecretVersionRequest, AccessSecretVersionResponse, _access, ACCESS
        ),
        "GetSecretVersion": unary(
            GetSecretVersionRequest, SecretVersion, _get_version, _may("versions.get")
        ),
        "ListSecretVersions": unary(
            ListSecretVersionsRequest,
            ListSecretVersionsResponse,
            _list_versions,
            _may("versions.list"),
        ),
        "DestroySecretVersion": unary(
            DestroySecretVersionRequest, SecretVersion, _destroy, _may("versions.destroy")
        ),
        "DisableSecretVersion": unary(
            DisableSecretVersionRequest, SecretVersion, _disable, _may("versions.disable")
        ),
        "EnableSecretVersion": unary(
            EnableSecretVersionRequest, SecretVersion, _enable, _may("versions.enable")
        ),
    }


def value_for(project: Project, secret_id: str, version: str, email: str) -> str:
    """Give a secret's value to a container that runs as `email`.

    Raises:
        Refused: There is none, or this account may not read it.
    """
    secret = project.secrets.get(secret_id)
    resource = f"projects/{project.number}/secrets/{secret_id}"
    if secret is None:
        raise Refused("NOT_FOUND", f"Secret {resource}/versions/{version} was not found")
    if not readable_by(project, secret, email):
        raise not_permitted(ACCESS, f"{resource}/versions/{version}")
    found = enabled(project, secret_id, find_version(project, secret_id, version))
    return base64.b64decode(found.data).decode()


def readable_by(project: Project, secret: Secret, email: str) -> bool:
    """Say whether an account may read it, by the secret's policy or the project's."""
    spread = time.time() - secret.policy_since >= project.knobs.grant_seconds
    own = secret.policy if spread else secret.former_policy
    return any(iam.granted(one, email, ACCESS) for one in (own, project.policy))


def _may(what: str) -> str:
    return f"secretmanager.{what}"


def _policy_methods() -> dict[str, Any]:
    return {
        "GetIamPolicy": unary(
            iam_policy_pb2.GetIamPolicyRequest, Policy, _get_policy, _may("secrets.getIamPolicy")
        ),
        "SetIamPolicy": unary(
            iam_policy_pb2.SetIamPolicyRequest, Policy, _set_policy, _may("secrets.setIamPolicy")
        ),
        "TestIamPermissions": unary(
            iam_policy_pb2.TestIamPermissionsRequest,
            iam_policy_pb2.TestIamPermissionsResponse,
            _test_permissions,
        ),
    }


async def _create(_world: World, project: Project, request: CreateSecretRequest) -> SecretMessage:
    name, asked = request.secret_id, request.secret
    if not _ID.match(name):
        raise invalid(f"The provided Secret ID [{name}] does not match the expected format.")
    if name in project.secrets:
        raise Refused("ALREADY_EXISTS", f"Secret [{path(project, name)}] already exists.")
    if not SecretMessage.pb(asked).replication.WhichOneof("replication"):
        raise invalid("Secret.replication must be provided.")
    for label, words in asked.labels.items():
        if not (_LABEL.match(label) and _LABEL.match(words)):
            raise invalid(f"The label [{label}: {words}] does not match the expected format.")
    message = SecretMessage(asked)
    message.name = path(project, name)
    message.create_time = created_now()
    message.etag = f'"{name}-1"'
    project.secrets[name] = Secret(message=message)
    return message


async def _get(_world: World, project: Project, request: GetSecretRequest) -> SecretMessage:
    found: SecretMessage = find_secret(project, request.name).message
    return found


async def _list(
    _world: World, project: Project, request: ListSecretsRequest
) -> ListSecretsResponse:
    wanted = [one.message for one in project.secrets.values() if chosen(one, request.filter)]
    page, token = page_of(wanted, request.page_size, request.page_token, most=25_000)
    return ListSecretsResponse(secrets=page, next_page_token=token, total_size=len(wanted))


async def _delete(_world: World, project: Project, request: DeleteSecretRequest) -> Empty:
    secret = find_secret(project, request.name)
    if request.etag and request.etag != secret.message.etag:
        raise Refused("FAILED_PRECONDITION", "The etag provided does not match the current etag.")
    del project.secrets[parts(request.name)[0]]
    return Empty()


async def _add_version(
    _world: World, project: Project, request: AddSecretVersionRequest
) -> SecretVersion:
    secret, payload = find_secret(project, request.parent), request.payload
    if not payload.data or len(payload.data) > MAX_BYTES:
        raise invalid(f"Secret Payload must be 1 to {MAX_BYTES} bytes.")
    if "data_crc32c" in payload and payload.data_crc32c != crc32c(payload.data):
        raise invalid("The data checksum does not match: the data was corrupted on its way.")
    version = Version(
        number=len(secret.versions) + 1, data=base64.b64encode(payload.data).decode("ascii")
    )
    secret.versions.append(version)
    return version_told(project, parts(request.parent)[0], version)


async def _access(
    _world: World, project: Project, request: AccessSecretVersionRequest
) -> AccessSecretVersionResponse:
    name, version = parts(request.name)
    found = enabled(project, name, find_version(project, name, version))
    data = base64.b64decode(found.data)
    return AccessSecretVersionResponse(
        name=version_told(project, name, found).name,
        payload=SecretPayload(data=data, data_crc32c=crc32c(data)),
    )


async def _get_version(
    _world: World, project: Project, request: GetSecretVersionRequest
) -> SecretVersion:
    name, version = parts(request.name)
    return version_told(project, name, find_version(project, name, version))


async def _list_versions(
    _world: World, project: Project, request: ListSecretVersionsRequest
) -> ListSecretVersionsResponse:
    secret, name = (
        find_secret(project, request.parent),
        parts(request.parent)[0],
    )
    told = [version_told(project, name, one) for one in reversed(secret.versions)]
    page, token = page_of(told, request.page_size, request.page_token, most=25_000)
    return ListSecretVersionsResponse(versions=page, next_page_token=token, total_size=len(told))


async def _destroy(
    _world: World, project: Project, request: DestroySecretVersionRequest
) -> SecretVersion:
    return changed(project, request.name, "DESTROYED")


async def _disable(
    _world: World, project: Project, request: DisableSecretVersionRequest
) -> SecretVersion:
    return changed(project, request.name, "DISABLED")


async def _enable(
    _world: World, project: Project, request: EnableSecretVersionRequest
) -> SecretVersion:
    return changed(project, request.name, "ENABLED")


async def _get_policy(
    _world: World, project: Project, request: iam_policy_pb2.GetIamPolicyRequest
) -> Policy:
    return iam.asked(find_secret(project, request.resource).policy, request)


async def _set_policy(
    _world: World, project: Project, request: iam_policy_pb2.SetIamPolicyRequest
) -> Policy:
    kept = find_secret(project, request.resource)
    fresh = iam.replaced(kept.policy, request, project)
    kept.former_policy, kept.policy, kept.policy_since = kept.policy, fresh, time.time()
    return iam.answer(kept.policy)


async def _test_permissions(
    _world: World, project: Project, request: iam_policy_pb2.TestIamPermissionsRequest
) -> iam_policy_pb2.TestIamPermissionsResponse:
    return iam.allowed(project, request)
