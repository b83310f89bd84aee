"""What stands between the SDK and Azure: a rehearsal's login, and no registration unasked."""

import logging
import ssl
from typing import Any, Final, Self

import aiohttp
import httpx2
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.core.pipeline import PipelineRequest
from azure.core.pipeline.policies import SansIOHTTPPolicy

from core.errors import ApiDisabled
from core.settings import AzurePlane

_UNASKED: Final = "/register?api-version=2016-02-01"
"""How the SDK's own registration ends; ours is asked for with a newer version."""


class NoRegistration(SansIOHTTPPolicy[Any, Any]):
    """Refuses the call by which the SDK answers Azure's "not registered", before it is sent.

    It would change a subscription that is only looked at, and then wait without an end.
    """

    def __init__(self) -> None:
        # It announces what is refused here.
        logging.getLogger("azure.mgmt.core.policies").setLevel(logging.ERROR)

    def on_request(self, request: PipelineRequest[Any]) -> None:
        """Let everything pass but that.

        Raises:
            ApiDisabled: It was about to be registered.
        """
        url = request.http_request.url
        if request.http_request.method == "POST" and url.endswith(_UNASKED):
            provider = url.removesuffix(_UNASKED).rsplit("/", 1)[-1]
            raise ApiDisabled(
                f"The subscription has not registered {provider}.",
                fix="Call setup_target (make setup), which makes what the target needs.",
            )


_SECONDS: Final = 30.0
"""For a token: the simulated cloud shares this machine with the engines that it simulates."""


def connections_to(plane: AzurePlane) -> aiohttp.ClientSession:
    """Open what all clients share; else the SDK would load the certificate anew for each call."""
    trust = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=plane.ca))
    return aiohttp.ClientSession(
        connector=trust, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    )


class RehearsedCredential:
    """Fetches a token for each call; the SDK keeps it until shortly before it runs out."""

    def __init__(self, plane: AzurePlane, subscription: str) -> None:
        self._url = f"{plane.http}/rehearsal/subscriptions/{subscription}/token"
        self._client = httpx2.AsyncClient(timeout=_SECONDS, trust_env=False, verify=False)

    async def get_token(self, *scopes: str, **_more: Any) -> AccessToken:
        """Return a token.

        Raises:
            ClientAuthenticationError: The simulated login has run out.
            ServiceRequestError: The simulated cloud is not there.
        """
        try:
            reply = await self._client.post(self._url, json={"scopes": scopes})
        except httpx2.HTTPError as exc:
            raise ServiceRequestError(f"The simulated login cannot be reached: {exc!r}") from exc
        told = reply.json()
        if not reply.is_success:
            raise ClientAuthenticationError(told["error_description"])
        return AccessToken(told["access_token"], told["expires_on"])

    async def close(self) -> None:
        """Let go of the connection."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        """Be used as a context."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Let go of the connection."""
        await self.close()
