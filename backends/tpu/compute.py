"""Compute Engine: instances with TPUs, which it ends after their time, and firewall rules."""

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from backends.common.concurrency import in_time
from backends.common.preflight import ECHO, caller_ranges, own_address
from backends.container import PORT
from backends.google.clients import MANAGED_BY, as_sent, rest_command
from backends.google.errors import (
    AGAIN,
    LATE,
    READ_SECONDS,
    WRITE_SECONDS,
    find,
    patient_in_threads,
    strictly,
    translated,
)
from backends.lifecycle import Resource, Status, unless_foreign
from backends.tpu import site as tpu
from core.errors import CloudRefused, OpsError, WaitedTooLong
from core.records import Failure
from core.waiting import wait_until

if TYPE_CHECKING:
    from google.cloud.compute_v1.types import (
        Firewall,
        Instance,
        InstanceAggregatedList,
        Operation,
    )


async def call(
    clients: tpu.Clients,
    what: str,
    service: str,
    method: str,
    *,
    writes: bool = False,
    read: Callable[[Any], Any] | None = None,
    **request: Any,
) -> Any:
    """Make one call in a thread: once if it `writes`, else again where Google is not reached.

    `read` is called in the same thread: a pager asks for its next page there.

    Raises:
        google.api_core.exceptions.NotFound: Something that is named is not there.
        CloudError: Google refused, or did not answer.
    """
    client, seconds = await clients.compute(service), WRITE_SECONDS if writes else READ_SECONDS
    retry, fix = (None, LATE) if writes else (patient_in_threads(), AGAIN)

    def work() -> Any:
        asked = {"project": clients.project, **request}
        found = getattr(client, method)(request=asked, timeout=seconds, retry=retry)
        return read(found) if read else found

    with translated(what), in_time("Google", what, seconds + 1, fix=fix):
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)


API: Final = "https://compute.googleapis.com/compute/v1"
FLEX_WAIT_SECONDS: Final = (90, 7200)
"""The shortest and the longest that flex-start waits; public reports of 2026-08."""
_ONE_THREAD_CHIPS: Final = 8
"""Only the machine with so many chips must have one thread per core; public scripts of 2026."""


