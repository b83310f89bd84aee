"""The firewall rule of a deployment: whom it lets in to the port of its VM."""

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from google.api_core.exceptions import NotFound

from backends.common.preflight import ECHO, Answer, caller_ranges, own_address
from backends.container import PORT
from backends.google.clients import MANAGED_BY, as_sent
from backends.google.errors import strictly, translated
from backends.lifecycle import Resource, Status, unless_foreign
from backends.tpu import compute_client
from backends.tpu.compute import failure_of, read_call, write_call
from backends.tpu.planes import Blueprint
from backends.tpu.site import Site, vm_id
from core.errors import CloudRefused, OpsError, WaitedTooLong
from core.records import Failure
from core.waiting import wait_until

if TYPE_CHECKING:
    from google.cloud.compute_v1.types import Firewall

SETTING: Final = "GOOGLE_ALLOWED_ADDRESSES"
ANYBODY: Final = "0.0.0.0/0"
YOURS: Final = "YOUR_ADDRESS/32"
"""Said while nobody has asked with which address this machine is seen."""
_IPV4_ALONE: Final = "the VM's external address is one of IPv4"
_KEPT_SECONDS: Final = 10.0
"""How long Google may take to make a rule as it was asked for."""
_EVERY_SECONDS: Final = 0.3


async def callers(site: Site) -> tuple[str, ...]:
    """Return whom a private deployment lets in, as CIDR ranges.

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


async def known_callers(site: Site) -> Answer:
    """Say in a preflight whether it is known who may call."""
    try:
        known = await callers(site)
    except OpsError as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    return Answer(passed=True, detail=f"{', '.join(known)}; nobody else is let in.")


def resource(
    site: Site, name: str, made: Blueprint | None = None, let_in: Sequence[str] = ()
) -> Resource:
    """Return the rule of a deployment: as it is to be, or without a blueprint as it may be there.

    It has no labels, so its description says whose it is. `let_in` is who is let in, where that
    was asked.
    """
    wanted = _rule(site, made, let_in or _as_planned(site, made)) if made else None
    whom = "everybody" if made and made.anybody else "your addresses alone"

    async def get() -> "Firewall | None":
        client = await site.clients.compute("Firewalls")
        what = f"look at the firewall rule {vm_id(name)}"
        try:
            with translated(what):
                found: Firewall = await read_call(
                    what, client.get, request=_at(site, firewall=vm_id(name))
                )
        except NotFound:
            return None
        return found

    async def put() -> None:
        there = await get()
        if wanted and there is not None and not there.network.endswith(wanted.network):
            await _done(site, await delete())  # the network of a rule cannot be changed
            there = None
        client = await site.clients.compute("Firewalls")
        call, named = client.insert_unary, {}
        if there is not None:
            call, named = client.patch_unary, {"firewall": vm_id(name)}
        await changed(f"make the firewall rule {vm_id(name)}", call, **named)

    async def delete() -> str:
        client = await site.clients.compute("Firewalls")
        what = f"delete the firewall rule {vm_id(name)}"
        with strictly(what):
            request = _at(site, firewall=vm_id(name))
            return str((await write_call(what, client.delete_unary, request=request)).name)

    async def changed(what: str, call: Any, **named: str) -> None:
        with strictly(what):
            request = _at(site, firewall_resource=wanted, **named)
            operation = await write_call(what, call, request=request)
        failure = await _done(site, str(operation.name))
        if failure:
            raise CloudRefused(
                f"The firewall rule {vm_id(name)} does not let in who is to be let in.",
                cause=failure,
                fix="Call the same tool again, or change what the cause names.",
            )

    def status(there: "Firewall") -> Status:
        return Status.READY if wanted is None or _same(there, wanted) else Status.STALE

    return Resource(
        name="rule",
        title=f"its firewall rule {vm_id(name)}" + (f", which lets in {whom}" if made else ""),
        body=as_sent(wanted) if wanted else {},
        get=get,
        put=put if wanted else None,
        delete=delete,
        status=status,
        is_ours=lambda there: there.description.startswith(
            f"managed-by={MANAGED_BY} deployment={name} "
        ),
        command=_command(wanted, made) if wanted and made else "",
    )


async def let_in(site: Site, name: str) -> tuple[str, ...]:
    """Return the ranges that are let in to a deployment now; none without a rule of ours."""
    there = await unless_foreign(resource(site, name)).get()
    return tuple(there.source_ranges) if there is not None and not there.disabled else ()


def described(ranges: Sequence[str] | None) -> str:
    """Say whom it lets in; None is not known."""
    if ranges is None:
        return "the firewall's rule could not be read"
    whom = "everybody" if ANYBODY in ranges else ", ".join(ranges) or "nobody"
    return f"the firewall lets in {whom}"


async def keeps_out(site: Site, name: str, failure: Failure) -> Failure:
    """Say with a failure whether this machine is kept out: Google drops what is not let in."""
    try:
        ranges, here = await let_in(site, name), await callers(site)
    except OpsError:
        return failure
    if not set(here) - set(ranges) or ANYBODY in ranges:
        return failure
    cause = (
        f"{failure.cause} Its firewall lets in {', '.join(ranges) or 'nobody'}, and callers are"
        f" {', '.join(here)} now."
    )
    fix = "Call deploy_vllm again, which lets them in; the model need not boot again."
    return failure.model_copy(update={"cause": cause, "fix": fix})


def _as_planned(site: Site, made: Blueprint | None) -> Sequence[str]:
    """Return whom it would let in, as far as it is known without asking."""
    if made and made.anybody:
        return (ANYBODY,)
    return site.settings.google_allowed_addresses or (YOURS,)


def _rule(site: Site, made: Blueprint, ranges: Sequence[str]) -> "Firewall":
    compute_client.prepare()
    from google.cloud.compute_v1.types import Firewall

    whose = f"managed-by={MANAGED_BY} deployment={made.spec.name} target={site.target.name}"
    return Firewall(
        {
            "name": made.id,
            "description": whose,
            "network": f"global/networks/{made.network}",
            "direction": "INGRESS",
            "allowed": [{"I_p_protocol": "tcp", "ports": [str(PORT)]}],
            "source_ranges": list(ranges),
            "target_tags": [made.id],
            "disabled": False,
        }
    )


async def _done(site: Site, operation: str) -> str:
    """Wait a while for an operation to end; returns what it failed with."""
    client = await site.clients.compute("GlobalOperations")
    what, request = "see what became of the firewall rule", _at(site, operation=operation)

    async def look() -> Any:
        with strictly(what):
            return await read_call(what, client.get, request=request)

    try:
        seen = await wait_until(
            look,
            lambda seen: seen.status.name == "DONE",
            waiting_for="the firewall rule",
            every=_EVERY_SECONDS,
            timeout=_KEPT_SECONDS,
        )
    except WaitedTooLong:
        return ""
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


def _command(wanted: "Firewall", made: Blueprint) -> str:
    return shlex.join(
        (
            *("gcloud", "compute", "firewall-rules", "create", wanted.name),
            f"--project={made.project}",
            f"--network={made.network}",
            "--direction=INGRESS",
            "--action=allow",
            f"--rules=tcp:{PORT}",
            f"--source-ranges={','.join(wanted.source_ranges)}",
            f"--target-tags={wanted.name}",
            f"--description={wanted.description}",
        )
    )


def _at(site: Site, **more: Any) -> dict[str, Any]:
    return {"project": site.clients.project, **more}
