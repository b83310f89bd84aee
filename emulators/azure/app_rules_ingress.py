"""What an app's ingress must be: a port, shares of traffic, who may come."""

import ipaddress
from collections.abc import Mapping
from typing import Any, Final

from emulators.azure.refusing import Refused, invalid

_LAST_PORT: Final = 65535


def check(ingress: Mapping[str, Any] | None) -> None:
    """Refuse an ingress that Azure does not make.

    Raises:
        Refused: Something about it cannot be.
    """
    if not ingress:
        return
    port = ingress.get("targetPort")
    if port is not None and not 0 < port <= _LAST_PORT:
        raise invalid(
            f"Ingress targetPort '{port}' is invalid: it must be between 1 and {_LAST_PORT}.",
            "ContainerAppInvalidIngressTargetPort",
        )
    weight = sum(one.get("weight") or 0 for one in ingress["traffic"])
    if ingress["traffic"] and weight != 100:
        raise invalid(
            f"Traffic weights must add up to 100, but the sum is {weight}.",
            "ContainerAppInvalidTrafficWeight",
        )
    _check_restrictions(ingress.get("ipSecurityRestrictions") or [])


def _check_restrictions(rows: list[dict[str, Any]]) -> None:
    names = [one["name"] for one in rows]
    if len(set(names)) < len(names):
        raise _bad("the names of the rules must be unique")
    if len({one["action"] for one in rows}) > 1:
        raise _bad("all rules must have the same action")
    for row in rows:
        try:
            ipaddress.IPv4Network(row["ipAddressRange"])
        except ValueError as exc:
            raise _bad(f"'{row['ipAddressRange']}' is not a range of IPv4 addresses") from exc


def _bad(why: str) -> Refused:
    return invalid(f"IP security restrictions are invalid: {why}.", "IpSecurityRestrictionInvalid")
