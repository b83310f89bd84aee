"""Asking the simulated Azure without Microsoft's clients, which put right what goes wrong."""

import ssl
from typing import Any

import httpx2

from backends.aca.site import SCOPE, Clients
from core.settings import AzurePlane


async def token_of(clients: Clients, scope: str = SCOPE) -> str:
    """Give a token for something."""
    return (await (await clients.credential()).get_token(scope)).token


async def asked(
    azure: AzurePlane, method: str, url: str, token: str = "", **more: Any
) -> httpx2.Response:
    """Ask once; `url` is whole, `more` goes to the request."""
    headers = {**more.pop("headers", {}), **({"Authorization": f"Bearer {token}"} if token else {})}
    trusted = ssl.create_default_context(cafile=azure.ca)
    async with httpx2.AsyncClient(verify=trusted, trust_env=False) as client:
        return await client.request(method, url, headers=headers, **more)
