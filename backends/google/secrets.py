"""Secret Manager: the engine's key of each deployment, and the token of the Hub."""

import secrets as random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from google.api_core.exceptions import FailedPrecondition
from google.api_core.exceptions import NotFound as Missing
from google.cloud.secretmanager_v1 import CreateSecretRequest, Replication, Secret
from google_crc32c import value as crc32c
from pydantic import SecretStr

from backends.base import KeptSecret
from backends.google.clients import (
    DEPLOYMENT_LABEL,
    HF_SECRET,
    MANAGED_BY,
    RUNTIME_ID,
    GoogleSite,
    as_sent,
    pairs,
    runtime_account,
)
from backends.google.errors import find, reading, strictly, translated, writing
from backends.google.iam import binding
from backends.lifecycle import Resource, Status, advance, look, unless_foreign
from core.errors import (
    CloudError,
    ConcurrentChange,
    InvalidArgument,
    NextStep,
    NotFound,
    NotOurs,
)
from core.records import DeploymentSpec

_ACCESSOR: Final = "roles/secretmanager.secretAccessor"
_KEY_BYTES: Final = 32
SECRET_USD: Final = 0.06
"""Each month for each version; source: cloud.google.com/secret-manager/pricing (2026-11-21)."""
REGION_LABEL: Final = "vllm-devops-region"
"""Secrets are of the whole project: a deployment of the same name elsewhere has another key."""
_KEEP_SECONDS: Final = 15.0


class _Found(NamedTuple):
    secret: Secret
    version: str | None = None
    """Of the newest that can be read, None where there is none, or it was not looked at."""
    text: str | None = None


def key(site: GoogleSite, deployment: str) -> tuple[Resource, Resource]:
    """Return a deployment's key, and the right of the account that deployments run as to read it.

    The value is random, made where it is put, and told to nobody.
    """
    name = site.key_secret(deployment)
    labels = {DEPLOYMENT_LABEL: deployment, REGION_LABEL: site.home}
    command = (
        f"openssl rand -hex 32 | tr -d '\\n' | gcloud secrets create {name}"
        f" --project={site.clients.project_id} --replication-policy=automatic"
        f" --labels={pairs(labels)} --data-file=-"
    )
    made = _resource(site, name, labels, None, title=f"its key (secret {name})", command=command)
    return replace(made, name="key"), replace(reader(site, name), name="grant", after=("key",))


async def refuse_elsewhere(site: GoogleSite, deployment: str) -> None:
    """Refuse a name whose key is there already, for a deployment in another region or nobody's.

    Raises:
        NotOurs: It is.
    """
    name, found = site.key_secret(deployment), None
    with suppress(CloudError):  # the deployment itself tells it
        found = await _secret(site, name)
    said = found.labels if found else {}
    there = said.get(REGION_LABEL, site.home)
    if found and (said.get("managed-by"), there) != (MANAGED_BY, site.home):
        ours = said.get("managed-by") == MANAGED_BY
        raise NotOurs(
            f"{deployment} is or was deployed in {there}: its key {name} is there already."
            if ours
            else f"The secret {name} was not made here: it is left alone.",
            fix="Take another name, or delete it where it was made.",
            next_steps=(NextStep("list_deployments"),),
        )


def owned_key(site: GoogleSite, deployment: str) -> Resource:
    """Return a deployment's key as a deletion sees it: its value is not read."""
    return replace(key(site, deployment)[0], get=owned(site, site.key_secret(deployment)).get)


def owned(site: GoogleSite, name: str) -> Resource:
    """Return a secret as a deletion sees it: its value is not read, and another's is not there."""

    async def get() -> _Found | None:
        secret = await _secret(site, name)
        return _Found(secret) if secret else None

    return unless_foreign(replace(_resource(site, name, {}, None), get=get))


def token(site: GoogleSite, value: SecretStr) -> Resource:
    """Return the Hub's token, readable by the account that deployments run as."""
    text = _stripped(HF_SECRET, value)
    kept, right = _resource(site, HF_SECRET, {}, text), reader(site, HF_SECRET)

    async def get() -> Any:
        found, granted = await kept.get(), await right.get()
        return found if found and found.text == text and granted else None

    return Resource(
        name="token",
        title=f"the secret {HF_SECRET} with your HF_TOKEN, readable by {RUNTIME_ID}",
        get=get,
        put=lambda: keep(site, HF_SECRET, value),
        scope="shared",
        command=f'printf %s "$HF_TOKEN" | gcloud secrets create {HF_SECRET} --data-file=-'
        f" --replication-policy=automatic --project={site.clients.project_id} --labels={pairs()}"
        f" && {right.command}",
        usd_per_month=SECRET_USD,
    )


def stored_token(site: GoogleSite) -> Resource:
    """Return the Hub's token as what stays, whoever made it."""
    return Resource(
        name="token",
        title=f"the secret {HF_SECRET}, which other deployments may read",
        get=lambda: _secret(site, HF_SECRET),
        usd_per_month=SECRET_USD,
        how_to_remove=f"gcloud secrets delete {HF_SECRET} --project={site.clients.project_id}",
    )


