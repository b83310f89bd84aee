"""What every part of the backend is handed: clients, target, and ID tokens of whoever asks."""

import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import anyio
from google.api_core.client_options import ClientOptions
from google.api_core.exceptions import NotFound
from google.auth import jwt
from google.auth.compute_engine import IDTokenCredentials
from google.auth.credentials import Credentials
from google.auth.exceptions import DefaultCredentialsError, TransportError
from google.auth.transport.requests import Request
from google.cloud.artifactregistry_v1 import ArtifactRegistryAsyncClient
from google.cloud.devtools.cloudbuild_v1 import CloudBuildAsyncClient
from google.cloud.run_v2 import RevisionsAsyncClient, ServicesAsyncClient
from google.oauth2.id_token import fetch_id_token_credentials
from pydantic import SecretStr

from backends.common.concurrency import in_time
from backends.google.clients import GoogleClients, GoogleSite, account_of, client_of, is_person
from backends.google.errors import AGAIN, translated, unknown_caller
from core import errors, processes
from core.settings import GooglePlane

if TYPE_CHECKING:
    from google.cloud.aiplatform_v1 import ModelServiceAsyncClient

SPEC_ANNOTATION: Final = "vllm-devops/spec"
KEPT_SECONDS: Final = 55 * 60
"""A token lives for an hour; one that is handed out must still live for five minutes."""
_SPARE_SECONDS: Final = 5 * 60
_HTTP_SECONDS: Final = 10.0
_DEADLINE_SECONDS: Final = 30.0
_CALLER_ID: Final = "vllm-devops-caller"
_GRANT: Final = (
    "gcloud iam service-accounts add-iam-policy-binding {account} --project={project}"
    " --member=user:{you} --role=roles/iam.serviceAccountTokenCreator"
)
_BARE: Final = ("auth", "print-identity-token")
_METADATA: Final = (
    "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/identity"
)
ANYWHERE: Final = "https://run.app"
"""The audience of a token that only shows that there could be one."""


class Clients(GoogleClients):
    """One project and region; opened without any I/O."""

    run = client_of(ServicesAsyncClient)
    revisions = client_of(RevisionsAsyncClient)
    build = client_of(CloudBuildAsyncClient)
    repositories = client_of(ArtifactRegistryAsyncClient)

    async def models(self) -> "ModelServiceAsyncClient":
        from google.cloud.aiplatform_v1 import ModelServiceAsyncClient

        options = ClientOptions(api_endpoint=f"{self.region}-aiplatform.googleapis.com")
        return await self.client(ModelServiceAsyncClient, options)


class Minted(NamedTuple):
    """One token, and how whoever reads it gets another."""

    token: SecretStr
    email: str
    """Whose it is."""
    command: str
    until: float
    """Seconds since 1970 until which it may be handed out."""


