"""Who may call a deployment: the addresses that are set, or the one this machine is seen with."""

from ipaddress import IPv4Address, IPv4Network
from typing import Final

import httpx2

from backends.aca.site import Site
from core.cloud_errors import CloudUnavailable
from core.errors import InvalidArgument

ECHO: Final = "https://api.ipify.org"
"""Answers with the address that it is asked from, as text; asked only where none is set."""
_SECONDS: Final = 5.0
_SETTING: Final = "Set AZURE_ALLOWED_ADDRESSES to your addresses or ranges, separated by commas."


async def callers(site: Site) -> tuple[str, ...]:
    """Give whom a private deployment lets in, as CIDR ranges in the order of the setting.

    IPv4 alone: learn.microsoft.com/azure/container-apps/ip-restrictions (2026-11-21).

    Raises:
        InvalidArgument: A range that is set is none.
        CloudUnavailable: None is set, and nobody says which address this machine has.
    """
    said = site.settings.azure_allowed_addresses
    if said:
        return tuple(dict.fromkeys(_range(one) for one in said))
    return (_range(await _seen_as(site)),)


def _range(said: str) -> str:
    try:
        return str(IPv4Network(said))
    except ValueError as exc:
        raise InvalidArgument(
            f"AZURE_ALLOWED_ADDRESSES holds {said!r}: no IPv4 address, and no range of them.",
            cause=str(exc),
            fix="Write 203.0.113.7 for one, 203.0.113.0/24 for a range, whose last bits are 0;"
            " an ingress of Container Apps knows no IPv6.",
        ) from exc


async def _seen_as(site: Site) -> str:
    plane = await site.clients.plane()
    url = f"{plane.http}/rehearsal/address" if plane else ECHO
    try:
        async with httpx2.AsyncClient(timeout=_SECONDS, trust_env=plane is None) as client:
            reply = await client.get(url)
        reply.raise_for_status()
        return str(IPv4Address(reply.text.strip()))
    except (httpx2.HTTPError, ValueError) as exc:
        raise CloudUnavailable(
            f"{url} does not tell which address this machine is seen with.",
            cause=str(exc) or type(exc).__name__,
            fix=_SETTING,
        ) from exc
