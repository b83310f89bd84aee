"""ID tokens, which a private service asks of every caller: minted by whoever is logged in."""

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import anyio
from google.auth import exceptions, jwt
from google.auth.compute_engine import IDTokenCredentials
from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError, TransportError
from google.auth.transport.requests import Request
from google.oauth2.id_token import fetch_id_token_credentials
from pydantic import SecretStr

from backends.google.clients import GoogleClients, is_person
from backends.google.errors import denied, translated, unknown_caller
from core import processes
from core.errors import (
    ApiDisabled,
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    CommandNotFound,
    NotAuthenticated,
    WaitedTooLong,
)
from core.settings import GooglePlane

KEPT_SECONDS: Final = 55 * 60
"""A token lives for an hour; one that is handed out must still live for five minutes."""
_SPARE_SECONDS: Final = 5 * 60
_HTTP_SECONDS: Final = 10.0
_DEADLINE_SECONDS: Final = 30.0
_IAM: Final = "https://iamcredentials.googleapis.com"
_GRANT: Final = (
    "gcloud iam service-accounts add-iam-policy-binding {account} --project={project}"
    " --member=user:{you} --role=roles/iam.serviceAccountTokenCreator"
)
_CREATE: Final = "gcloud iam service-accounts create {id} --project={project}"
_CALLER_ID: Final = "vllm-devops-caller"
_BARE: Final = ("auth", "print-identity-token")
_METADATA: Final = (
    "http://metadata.google.internal/computeMetadata/v1/instance/service-accounts/default/identity"
)
ANYWHERE: Final = "https://run.app"
"""The audience of a token that only shows that there could be one."""


class Minted(NamedTuple):
    """One token, and how whoever reads it gets another."""

    token: SecretStr
    email: str
    """Whose it is."""
    command: str
    until: float = 0
    """Seconds since 1970 until which it may be handed out."""