def instance(request: tpu.Request) -> "Instance":
    """Say all of it; guest accelerators are left out, the machine type brings its own."""
    tpu.prepare()
    from google.cloud.compute_v1.types import Instance

    made, region = request.made, tpu.region_of(request.zone)
    zone, labels = f"zones/{request.zone}", dict(request.labels)
    # A TPU cannot be moved to another host, nor started again: what ends is deleted.
    scheduling: dict[str, Any] = {
        "provisioning_model": MODELS[made.provisioning],
        "on_host_maintenance": "TERMINATE",
        "automatic_restart": False,
    }
    if made.run_seconds or made.provisioning != "on-demand":
        scheduling["instance_termination_action"] = "DELETE"
    if made.run_seconds:
        scheduling["max_run_duration"] = {"seconds": made.run_seconds}
    interface: dict[str, Any] = {"network": f"global/networks/{made.network}"}
    if made.subnetwork:
        interface["subnetwork"] = f"regions/{region}/subnetworks/{made.subnetwork}"
    if made.external_ip:  # by REST there is an external address only where it is asked for
        interface["access_configs"] = [{"type_": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    # The default of 10 GB holds no image; disks of the kind pd-* are refused with v6e.
    disk = {
        "source_image": made.image,
        "disk_size_gb": made.disk_gb,
        "disk_type": f"{zone}/diskTypes/{made.disk_type}",
        "labels": labels,
    }
    body: dict[str, Any] = {
        "name": made.id,
        "machine_type": f"{zone}/machineTypes/{made.machine_type}",
        "labels": labels,
        "tags": {"items": [made.id]},
        "metadata": {
            "items": [{"key": key, "value": value} for key, value in request.metadata.items()]
        },
        "disks": [{"boot": True, "auto_delete": True, "initialize_params": disk}],
        "network_interfaces": [interface],
        "service_accounts": [{"email": made.service_account, "scopes": [tpu.ACCOUNT_SCOPE]}],
        "scheduling": scheduling,
    }
    if made.provisioning == "flex-start":
        shortest, longest = FLEX_WAIT_SECONDS
        waits = min(max(made.wait_seconds, shortest), longest)
        body["params"] = {"request_valid_for_duration": {"seconds": waits}}
        body["reservation_affinity"] = {"consume_reservation_type": "NO_RESERVATION"}
    if made.chips == _ONE_THREAD_CHIPS:
        body["advanced_machine_features"] = {"threads_per_core": 1}
    return Instance(body)


FAMILY: Final = "ct6e"
MODELS: Final[Mapping[tpu.Provisioning, str]] = {
    "on-demand": "STANDARD",
    "spot": "SPOT",
    "flex-start": "FLEX_START",
}
_GENERATIONS: Final = {FAMILY: "v6e"}
"""The chip in a family of machine types."""
_STATES: Final[Mapping[str, tpu.ChipState]] = {
    "PENDING": tpu.ChipState.WAITING,
    "PROVISIONING": tpu.ChipState.PROVISIONING,
    "STAGING": tpu.ChipState.PROVISIONING,
    "RUNNING": tpu.ChipState.RUNNING,
    "PENDING_STOP": tpu.ChipState.STOPPING,
    "STOPPING": tpu.ChipState.STOPPING,
    "SUSPENDING": tpu.ChipState.STOPPING,
    "DEPROVISIONING": tpu.ChipState.DELETING,
    "TERMINATED": tpu.ChipState.SUSPENDED,
    "STOPPED": tpu.ChipState.SUSPENDED,
    "SUSPENDED": tpu.ChipState.SUSPENDED,
}
_NEVER_AGAIN: Final = (
    "An instance with a TPU that was stopped cannot be started again; its disk bills until it is"
    " deleted."
)
"""Source: docs.cloud.google.com/compute/docs/instances/stop-start-instance (2026-11-21)."""
_GIVEN: Final = frozenset({tpu.ChipState.RUNNING, tpu.ChipState.STOPPING, tpu.ChipState.SUSPENDED})
_WHY_IT_ENDED: Final[
    Mapping[str, Literal["PREEMPTED", "EXPIRED", "DELETED_ELSEWHERE", "NOT_KNOWN"]]
] = {
    "compute.instances.preempted": "PREEMPTED",
    "compute.instances.deferredDelete": "EXPIRED",
    "compute.instances.deferredStop": "EXPIRED",
    "compute.instances.hostError": "NOT_KNOWN",
    "compute.instances.guestTerminate": "NOT_KNOWN",
    "delete": "DELETED_ELSEWHERE",
    "stop": "DELETED_ELSEWHERE",
}
"""Operations that end an instance, the one that tells most first; public reports of 2026."""
_HARMLESS: Final = frozenset({"", "NO_RESULTS_ON_PAGE"})


def machine_type(accelerator: str) -> str:
    """Name the machine with an accelerator.

    >>> machine_type("v6e-4")
    'ct6e-standard-4t'
    """
    return f"{FAMILY}-standard-{accelerator.rpartition('-')[2]}t"


def moment(said: str) -> datetime | None:
    """Read a time as Compute Engine writes it; None where there is none.

    >>> moment("2026-08-11T02:08:12.345-07:00")
    datetime.datetime(2026, 8, 11, 9, 8, 12, 345000, tzinfo=datetime.timezone.utc)
    """
    return datetime.fromisoformat(said).astimezone(UTC) if said else None


def chip_of(instance: "Instance", zone: str) -> tpu.Chip:
    said, name = str(instance.status), str(instance.name)
    state = _STATES.get(said, tpu.ChipState.UNKNOWN)
    accelerator, chips = _accelerator(instance)
    created = moment(instance.creation_timestamp) or datetime.fromtimestamp(0, UTC)
    given = moment(instance.last_start_timestamp) or (created if state in _GIVEN else None)
    scheduling, most = instance.scheduling, instance.scheduling.max_run_duration.seconds
    ends = given + timedelta(seconds=most) if given and most else None
    interface = next(iter(instance.network_interfaces), None)
    outer = next(iter(interface.access_configs), None) if interface else None
    spot = scheduling.provisioning_model == "SPOT" or scheduling.preemptible
    flex = scheduling.provisioning_model == "FLEX_START"
    return tpu.Chip(
        place=tpu.Place(zone, "compute"),
        id=name,
        state=state,
        said=said,
        node=name,
        accelerator=accelerator,
        chips=chips,
        provisioning="flex-start" if flex else "spot" if spot else "on-demand",
        labels=dict(instance.labels),
        spec_json={item.key: item.value for item in instance.metadata.items}.get(
            tpu.SPEC_METADATA, ""
        ),
        external_ip=str(outer.nat_i_p) if outer else "",
        internal_ip=str(interface.network_i_p) if interface else "",
        created_at=created,
        given_at=None if state == tpu.ChipState.WAITING else given,
        ends_at=moment(instance.resource_status.scheduling.termination_timestamp) or ends,
        why=str(instance.status_message) or (_NEVER_AGAIN if state.leftover else ""),
    )


def unread(page: "InstanceAggregatedList") -> Sequence[str]:
    """Return the zones that Compute Engine itself could not read; most are merely empty."""
    # The SDK's stubs take its Warning for Python's own.
    warnings: dict[str, Any] = {scope: found.warning for scope, found in page.items.items()}
    warned = [scope for scope, warning in warnings.items() if warning.code not in _HARMLESS]
    return (*page.unreachables, *warned)


def why_ended(operations: Iterable["Operation"]) -> tpu.Ended | None:
    """Say what ended an instance; None where no operation tells."""
    by_type = {str(one.operation_type): one for one in operations}
    for kind in (kind for kind in _WHY_IT_ENDED if kind in by_type):
        one = by_type[kind]
        words = one.status_message or one.description or f"{kind} by {one.user or 'nobody'}"
        return tpu.Ended(_WHY_IT_ENDED[kind], moment(one.end_time or one.insert_time), str(words))
    return None


def failure_of(operation: "Operation") -> str:
    """Return what an operation failed with; empty if it did not.

    Its status alone tells nothing: `error` may be there without one, or the other way round.
    """
    errors = [f"{one.code}: {one.message}" for one in operation.error.errors]
    if errors:
        return "; ".join(errors)
    status = int(operation.http_error_status_code or 0)
    return f"{status} {operation.http_error_message}".strip() if status >= 400 else ""


def _accelerator(instance: "Instance") -> tuple[str, int]:
    """Read it from the machine type: ct6e-standard-4t, or its twin ct6e-standard-4t-tpu."""
    family, _, rest = _last(instance.machine_type).partition("-")
    size = next((part for part in rest.split("-") if part[:-1].isdecimal()), "0t")
    return f"{_GENERATIONS.get(family, family)}-{size[:-1]}", int(size[:-1])


def _last(path: str) -> str:
    return path.rpartition("/")[2]


class ComputePlane:
    """Compute Engine, of one project; see `ControlPlane`."""

    def __init__(self, clients: tpu.Clients) -> None:
        self._clients = clients

    async def create(self, request: tpu.Request) -> str:
        what = f"ask for {request.made.accelerator} in {request.zone}"
        with tpu.translated_refusal(what, request.zone):
            under_way = await self._call(
                what,
                "insert_unary",
                writes=True,
                zone=request.zone,
                instance_resource=instance(request),
                request_id=str(uuid.uuid4()),
            )
        return str(under_way.name)

    def bodies(self, request: tpu.Request) -> Mapping[str, object]:
        return as_sent(instance(request))

    def address(self, request: tpu.Request) -> str:
        return f"{API}/projects/{request.made.project}/zones/{request.zone}/instances"

    async def outcome(self, zone: str, operation: str) -> tpu.Outcome:
        what = "see what became of the request"
        looked = self._call(what, "get", "ZoneOperations", zone=zone, operation=operation)
        seen = await find(what, looked)
        failure = failure_of(seen) if seen else ""
        over = seen is None or seen.status.name == "DONE"
        return tpu.Outcome(over, tpu.refusal_error(failure, zone) if failure else None)

    async def get(self, zone: str, chip_id: str) -> tpu.Chip | None:
        what = f"look at the instance {chip_id}"
        seen = await find(what, self._call(what, "get", zone=zone, instance=chip_id))
        return chip_of(seen, zone) if seen else None

    async def list(self) -> Sequence[tpu.Chip]:
        what = "list instances"
        with strictly(what):
            pages = await self._call(what, "aggregated_list", read=lambda found: [*found.pages])
        for page in pages:
            tpu.unreachable(unread(page), "Instances")
        scopes = [scoped for page in pages for scoped in page.items.values()]
        found = [one for scoped in scopes for one in scoped.instances]
        chips = [one for one in found if _last(one.machine_type).startswith(f"{FAMILY}-")]
        return [chip_of(one, _last(one.zone)) for one in chips]

    async def delete(self, zone: str, chip_id: str) -> None:
        what = f"delete the instance {chip_id}"
        asked = self._call(what, "delete_unary", writes=True, zone=zone, instance=chip_id)
        try:
            await find(what, asked)
        except OpsError:  # one that is being deleted is told as stopping
            there = await self.get(zone, chip_id)
            if there is not None and there.state not in {
                tpu.ChipState.STOPPING,
                tpu.ChipState.DELETING,
            }:
                raise

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> tpu.Ended | None:
        """Say why an instance is gone, by the zone's operations on it: nothing else remains."""
        what, wanted = f"see what ended {chip_id}", f'targetLink eq ".*/instances/{chip_id}"'
        with strictly(what):
            found = await self._call(
                what, "list", "ZoneOperations", read=list, zone=zone, filter=wanted
            )
        return why_ended(one for one in found if (moment(one.insert_time) or since) >= since)

    async def offer(self, zone: str, accelerator: str) -> tpu.Offer:
        kind = machine_type(accelerator)
        what = f"see whether {zone} has {kind}"
        return await tpu.offered(
            what, self._call(what, "get", "MachineTypes", zone=zone, machine_type=kind)
        )

    async def _call(
        self, what: str, method: str, service: str = "Instances", **request: Any
    ) -> Any:
        return await call(self._clients, what, service, method, **request)


SETTING: Final = "GOOGLE_ALLOWED_ADDRESSES"
ANYBODY: Final = "0.0.0.0/0"
YOURS: Final = "YOUR_ADDRESS/32"
"""Said while nobody has asked with which address this machine is seen."""
_RULE_SECONDS: Final = 10.0
"""How long Google may take to make a firewall rule as it was asked for."""
_EVERY_SECONDS: Final = 0.3


async def callers(site: tpu.Site) -> tuple[str, ...]:
    """Return whom a private deployment lets in, as CIDR ranges.

    Raises:
        InvalidArgument: A range that is set is none.
        CloudUnavailable: None is set, and nobody says which address this machine has.
    """
    said = site.settings.google_allowed_addresses
    if said:
        return caller_ranges(said, SETTING, "the VM's external address is one of IPv4")
    plane = await site.clients.plane()
    url = f"{plane.http}/rehearsal/address" if plane else ECHO
    return (await own_address(url, SETTING, own=plane is not None),)


def firewall_rule(
    site: tpu.Site, name: str, made: tpu.Blueprint | None = None, let_in: Sequence[str] = ()
) -> Resource:
    """Return the rule of a deployment: as it is to be, or without a blueprint as it may be there.

    It has no labels, so its description says whose it is. `let_in` is who is let in, where that
    was asked.
    """
    rule, wanted = tpu.vm_id(name), _rule(site, made, let_in) if made else None
    ask = partial(call, site.clients, service="Firewalls")

    async def get() -> "Firewall | None":
        what = f"look at the firewall rule {rule}"
        found: Firewall | None = await find(what, ask(what=what, method="get", firewall=rule))
        return found

    async def put() -> None:
        there = await get()
        if wanted and there is not None and not there.network.endswith(wanted.network):
            await _failure(site, await delete())  # the network of a rule cannot be changed
            there = None
        method, named = ("patch_unary", {"firewall": rule}) if there else ("insert_unary", {})
        failure = await _failure(
            site, await change("make", method, firewall_resource=wanted, **named)
        )
        if failure:
            raise CloudRefused(
                f"The firewall rule {rule} does not let in who is to be let in.",
                cause=failure,
                fix="Call the same tool again, or change what the cause names.",
            )

    async def delete() -> str:
        return await change("delete", "delete_unary", firewall=rule)

    async def change(verb: str, method: str, **request: Any) -> str:
        what = f"{verb} the firewall rule {rule}"
        with strictly(what):
            return str((await ask(what=what, method=method, writes=True, **request)).name)

    whom = "everybody" if made and made.anybody else "your addresses alone"
    return Resource(
        name="rule",
        title=f"its firewall rule {rule}" + (f", which lets in {whom}" if made else ""),
        body=as_sent(wanted) if wanted else {},
        get=get,
        put=put if wanted else None,
        delete=delete,
        status=lambda there: (
            Status.READY if wanted is None or _same(there, wanted) else Status.STALE
        ),
        is_ours=lambda there: there.description.startswith(
            f"managed-by={MANAGED_BY} deployment={name} "
        ),
        command=rest_command(f"{API}/projects/{made.project}/global/firewalls", as_sent(wanted))
        if wanted and made
        else "",
    )


async def let_in(site: tpu.Site, name: str) -> tuple[str, ...]:
    """Return the ranges that are let in to a deployment now; none without a rule of ours."""
    there = await unless_foreign(firewall_rule(site, name)).get()
    return tuple(there.source_ranges) if there is not None and not there.disabled else ()


async def keeps_out(site: tpu.Site, name: str, failure: Failure) -> Failure:
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


def _rule(site: tpu.Site, made: tpu.Blueprint, ranges: Sequence[str]) -> "Firewall":
    tpu.prepare()
    from google.cloud.compute_v1.types import Firewall

    whose = f"managed-by={MANAGED_BY} deployment={made.spec.name} target={site.target.name}"
    as_planned = site.settings.google_allowed_addresses or (YOURS,)
    return Firewall(
        {
            "name": made.id,
            "description": whose,
            "network": f"global/networks/{made.network}",
            "direction": "INGRESS",
            "allowed": [{"I_p_protocol": "tcp", "ports": [str(PORT)]}],
            "source_ranges": [ANYBODY] if made.anybody else list(ranges or as_planned),
            "target_tags": [made.id],
            "disabled": False,
        }
    )


async def _failure(site: tpu.Site, operation: str) -> str:
    """Wait a while for a rule's operation to end; return what it failed with."""
    what = "see what became of the firewall rule"

    async def look() -> Any:
        with strictly(what):
            return await call(site.clients, what, "GlobalOperations", "get", operation=operation)

    try:
        seen = await wait_until(
            look,
            lambda seen: seen.status.name == "DONE",
            waiting_for="the firewall rule",
            every=_EVERY_SECONDS,
            timeout=_RULE_SECONDS,
        )
    except WaitedTooLong:
        return ""
    return failure_of(seen)


def _same(there: "Firewall", wanted: "Firewall") -> bool:
    """Whether a rule does what is wanted; Google writes networks as whole addresses."""

    def does(rule: "Firewall") -> tuple[object, ...]:
        allowed = [(one.I_p_protocol, list(one.ports)) for one in rule.allowed]
        return (
            *(set(rule.source_ranges), list(rule.target_tags), allowed),
            *(rule.direction, rule.description, rule.disabled),
        )

    return does(there) == does(wanted) and there.network.endswith(wanted.network)


async def network_exists(site: tpu.Site, network: str) -> bool:
    """Return whether the project has a network of that name."""
    what = f"look at the network {network}"
    looked = call(site.clients, what, "Networks", "get", network=network)
    return await find(what, looked) is not None


async def zones_with(site: tpu.Site, machine: str) -> Sequence[str]:
    what = f"list the zones that have {machine}"

    def read(scopes: Any) -> Sequence[str]:
        return sorted(
            scope.removeprefix("zones/")
            for scope, row in scopes
            if any(one.name == machine for one in row.machine_types)
        )

    with strictly(what):
        found: Sequence[str] = await call(
            site.clients,
            what,
            "MachineTypes",
            "aggregated_list",
            read=read,
            filter=f'name = "{machine}"',
        )
    return found
