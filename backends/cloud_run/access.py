"""Where a service answers, the credentials that it wants, and waking it."""

import shlex
from datetime import UTC, datetime
from typing import Final

from backends.cloud_run.service import get_service, is_open, service_path
from backends.cloud_run.site import ANYWHERE, Site
from backends.common.engine import ask_models
from backends.google import iam, secrets
from backends.google.clients import key_secret
from backends.lifecycle import Resource, not_ready
from core import errors
from core.address import IDENTITY_HEADER, KEY_HEADER
from core.records import Access, DeploymentSpec

_PRIVATE: Final = (
    "HTTPS; Google accepts only callers with an ID token of an identity that has roles/run.invoker"
)
_PROTECTION: Final = {
    (True, True): "HTTPS; open to the internet: a proxy lets through those with the key alone, and"
    " everybody to /health and /ping; each request, also a refused one, may start a paid instance.",
    (True, False): "HTTPS; open to the internet, without any key.",
    (False, True): f"{_PRIVATE}; /v1/* needs the engine's key as well.",
    (False, False): f"{_PRIVATE}; the engine behind it has no key.",
}
"""By whether it is public, and whether its engine has a key."""
_OPEN: Final = (
    "HTTPS; open to the internet, and nothing stands before the engine: its key protects /v1"
    " alone, and POST /invocations computes for everybody. Deploy it again: deploy_vllm puts a"
    " proxy before it."
)
_LONGEST_REQUEST_SECONDS: Final = 1800.0
"""Cloud Run holds a request while an instance starts; source: its startup limit with a GPU."""


async def access(site: Site, name: str) -> Access:
    """Return the address, the engine's key and an ID token."""
    service, key = await get_service(site, name), key_secret(name)
    url, public = service.uri.rstrip("/"), service.invoker_iam_disabled
    if not url:
        raise not_ready(name, site.target, f"{name} has no address yet.")
    keyed = any(  # whether its engine asks for a key, as its own template says
        variable.value_source.secret_key_ref.secret.rsplit("/", 1)[-1] == key
        for container in service.template.containers
        for variable in container.env
    )
    minted = None if public else await site.identity.minted(url)
    commands = {}
    if keyed:
        project = shlex.quote(site.clients.project)
        commands[KEY_HEADER] = (
            f"gcloud secrets versions access latest --secret={key} --project={project}"
        )
    if minted:
        commands[IDENTITY_HEADER] = minted.command
    return Access(
        base_url=url,
        api_key=await secrets.read(site, key) if keyed else None,
        identity_token=minted.token if minted else None,
        header_commands=commands,
        protection=_OPEN if keyed and is_open(service) else _PROTECTION[public, keyed],
    )


async def refuse_uncallable(site: Site, spec: DeploymentSpec) -> None:
    """Refuse a private service that this login could only pay for."""
    if spec.access == "public":
        return
    try:
        await site.identity.minted(ANYWHERE)
    except errors.OpsError as exc:
        exc.summary = f"{exc.summary} Nothing was made."
        raise


async def mintable(site: Site) -> str:
    """Ask for a token that a private service would take."""
    return f"An ID token was minted for {(await site.identity.minted(ANYWHERE)).email}."


async def wake(site: Site, name: str) -> None:
    """Ask for the list of models until it comes; an instance stays about 15 minutes after it."""
    service = await get_service(site, name)
    await ask_models(await access(site, name), timeout=_LONGEST_REQUEST_SECONDS)
    site.answered.add(service.latest_ready_revision)
    site.woken[name] = datetime.now(UTC)


def invoker(site: Site, spec: DeploymentSpec) -> tuple[Resource, ...]:
    """Return the right of the account that ID tokens are minted for to call a private service.

    Where it cannot be granted, that is noted, and the service runs all the same.
    """
    account = site.settings.google_service_account
    if account is None or spec.access == "public":
        return ()
    made = iam.binding(
        site.clients.run,
        service_path(site, spec.name),
        ("roles/run.invoker",),
        account,
        what=f"let {account} call {spec.name}",
        name="invoker",
        title=f"the right of {account} to call {spec.name}",
        after=("service",),
    )
    return (iam.unless_refused(made, f"{account} may not be able to call {spec.name}"),)
