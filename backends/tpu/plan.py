"""What a deployment would be, with its price and memory; what a preflight asks of it."""

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import anyio

from backends.base import DeploymentConfig
from backends.common.keeper import answer_of
from backends.common.preflight import Answer, Question, price_doubts, tagged
from backends.compile_cache import without_cache
from backends.container import as_yaml
from backends.google import cache, secrets, setup
from backends.google.clients import HF_SECRET, RUNTIME_ID, rest_command, written
from backends.google.lease import JOB_USD
from backends.lifecycle import Resource, Status, look, steps
from backends.tpu import compute, lease, search, vm, zones
from backends.tpu.site import Blueprint, Place, Request, Site
from backends.tpu.vm import blueprint, rules
from core.errors import CloudRefused, InvalidArgument, NotFound, NotOurs, OpsError
from core.records import DeploymentSpec, ModelShape, Plan, Preflight, usd
from planner.memory import foresee
from planner.model import read_model
from planner.places import accelerator
from planner.price import Price, price

_OPEN: Final = "a proxy before the engine answers nothing without it but /health and /ping."


def ground(site: Site, made: Blueprint, callers: Sequence[str] = ()) -> tuple[Resource, ...]:
    """Return what a VM stands on wherever it is: its key, who may read that, and who may call.

    Where what it compiles is carried, the right to that as well.

    `callers` is who is let in, where that was asked.
    """
    name = made.spec.name
    rule = (compute.firewall_rule(site, name, made, callers),) if made.opened else ()
    bucket = cache.bucket_of(site, made.spec)
    right = (cache.grant(site, name, bucket),) if made.store else ()
    return (*secrets.key(site, name), *right, *rule)


async def asked_ground(site: Site, made: Blueprint) -> tuple[Resource, ...]:
    """Return the same with whom it lets in, which may have to be asked for.

    Raises:
        InvalidArgument, CloudUnavailable: It is not known who may call.
    """
    known = await compute.callers(site) if made.opened and not made.anybody else ()
    return ground(site, made, known)


def owned_rule(site: Site, name: str) -> Resource:
    """Return the firewall rule that an earlier deployment of the name may have."""
    return compute.firewall_rule(site, name)


def owned(site: Site, name: str, chip: Resource) -> tuple[Resource, ...]:
    """Return what a deployment may have of its own, whatever it was; its chip goes first."""
    kept = site.records.get(name)
    bucket = cache.bucket_in(kept.blueprint.store if kept else "")

    async def where() -> str:
        return bucket or cache.bucket_of(site, None)

    right, carried = cache.owned(site, name, where)
    key, rule, job = secrets.owned_key(site, name), owned_rule(site, name), lease.owned(site, name)
    return (carried, key, rule, right, job, chip)


def chip_at(site: Site, made: Blueprint, place: Place, *, others: int = 0) -> Resource:
    """Return the request for a chip at a place; `others` are places that are asked after it."""
    script = vm.startup_script(made, image=made.container.image)
    request, plane = Request(made, place.zone, script, made.labels), site.planes[place.plane]
    whom = {"compute": "Compute Engine", "queued": "the queue of Cloud TPU"}[place.plane]
    more = f", then at {others} more places, one at a time" if others else ""
    return Resource(
        name=f"chip {place}",
        title=f"a VM with {made.accelerator} ({made.provisioning}), asked for of"
        f" {whom} in {place.zone}{more}",
        body=plane.bodies(request),
        get=partial(plane.get, place.zone, made.id),
        put=partial(plane.create, request),
        command=rest_command(plane.address(request), file=f"{made.id}.json"),
    )


def make_plan(site: Site, spec: DeploymentSpec, model: ModelShape) -> Plan:
    """Say which secret, grant, rule and request would be made; nobody is asked anything.

    The plan's spec has every flag that chips and model ask for.

    Raises:
        InvalidArgument: The platform or the model cannot take the spec.
    """
    made = blueprint(site, spec, model)
    if spec.lease and made.run_seconds is None:
        raise InvalidArgument(
            f"Nothing ends it (ttl_minutes=0): lease={spec.lease} cannot be kept.",
            fix="Give ttl_minutes or max_usd, or no lease: reset=['lease'] where it has one.",
        )
    costs = price(site.offered, zones=[place.zone for place in made.places])
    first = [place for place in made.places if place.zone == made.places[0].zone]
    chips = [
        chip_at(site, made, place, others=0 if number else len(made.places) - 1)
        for number, place in enumerate(first)
    ]
    jobs = [
        lease.job(site, spec.name, place.zone, None)
        for place in made.places
        if lease.is_meant(site, made) and lease.is_kept(site, place)
    ]
    return Plan(
        spec=made.spec,
        target=site.target,
        model=model,
        steps=steps((*ground(site, made), *jobs[:1], *chips)),
        usd_per_hour=costs.usd_per_hour,
        usd_per_hour_highest=costs.usd_per_hour_highest,
        memory=foresee(
            made.spec,
            model,
            accelerator(site.offered.accelerator),
            vllm_version=None if made.spec.image else rules().engine.vllm,
        ),
        warnings=tuple(_warnings(made, costs)),
    )