class IdentityTokens:
    """ID tokens, which a private service asks of every caller, kept as long as they are good."""

    def __init__(
        self,
        clients: GoogleClients,
        service_account: str | None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clients, self._account, self._clock = clients, service_account, clock
        self._kept: dict[str, Minted] = {}

    async def minted(self, audience: str) -> Minted:
        """Return a token for a service's base URL that is good for five minutes at least.

        Raises:
            NotAuthenticated: Whoever is logged in gets none.
            CloudError: Google refuses, or cannot be reached.
        """
        if self._account is None and await self._person() is not None:
            audience = ""  # a person's token is the same for all
        kept = self._kept.get(audience)
        if kept is None or self._clock() >= kept.until:
            fresh = await (self._fresh(audience) if audience else self._by_gcloud())
            until = min(self._clock() + KEPT_SECONDS, fresh.until)
            kept = self._kept[audience] = fresh._replace(until=until)
        return kept

    async def _person(self) -> str | None:
        source: Any = await self._clients.credentials()
        return str(getattr(source, "account", "") or "") if is_person(source) else None

    async def _fresh(self, audience: str) -> Minted:
        source, plane = await self._clients.credentials(), await self._clients.plane()
        request, what = _transport(plane, self._clients.project), "give an ID token"
        mint = partial(_own_token, source, request, audience, simulated=plane is not None)
        with translated(what), in_time("Google", what, _DEADLINE_SECONDS, fix=AGAIN):
            own = await anyio.to_thread.run_sync(mint, abandon_on_cancel=True)
            made = own or await self._impersonated(audience)
        command = _impersonating(audience, self._account) if self._account else made.command
        return made._replace(command=command)

    async def _impersonated(self, audience: str) -> Minted:
        """Ask IAM for a token of the service account.

        google.auth's own class for it opens a session that no rehearsal can lead elsewhere.
        """
        account, project = self._account, self._clients.project
        if account is None:
            words = f"Use a service account: {_commands(project, None)}"
            raise unknown_caller("Your login gives no ID token.", words)
        iam = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts"
        body = {"audience": audience, "includeEmail": True}
        try:
            with translated(f"impersonate {account}"):
                answer = await self._clients.ask(
                    "POST", f"{iam}/{account}:generateIdToken", json=body
                )
        except NotFound as exc:
            raise errors.CloudRefused(
                f"There is no service account {account}.",
                cause=str(exc.message),
                fix="Correct GOOGLE_SERVICE_ACCOUNT.",
            ) from exc
        except errors.QuotaExceeded as exc:  # of calls in a minute
            raise errors.CloudUnavailable(exc.summary, cause=exc.cause, fix=AGAIN) from exc
        except errors.PermissionDenied as exc:
            grant = _GRANT.format(account=account, project=project, you="YOU")
            exc.fix = f"Let yourself impersonate it: `{grant}`."
            raise
        return _read(str(answer["token"]), _impersonating(audience, account), account)

    async def _by_gcloud(self) -> Minted:
        """Let gcloud print the token of the person who is logged in to it.

        It takes no audience from a person, and Cloud Run takes the one that it gives.
        """
        plane, project = await self._clients.plane(), self._clients.project
        program = f"{plane.programs}/{project}/gcloud" if plane else "gcloud"
        try:
            done = await processes.run((program, *_BARE), timeout=_DEADLINE_SECONDS)
            text = "" if done.returncode else done.stdout.strip()
            words = done.stderr.strip()[-600:]
        except errors.CommandNotFound:
            text, words = "", "gcloud is not installed here."
        except errors.WaitedTooLong as exc:
            raise errors.CloudTimeout(
                "gcloud did not print an ID token in time.", fix=AGAIN
            ) from exc
        if text.count(".") != 2:  # of a JWT are three parts
            raise errors.NotAuthenticated(
                "Your login is a person's: Google gives it no ID token, which a private service of"
                " Cloud Run asks of every caller.",
                cause=words,
                fix="Install gcloud and run `gcloud auth login`: its token is used then. Or use a"
                f" service account: {_commands(project, await self._person())}",
            )
        return _read(text, shlex.join(("gcloud", *_BARE)))


def _commands(project: str, person: str | None) -> str:
    account = account_of(project, _CALLER_ID)
    return (
        f"`gcloud iam service-accounts create {_CALLER_ID} --project={project}`,"
        f" `{_GRANT.format(account=account, project=project, you=person or 'YOU')}`, and set"
        f" GOOGLE_SERVICE_ACCOUNT={account}; deploy_vllm lets it call what it deploys."
    )


def _impersonating(audience: str, account: str) -> str:
    return (
        f"gcloud auth print-identity-token --audiences={shlex.quote(audience)}"
        f" --impersonate-service-account={shlex.quote(account)}"
    )


def _read(text: str, command: str, email: str = "") -> Minted:
    """Read a token, which says until when it is good and, unless it is told, whose it is."""
    claims: Mapping[str, Any] = jwt.decode(text, verify=False)
    until = float(claims["exp"]) - _SPARE_SECONDS
    return Minted(SecretStr(text), email or str(claims.get("email", "")), command, until)


def _transport(plane: GooglePlane | None, project: str) -> Request:
    """Return google-auth's way to the web, which is short, or to the simulated cloud."""

    class _Transport(Request):
        def __call__(self, url: str, *args: Any, **kwargs: Any) -> Any:
            seconds = min(kwargs.pop("timeout", None) or _HTTP_SECONDS, _HTTP_SECONDS)
            if plane:  # whose metadata server is told whose machine this is
                parts = urlsplit(url)
                machine = f"/p/{project}" if parts.path.startswith("/computeMetadata/") else ""
                query = f"?{parts.query}" if parts.query else ""
                url = f"{plane.http}{machine}{parts.path}{query}"
            call: Any = super().__call__
            return call(url, *args, timeout=seconds, **kwargs)

    return _Transport()


def _own_token(
    source: Credentials, request: Request, audience: str, *, simulated: bool
) -> Minted | None:
    """Mint as ourselves: by a key file or the metadata server; None as a person cannot."""
    if is_person(source):
        return None
    try:
        minting: Any = (
            IDTokenCredentials(request, audience, use_metadata_identity_endpoint=True)
            if simulated
            else fetch_id_token_credentials(audience, request)
        )
    except (DefaultCredentialsError, TransportError):
        return None
    minting.refresh(request)
    return _read(str(minting.token), own_command(minting, audience))


def own_command(minting: Any, audience: str) -> str:
    """Return how the same login mints by hand, whoever is logged in to gcloud there."""
    if isinstance(minting, IDTokenCredentials):
        url = f"{_METADATA}?audience={quote(audience, safe=':/')}"
        return f"curl -sf -H 'Metadata-Flavor: Google' {shlex.quote(url)}"
    # Source: github.com/google-github-actions/auth (2026), which lets gcloud use a key file so.
    return (
        'CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE="$GOOGLE_APPLICATION_CREDENTIALS"'
        f" gcloud auth print-identity-token --audiences={shlex.quote(audience)}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Site(GoogleSite):
    """One target, opened."""

    clients: Clients
    identity: IdentityTokens
    answered: set[str] = field(default_factory=set)
    """Names of revisions whose model has answered: they need not be asked, and so kept awake."""
    woken: dict[str, datetime] = field(default_factory=dict)
    """When a deployment last answered us: readings of its instances may be older than that."""
