"""Compute Engine: instances with TPUs, which it ends after their time, and firewall rules."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Literal

from backends.common.concurrency import in_time
from backends.common.preflight import ECHO, caller_ranges, own_address
from backends.container import PORT
from backends.google.clients import COMPUTE, MANAGED_BY, rest_command
from backends.google.errors import AGAIN, LATE, find, reading, strictly, translated, writing
from backends.google.leftovers import path_of
from backends.lifecycle import Resource, Status, unless_foreign
from backends.tpu import site as tpu
from core.errors import CloudRefused, OpsError, WaitedTooLong
from core.records import Failure
from core.waiting import wait_until

Json = Mapping[str, Any]
"""A resource as Compute Engine's REST writes it; what it leaves out is empty, or 0."""


async def call(clients: tpu.Clients, what: str, verb: str, path: str, **more: Any) -> Json:
    """Make one call, which ends in time. Raises NotFound, CloudError."""
    how, fix = (reading(), AGAIN) if verb == "GET" else (writing(), LATE)
    url = f"{COMPUTE}/projects/{clients.project}/{path}"
    with translated(what), in_time("Google", what, how["timeout"] + 1, fix=fix):
        return await clients.ask(verb, url, **more)


FLEX_WAIT_SECONDS: Final = (90, 7200)
"""The shortest and the longest that flex-start waits; public reports of 2026-08."""
_ONE_THREAD_CHIPS: Final = 8
"""Only the machine with so many chips must have one thread per core; public scripts of 2026."""