_QUEUE: Final = "The queue of Cloud TPU ends no VM but of flex-start: one that it gives is deleted"
_ENDER: Final = (
    f"{_QUEUE} by a job of Cloud Scheduler, whether a server runs or not ({usd(JOB_USD)} a month"
    " until it is destroyed); where this login may not have that, the answer says so and a server"
    " ends it. No permission exists for one TPU alone: the account of that job may delete every"
    " one of the project, and do nothing else; control_plane=compute needs no such account."
)
_SERVER: Final = (
    f"{_QUEUE} by this server when its time is over, so only while this server runs: leave lease"
    " out and Google ends it."
)


def _warnings(made: Blueprint, costs: Price) -> Iterator[str]:
    """Say what a person should know before paying: the wait, what ends the bill, who is let in."""
    yield from made.doubts
    yield from price_doubts(costs)
    yield from tagged(made.container.image)
    yield cache.plan_words(made.spec, made.store, "VM", "BUCKET_NAME names one")
    number, minutes = len(made.places), made.wait_seconds / 60
    queued = any(place.plane == "queued" for place in made.places)
    places = "One place" if number == 1 else f"{number} places, each"
    yield (
        f"{places} for {minutes:.0f} minutes at most: given up after"
        f" {number * minutes / 60:.1f} h. Capacity is known only by asking; waiting bills nothing."
    )
    if queued:
        yield (
            "A request of the queue that fails, or whose chip is taken back, stays as a leftover"
            " that holds quota until it is deleted: list_queued_resources shows them."
        )
    if made.run_seconds is None:
        yield "Nothing ends it (ttl_minutes=0): it bills until it is deleted."
    else:
        hours, hourly = made.run_seconds / 3600, costs.usd_per_hour_highest
        paid = f", after ${hours * hourly:,.2f} at most" if hourly is not None else ""
        yield (
            f"It is deleted {hours:.1f} h after it has its chip, boot included{paid};"
            " ttl_minutes says otherwise."
        )
        if made.provisioning != "flex-start" and queued:
            yield _ENDER if made.spec.lease != "server" else _SERVER
    if made.provisioning == "spot":
        yield "Spot: Google may take the chip at any time; nothing brings it back by itself."
    if not made.opened:
        yield (
            "Nobody outside its network is let in (access=internal): it is reached through an SSH"
            " tunnel, inside of which it speaks plain HTTP."
        )
    elif made.anybody:
        yield f"Anybody on the internet reaches it (access=public), its key protects it: {_OPEN}"
    else:
        yield f"Its rule lets in your addresses alone, by HTTPS and with a key: {_OPEN}"


_KEY: Final = (
    "The key is made in a pipe and kept in Secret Manager; it is in no file and no argument."
)
_BODY: Final = "yaml is the body of the request that makes the VM, to be read."


def docker_command(made: Blueprint) -> str:
    """Return what the VM's startup script runs; the key comes from the shell's environment."""
    before, run = vm.guard_of(made), ("docker", "run", "--detach")
    proxy = (*run, *vm.guard_arguments(made), before.image, *before.command, *before.args)
    image = (made.container.image, *vm.container_command(made))
    return f"{shlex.join(proxy)}\n{shlex.join((*run, *vm.docker_arguments(made), *image))}"


async def config_of(site: Site, name: str) -> DeploymentConfig:
    """Write a deployment as commands and as the body of its request, where it is or is asked for.

    Raises:
        DeploymentNotFound: There is none.
        NotFound: What was asked for cannot be read any more.
    """
    made, place = await _as_made(site, name)
    own = made.model_copy(update={"container": without_cache(made.container)})
    chip = chip_at(site, made, place)
    hub = HF_SECRET in made.container.secrets.values()
    before = (*([secrets.reader(site, HF_SECRET)] if hub else []), *ground(site, made))
    written_down = written(f"{made.id}.json", chip.body)
    return DeploymentConfig(
        command="\n".join((*(one.command for one in before), written_down, chip.command)),
        docker_run=docker_command(own),
        yaml=as_yaml(chip.body),
        notes=(_BODY, _KEY),
    )


async def _as_made(site: Site, name: str) -> tuple[Blueprint, Place]:
    """Return what this machine remembers of it, else what its VM's metadata says."""
    chip = await search.chip_of(site, name)
    kept = search.record_of(site, name, chip)
    if kept:
        current = kept.current.place if kept.current else kept.blueprint.places[0]
        return kept.blueprint, chip.place if chip else kept.placed or current
    spec = await search.spec_of(site, name)
    if spec is None or chip is None:
        raise NotFound(
            f"What was asked for when {name} was made cannot be read any more.",
            fix="Read the VM itself: `gcloud compute instances list`, or"
            " `gcloud compute tpus queued-resources list --zone=-`.",
        )
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    return blueprint(site, spec, model), chip.place


