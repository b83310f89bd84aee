"""Where a service answers, and the two credentials that it wants to see."""

import shlex
from typing import TYPE_CHECKING, Final

from backends.cloud_run import looking
from backends.cloud_run.service import is_open
from backends.cloud_run.site import Site
from backends.google import secrets
from backends.google.names import key_secret
from core.errors import NextStep, NotReady
from core.headers import IDENTITY_HEADER, KEY_HEADER
from core.records import Access

if TYPE_CHECKING:
    from google.cloud.run_v2 import Service

_PRIVATE: Final = (
    "HTTPS; Google accepts only callers with an ID token of an identity that has roles/run.invoker"
)
_PUBLIC: Final = (
    "HTTPS; open to the internet: a proxy lets through those with the key alone, and everybody to"
    " /health and /ping; each request, also a refused one, may start a paid instance."
)
_OPEN: Final = (
    "HTTPS; open to the internet, and nothing stands before the engine: its key protects /v1"
    " alone, and POST /invocations computes for everybody. Deploy it again: deploy_vllm puts a"
    " proxy before it."
)


async def access(site: Site, name: str) -> Access:
    """Give the address, the engine's key and an ID token.

    Raises:
        DeploymentNotFound, NotOurs: Nothing of that name was made here.
        NotReady: Google has not given it an address yet.
        NotAuthenticated: Whoever asks cannot mint an ID token.
        CloudError: Google refused.
    """
    service = await looking.service_named(site, name)
    url = service.uri.rstrip("/")
    if not url:
        raise NotReady(
            f"{name} has no address yet.",
            fix="Call status_vllm until it has one.",
            next_steps=(NextStep("status_vllm", {"target": site.target.name, "name": name}),),
        )
    public = service.invoker_iam_disabled
    keyed = _keyed(service, name)
    minted = None if public else await site.identity.minted(url)
    return Access(
        base_url=url,
        api_key=await secrets.read(site, key_secret(name)) if keyed else None,
        identity_token=minted.token if minted else None,
        header_commands={
            **({KEY_HEADER: _key_command(site, name)} if keyed else {}),
            **({IDENTITY_HEADER: minted.command} if minted else {}),
        },
        protection=_OPEN if keyed and is_open(service) else _protection(public=public, keyed=keyed),
    )


def _keyed(service: "Service", name: str) -> bool:
    """Whether its engine asks for a key, as its own template says."""
    return any(
        variable.value_source.secret_key_ref.secret.rsplit("/", 1)[-1] == key_secret(name)
        for container in service.template.containers
        for variable in container.env
    )


def _key_command(site: Site, name: str) -> str:
    return (
        f"gcloud secrets versions access latest --secret={key_secret(name)}"
        f" --project={shlex.quote(site.clients.project)}"
    )


def _protection(*, public: bool, keyed: bool) -> str:
    if public:
        return _PUBLIC if keyed else f"{_PUBLIC.split(':')[0]}, without any key."
    return (
        f"{_PRIVATE}; /v1/* needs the engine's key as well."
        if keyed
        else (f"{_PRIVATE}; the engine behind it has no key.")
    )
