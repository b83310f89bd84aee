"""The firewall rule of a deployment: whom it lets in to port 8000 of its VM."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from google.api_core.exceptions import NotFound

from backends.common.preflight import ECHO, caller_ranges, own_address
from backends.container import PORT
from backends.google.clients import MANAGED_BY
from backends.google.errors import UNSURE, strictly, translated
from backends.tpu import compute_client
from backends.tpu.compute import failure_of, read_call, write_call
from backends.tpu.site import Blueprint, Site, vm_id
from core.errors import CloudRefused, ConcurrentChange, NotOurs, OpsError, WaitedTooLong
from core.waiting import wait_until

if TYPE_CHECKING:
    from google.cloud.compute_v1.types import Firewall

SETTING: Final = "GOOGLE_ALLOWED_ADDRESSES"
ANYBODY: Final = ("0.0.0.0/0",)
_IPV4_ALONE: Final = "the VM's external address is one of IPv4"
_COMPUTE: Final = "google.cloud.compute_v1"
_KEPT_SECONDS: Final = 10.0
"""How long Google may take to show a rule as it was asked for."""
_GONE_SECONDS: Final = 15.0
_EVERY_SECONDS: Final = 0.3


async def callers(site: Site) -> tuple[str, ...]:
    """Give whom a private deployment lets in, as CIDR ranges.

    Raises:
        InvalidArgument: A range that is set is none.
        CloudUnavailable: None is set, and nobody says which address this machine has.
    """
    said = site.settings.google_allowed_addresses
    if said:
        return caller_ranges(said, SETTING, _IPV4_ALONE)
    plane = await site.clients.plane()
    url = f"{plane.http}/rehearsal/address" if plane else ECHO
    return (await own_address(url, SETTING, own=plane is not None),)


def rule(made: Blueprint, target: str, let_in: Sequence[str]) -> "Firewall":
    """Say the rule; it has no labels, so its description says whose it is."""
    compute_client.prepare()
    from google.cloud.compute_v1.types import Allowed, Firewall

    return Firewall(
        name=made.id,
        description=_description(made.spec.name, target),
        network=f"global/networks/{made.network}",
        direction="INGRESS",
        allowed=[Allowed(I_p_protocol="tcp", ports=[str(PORT)])],
        source_ranges=list(let_in),
        target_tags=[made.id],
        disabled=False,
    )


async def open(site: Site, made: Blueprint) -> tuple[str, ...]:  # noqa: A001  said as firewall.open
    """Let in whom the blueprint says, and nobody else; give their ranges, seen to be let in.

    Where it says nobody, a rule that an earlier deployment of the name left is taken away.

    Raises:
        NotOurs: A rule of that name is somebody else's.
        InvalidArgument, CloudError: The callers are not known, or Google refused.
    """
    if not made.opened:
        await close(site, made.spec.name)
        return ()
    let_in = ANYBODY if made.anybody else await callers(site)
    wanted = rule(made, site.target.name, let_in)
    now = await _look(site, made.spec.name)
    if now is not None and not now.network.endswith(wanted.network):
        await close(site, made.spec.name)  # the network of a rule cannot be changed
        now = None
    if now is None or not _same(now, wanted):
        operation = await (_insert(site, wanted) if now is None else _replace(site, wanted))
        await _seen_to_hold(site, made.spec.name, wanted, operation)
    return tuple(let_in)


async def close(site: Site, name: str) -> bool:
    """Delete the rule of a deployment, seen to be gone; whether there was one. Others' stay.

    Raises:
        ConcurrentChange: It is not gone yet.
        CloudError: Google refused, or did not answer.
    """
    try:
        if await _look(site, name) is None:
            return False
    except NotOurs:
        return False
    client, what = await site.clients.firewalls(), f"delete the firewall rule {vm_id(name)}"
    try:
        with translated(what):
            await write_call(what, client.delete_unary, request=_at(site, firewall=vm_id(name)))
    except NotFound:
        return False
    except OpsError:  # it may be gone, or going, all the same
        if await _look(site, name) is not None:
            raise
    await _goes(site, name)
    return True


async def seen(site: Site, name: str) -> tuple[str, ...]:
    """Give the ranges that are let in to a deployment now; none without a rule of ours.

    Raises:
        CloudError: Google does not tell.
    """
    try:
        there = await _look(site, name)
    except NotOurs:
        return ()
    return tuple(there.source_ranges) if there is not None and not there.disabled else ()


async def _look(site: Site, name: str) -> "Firewall | None":
    """Raise NotOurs where a rule of that name was not made here."""
    client, what = await site.clients.firewalls(), f"look at the firewall rule {vm_id(name)}"
    try:
        with translated(what):
            there = await read_call(what, client.get, request=_at(site, firewall=vm_id(name)))
    except NotFound:
        return None
    if not there.description.startswith(f"managed-by={MANAGED_BY} deployment={name} "):
        raise NotOurs(
            f"The firewall rule {vm_id(name)} was not made here; it is left alone.",
            cause=f"Its description: {there.description or 'none'}",
            fix="Choose another name for the deployment, or delete the rule yourself.",
        )
    return there


async def _insert(site: Site, wanted: "Firewall") -> str:
    """Make it; give the operation's name, empty where it may be made or somebody else was first."""
    client, what = await site.clients.firewalls(), f"make the firewall rule {wanted.name}"
    try:
        with strictly(what):
            request = _at(site, firewall_resource=wanted)
            return str((await write_call(what, client.insert_unary, request=request)).name)
    except (ConcurrentChange, *UNSURE):
        if await _look(site, _deployment(wanted)) is None:
            raise
        return ""