def shared(site: Site) -> tuple[Resource, ...]:
    """Return what a project needs once, in the order in which it can be made.

    Raises:
        NotConfigured: No project is named.
    """
    wanted = setup.needs("tpu")
    return (
        setup.apis(site, wanted.apis),
        setup.account(site),
        setup.roles(site, RUNTIME_ID, wanted.roles),
        *setup.tokens(site),
        *lease.shared(site),
    )


def _questions(site: Site, made: Blueprint) -> Iterator[Question]:
    """Ask for what every VM needs, for the names that it takes, and for the places."""
    spec, planes = made.spec, {place.plane for place in made.places}
    of_it = {"every", *planes, *({"opened"} if made.opened else ())}
    of_it |= {"external"} if made.external_ip and "compute" in planes else set()
    of_it |= {"lease"} if spec.lease == "cloud" and lease.is_meant(site, made) else set()

    async def roles() -> Answer | str:
        wanted = setup.needs("tpu").roles
        if await setup.roles(site, RUNTIME_ID, wanted).get() is not None:
            return f"It may {' and '.join(one.why for one in wanted)}."
        names = ", ".join(one.name for one in wanted)
        detail = f"It has not all of {names}: docker would not start a container that cannot log."
        return Answer(passed=False, detail=detail, fix=setup.SET_UP)

    async def network() -> Answer | str:
        if not await compute.network_exists(site, made.network):
            fix = "Give network=NETWORK/SUBNETWORK, or make the default one: gcloud compute"
            fix = f"{fix} networks create default --project={site.clients.project}"
            return Answer(passed=False, detail="There is none of that name.", fix=fix)
        sub = f"; its subnetwork {made.subnetwork} must be in each zone's region"
        return f"It is{sub if made.subnetwork else ''}."

    async def callers() -> str:
        return f"{', '.join(await compute.callers(site))}; nobody else is let in."

    yield from setup.questions_of_every(site, "tpu", of_it, spec)
    yield Question("That account has its roles", roles)
    yield Question(f"The network {made.network} is there", network)
    if made.opened and not made.anybody:
        yield Question("It is known who may call", callers, (OpsError,))
    image = partial(setup.image_there, site, made.container.image)
    yield Question("The container image is there", image, (CloudRefused,))
    yield Question(f"The id {made.id} is free or yours", partial(_id, site, spec.name), (NotOurs,))
    if made.opened:
        rule = owned_rule(site, spec.name)
        yield Question(
            f"The name of {rule.title} is free or yours", partial(_free, rule), (NotOurs,)
        )
    if lease.is_meant(site, made):
        yield Question("Google ends it when its time is over", partial(_ends, site, spec))
    chips = "one chip" if made.chips == 1 else f"{made.chips} chips"
    way = "on demand" if made.provisioning == "on-demand" else f"as {made.provisioning}"
    yield Question(f"A place may give {chips} {way}", partial(_places, site, made))


async def _ends(site: Site, spec: DeploymentSpec) -> Answer | str:
    well = "A job of Cloud Scheduler deletes what the queue gives."
    return answer_of(spec, await lease.means(site, spec.name), well)


async def _id(site: Site, name: str) -> str:
    there = await search.find_named(site, name)
    search.refuse_foreign(site, name, there)
    where = ", ".join(f"{one.place} {one.said}" for one in there)
    return f"It is this deployment's: {where}." if there else "Nothing of that id is there."


async def _free(one: Resource) -> str:
    there = (await look(one)).status is not Status.ABSENT
    return "It is this deployment's, which would be changed." if there else "None is there."


_ELSEWHERE: Final = "Call get_zones_with_available_quota, and give zones."
_CAPACITY: Final = "Whether a chip is free is known only by asking for one."


async def _places(site: Site, made: Blueprint) -> Answer | str:
    """Say of every place what stands against it; one against which nothing does is enough."""
    counting = await zones.count_chips(site, without=made.spec.name)
    found = await zones.prospects_of(site, made.places, counting, seconds=15.0)
    detail = zones.verdict_words(found)
    seen = [one.verdict[0] for one in found]
    if True in seen:
        return f"{detail} {_CAPACITY}"
    more = f"https://console.cloud.google.com/iam-admin/quotas?project={site.clients.project}"
    quota = f"Leftovers hold quota (list_queued_resources); ask for more at {more}"
    fix = f"{_ELSEWHERE} {quota}"
    return Answer(passed=None if None in seen else False, detail=detail, fix=fix)


async def preflight(site: Site, wanted: Plan) -> Preflight:
    """Ask everything; of several places one that nothing stands against is enough."""
    return await setup.preflight(
        site, lambda: _questions(site, blueprint(site, wanted.spec, wanted.model))
    )