class IdentityTokens:
    """Tokens of whoever asks, each kept as long as it is good."""

    def __init__(
        self,
        clients: GoogleClients,
        service_account: str | None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open it, without any I/O; `clock` gives seconds since 1970."""
        self._clients = clients
        self._clock = clock
        self._account = service_account
        self._kept: dict[str, Minted] = {}

    async def token(self, audience: str) -> SecretStr:
        """Give a token for a service's base URL that is good for five minutes at least."""
        return (await self.minted(audience)).token

    async def minted(self, audience: str) -> Minted:
        """Give the same with whose it is and the command that prints another."""
        source = await self._clients.credentials()
        if is_person(source) and self._account is None:
            audience = ""  # its token is the same for all
        kept = self._kept.get(audience)
        if kept is None or self._clock() >= kept.until:
            fresh = await self._fresh(audience)
            until = min(self._clock() + KEPT_SECONDS, fresh.until)
            kept = self._kept[audience] = fresh._replace(until=until)
        return kept

    async def unlike(self, email: str) -> str:
        """Name the login of the libraries where it is known to be another person than `email`."""
        source: Any = await self._clients.credentials()
        known = str(getattr(source, "account", "") or "")
        return known if is_person(source) and known not in {"", email} else ""

    async def how_to_call(self) -> str:
        """Give the commands that let a person without gcloud call; empty where none are needed."""
        source: Any = await self._clients.credentials()
        if self._account or not is_person(source):
            return ""
        try:
            await self._by_gcloud()
        except NotAuthenticated:
            return _commands(self._clients.project, str(getattr(source, "account", "") or "YOU"))
        return ""

    async def _fresh(self, audience: str) -> Minted:
        if not audience:
            return await self._by_gcloud()
        source = await self._clients.credentials()
        plane, project, account = await self._clients.plane(), self._clients.project, self._account

        def mint() -> Minted:
            request = _transport(plane, project)
            with _reached():
                own = _own_token(source, request, audience, simulated=plane is not None)
                return own or _impersonated(source, request, audience, account, project)

        what = "give an ID token"
        try:
            with translated(what), anyio.fail_after(_DEADLINE_SECONDS):
                made = await anyio.to_thread.run_sync(mint, abandon_on_cancel=True)
        except TimeoutError as exc:
            raise CloudTimeout(
                f"Google did not answer in time: {what}.", fix="Call the same tool again."
            ) from exc
        return made._replace(command=_impersonating(audience, account)) if account else made

    async def _by_gcloud(self) -> Minted:
        """Let gcloud print the token of the person who is logged in to it.

        It takes no audience from a person, and Cloud Run takes the one that it gives.
        """
        plane, project = await self._clients.plane(), self._clients.project
        program = f"{plane.programs}/{project}/gcloud" if plane else "gcloud"
        source: Any = await self._clients.credentials()
        you = str(getattr(source, "account", "") or "YOU")
        try:
            done = await processes.run((program, *_BARE), timeout=_DEADLINE_SECONDS)
        except CommandNotFound as exc:
            raise _cannot("gcloud is not installed here.", project, you) from exc
        except WaitedTooLong as exc:
            raise CloudTimeout(
                "gcloud did not print an ID token in time.", fix="Call the same tool again."
            ) from exc
        text = done.stdout.strip()
        if done.returncode or text.count(".") != 2:  # of a JWT are three parts
            raise _cannot(done.stderr.strip()[-600:], project, you)
        return _minted(text, shlex.join(("gcloud", *_BARE)))


def _cannot(words: str, project: str, you: str) -> NotAuthenticated:
    """Say what lets a person call a private service."""
    return NotAuthenticated(
        "Your login is a person's: Google gives it no ID token, which a private service of Cloud"
        " Run asks of every caller.",
        cause=words,
        fix="Install gcloud and run `gcloud auth login`: its token is used then. Or use a service"
        f" account: {_commands(project, you)}",
    )


def _commands(project: str, you: str) -> str:
    account = f"{_CALLER_ID}@{project}.iam.gserviceaccount.com"
    create = _CREATE.format(id=_CALLER_ID, project=project)
    return (
        f"`{create}`, `{_GRANT.format(account=account, project=project, you=you)}`, and set"
        f" GOOGLE_SERVICE_ACCOUNT={account}; deploy_vllm lets it call what it deploys."
    )


def _impersonating(audience: str, account: str) -> str:
    return (
        f"gcloud auth print-identity-token --audiences={shlex.quote(audience)}"
        f" --impersonate-service-account={shlex.quote(account)}"
    )


@contextmanager
def _reached() -> Iterator[None]:
    """Tell a web that is down from a login that is not good."""
    try:
        yield
    except (RefreshError, TransportError) as exc:
        if isinstance(exc, RefreshError) and not isinstance(exc.__cause__, TransportError):
            raise
        raise CloudUnavailable(
            "Google does not answer: give an ID token.",
            cause=str(exc)[:600],
            fix="Call the same tool again.",
        ) from exc


def _minted(text: str, command: str, email: str = "") -> Minted:
    """Read a token, which says until when it is good and, unless it is told, whose it is."""
    claims: Mapping[str, Any] = jwt.decode(text, verify=False)
    until = float(claims["exp"]) - _SPARE_SECONDS
    return Minted(SecretStr(text), email or str(claims.get("email", "")), command, until)


def _transport(plane: "GooglePlane | None", project: str) -> "Request":
    """Give google-auth its way to the web, which is short, or to the simulated cloud."""

    class _Transport(Request):
        def __call__(self, url: str, *args: Any, **kwargs: Any) -> Any:
            seconds = min(kwargs.pop("timeout", None) or _HTTP_SECONDS, _HTTP_SECONDS)
            where = url
            if plane:  # whose metadata server is told whose machine this is
                parts = urlsplit(url)
                machine = f"/p/{project}" if parts.path.startswith("/computeMetadata/") else ""
                query = f"?{parts.query}" if parts.query else ""
                where = f"{plane.http}{machine}{parts.path}{query}"
            call: Any = super().__call__
            return call(where, *args, timeout=seconds, **kwargs)

    return _Transport()


def _own_token(
    source: "Credentials", request: "Request", audience: str, *, simulated: bool
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
    except (exceptions.DefaultCredentialsError, exceptions.TransportError):
        return None
    minting.refresh(request)
    return _minted(str(minting.token), _own_command(minting, audience))


def _own_command(minting: Any, audience: str) -> str:
    """Write how the same login mints by hand, whoever is logged in to gcloud there."""
    if isinstance(minting, IDTokenCredentials):
        url = f"{_METADATA}?audience={quote(audience, safe=':/')}"
        return f"curl -sf -H 'Metadata-Flavor: Google' {shlex.quote(url)}"
    # Source: github.com/google-github-actions/auth (2026), which lets gcloud use a key file so.
    return (
        'CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE="$GOOGLE_APPLICATION_CREDENTIALS"'
        f" gcloud auth print-identity-token --audiences={shlex.quote(audience)}"
    )


def _impersonated(
    source: "Credentials", request: "Request", audience: str, account: str | None, project: str
) -> Minted:
    """Ask IAM for a token of a service account.

    google.auth's own class for it opens a session that no rehearsal can lead elsewhere; the
    request is that of iamcredentials v1 `generateIdToken`.
    """
    if account is None:
        raise unknown_caller(
            "Your login gives no ID token.", f"Use a service account: {_commands(project, 'YOU')}"
        )
    url = f"{_IAM}/v1/projects/-/serviceAccounts/{account}:generateIdToken"
    headers = {"Content-Type": "application/json"}
    source.before_request(request, "POST", url, headers)
    body = json.dumps({"audience": audience, "includeEmail": True}).encode()
    answer = request(url=url, method="POST", headers=headers, body=body)
    if answer.status != HTTPStatus.OK:
        words = answer.data.decode(errors="replace")[:600]
        raise _refused(answer.status, words, account, project)
    token = str(json.loads(answer.data)["token"])
    return _minted(token, _impersonating(audience, account), account)


def _refused(status: int, words: str, account: str, project: str) -> Exception:
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        return CloudUnavailable(
            f"IAM does not answer ({status}).", cause=words, fix="Call the same tool again."
        )
    if status == HTTPStatus.NOT_FOUND:
        return CloudRefused(
            f"There is no service account {account}.",
            cause=words,
            fix="Correct GOOGLE_SERVICE_ACCOUNT.",
        )
    refusal = denied(words, f"impersonate {account}")
    if not isinstance(refusal, ApiDisabled):
        grant = _GRANT.format(account=account, project=project, you="YOU")
        refusal.fix = f"Let yourself impersonate it: `{grant}`."
    return refusal