async def keep(site: GoogleSite, name: str, value: SecretStr) -> KeptSecret:
    """Keep a value, readable by the deployments' account; twice is harmless.

    Raises:
        InvalidArgument: There is nothing in it.
        NotOurs: A secret of that name was not made here.
        CloudError: Google refused; a secret that this call made is removed again.
    """
    made = _resource(site, name, {}, _stripped(name, value))
    wanted = (made, replace(reader(site, name), after=(made.name,)))
    waits = await advance(wanted, seconds=_KEEP_SECONDS)
    found = (await look(made)).found
    if waits or found is None:
        raise ConcurrentChange(
            f"Somebody else changed the secret {name} at the same time.", fix="Call the tool again."
        )
    account = runtime_account(site.clients.project)
    return KeptSecret(name=name, version=str(found.version), readable_by=(account,))


async def read(site: GoogleSite, name: str) -> SecretStr:
    """Return the newest value.

    Raises:
        NotFound: There is no such secret, or nothing in it that can be read.
    """
    _version, text = await _newest(site, name)
    if text is None:
        raise NotFound(
            f"The secret {name} is missing.",
            fix="Deploy once more under the same name, or call save_hf_token for the Hub's token.",
        )
    return SecretStr(text)


async def exists(site: GoogleSite, name: str) -> bool:
    return await _secret(site, name) is not None


def path_of(site: GoogleSite, secret: str) -> str:
    return f"projects/{site.clients.project_id}/secrets/{secret}"


def reader(site: GoogleSite, name: str) -> Resource:
    """Return the right of the account that deployments run as to read a secret."""
    account = runtime_account(site.clients.project_id)
    return binding(
        site.clients.secrets,
        path_of(site, name),
        (_ACCESSOR,),
        account,
        what=f"let {account} read the secret {name}",
        name=f"reader of {name}",
        title=f"the right of {account} to read {name}, and of nobody else",
        command=f"gcloud secrets add-iam-policy-binding {name} --project={site.clients.project_id}"
        f" --member=serviceAccount:{account} --role={_ACCESSOR}",
    )


def _stripped(name: str, value: SecretStr) -> str:
    text = "".join(value.get_secret_value().split())
    if not text:
        raise InvalidArgument(f"The value of {name} is empty.", fix="Give the token itself.")
    return text


async def hub_token(site: GoogleSite, spec: DeploymentSpec) -> tuple[bool, tuple[Resource, ...]]:
    """Say whether an engine reads the Hub's token, and what keeps that of the settings first."""
    if spec.engine != "vllm" or (spec.weights or "hub") != "hub":
        return False, ()
    if await _secret(site, HF_SECRET) is not None:
        return True, ()
    held = site.settings.hf_token
    return held is not None, (token(site, held),) if held else ()


def _resource(
    site: GoogleSite,
    name: str,
    labels: Mapping[str, str],
    text: str | None,
    *,
    title: str = "",
    command: str = "",
) -> Resource:
    """Return a secret that holds a text, or any text where none is given."""
    request = CreateSecretRequest(
        parent=f"projects/{site.clients.project_id}",
        secret_id=name,
        secret=Secret(
            labels={"managed-by": MANAGED_BY, **labels},
            replication=Replication(automatic=Replication.Automatic()),
        ),
    )

    async def get() -> _Found | None:
        secret = await _secret(site, name)
        return None if secret is None else _Found(secret, *await _newest(site, name))

    def status(found: _Found) -> Status:
        holds = found.version is not None and text in {None, found.text}
        return Status.READY if holds else Status.STALE

    async def put() -> None:
        client = await site.clients.secrets()
        data = (text or random.token_urlsafe(_KEY_BYTES)).encode()
        if await _secret(site, name) is None:
            with strictly(f"make the secret {name}"):
                await client.create_secret(request, **writing())
        payload = {"data": data, "data_crc32c": crc32c(data)}
        version = {"parent": path_of(site, name), "payload": payload}
        with strictly(f"fill the secret {name}"):
            await client.add_secret_version(request=version, **writing())

    async def delete() -> None:
        client = await site.clients.secrets()
        with strictly(f"delete the secret {name}"):
            await client.delete_secret(name=path_of(site, name), **writing())

    def is_ours(found: _Found) -> bool:
        said = found.secret.labels
        here = said.get(REGION_LABEL, site.home) == site.home
        return said.get("managed-by") == MANAGED_BY and here

    return Resource(
        name=name,
        title=title or f"the secret {name}",
        body=as_sent(request),
        get=get,
        put=put,
        delete=delete,
        status=status,
        is_ours=is_ours,
        usd_per_month=SECRET_USD,
        command=command,
    )


async def _secret(site: GoogleSite, name: str) -> Secret | None:
    client = await site.clients.secrets()
    looked = client.get_secret(name=path_of(site, name), **reading())
    return await find(f"look for the secret {name}", looked)


async def _newest(site: GoogleSite, name: str) -> tuple[str | None, str | None]:
    """Return number and text of the newest version, None where none can be read."""
    client = await site.clients.secrets()
    request = {"name": f"{path_of(site, name)}/versions/latest"}
    with translated(f"read the secret {name}"):
        try:
            answer = await client.access_secret_version(request=request, **reading())
        except (Missing, FailedPrecondition):  # of one that is disabled or destroyed
            return None, None
    return answer.name.rsplit("/", 1)[-1], answer.payload.data.decode()