def instance(request: tpu.Request) -> Json:
    """Say all of it; guest accelerators are left out, the machine type brings its own."""
    made, region = request.made, tpu.region_of(request.zone)
    zone, labels = f"zones/{request.zone}", dict(request.labels)
    # A TPU cannot be moved to another host, nor started again: what ends is deleted.
    scheduling: dict[str, Any] = {
        "provisioningModel": MODELS[made.provisioning],
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
    }
    if made.run_seconds or made.provisioning != "on-demand":
        scheduling["instanceTerminationAction"] = "DELETE"
    if made.run_seconds:  # numbers of 64 bits are strings in JSON
        scheduling["maxRunDuration"] = {"seconds": str(made.run_seconds)}
    interface: dict[str, Any] = {"network": f"global/networks/{made.network}"}
    if made.subnetwork:
        interface["subnetwork"] = f"regions/{region}/subnetworks/{made.subnetwork}"
    if made.external_ip:  # by REST there is an external address only where it is asked for
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    # The default of 10 GB holds no image; disks of the kind pd-* are refused with v6e.
    disk = {
        "sourceImage": made.image,
        "diskSizeGb": str(made.disk_gb),
        "diskType": f"{zone}/diskTypes/{made.disk_type}",
        "labels": labels,
    }
    body: dict[str, Any] = {
        "name": made.id,
        "machineType": f"{zone}/machineTypes/{made.machine_type}",
        "labels": labels,
        "tags": {"items": [made.id]},
        "metadata": {
            "items": [{"key": key, "value": value} for key, value in request.metadata.items()]
        },
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": disk}],
        "networkInterfaces": [interface],
        "serviceAccounts": [{"email": made.service_account, "scopes": [tpu.ACCOUNT_SCOPE]}],
        "scheduling": scheduling,
    }
    if made.provisioning == "flex-start":
        shortest, longest = FLEX_WAIT_SECONDS
        waits = min(max(made.wait_seconds, shortest), longest)
        body["params"] = {"requestValidForDuration": {"seconds": str(waits)}}
        body["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
    if made.chips == _ONE_THREAD_CHIPS:
        body["advancedMachineFeatures"] = {"threadsPerCore": 1}
    return body


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
_NO_SUCH_ZONE: Final = "Unknown zone"
"""Compute Engine's words where a zone is asked for that it does not have."""
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


def machine_type(accelerator: str) -> str:
    """Name the machine with an accelerator.

    >>> machine_type("v6e-4")
    'ct6e-standard-4t'
    """
    return f"{FAMILY}-standard-{accelerator.rpartition('-')[2]}t"


def moment(said: str | None) -> datetime | None:
    """Read a time as Compute Engine writes it; None where there is none.

    >>> moment("2026-08-11T02:08:12.345-07:00")
    datetime.datetime(2026, 8, 11, 9, 8, 12, 345000, tzinfo=datetime.timezone.utc)
    """
    return datetime.fromisoformat(said).astimezone(UTC) if said else None


def chip_of(instance: Json, zone: str) -> tpu.Chip:
    said, name = str(instance["status"]), str(instance["name"])
    state = _STATES.get(said, tpu.ChipState.UNKNOWN)
    accelerator, chips = _accelerator(instance)
    created = moment(instance.get("creationTimestamp")) or datetime.fromtimestamp(0, UTC)
    given = moment(instance.get("lastStartTimestamp")) or (created if state in _GIVEN else None)
    scheduling = instance.get("scheduling", {})
    most = int(scheduling.get("maxRunDuration", {}).get("seconds", 0))
    ends = given + timedelta(seconds=most) if given and most else None
    interface: Json = next(iter(instance.get("networkInterfaces", ())), {})
    outer: Json = next(iter(interface.get("accessConfigs", ())), {})
    spot = scheduling.get("provisioningModel") == "SPOT" or scheduling.get("preemptible")
    flex = scheduling.get("provisioningModel") == "FLEX_START"
    metadata = {one["key"]: one["value"] for one in instance.get("metadata", {}).get("items", ())}
    planned = instance.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp")
    return tpu.Chip(
        place=tpu.Place(zone, "compute"),
        id=name,
        path=path_of(instance),
        state=state,
        said=said,
        node=name,
        accelerator=accelerator,
        chips=chips,
        provisioning="flex-start" if flex else "spot" if spot else "on-demand",
        labels=instance.get("labels", {}),
        spec_json=metadata.get(tpu.SPEC_METADATA, ""),
        external_ip=outer.get("natIP", ""),
        internal_ip=interface.get("networkIP", ""),
        created_at=created,
        given_at=None if state == tpu.ChipState.WAITING else given,
        ends_at=moment(planned) or ends,
        why=instance.get("statusMessage") or (_NEVER_AGAIN if state.leftover else ""),
    )


def why_ended(operations: Iterable[Json]) -> tpu.Ended | None:
    """Say what ended an instance; None where no operation tells."""
    by_type = {one["operationType"]: one for one in operations}
    for kind in (kind for kind in _WHY_IT_ENDED if kind in by_type):
        one = by_type[kind]
        by = f"{kind} by {one.get('user') or 'nobody'}"
        words = one.get("statusMessage") or one.get("description") or by
        at = moment(one.get("endTime") or one["insertTime"])
        return tpu.Ended(_WHY_IT_ENDED[kind], at, words)
    return None


def failure_of(operation: Json) -> str:
    """Return what an operation failed with; empty if it did not.

    Its status alone tells nothing: `error` may be there without one, or the other way round.
    """
    if errors := operation.get("error", {}).get("errors"):
        return "; ".join(f"{one['code']}: {one['message']}" for one in errors)
    status = int(operation.get("httpErrorStatusCode", 0))
    return f"{status} {operation.get('httpErrorMessage', '')}".strip() if status >= 400 else ""


def _accelerator(instance: Json) -> tuple[str, int]:
    """Read it from the machine type: ct6e-standard-4t, or its twin ct6e-standard-4t-tpu."""
    family, _, rest = _last(instance["machineType"]).partition("-")
    size = next((part for part in rest.split("-") if part[:-1].isdecimal()), "0t")
    return f"{_GENERATIONS.get(family, family)}-{size[:-1]}", int(size[:-1])


def _last(path: str) -> str:
    return path.rpartition("/")[2]


class ComputePlane:
    """Compute Engine, of one project; see `ControlPlane`."""

    def __init__(self, clients: tpu.Clients) -> None:
        self._clients, self._call = clients, partial(call, clients)

    async def create(self, request: tpu.Request) -> str:
        what = f"ask for {request.made.accelerator} in {request.zone}"
        once = {"requestId": str(uuid.uuid4())}
        with tpu.translated_refusal(what, request.zone):
            made = instance(request)
            under_way = await call(
                self._clients, what, "POST", _path(request.zone), params=once, json=made
            )
        return str(under_way["name"])

    def bodies(self, request: tpu.Request) -> Mapping[str, object]:
        return instance(request)

    def address(self, request: tpu.Request) -> str:
        return f"{COMPUTE}/projects/{request.made.project}/{_path(request.zone)}"

    async def outcome(self, zone: str, operation: str) -> tpu.Outcome:
        what = "see what became of the request"
        seen = await find(what, self._call(what, "GET", f"zones/{zone}/operations/{operation}"))
        failure = failure_of(seen) if seen else ""
        over = seen is None or seen["status"] == "DONE"
        return tpu.Outcome(over, tpu.refusal_error(failure, zone) if failure else None)

    async def get(self, zone: str, chip_id: str) -> tpu.Chip | None:
        what = f"look at the instance {chip_id}"
        try:
            seen = await find(what, self._call(what, "GET", _path(zone, chip_id)))
        except CloudRefused as exc:
            if _NO_SUCH_ZONE not in exc.cause:
                raise
            return None  # nobody has anything in a zone that there is not
        return chip_of(seen, zone) if seen else None

    async def list(self) -> Sequence[tpu.Chip]:
        with strictly("list instances"):
            every = await self._clients.in_all_zones("instances")
        tpu.unreachable(every.unread, "Instances")
        chips = [one for one in every.found if _last(one["machineType"]).startswith(f"{FAMILY}-")]
        return [chip_of(one, _last(one["zone"])) for one in chips]

    async def delete(self, zone: str, chip_id: str) -> None:
        what = f"delete the instance {chip_id}"
        try:
            await find(what, self._call(what, "DELETE", _path(zone, chip_id)))
        except OpsError:  # one that is being deleted is told as stopping
            there = await self.get(zone, chip_id)
            if there is not None and there.state not in {
                tpu.ChipState.STOPPING,
                tpu.ChipState.DELETING,
            }:
                raise

    async def ended(self, zone: str, chip_id: str, *, since: datetime) -> tpu.Ended | None:
        """Say why an instance is gone, by the zone's operations on it: nothing else remains."""
        url = f"{COMPUTE}/projects/{self._clients.project}/zones/{zone}/operations"
        wanted = f'targetLink eq ".*/instances/{chip_id}"'
        with strictly(f"see what ended {chip_id}"):
            pages = [page async for page in self._clients.pages(url, filter=wanted)]
        found = [one for page in pages for one in page.get("items", ())]
        return why_ended(one for one in found if (moment(one["insertTime"]) or since) >= since)

    async def offer(self, zone: str, accelerator: str) -> tpu.Offer:
        kind = machine_type(accelerator)
        what = f"see whether {zone} has {kind}"
        return await tpu.offered(what, self._call(what, "GET", f"zones/{zone}/machineTypes/{kind}"))


def _path(zone: str, chip_id: str = "") -> str:
    return f"zones/{zone}/instances/{chip_id}".rstrip("/")


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

    async def get() -> Json | None:
        what = f"look at the firewall rule {rule}"
        return await find(what, call(site.clients, what, "GET", f"global/firewalls/{rule}"))

    async def put() -> None:
        there = await get()
        if wanted and there is not None and not there["network"].endswith(wanted["network"]):
            await _failure(site, await delete())  # the network of a rule cannot be changed
            there = None
        verb, path = ("PATCH", f"/{rule}") if there else ("POST", "")
        if failure := await _failure(site, await change("make", verb, path, json=wanted)):
            raise CloudRefused(
                f"The firewall rule {rule} does not let in who is to be let in.",
                cause=failure,
                fix="Call the same tool again, or change what the cause names.",
            )

    async def delete() -> str:
        return await change("delete", "DELETE", f"/{rule}")

    async def change(does: str, verb: str, path: str, **more: Any) -> str:
        what = f"{does} the firewall rule {rule}"
        with strictly(what):
            begun = await call(site.clients, what, verb, f"global/firewalls{path}", **more)
        return str(begun["name"])

    whom = "everybody" if made and made.anybody else "your addresses alone"
    return Resource(
        name="rule",
        title=f"its firewall rule {rule}" + (f", which lets in {whom}" if made else ""),
        body=wanted or {},
        get=get,
        put=put if wanted else None,
        delete=delete,
        status=lambda there: (
            Status.READY if wanted is None or _same(there, wanted) else Status.STALE
        ),
        is_ours=lambda there: there.get("description", "").startswith(
            f"managed-by={MANAGED_BY} deployment={name} "
        ),
        command=rest_command(f"{COMPUTE}/projects/{made.project}/global/firewalls", wanted)
        if made
        else "",
    )


async def let_in(site: tpu.Site, name: str) -> tuple[str, ...]:
    """Return the ranges that are let in to a deployment now; none without a rule of ours."""
    there = await unless_foreign(firewall_rule(site, name)).get()
    return tuple(there["sourceRanges"]) if there and not there.get("disabled") else ()


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


def _rule(site: tpu.Site, made: tpu.Blueprint, ranges: Sequence[str]) -> Json:
    as_planned = site.settings.google_allowed_addresses or (YOURS,)
    return {
        "name": made.id,
        "description": f"managed-by={MANAGED_BY} deployment={made.spec.name}"
        f" target={site.target.name}",
        "network": f"global/networks/{made.network}",
        "direction": "INGRESS",
        "allowed": [{"IPProtocol": "tcp", "ports": [str(PORT)]}],
        "sourceRanges": [ANYBODY] if made.anybody else list(ranges or as_planned),
        "targetTags": [made.id],
        "disabled": False,
    }


async def _failure(site: tpu.Site, operation: str) -> str:
    """Wait a while for a rule's operation to end; return what it failed with."""
    what = "see what became of the firewall rule"

    async def look() -> Json:
        with strictly(what):
            return await call(site.clients, what, "GET", f"global/operations/{operation}")

    try:
        seen = await wait_until(
            look,
            lambda seen: seen["status"] == "DONE",
            waiting_for="the firewall rule",
            every=_EVERY_SECONDS,
            timeout=_RULE_SECONDS,
        )
    except WaitedTooLong:
        return ""
    return failure_of(seen)


def _same(there: Json, wanted: Json) -> bool:
    """Whether a rule does what is wanted; Google writes networks as whole addresses."""
    there = {"disabled": False, **there, "sourceRanges": sorted(there.get("sourceRanges", ()))}
    wanted = {**wanted, "sourceRanges": sorted(wanted["sourceRanges"])}
    others = wanted.keys() - {"network"}
    same = all(there.get(field) == wanted[field] for field in others)
    return same and there["network"].endswith(wanted["network"])


async def network_exists(site: tpu.Site, network: str) -> bool:
    """Return whether the project has a network of that name."""
    what = f"look at the network {network}"
    looked = call(site.clients, what, "GET", f"global/networks/{network}")
    return await find(what, looked) is not None


async def zones_with_machine(site: tpu.Site) -> Sequence[str]:
    """Return the zones that have the machine of the target's chips."""
    machine = machine_type(site.accelerator)
    with strictly(f"list the zones that have {machine}"):
        every = await site.clients.in_all_zones("machineTypes", filter=f'name = "{machine}"')
    return sorted({_last(one["zone"]) for one in every.found})