async def _replace(site: Site, wanted: "Firewall") -> str:
    """Give the rule new callers; give the operation's name."""
    client, what = await site.clients.firewalls(), f"change the firewall rule {wanted.name}"
    request = _at(site, firewall=wanted.name, firewall_resource=wanted)
    with strictly(what):
        return str((await write_call(what, client.patch_unary, request=request)).name)


async def _goes(site: Site, name: str) -> None:
    """Wait until it is gone: one that goes later would leave a new deployment without its rule."""
    try:
        await wait_until(
            lambda: _look(site, name),
            lambda there: there is None,
            waiting_for=f"the firewall rule {vm_id(name)} to go",
            every=_EVERY_SECONDS,
            timeout=_GONE_SECONDS,
        )
    except WaitedTooLong as exc:
        raise ConcurrentChange(
            f"The firewall rule {vm_id(name)} is still being deleted.",
            fix="Call the same tool again in a minute.",
        ) from exc


async def _seen_to_hold(site: Site, name: str, wanted: "Firewall", operation: str) -> None:
    """Read it back; Google says in the operation why it does not hold."""
    try:
        await wait_until(
            lambda: _look(site, name),
            lambda there: there is not None and _same(there, wanted),
            waiting_for=f"the firewall rule {wanted.name}",
            every=_EVERY_SECONDS,
            timeout=_KEPT_SECONDS,
        )
    except WaitedTooLong as exc:
        failure = await _failure(site, operation) if operation else ""
        raise CloudRefused(
            f"The firewall rule {wanted.name} does not let in who is to be let in.",
            cause=failure or exc.summary,
            fix="Call the same tool again, or change what the cause names.",
        ) from exc


async def _failure(site: Site, operation: str) -> str:
    client, what = await site.clients.global_operations(), "see what became of the firewall rule"
    with strictly(what):
        seen = await read_call(what, client.get, request=_at(site, operation=operation))
    return failure_of(seen)


def _same(there: "Firewall", wanted: "Firewall") -> bool:
    """Whether a rule does what is wanted; Google writes networks as whole addresses."""
    return (
        set(there.source_ranges) == set(wanted.source_ranges)
        and list(there.target_tags) == list(wanted.target_tags)
        and [(one.I_p_protocol, list(one.ports)) for one in there.allowed]
        == [(one.I_p_protocol, list(one.ports)) for one in wanted.allowed]
        and there.network.endswith(wanted.network)
        and there.direction == wanted.direction
        and there.description == wanted.description
        and not there.disabled
    )


def _deployment(wanted: "Firewall") -> str:
    return wanted.name.removeprefix(vm_id(""))


def _description(name: str, target: str) -> str:
    return f"managed-by={MANAGED_BY} deployment={name} target={target}"


def _at(site: Site, **more: Any) -> dict[str, Any]:
    return {"project": site.clients.project, **more}
