"""What a deployment on TPUs would be: its steps, price, memory and what to know first."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from backends.common.preflight import price_doubts, tagged
from backends.google import clients
from backends.google.clients import DEPLOYMENT_LABEL, MANAGED_BY, as_sent
from backends.google.errors import not_configured
from backends.tpu import script, text
from backends.tpu.blueprint import Blueprint
from backends.tpu.chip import Place
from backends.tpu.drawing import blueprint
from backends.tpu.planes import Request
from backends.tpu.rules import rules
from core.plans import MemoryPlan, Plan, PlannedStep
from core.records import DeploymentSpec, ModelShape
from planner.accelerators import accelerator
from planner.foresee import foresee
from planner.price import Price, price

if TYPE_CHECKING:
    from backends.tpu.site import Site

_ASKED: Final = {"compute": "Compute Engine", "queued": "the queue of Cloud TPU"}
_OPEN: Final = "a proxy before the engine answers nothing without it but /health and /ping."


def engine_name(site: "Site") -> tuple[str, str]:
    """Give the engine that would serve and, where no project is set, what to do first."""
    engine = rules().engine
    missing = "" if site.clients.configured else not_configured().fix
    return f"vLLM {engine.vllm} ({engine.image})", missing


def make_plan(site: "Site", spec: DeploymentSpec, model: ModelShape) -> Plan:
    """Say which secret, grant, firewall rule and request would be made; nobody is asked anything.

    The plan's spec has every flag that chips and model ask for.

    Raises:
        InvalidArgument: The platform or the model cannot take the spec.
    """
    made = blueprint(site, spec, model)
    costs = price(site.offered, zones=[place.zone for place in made.places])
    opened = (_firewall(site, made),) if made.opened else ()
    return Plan(
        spec=made.spec,
        target=site.target,
        model=model,
        steps=(_key(made), _grant(made), *opened, *_requests(site, made)),
        usd_per_hour=costs.usd_per_hour,
        usd_per_hour_highest=costs.usd_per_hour_highest,
        memory=_memory(site, made, model),
        warnings=tuple(_warnings(made, costs)),
    )


def _key(made: Blueprint) -> PlannedStep:
    clients.opened("google.cloud.secretmanager_v1")
    from google.cloud import secretmanager_v1

    labels = {"managed-by": MANAGED_BY, DEPLOYMENT_LABEL: made.spec.name}
    automatic = secretmanager_v1.Replication.Automatic()
    request = secretmanager_v1.CreateSecretRequest(
        parent=f"projects/{made.project}",
        secret_id=made.container.secrets["VLLM_API_KEY"],
        secret=secretmanager_v1.Secret(
            labels=labels, replication=secretmanager_v1.Replication(automatic=automatic)
        ),
    )
    return PlannedStep(
        what="Keep a random key for the engine in Secret Manager, unless it has one.",
        request=as_sent(request),
        command=text.key(made),
    )


def _grant(made: Blueprint) -> PlannedStep:
    reader = {"role": text.ACCESSOR, "members": [f"serviceAccount:{made.service_account}"]}
    secret = f"projects/{made.project}/secrets/{made.container.secrets['VLLM_API_KEY']}"
    return PlannedStep(
        what="Let the account that the VM runs as read that key, and nobody else.",
        request={"resource": secret, "policy": {"bindings": [reader]}},
        command=text.grants(made),
    )


def _firewall(site: "Site", made: Blueprint) -> PlannedStep:
    sources = text.sources_of(site, made)
    whom = "everybody" if made.anybody else "your addresses alone"
    return PlannedStep(
        what=f"Let {whom} in at port {made.container.port} of this VM.",
        request={
            "name": made.id,
            "network": f"global/networks/{made.network}",
            "direction": "INGRESS",
            "allowed": [{"IPProtocol": "tcp", "ports": [str(made.container.port)]}],
            "sourceRanges": list(sources),
            "targetTags": [made.id],
            "description": text.described(made),
        },
        command=text.firewall(made, sources),
    )


def _requests(site: "Site", made: Blueprint) -> Iterator[PlannedStep]:
    """Give the request at each control plane of the first zone; the others differ in the zone."""
    first = made.places[0]
    for place in made.places:
        if place.zone == first.zone:
            yield _request(site, made, place, is_first=place == first)


def _request(site: "Site", made: Blueprint, place: Place, *, is_first: bool) -> PlannedStep:
    wanted = Request(
        made=made,
        zone=place.zone,
        script=script.startup(made, image=made.container.image),
        labels=made.labels,
    )
    asked = f"{_ASKED[place.plane]} in {place.zone} for {made.accelerator} ({made.provisioning})"
    others = len(made.places) - 1
    more = f", then {others} more places, one at a time" if others and is_first else ""
    return PlannedStep(
        what=f"Ask {asked}{more}." if is_first else f"If it has none, ask {asked}.",
        request=dict(site.planes[place.plane].bodies(wanted)),
        command=text.request(made, place),
    )


def _memory(site: "Site", made: Blueprint, model: ModelShape) -> MemoryPlan | None:
    version = None if made.spec.image else rules().engine.vllm
    chip = accelerator(site.offered.accelerator)
    return foresee(made.spec, model, chip, vllm_version=version)


def _warnings(made: Blueprint, costs: Price) -> Iterator[str]:
    yield from made.doubts
    yield from price_doubts(costs)
    yield from tagged(made.container.image)
    yield from _search(made)
    yield from _end(made, costs)
    if made.provisioning == "spot":
        yield "Spot: Google may take the chip at any time; nothing brings it back by itself."
    yield from _open(made)


def _search(made: Blueprint) -> Iterator[str]:
    number, minutes = len(made.places), made.wait_seconds / 60
    places = "One place" if number == 1 else f"{number} places, each"
    yield (
        f"{made.reason} {places} for {minutes:.0f} minutes at most: given up after"
        f" {number * minutes / 60:.1f} h. Capacity is known only by asking; waiting bills nothing."
    )
    if any(place.plane == "queued" for place in made.places):
        yield (
            "A request of the queue that fails, or whose chip is taken back, stays as a leftover"
            " that holds quota until it is deleted: list_queued_resources shows them."
        )


def _end(made: Blueprint, costs: Price) -> Iterator[str]:
    """Say what ends the bill, and what does not."""
    if made.run_seconds is None:
        yield "Nothing ends it (ttl_minutes=0): it bills until it is deleted."
        return
    hours = made.run_seconds / 3600
    most = costs.usd_per_hour_highest
    paid = f", after ${hours * most:,.2f} at most" if most is not None else ""
    yield f"It is deleted {hours:.1f} h after its start{paid}; ttl_minutes says otherwise."
    if made.provisioning != "flex-start" and any(place.plane == "queued" for place in made.places):
        yield (
            "The queue of Cloud TPU ends no VM but of flex-start: one that it gives is deleted by"
            " this server when its time is over, so only while this server runs."
        )


def _open(made: Blueprint) -> Iterator[str]:
    if not made.opened:
        yield (
            "Nobody outside its network is let in (access=internal): it is reached through an SSH"
            " tunnel, inside of which it speaks plain HTTP."
        )
    elif made.anybody:
        yield f"Anybody on the internet reaches it (access=public), its key protects it: {_OPEN}"
    else:
        yield f"Its firewall rule lets in your addresses alone, by HTTPS and with a key: {_OPEN}"
