"""One token for everybody who asks for the same: `az`, which gives most of them, takes a second."""

import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

if TYPE_CHECKING:
    from azure.core.credentials import AccessToken
    from azure.core.credentials_async import AsyncTokenCredential

_SPARE_SECONDS: Final = 300.0
"""A token that ends sooner is fetched anew, as the SDK's own policy does."""


class RememberedCredential:
    """Asks another credential once for each scope; a dozen clients each would ask by themselves."""

    def __init__(self, asked: "AsyncTokenCredential") -> None:
        self._asked = asked
        self._tokens: dict[tuple[object, ...], AccessToken] = {}
        self._locks: dict[tuple[object, ...], anyio.Lock] = defaultdict(anyio.Lock)

    async def get_token(self, *scopes: str, **more: Any) -> "AccessToken":
        """Give a token; with `claims`, which say why the last one was refused, a new one.

        Raises:
            ClientAuthenticationError: Nobody is logged in.
        """
        key = (*scopes, *sorted((name, str(said)) for name, said in more.items()))
        async with self._locks[key]:
            kept = self._tokens.get(key)
            if more.get("claims") or kept is None or kept.expires_on - time.time() < _SPARE_SECONDS:
                kept = self._tokens[key] = await self._asked.get_token(*scopes, **more)
            return kept

    async def close(self) -> None:
        """Let go of the other one's connections."""
        await self._asked.close()

    async def __aenter__(self) -> Self:
        """Be used as a context."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Let go of the other one's connections."""
        await self.close()
