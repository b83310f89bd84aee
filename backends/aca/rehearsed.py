"""A rehearsal's login, whose tokens are simulated, and its connections to the simulated cloud."""

import ssl
from typing import Any, Final, Self

import aiohttp
import httpx2
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

from core.rehearsal import AzurePlane

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
        """Give a token.

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
