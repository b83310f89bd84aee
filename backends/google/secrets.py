"""Secret Manager: the engine's key of each deployment, and the token of the Hub."""

import secrets as random
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
from google.api_core.exceptions import FailedPrecondition
from google.api_core.exceptions import NotFound as Missing
from google.cloud.secretmanager_v1 import Replication, Secret
from google.iam.v1.policy_pb2 import Policy
from google_crc32c import value as crc32c
from pydantic import SecretStr

from backends.base import KeptSecret
from backends.google import iam
from backends.google.clients import DEPLOYMENT_LABEL, MANAGED_BY, GoogleSite, runtime_account
from backends.google.errors import UNSURE, reading, strictly, translated, writing
from core.errors import (
    CloudRefused,
    ConcurrentChange,
    InvalidArgument,
    NotFound,
    NotOurs,
    OpsError,
    WaitedTooLong,
)
from core.reply import note
from core.waiting import wait_until

_ACCESSOR: Final = "roles/secretmanager.secretAccessor"
_KEY_BYTES: Final = 32
SECRET_USD: Final = 0.06
"""Each month for each version; source: cloud.google.com/secret-manager/pricing (2026-11-21)."""
_REGION_LABEL: Final = "vllm-devops-region"
"""Secrets are of the whole project: a deployment of the same name elsewhere has another key."""
_PEER_SECONDS: Final = 5.0
"""For another server that has made the secret and is about to fill it."""


def path_of(site: GoogleSite, secret: str) -> str:
    """Give a secret's full name."""
    return f"projects/{site.clients.project}/secrets/{secret}"


async def keep(site: GoogleSite, name: str, value: SecretStr) -> KeptSecret:
    """Keep a value, readable by the deployments' account; twice is harmless.

    Raises:
        InvalidArgument: There is nothing in it.
        NotOurs: A secret of that name was not made here.
        CloudError: Google refused; a secret that this call made is removed again.
    """
    text = "".join(value.get_secret_value().split())
    if not text:
        raise InvalidArgument(f"The value of {name} is empty.", fix="Give the token itself.")
    kept, _made = await _kept(site, name, {}, text)
    return kept


async def keep_key(site: GoogleSite, deployment: str) -> bool:
    """Make a deployment's key unless it has one; whether this call made it.

    Raises:
        NotOurs: Its secret was not made here, or belongs to a deployment in another region.
        CloudError: Google refused; a secret that this call made is removed again.
    """
    labels = {DEPLOYMENT_LABEL: deployment, _REGION_LABEL: site.home}
    _kept_secret, made = await _kept(site, site.key_secret(deployment), labels, None)
    return made


async def read(site: GoogleSite, name: str) -> SecretStr:
    """Give the newest value.

    Raises:
        NotFound: There is no such secret, or nothing in it that can be read.
    """
    newest = await _newest(site, name)
    if newest is None:
        raise NotFound(
            f"The secret {name} is missing.",
            fix="Deploy once more under the same name, or call save_hf_token for the Hub's token.",
        )
    return SecretStr(newest[1])


async def exists(site: GoogleSite, name: str) -> bool:
    """Whether there is a secret of that name, whoever made it."""
    return await _seen(site, name) is not None


async def remove(site: GoogleSite, name: str) -> bool:
    """Delete a secret with every version; whether there was one of ours to delete."""
    there = await _seen(site, name)
    if there is None or not _ours(site, there):
        return False
    client = await site.clients.secrets()
    try:
        await _call(client.delete_secret, f"delete the secret {name}", name=path_of(site, name))
    except (CloudRefused, *UNSURE):  # it may be gone all the same
        if await _seen(site, name) is not None:
            raise
    return True


async def take_back(site: GoogleSite, name: str) -> None:
    """Remove a secret that was made for nothing; if that fails too, it is named."""
    with anyio.CancelScope(shield=True):
        try:
            await remove(site, name)
        except OpsError as exc:
            note(f"The secret {name} is left over ({exc.code}): call destroy_vllm to remove it.")


async def _kept(
    site: GoogleSite, name: str, labels: Mapping[str, str], text: str | None
) -> tuple[KeptSecret, bool]:
    made = await _made(site, name, labels)
    try:
        version = await _filled(site, name, text, made=made)
        account = await _granted(site, name)
    except OpsError:
        if made:
            await take_back(site, name)
        raise
    return KeptSecret(name=name, version=version, readable_by=(account,)), made


