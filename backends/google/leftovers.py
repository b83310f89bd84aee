"""What is of ours in a project and serves no deployment any more: found everywhere, and removed."""

import re
from collections import Counter, defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import suppress
from functools import partial
from math import ceil
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import anyio
from google.cloud.run_v2 import Service, ServicesAsyncClient, ServiceScaling

from backends.base import Leftover, Leftovers
from backends.common.concurrency import in_time, side_by_side
from backends.google import cache, lease, schedule
from backends.google.buckets import HOW, in_thread
from backends.google.clients import (
    BUILDER_ID,
    COMPUTE,
    DEPLOYMENT_LABEL,
    IMAGE_GB_USD,
    MANAGED_BY,
    REPOSITORY,
    RUNTIME_ID,
    TARGET_LABEL,
    GoogleSite,
    account_of,
    as_sent,
)
from backends.google.errors import find, reading, strictly, writing
from backends.google.secrets import REGION_LABEL, SECRET_USD
from backends.lifecycle import Resource, Status, no_leftover, remove
from core import errors
from core.environment import ROOT, read_toml
from planner.places import Size, places
from planner.price import HOURS_PER_MONTH, disk_usd_per_month, price

_SECONDS: Final = 22.0
"""For everything of one API; all are asked side by side."""
_REMOVE_SECONDS: Final = 15.0
_AT_ONCE: Final = 16
"""Regions of one API."""
_TARGETS: Final = ROOT / "backends" / "targets.toml"
_TPU: Final = "tpu"
"""Where the key of a deployment on TPUs says that it is: in whichever zone has a chip."""
_ACCOUNTS: Final = frozenset({RUNTIME_ID, BUILDER_ID, lease.ACCOUNT_ID, lease.TPU_ACCOUNT_ID})
_RULE: Final = re.compile(rf"managed-by={MANAGED_BY} deployment=(\S+) ")
_BUILT: Final = re.compile(r"[0-9a-f]{12}")
"""A tag that a deployment's build gave its image: its spec's fingerprint."""
NO_NODE: Final = frozenset({"CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "FAILED"})
"""A request in these states never has one; another's may have its id."""
_OVER: Final = frozenset({"FAILED", "SUSPENDED"})
TAKEN: Final = frozenset({"PREEMPTED", "TERMINATED"})
"""Of a node: its chip was taken back."""
_ENDED: Final = frozenset({"TERMINATED", "STOPPED", "SUSPENDED"})
"""Of an instance, which cannot be started again where it has a TPU."""
_LIST: Final = "Call get_system_status(leftovers=true) for what there is."


class Thing(NamedTuple):
    """One resource of the project, whoever made it."""

    kind: str
    id: str
    parent: str
    """What it is listed in."""
    ours: bool
    deployment: str = ""
    """That it was made for; empty where all share it."""
    home: str = ""
    """The region of that deployment, or `_TPU`; empty where nothing says it."""
    lives: bool = False
    """A deployment is there, or may come."""
    going: bool = False
    """It is being deleted already."""
    usd: float | None = 0.0
    """Each month."""
    why: str = ""
    """Why it is left, where it says so itself."""
    stores: frozenset[str] | None = None
    """Of a deployment: where it carries what it compiles; None where it does not say that."""
    empty: bool = True
    """Of a compile cache: no file lies there, or not yet."""

    @property
    def where(self) -> str:
        found = re.search(r"/(?:locations|zones|regions)/([^/]+)", self.id)
        return found[1] if found else "global"


class Source(NamedTuple):
    """Lists of one API."""

    what: str
    parents: Callable[[GoogleSite], Awaitable[Sequence[str]]] | str
    """Each is listed by itself; as text, what follows the name of the project, which is one."""
    listed: Callable[[GoogleSite, str], AsyncIterator[Thing | str]]
    """Gives things, and as plain text the places that Google itself could not look into."""
    home: str = ""
    """Where deployments themselves are in it: `_TPU`, or else their regions."""


class Seen(NamedTuple):
    """What there is of one source."""

    source: Source
    things: Sequence[Thing]
    unseen: frozenset[str]
    """Homes in which there may be deployments that were not seen; `-` is all of them."""
    sentences: Sequence[str]


async def find_leftovers(site: GoogleSite, kept: Collection[str]) -> Leftovers:
    """Look through the whole project; changes nothing."""
    return _judge(await _look_at_all(site), kept)


async def remove_leftover(site: GoogleSite, named: str, kept: Collection[str]) -> bool:
    """Delete one that a new look finds; whether it was seen to be gone.

    Raises:
        NotFound: There is none of that name.
        NotOurs: It was not made here.
        InvalidArgument: It is no leftover.
        CloudError: Google refused.
    """
    seen = await _look_at_all(site)
    found = {one.id: (row.source, one) for row in seen for one in row.things}
    judged = _judge(seen, kept)
    if named not in {one.id for one in judged.ours}:
        ours = found[named][1].ours if named in found else None
        raise no_leftover(named, site.clients.project, ours=ours, not_seen=judged.not_seen)
    source, thing = found[named]
    own = [_resource(site, *found[one.id]) for one in _parts(thing, seen)]
    return (await remove([*own, _resource(site, source, thing)], seconds=_REMOVE_SECONDS)).gone


def _parts(thing: Thing, seen: Sequence[Seen]) -> Iterator[Thing]:
    """Give what goes with a deployment that no target looks for: its key and its job."""
    if thing.lives:
        for one in (one for row in seen for one in row.things):
            same = (one.deployment, one.home) == (thing.deployment, thing.home)
            if same and one.ours and one.kind in {_SECRET, _JOB}:
                yield one


def _resource(site: GoogleSite, source: Source, thing: Thing) -> Resource:
    parent = thing.parent.replace("/locations/-", f"/locations/{thing.where}")

    async def get() -> Thing | None:
        with strictly(f"look at {thing.id}"):
            now = [one async for one in source.listed(site, parent)]
        if thing.where in now:
            raise errors.CloudUnavailable(
                f"Whether {thing.id} is gone was not seen: Google cannot reach {thing.where}.",
                fix=f"Ask again in a minute. {_LIST}",
            )
        found = next((one for one in now if isinstance(one, Thing) and one.id == thing.id), None)
        if found and found.lives and not (found.going or thing.lives):
            raise errors.InvalidArgument(f"{thing.id} is in use by now.", fix=_LIST)
        return found

    return Resource(
        name=thing.id,
        title=f"the {thing.kind} {thing.id}",
        get=get,
        delete=partial(_delete, site, thing.id),
        status=lambda found: Status.DELETING if found.going else Status.READY,
        is_ours=lambda found: found.ours,
    )


async def _look_at_all(site: GoogleSite) -> Sequence[Seen]:
    await site.clients.credentials()  # without a login nothing is seen, which is no answer
    return await side_by_side([partial(_look_at, site, source) for source in _SOURCES])


async def _look_at(site: GoogleSite, source: Source) -> Seen:
    """List all of a source, its regions side by side; what is not seen is said."""
    things, sentences, unseen = list[Thing](), list[str](), set[str]()
    failed: defaultdict[str, list[str]] = defaultdict(list)
    limit, what = anyio.CapacityLimiter(_AT_ONCE), f"list {source.what}"

    def miss(parent: str, exc: errors.OpsError) -> None:
        if isinstance(exc, errors.ApiDisabled):  # where an API is off, nothing of it is there
            return
        failed[exc.summary].append(parent)
        if source.home:
            unseen.add(_TPU if source.home == _TPU else parent)

    async def read(parent: str) -> None:
        try:
            async with limit:
                with strictly(what):
                    found = [one async for one in source.listed(site, parent)]
        except errors.OpsError as exc:
            return miss(parent.rpartition("/")[2], exc)
        for one in found:
            if isinstance(one, Thing):
                things.append(one)
                continue
            sentences.append(f"Not looked at: {source.what} in {one}, which Google cannot reach.")
            unseen.add(_TPU)
        return None

    parents: Sequence[str] = ()
    try:
        with in_time("Google", what, _SECONDS, fix=_LIST), strictly(what):
            project, asked = f"projects/{site.clients.project}", source.parents
            parents = [f"{project}{asked}"] if isinstance(asked, str) else await asked(site)
            async with anyio.create_task_group() as group:
                for parent in parents:
                    group.start_soon(read, parent)
    except errors.OpsError as exc:
        miss("-", exc)
    for reason, where in failed.items():
        places = "" if "-" in where or len(where) == len(parents) else f" in {', '.join(where)}"
        sentences.append(f"Not looked at: {source.what}{places}. {reason}")
    return Seen(source, sorted(things), frozenset(unseen), sentences)


def _stores(things: Sequence[Thing]) -> Mapping[tuple[str, str], Collection[str]]:
    """Return where each deployment that is there carries what it compiles, if it says so."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for one in things:
        if one.lives and one.stores:
            found[one.home, one.deployment] |= one.stores
    return found


def _judge(seen: Sequence[Seen], kept: Collection[str]) -> Leftovers:
    things = [one for row in seen for one in row.things]
    unseen = frozenset[str]().union(*(row.unseen for row in seen))
    living = {(one.home, one.deployment) for one in things if one.lives}
    # What is on its way has its key already, or its image.
    used = any(one.ours and (one.lives or one.deployment in kept) for one in things)
    carried, unsure = _stores(things), 0

    def reason(one: Thing) -> str | None:
        """Return why it is left; empty where it is not, None where that is not known."""
        used_by_it = carried.get((one.home, one.deployment))
        if one.kind == _CACHE and used_by_it and one.id.rstrip("/") not in used_by_it:
            return "" if one.empty else "its deployment carries what it compiles elsewhere by now"
        if one.going or one.deployment in kept or one.why or one.lives:
            return "" if one.going or one.deployment in kept else one.why
        if not one.deployment:
            return "" if used else None if unseen else "nothing of ours is there that could use it"
        homes = {home for home, name in living if name == one.deployment}
        if one.home in homes or (homes and not one.home):
            return ""
        blind = unseen if not one.home else unseen & {one.home, "" if one.home == _TPU else "-"}
        return None if blind else "no deployment of that name is there"

    ours, others = list[Leftover](), Counter[str]()
    for one in things:
        if not one.ours:
            others[one.kind] += 1
        elif (why := reason(one)) is None:
            unsure += 1
        elif why:
            ours.append(
                Leftover(
                    id=one.id,
                    kind=one.kind,
                    where=one.where,
                    deployment=one.deployment,
                    usd_per_month=one.usd,
                    why=why,
                )
            )
    sentences = [one for row in seen for one in row.sentences]
    if unsure:
        sentences.append(
            f"Whether {unsure} of ours are in use is not known: not all deployments were seen."
        )
    return Leftovers(ours=tuple(ours), others=dict(others), not_seen=tuple(sentences))


_SERVICE: Final = "Cloud Run service"
_JOB: Final = "Cloud Scheduler job"
_CACHE: Final = "compile cache"
_SECRET: Final = "secret"  # noqa: S105  what it is called


async def _run_regions(site: GoogleSite) -> Sequence[str]:
    """Return Cloud Run's regions, which v1 alone lists; v2 takes no `-` for all of them."""
    path = f"projects/{site.clients.project}/locations"
    pages = site.clients.pages(f"https://run.googleapis.com/v1/{path}")
    return [f"{path}/{row['locationId']}" async for page in pages for row in page["locations"]]


async def _locations(site: GoogleSite, opened: Awaitable[Any]) -> Sequence[str]:
    """Return an API's own locations."""
    client, found, token = await opened, list[str](), ""
    project = f"projects/{site.clients.project}"
    while True:
        request = {"name": project, "page_token": token}
        page = await client.list_locations(request, **reading())
        found += [f"{project}/locations/{one.location_id}" for one in page.locations]
        token = page.next_page_token
        if not token:
            return found


async def _services(site: GoogleSite, parent: str) -> AsyncIterator[Thing]:
    client = await site.clients.client(ServicesAsyncClient)
    async for one in await client.list_services(parent=parent, **reading()):
        yield _service(site, parent, one)


def _service(site: GoogleSite, parent: str, service: Service) -> Thing:
    """Read a service: one that no target looks for is left, with what its instances bill."""
    said, region, name = service.labels, parent.rpartition("/")[2], service.name.rpartition("/")[2]
    ours, target, own = _is_labeled(said), said.get(TARGET_LABEL, ""), site.settings
    looked = {
        name: own.google_cloud_location or row["region"]
        for name, row in read_toml(_TARGETS).items()
        if row["backend"] == "cloud_run"
    }
    why, usd = "", None
    if ours and looked.get(target) != region:
        nobody = region not in looked.values()
        why = f"no target {'' if nobody else f'named {target!r} '}looks in {region}"
        scaling, hourly = service.scaling, None
        least = scaling.min_instance_count or service.template.scaling.min_instance_count
        if scaling.scaling_mode == ServiceScaling.ScalingMode.MANUAL:
            least = scaling.manual_instance_count
        if place := places().get(target):
            hourly = price(place, size_of(service)).usd_per_hour
        usd = 0.0 if not least else hourly and round(least * hourly * HOURS_PER_MONTH, 2)
    return Thing(
        _SERVICE,
        service.name,
        parent,
        ours,
        name,
        region,
        lives=True,
        going=bool(service.delete_time),
        usd=usd,
        why=why,
        stores=cache.stores_in(str(as_sent(service))),
    )


def _is_labeled(labels: Mapping[str, str]) -> bool:
    return labels.get("managed-by") == MANAGED_BY


_MEMORY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(Ki|Mi|Gi|k|M|G)?B?")
_GIB: Final = {"Ki": 2**-20, "Mi": 2**-10, "Gi": 1.0, "k": 1e3 / 2**30, "M": 1e6 / 2**30,
               "G": 1e9 / 2**30, None: 2**-30}  # fmt: skip


def size_of(service: Service) -> Size | None:
    """Return the processors and memory of an instance, all of its containers together.

    >>> from google.cloud import run_v2
    >>> limits = {"cpu": "8000m", "memory": "32768Mi"}
    >>> made = run_v2.Container(resources=run_v2.ResourceRequirements(limits=limits))
    >>> size_of(run_v2.Service(template=run_v2.RevisionTemplate(containers=[made])))
    Size(vcpu=8, ram_gib=32)
    """
    vcpu = ram_gib = 0.0
    for container in service.template.containers:
        limits = container.resources.limits
        memory = _MEMORY.fullmatch(limits.get("memory", ""))
        cpu = re.fullmatch(r"([0-9]+)(m?)", limits.get("cpu", ""))
        if not memory or not cpu:
            return None
        vcpu += int(cpu[1]) / (1000 if cpu[2] else 1)
        ram_gib += float(memory[1]) * _GIB[memory[2]]
    return Size(vcpu=ceil(vcpu), ram_gib=ceil(ram_gib)) if vcpu else None


async def _jobs(site: GoogleSite, parent: str) -> AsyncIterator[Thing]:
    client, region = await site.clients.scheduler(), parent.rpartition("/")[2]
    async for one in await client.list_jobs(parent=parent, **reading()):
        job = one.name.rpartition("/")[2]
        name, home = schedule.deployment_of(job), region
        for prefix, place in ((lease.job_id(""), region), (lease.TPU_JOB, _TPU)):
            if job.startswith(prefix):
                name, home = job.removeprefix(prefix), place
        ours = lease.is_ours(one) and bool(name)
        yield Thing(_JOB, one.name, parent, ours, name or job, home, usd=lease.JOB_USD)


async def _secrets(site: GoogleSite, parent: str) -> AsyncIterator[Thing]:
    client = await site.clients.secrets()
    async for one in await client.list_secrets(parent=parent, **reading()):
        said = one.labels
        whose = said.get(DEPLOYMENT_LABEL, ""), said.get(REGION_LABEL, "")
        yield Thing(_SECRET, one.name, parent, _is_labeled(said), *whose, usd=SECRET_USD)


async def _tpus(site: GoogleSite, parent: str) -> AsyncIterator[Thing | str]:
    """List requests, and the nodes that none of them has."""
    client, requests, nodes = await _tpu(site), list[Any](), dict[tuple[str, str], Any]()
    async for page in (await client.list_queued_resources(parent=parent, **reading())).pages:
        requests += page.queued_resources
        for place in page.unreachable:
            yield place.rpartition("/")[2]
    async for node_page in (await client.list_nodes(parent=parent, **reading())).pages:
        nodes |= {_zone_and_id(one.name): one for one in node_page.nodes}
        for place in node_page.unreachable:
            yield place.rpartition("/")[2]
    for one in requests:
        spec, state = next(iter(one.tpu.node_spec), None), one.state.state.name
        zone, short = _zone_and_id(one.name)
        node = nodes.get((zone, spec.node_id)) if spec and state not in NO_NODE else None
        if node and node.queued_resource.rpartition("/")[2] in {"", short}:
            nodes.pop((zone, node.name.rpartition("/")[2]))
        else:
            node = None
        labels = (node or spec.node).labels if spec else {}
        over = state in _OVER or (node is not None and node.state.name in TAKEN)
        why = f"it is {state}: it has no chip any more, and holds quota" if over else ""
        paid = node and _node_usd(node)
        said = str(spec.node.metadata) if spec else ""
        yield _chip("queued resource", one.name, parent, labels, why, state, paid or 0.0, said)
    for one in nodes.values():
        state = one.state.name
        why = f"it is {state}: its chip was taken back" if state in TAKEN else ""
        usd, said = _node_usd(one), str(one.metadata)
        yield _chip("TPU node", one.name, parent, one.labels, why, state, usd, said)


def _node_usd(node: Any) -> float | None:
    how = node.scheduling_config
    model = "SPOT" if how.spot or how.preemptible else "STANDARD"
    return _chips_usd(node.accelerator_type, model, _zone_and_id(node.name)[0])


def _chips_usd(accelerator: str, model: str, zone: str) -> float | None:
    """Return the dollars a month of a VM with chips such as v6e-1, given in some way."""
    place = places().get(f"tpu-{accelerator}{_WAYS.get(model, '')}")
    hourly = price(place, zones=[zone]).usd_per_hour if place else None
    return None if hourly is None else round(hourly * HOURS_PER_MONTH, 2)


def _zone_and_id(name: str) -> tuple[str, str]:
    """Read projects/P/locations/ZONE/nodes/ID; P may be its id or its number."""
    return name.split("/")[3], name.rpartition("/")[2]


def _chip(
    kind: str,
    name: str,
    parent: str,
    labels: Mapping[str, str],
    over: str,
    state: str,
    usd: float | None,
    metadata: str,
) -> Thing:
    """Read what has a chip, or may get one; `over`: why it never will again.

    What is not ours may have one of our names. One of a target that nobody knows is seen nowhere
    else, and bills on.
    """
    deployment, target = labels.get(DEPLOYMENT_LABEL, ""), labels.get(TARGET_LABEL, "")
    ours, short = _is_labeled(labels) and bool(deployment), name.rpartition("/")[2]
    whose = deployment if ours else short.removeprefix("vllm-devops-")
    known = not ours or read_toml(_TARGETS).get(target, {}).get("backend") == "tpu"
    return Thing(
        kind,
        name,
        parent,
        ours,
        whose,
        _TPU,
        lives=not over,
        going=state in {"DELETING", "DEPROVISIONING"},
        usd=0.0 if over and kind != _INSTANCE else usd,
        why=over or ("" if known else f"no target named {target!r} looks for it"),
        stores=cache.stores_in(metadata),
    )


_INSTANCE: Final = "instance"
_WAYS: Final = {"SPOT": "-spot", "FLEX_START": "-flex"}
"""How targets of chips that are given so end."""


async def _instances(site: GoogleSite, parent: str) -> AsyncIterator[Thing | str]:
    every, disks = await site.clients.in_all_zones("instances"), list[Mapping[str, Any]]()
    ended = [one for one in every.found if one["status"] in _ENDED]
    if any(_is_labeled(one.get("labels", {})) for one in ended):
        with suppress(errors.PermissionDenied):  # their price is not known then
            disks += (await site.clients.in_all_zones("disks")).found
    for one in every.found:
        state, why = one["status"], ""
        if state in _ENDED:
            why = f"it is {state}: one with a TPU cannot be started again, and its disk bills"
            own = [disk_usd(disk) for disk in disks if one["selfLink"] in disk.get("users", ())]
            known = [usd for usd in own if usd is not None]
            usd = round(sum(known), 2) if known and len(known) == len(own) else None
        else:
            machine, zone = (one[key].rpartition("/")[2] for key in ("machineType", "zone"))
            chips = re.sub(r"ct6e-standard-([0-9]+)t", r"v6e-\1", machine)
            usd = _chips_usd(chips, one.get("scheduling", {}).get("provisioningModel", ""), zone)
        labels, said = one.get("labels", {}), str(one.get("metadata", ""))
        yield _chip(_INSTANCE, path_of(one), parent, labels, why, state, usd, said)
    for place in every.unread:
        yield place


async def _disks(site: GoogleSite, parent: str) -> AsyncIterator[Thing | str]:
    """List disks; one that an instance has goes with it."""
    every = await site.clients.in_all_zones("disks")
    for place in every.unread:
        yield place
    for one in every.found:
        labels, used = one.get("labels", {}), bool(one.get("users"))
        whose = labels.get(DEPLOYMENT_LABEL, "")
        ours = _is_labeled(labels) and bool(whose)
        if not (ours and used):
            yield Thing("disk", path_of(one), parent, ours, whose, _TPU, usd=disk_usd(one))


def disk_usd(one: Mapping[str, Any]) -> float | None:
    """Return the dollars a month of a disk, by type, size, what it is provisioned with and zone."""
    kind, zone = (str(one.get(key, "")).rpartition("/")[2] for key in ("type", "zone"))
    more = {"iops": "provisionedIops", "mib_per_s": "provisionedThroughput"}
    provisioned = {name: int(one.get(key) or 0) for name, key in more.items()}
    found = disk_usd_per_month(kind, float(one.get("sizeGb") or 0), zone, **provisioned)
    return None if found is None else round(found, 2)


def path_of(one: Mapping[str, Any]) -> str:
    return str(one["selfLink"]).rpartition("/v1/")[2]


async def _rules(site: GoogleSite, parent: str) -> AsyncIterator[Thing]:
    async for page in site.clients.pages(f"{COMPUTE}/{parent}/global/firewalls"):
        for one in page.get("items", ()):
            whose = _RULE.match(one.get("description", ""))
            ours = whose is not None and one["name"] == f"vllm-devops-{whose[1]}"
            name = whose[1] if whose and ours else ""
            yield Thing("firewall rule", path_of(one), parent, ours, name, _TPU)


async def _registry(site: GoogleSite) -> Any:
    from google.cloud.artifactregistry_v1 import ArtifactRegistryAsyncClient

    return await site.clients.client(ArtifactRegistryAsyncClient)


async def _repositories(site: GoogleSite, parent: str) -> AsyncIterator[Thing]:
    """List repositories, and the images in ours; with one of others' in it, it is theirs as well.

    What a deployment's build made has its spec's fingerprint for a tag.
    """
    client, region = await _registry(site), parent.rpartition("/")[2]
    async for one in await client.list_repositories(parent=parent, **reading()):
        ours = _is_labeled(one.labels) and one.name.endswith(f"/{REPOSITORY}")
        images = list[Thing]()
        if ours:
            packages: defaultdict[str, list[Any]] = defaultdict(list)
            async for image in await client.list_docker_images(parent=one.name, **reading()):
                packages[image.uri.split("@")[0].split("/", 3)[3]].append(image)
            for name, rows in packages.items():
                tags = [tag for row in rows for tag in row.tags]
                built = bool(tags) and all(map(_BUILT.fullmatch, tags))
                usd = round(sum(row.image_size_bytes for row in rows) / 1e9 * IMAGE_GB_USD, 2)
                path = f"{one.name}/packages/{quote(name, safe='')}"
                images.append(Thing("image", path, parent, built, name, region, usd=usd))
            ours = all(image.ours for image in images)
        for thing in (*images, Thing("repository", one.name, parent, ours)):
            yield thing


async def _accounts(site: GoogleSite, parent: str) -> AsyncIterator[Thing]:
    client = await site.clients.iam()
    own = {account_of(site.clients.project, one) for one in _ACCOUNTS}
    async for one in await client.list_service_accounts(name=parent, **reading()):
        yield Thing("service account", one.name, parent, one.email in own)


async def _roles(site: GoogleSite, parent: str) -> AsyncIterator[Thing]:
    client, own = await site.clients.iam(), {lease.ROLE_ID, lease.TPU_ROLE_ID}
    async for one in await client.list_roles(request={"parent": parent}, **reading()):
        ours = one.name.rpartition("/")[2] in own and one.title.startswith(MANAGED_BY)
        yield Thing("role", one.name, parent, ours)


async def _buckets(site: GoogleSite) -> Sequence[str]:
    client = await site.clients.storage()
    return [str(one.name) for one in await in_thread(lambda: list(client.list_buckets(**HOW)))]


async def _caches(site: GoogleSite, bucket: str) -> AsyncIterator[Thing]:
    """List compile caches: files, or the right to them, of a deployment in a bucket."""
    for under, files in (await cache.all_in(site, bucket)).items():
        _, name, home = under.rstrip("/").split("/")
        path, usd = f"gs://{bucket}/{under}", round(cache.month_usd(files), 4)
        of: dict[str, Any] = {"ours": True, "deployment": name, "home": home}
        yield Thing(_CACHE, path, bucket, **of, usd=usd, empty=not files)


_SOURCES: Final = (
    Source("services of Cloud Run", _run_regions, _services, "regions"),
    Source("TPUs and requests for them", "/locations/-", _tpus, _TPU),
    Source("instances", "", _instances, _TPU),
    Source("disks", "", _disks),
    Source("firewall rules", "", _rules),
    Source(
        "jobs of Cloud Scheduler", lambda site: _locations(site, site.clients.scheduler()), _jobs
    ),
    Source("secrets", "", _secrets),
    Source(
        "images and their repositories",
        lambda site: _locations(site, _registry(site)),
        _repositories,
    ),
    Source("service accounts", "", _accounts),
    Source("roles", "", _roles),
    Source("compile caches in buckets", _buckets, _caches),
)


async def _delete(site: GoogleSite, name: str) -> None:
    """Ask to delete something by its whole name; already gone is no error."""
    if name.startswith("gs://"):
        bucket, _, under = name.removeprefix("gs://").partition("/")
        await cache.remove(site, bucket, under)
        return
    kind, what = name.split("/")[-2], f"delete {name}"
    if kind in {"instances", "disks", "firewalls"}:
        await find(what, site.clients.ask("DELETE", f"{COMPUTE}/{name}"))
        return
    opened, method = _DELETES[kind]
    force = {"force": True} if kind == "queuedResources" else {}  # with its node
    asked = getattr(await opened(site), method)(request={"name": name, **force}, **writing())
    await find(what, asked)


async def _run(site: GoogleSite) -> Any:
    return await site.clients.client(ServicesAsyncClient)


async def _tpu(site: GoogleSite) -> Any:
    from google.cloud.tpu_v2 import TpuAsyncClient

    return await site.clients.client(TpuAsyncClient)


_DELETES: Final[Mapping[str, tuple[Callable[[GoogleSite], Awaitable[Any]], str]]] = {
    "services": (_run, "delete_service"),
    "queuedResources": (_tpu, "delete_queued_resource"),
    "nodes": (_tpu, "delete_node"),
    "jobs": (lambda site: site.clients.scheduler(), "delete_job"),
    "secrets": (lambda site: site.clients.secrets(), "delete_secret"),
    "packages": (_registry, "delete_package"),
    "repositories": (_registry, "delete_repository"),
    "serviceAccounts": (lambda site: site.clients.iam(), "delete_service_account"),
    "roles": (lambda site: site.clients.iam(), "delete_role"),
}
"""Whom to ask, and for what, by the part of a name that says what it is."""
