"""Who may call a deployment: the addresses that are set, or the one this machine is seen with."""

from typing import Final

from backends.aca.site import Site
from backends.common.preflight import ECHO as ECHO  # noqa: PLC0414  said in plans
from backends.common.preflight import (
    caller_ranges,
    own_address,
)

SETTING: Final = "AZURE_ALLOWED_ADDRESSES"
_IPV4_ALONE: Final = "an ingress of Container Apps knows no IPv6"
"""Source: learn.microsoft.com/azure/container-apps/ip-restrictions (2026-11-21)."""


async def callers(site: Site) -> tuple[str, ...]:
    """Give whom a private deployment lets in, as CIDR ranges in the order of the setting.

    Raises:
        InvalidArgument: A range that is set is none.
        CloudUnavailable: None is set, and nobody says which address this machine has.
    """
    said = site.settings.azure_allowed_addresses
    if said:
        return caller_ranges(said, SETTING, _IPV4_ALONE)
    plane = await site.clients.plane()
    url = f"{plane.http}/rehearsal/address" if plane else ECHO
    return (await own_address(url, SETTING, own=plane is not None),)