async def _made(site: GoogleSite, name: str, labels: Mapping[str, str]) -> bool:
    there = await _seen(site, name)
    if there is None:
        if await _create(site, name, labels):
            return True  # it is ours: another look at it could only fail
        there = await _seen(site, name)
    if there is not None and not _ours(site, there):
        raise NotOurs(
            f"The secret {name} was not made for this, and is left alone.",
            fix=f"Look at it with `gcloud secrets describe {name}"
            f" --project={site.clients.project}`; choose another name, or remove it.",
        )
    return False


async def _create(site: GoogleSite, name: str, labels: Mapping[str, str]) -> bool:
    client = await site.clients.secrets()

    automatic = Replication(automatic=Replication.Automatic())  # an empty dict would be dropped
    request = {
        "parent": f"projects/{site.clients.project}",
        "secret_id": name,
        "secret": Secret(replication=automatic, labels={"managed-by": MANAGED_BY, **labels}),
    }
    try:
        await _call(client.create_secret, f"make the secret {name}", request=request)
    except ConcurrentChange:
        return False
    except UNSURE:
        if await _seen(site, name) is None:
            raise
    return True


async def _filled(site: GoogleSite, name: str, text: str | None, *, made: bool) -> str:
    """Give the version that holds the text, or of a key any version that there is."""
    newest = None if made else await _newest(site, name)
    if newest is None and text is None and not made:
        newest = await _from_a_peer(site, name)
    if newest is not None and text in {None, newest[1]}:
        return newest[0]
    return await _add(site, name, text or random.token_urlsafe(_KEY_BYTES))


async def _from_a_peer(site: GoogleSite, name: str) -> tuple[str, str] | None:
    with suppress(WaitedTooLong):
        return await wait_until(
            lambda: _newest(site, name),
            bool,
            waiting_for=f"the first version of {name}",
            every=_PEER_SECONDS / 20,
            timeout=_PEER_SECONDS,
        )
    return None


async def _add(site: GoogleSite, name: str, text: str) -> str:

    data = text.encode()
    client = await site.clients.secrets()
    request = {
        "parent": path_of(site, name),
        "payload": {"data": data, "data_crc32c": crc32c(data)},
    }
    failure: OpsError = ConcurrentChange(
        f"Somebody else filled the secret {name} at the same time.", fix="Call the tool again."
    )
    try:
        await _call(client.add_secret_version, f"fill the secret {name}", request=request)
    except UNSURE as exc:
        failure = exc
    newest = await _newest(site, name)
    if newest is None or newest[1] != text:
        raise failure
    return newest[0]


async def _newest(site: GoogleSite, name: str) -> tuple[str, str] | None:
    """Give number and text of the newest version, None where none can be read."""
    client = await site.clients.secrets()
    request = {"name": f"{path_of(site, name)}/versions/latest"}
    with translated(f"read the secret {name}"):
        try:
            answer = await client.access_secret_version(request=request, **reading())
        except (Missing, FailedPrecondition):  # of one that is disabled or destroyed
            return None
    return answer.name.rsplit("/", 1)[-1], answer.payload.data.decode()


async def _seen(site: GoogleSite, name: str) -> "Secret | None":

    client = await site.clients.secrets()
    with translated(f"look for the secret {name}"):
        try:
            return await client.get_secret(name=path_of(site, name), **reading())
        except Missing:
            return None


def _ours(site: GoogleSite, secret: "Secret") -> bool:
    managed = secret.labels.get("managed-by") == MANAGED_BY
    return managed and secret.labels.get(_REGION_LABEL, site.home) == site.home


async def _granted(site: GoogleSite, name: str) -> str:
    """Let the deployments' account read a secret; seen to be so."""
    account, client = runtime_account(site.clients.project), await site.clients.secrets()
    member, resource = f"serviceAccount:{account}", path_of(site, name)
    what = f"let {account} read the secret {name}"

    async def look() -> "Policy":
        request: Any = {
            "resource": resource,
            "options": {"requested_policy_version": iam.VERSION},
        }
        return await client.get_iam_policy(request=request, **reading())

    async def write(policy: "Policy") -> object:
        request: Any = {"resource": resource, "policy": policy}
        return await client.set_iam_policy(request=request, **writing())

    failure: OpsError = ConcurrentChange(f"Not done: {what}.", fix="Call the tool again.")
    try:
        with strictly(what):
            await iam.grant(look, write, (_ACCESSOR,), member, what)
    except UNSURE as exc:
        failure = exc
    with strictly(what):
        seen = await look()
    if not iam.has_role(seen, _ACCESSOR, member):
        raise failure
    return account


async def _call(method: Any, what: str, **arguments: Any) -> Any:
    with strictly(what):
        return await method(**arguments, **writing())
