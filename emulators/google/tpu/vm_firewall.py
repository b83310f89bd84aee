"""Whether a network's firewall rules let a caller in to a VM's port."""

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Final

from emulators.google.state import Project
from emulators.google.tpu.vm_spec import VmSpec

_USUAL_PRIORITY: Final = 1000
_EVERYWHERE: Final = ("0.0.0.0/0",)
_TCP: Final = frozenset({"tcp", "6", "all"})


def lets_in(project: Project, spec: VmSpec, *, caller: str, port: int) -> bool:
    """Say whether it may connect; where no rule speaks of it, it may not.

    Of several rules the most important one counts, and among equals one that denies.
    """
    verdicts = [
        (rule.get("priority", _USUAL_PRIORITY), allows)
        for rule in project.firewalls.values()
        if _concerns(rule, spec) and _from(rule, caller)
        for allows, ports in ((False, rule.get("denied", ())), (True, rule.get("allowed", ())))
        if _to(ports, port)
    ]
    return min(verdicts)[1] if verdicts else False


def _concerns(rule: Mapping[str, Any], spec: VmSpec) -> bool:
    network = str(rule.get("network", "default")).rpartition("/")[2]
    if rule.get("direction", "INGRESS") != "INGRESS" or rule.get("disabled"):
        return False
    tags, accounts = rule.get("targetTags", ()), rule.get("targetServiceAccounts", ())
    everybody = not tags and not accounts
    chosen = everybody or bool({*tags} & {*spec.tags}) or spec.service_account in accounts
    return network == spec.network and chosen


def _from(rule: Mapping[str, Any], caller: str) -> bool:
    """Say whether its sources hold the caller, who has no tag and no account."""
    narrowed = rule.get("sourceTags") or rule.get("sourceServiceAccounts")
    ranges = rule.get("sourceRanges") or (() if narrowed else _EVERYWHERE)
    address = ipaddress.ip_address(caller)
    return any(address in ipaddress.ip_network(one, strict=False) for one in ranges)


def _to(ports: Iterable[Mapping[str, Any]], port: int) -> bool:
    for one in ports:
        said = one.get("ports") or ("0-65535",)
        if str(one.get("IPProtocol", "")).lower() in _TCP and any(
            _holds(each, port) for each in said
        ):
            return True
    return False


def _holds(said: str, port: int) -> bool:
    low, _, high = said.partition("-")
    return int(low) <= port <= int(high or low)
