"""The simulated Secret Manager, asked by Google's own client."""

from typing import Any

import pytest
from google.api_core import exceptions
from google.iam.v1 import iam_policy_pb2
from google_crc32c import value as crc32c

from tests.google_plane import Controls
from tests.simulators.google.conftest import Google

pytestmark = pytest.mark.anyio

_AUTOMATIC = {"replication": {"automatic": {}}, "labels": {"managed-by": "vllm-devops-agent"}}


@pytest.fixture
def secrets(google: Google) -> Any:
    return google.client(
        "google.cloud.secretmanager_v1", "secret_manager_service", "SecretManagerServiceAsyncClient"
    )


async def _made(secrets: Any, project: str, name: str = "key") -> str:
    made = await secrets.create_secret(
        request={"parent": f"projects/{project}", "secret_id": name, "secret": _AUTOMATIC}
    )
    assert isinstance(made.name, str)
    return made.name


async def _added(secrets: Any, secret: str, data: bytes) -> str:
    payload = {"data": data, "data_crc32c": crc32c(data)}
    version = await secrets.add_secret_version(request={"parent": secret, "payload": payload})
    assert isinstance(version.name, str)
    return version.name


async def test_the_newest_version_is_what_is_read(secrets: Any, project: str) -> None:
    """`latest` follows what was added last, and carries its checksum."""
    secret = await _made(secrets, project)
    await _added(secrets, secret, b"one")
    await _added(secrets, secret, b"two")
    read = await secrets.access_secret_version(name=f"{secret}/versions/latest")
    assert (read.payload.data, read.payload.data_crc32c) == (b"two", crc32c(b"two"))
    assert read.name.endswith("/versions/2")


async def test_a_name_that_is_taken_is_refused(secrets: Any, project: str) -> None:
    """There is one secret of a name."""
    await _made(secrets, project)
    with pytest.raises(exceptions.AlreadyExists):
        await _made(secrets, project)


async def test_a_damaged_payload_is_refused(secrets: Any, project: str) -> None:
    """The checksum is of the bytes that came."""
    secret = await _made(secrets, project)
    payload = {"data": b"one", "data_crc32c": crc32c(b"two")}
    with pytest.raises(exceptions.InvalidArgument):
        await secrets.add_secret_version(request={"parent": secret, "payload": payload})


@pytest.mark.parametrize("label", [{"Big": "x"}, {"x": "with space"}])
async def test_a_label_has_its_form(secrets: Any, project: str, label: dict[str, str]) -> None:
    """Labels are small letters, figures, `_` and `-`."""
    with pytest.raises(exceptions.InvalidArgument):
        await secrets.create_secret(
            request={
                "parent": f"projects/{project}",
                "secret_id": "key",
                "secret": {**_AUTOMATIC, "labels": label},
            }
        )


async def test_a_destroyed_version_gives_nothing(secrets: Any, project: str) -> None:
    """Its value is gone, and it comes not back."""
    secret = await _made(secrets, project)
    version = await _added(secrets, secret, b"one")
    await secrets.destroy_secret_version(name=version)
    with pytest.raises(exceptions.FailedPrecondition):
        await secrets.access_secret_version(name=version)
    with pytest.raises(exceptions.FailedPrecondition):
        await secrets.enable_secret_version(name=version)


async def test_a_disabled_version_can_be_enabled_again(secrets: Any, project: str) -> None:
    """Meanwhile it is refused."""
    version = await _added(secrets, await _made(secrets, project), b"one")
    await secrets.disable_secret_version(name=version)
    with pytest.raises(exceptions.FailedPrecondition):
        await secrets.access_secret_version(name=version)
    await secrets.enable_secret_version(name=version)
    read = await secrets.access_secret_version(name=version)
    assert read.payload.data == b"one"


async def test_a_deleted_secret_is_gone(secrets: Any, project: str) -> None:
    """Its versions go with it."""
    secret = await _made(secrets, project)
    version = await _added(secrets, secret, b"one")
    await secrets.delete_secret(name=secret)
    with pytest.raises(exceptions.NotFound):
        await secrets.get_secret(name=secret)
    with pytest.raises(exceptions.NotFound):
        await secrets.access_secret_version(name=version)


async def test_secrets_are_listed_by_label_and_page(secrets: Any, project: str) -> None:
    """A filter narrows; a page ends; a filter that is not understood is refused."""
    for name in ("a", "b", "c"):
        await _made(secrets, project, name)
    found = await secrets.list_secrets(
        request={
            "parent": f"projects/{project}",
            "page_size": 2,
            "filter": "labels.managed-by=vllm-devops-agent",
        }
    )
    assert len(found.secrets) == 2
    assert [one.name.rpartition("/")[2] async for one in found] == ["a", "b", "c"]
    with pytest.raises(exceptions.InvalidArgument):
        await secrets.list_secrets(
            request={"parent": f"projects/{project}", "filter": "colour=red"}
        )


async def test_whoever_may_not_read_is_told_the_permission(
    secrets: Any, project: str, controls: Controls
) -> None:
    """A denied permission is named in the refusal, and others still hold."""
    version = await _added(secrets, await _made(secrets, project), b"one")
    controls.set(project, denied_permissions=["secretmanager.versions.access"])
    with pytest.raises(exceptions.PermissionDenied, match=r"secretmanager\.versions\.access"):
        await secrets.access_secret_version(name=version)
    assert (await secrets.get_secret_version(name=version)).state.name == "ENABLED"


async def test_a_policy_is_replaced_only_by_who_read_it_last(secrets: Any, project: str) -> None:
    """A second writer with the etag of before is refused."""
    secret = await _made(secrets, project)
    policy = await secrets.get_iam_policy(request={"resource": secret})
    policy.bindings.add(role="roles/secretmanager.secretAccessor", members=["allUsers"])
    request = iam_policy_pb2.SetIamPolicyRequest(resource=secret, policy=policy)
    after = await secrets.set_iam_policy(request=request)
    assert after.etag != policy.etag
    with pytest.raises(exceptions.Aborted):
        await secrets.set_iam_policy(request=request)


async def test_an_api_that_is_off_says_so(secrets: Any, bare_project: str) -> None:
    """Its reason tells it from a missing permission."""
    with pytest.raises(exceptions.PermissionDenied) as refused:
        await _made(secrets, bare_project)
    assert refused.value.reason == "SERVICE_DISABLED"
