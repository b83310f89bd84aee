"""Who may call a deployment: the addresses that are set, or the one this machine is seen with."""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network
from typing import Final

import httpx2

from core.cloud_errors import CloudUnavailable
from core.errors import InvalidArgument

ECHO: Final = "https://api.ipify.org"
"""Answers with the address that it is asked from, as text; asked only where none is set."""
_SECONDS: Final = 5.0


def ranges(said: Iterable[str], setting: str, why: str) -> tuple[str, ...]:
    """Give what a setting holds as CIDR ranges, each once; `why` says who takes no IPv6.

    Raises:
        InvalidArgument: One of them is none.
    """
    return tuple(dict.fromkeys(_range(one, setting, why) for one in said))


async def seen_as(url: str, setting: str, *, own: bool) -> str:
    """Ask an echo for this machine's address, as a range; `own`: one that runs here.

    Raises:
        CloudUnavailable: It does not say.
    """
    try:
        async with httpx2.AsyncClient(timeout=_SECONDS, trust_env=not own) as client:
            reply = await client.get(url)
        reply.raise_for_status()
        return f"{IPv4Address(reply.text.strip())}/32"
    except (httpx2.HTTPError, ValueError) as exc:
        raise CloudUnavailable(
            f"{url} does not tell which address this machine is seen with.",
            cause=str(exc) or type(exc).__name__,
            fix=f"Set {setting} to your addresses or ranges, separated by commas.",
        ) from exc


def _range(said: str, setting: str, why: str) -> str:
    try:
        return str(IPv4Network(said))
    except ValueError as exc:
        raise InvalidArgument(
            f"{setting} holds {said!r}: no IPv4 address, and no range of them.",
            cause=str(exc),
            fix="Write 203.0.113.7 for one, 203.0.113.0/24 for a range, whose last bits are 0;"
            f" {why}.",
        ) from exc
