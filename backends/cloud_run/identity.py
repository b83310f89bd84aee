"""ID tokens: how Cloud Run knows who calls a service."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import anyio
from pydantic import SecretStr

from backends.cloud_run.clients import Clients
from backends.google.failing import denied, translated, unknown_caller
from core.cloud_errors import CloudRefused, CloudTimeout, CloudUnavailable

if TYPE_CHECKING:
    from google.auth.credentials import Credentials
    from google.auth.transport.requests import Request

    from core.rehearsal import GooglePlane

KEPT_SECONDS: Final = 55 * 60
"""A token lives for an hour; one that is handed out must still live for five minutes."""
_SPARE_SECONDS: Final = 5 * 60
_HTTP_SECONDS: Final = 10.0
_DEADLINE_SECONDS: Final = 30.0
_IAM: Final = "https://iamcredentials.googleapis.com"
_HOW: Final = (
    "Set GOOGLE_SERVICE_ACCOUNT to a service account with roles/run.invoker, and let yourself"
    " impersonate it: `gcloud iam service-accounts add-iam-policy-binding {account}"
    " --member=user:YOU --role=roles/iam.serviceAccountTokenCreator`."
)


class _Kept(NamedTuple):
    token: SecretStr
    until: float


class IdentityTokens:
    """Tokens of whoever asks, each kept as long as it is good."""

    def __init__(
        self,
        clients: Clients,
        service_account: str | None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open it, without any I/O; `clock` gives seconds since 1970."""
        self._clients = clients
        self._clock = clock
        self._account = service_account
        self._kept: dict[str, _Kept] = {}

    async def token(self, audience: str) -> SecretStr:
        """Give a token for a service's base URL that is good for five minutes at least.

        Raises:
            NotAuthenticated: Nobody is logged in, or as somebody who cannot mint such tokens.
            PermissionDenied: The service account may not be impersonated.
            CloudUnavailable, CloudTimeout: Google does not answer.
        """
        kept = self._kept.get(audience)
        if kept is None or self._clock() >= kept.until:
            kept = self._kept[audience] = await self._fresh(audience)
        return kept.token

    async def _fresh(self, audience: str) -> _Kept:
        source, plane = await self._clients.credentials(), await self._clients.plane()
        project = self._clients.project

        def mint() -> str:
            request = _transport(plane, project)
            with _reached():
                own = _own_token(source, request, audience, simulated=plane is not None)
                return own or _impersonated(source, request, audience, self._account)

        what = "give an ID token"
        try:
            with translated(what), anyio.fail_after(_DEADLINE_SECONDS):
                token = await anyio.to_thread.run_sync(mint, abandon_on_cancel=True)
        except TimeoutError as exc:
            raise CloudTimeout(
                f"Google did not answer in time: {what}.", fix="Call the same tool again."
            ) from exc
        return _Kept(SecretStr(token), min(self._clock() + KEPT_SECONDS, _spent(token)))


@contextmanager
def _reached() -> Iterator[None]:
    """Tell a web that is down from a login that is not good."""
    from google.auth.exceptions import RefreshError, TransportError

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


def _spent(token: str) -> float:
    """Give the moment when a token has five minutes left."""
    from google.auth import jwt

    return float(jwt.decode(token, verify=False)["exp"]) - _SPARE_SECONDS


def _transport(plane: "GooglePlane | None", project: str) -> "Request":
    """Give google-auth its way to the web, which is short, or to the simulated cloud."""
    from google.auth.transport.requests import Request

    class _Transport(Request):
        def __call__(self, url: str, *args: Any, **kwargs: Any) -> Any:
            seconds = min(kwargs.pop("timeout", None) or _HTTP_SECONDS, _HTTP_SECONDS)
            where = _rehearsed(plane, project, url) if plane else url
            call: Any = super().__call__
            return call(where, *args, timeout=seconds, **kwargs)

    return _Transport()


def _rehearsed(plane: "GooglePlane", project: str, url: str) -> str:
    """Lead to the simulated cloud, whose metadata server is told whose machine this is."""
    parts = urlsplit(url)
    of_machine = f"/p/{project}" if parts.path.startswith("/computeMetadata/") else ""
    query = f"?{parts.query}" if parts.query else ""
    return f"{plane.http}{of_machine}{parts.path}{query}"


def _own_token(
    source: "Credentials", request: "Request", audience: str, *, simulated: bool
) -> str | None:
    """Mint as ourselves: by a key file or the metadata server; None as a person cannot."""
    from google.auth import exceptions
    from google.oauth2.credentials import Credentials as Person

    if isinstance(source, Person):
        return None
    try:
        minting = (_metadata if simulated else _anywhere)(request, audience)
    except (exceptions.DefaultCredentialsError, exceptions.TransportError):
        return None
    minting.refresh(request)
    return str(minting.token)


def _anywhere(request: "Request", audience: str) -> Any:
    from google.oauth2.id_token import fetch_id_token_credentials

    return fetch_id_token_credentials(audience, request)


def _metadata(request: "Request", audience: str) -> Any:
    # A person's own key file has no place in a rehearsal.
    from google.auth.compute_engine import IDTokenCredentials

    return IDTokenCredentials(request, audience, use_metadata_identity_endpoint=True)


def _impersonated(
    source: "Credentials", request: "Request", audience: str, account: str | None
) -> str:
    """Ask IAM for a token of a service account.

    google.auth's own class for it opens a session that no rehearsal can lead elsewhere; the
    request is that of iamcredentials v1 `generateIdToken`.
    """
    if account is None:
        raise unknown_caller(
            "Your login is a person's, and Google mints ID tokens for service accounts only.",
            _HOW.format(account="ACCOUNT"),
        )
    url = f"{_IAM}/v1/projects/-/serviceAccounts/{account}:generateIdToken"
    headers = {"Content-Type": "application/json"}
    source.before_request(request, "POST", url, headers)
    body = json.dumps({"audience": audience, "includeEmail": True}).encode()
    answer = request(url=url, method="POST", headers=headers, body=body)
    if answer.status != HTTPStatus.OK:
        raise _refused(answer.status, answer.data.decode(errors="replace")[:600], account)
    return str(json.loads(answer.data)["token"])


def _refused(status: int, words: str, account: str) -> Exception:
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
    refusal.fix = refusal.fix if refusal.code == "API_DISABLED" else _HOW.format(account=account)
    return refusal
