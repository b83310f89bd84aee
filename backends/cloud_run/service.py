"""A service: every value decided, typed for Google's SDK, found by name, and brought about."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

from google.api.launch_stage_pb2 import LaunchStage
from google.api_core.exceptions import from_grpc_status
from google.cloud import run_v2
from google.cloud.run_v2 import Revision, Service, ServiceScaling
from google.longrunning.operations_pb2 import GetOperationRequest, Operation
from pydantic import ValidationError

from backends import container as vllm
from backends.cloud_run.build import ollama_serving
from backends.cloud_run.container import (
    Serving,
    gpu_of,
    place_of,
    refuse_name,
    region_doubt,
    rules,
    vllm_serving,
)
from backends.cloud_run.site import SPEC_ANNOTATION, Site
from backends.common.registry import with_digests
from backends.compile_cache import carried, compile_cache, may_carry
from backends.container import Probe
from backends.google import cache
from backends.google.clients import (
    HF_SECRET,
    MANAGED_BY,
    SPEC_LABEL,
    TARGET_LABEL,
    key_secret,
    runtime_account,
)
from backends.google.errors import error_of, find, reading, strictly, translated, writing
from backends.google.setup import pinned
from backends.lease import LABELS, Lease
from backends.lease import read as read_lease
from backends.lifecycle import UNSURE, Status, not_found
from core import errors
from core.records import NAME_PATTERN, DeploymentSpec, ModelShape, Record, Target
from core.reply import note
from core.waiting import wait_until
from planner.places import Size

IDLE_MINUTES: Final = 15
"""An instance without requests is kept no longer; source: Cloud Run, about instance autoscaling."""
VOLUME: Final = "weights"
ENGINE: Final = "vllm"
"""The name of the engine's container, where another one stands beside it."""
_GPU: Final = "nvidia.com/gpu"
_ATTEMPT_LABEL: Final = "vllm-devops-attempt"
"""Of a revision: the same template again makes none, and one that failed stays failed."""
_REFUSAL_SECONDS: Final = 3.0
"""What instances are ended or started for is not waited for."""
_LOOK_SECONDS: Final = 0.3


class Network(Record):
    """Direct VPC: the subnetwork that instances are attached to."""

    network: str
    subnetwork: str
    all_traffic: bool
    """Whether what goes to the internet takes that way too."""


class Blueprint(Serving):
    """One service: what runs in its instances, and everything else of it."""

    name: str
    project: str
    region: str
    labels: Mapping[str, str]
    spec: DeploymentSpec
    gpu: str
    startup: Probe
    liveness: Probe
    network: Network | None
    launch_stage: str | None = None
    """Of the API, for what is not yet generally available; None is left to Google."""
    store: str = ""
    """Where what it compiles is carried to the next boot; empty where nothing is."""

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.region}"

    @property
    def instance(self) -> Size:
        """What all containers of an instance have together, which is what is paid."""
        more = rules().guard.size if self.guard else Size(vcpu=0, ram_gib=0)
        return Size(vcpu=self.size.vcpu + more.vcpu, ram_gib=self.size.ram_gib + more.ram_gib)


def blueprint(
    site: Site,
    spec: DeploymentSpec,
    model: ModelShape,
    *,
    hf_token: bool | None = None,
    store: str | None = None,
) -> Blueprint:
    """Decide every value of the service that a spec asks for.

    `hf_token`: that secret is kept. `store`: where its cache is carried; None is as planned.
    """
    _refuse(spec, model)
    target, region = site.target, site.clients.region
    project = site.clients.project_id
    if spec.engine == "ollama":
        serving, secrets = ollama_serving(target, spec, project=project, region=region), {}
    else:
        serving = vllm_serving(target, spec, model)
        secrets = {"VLLM_API_KEY": key_secret(spec.name)}
        known = bool(site.settings.hf_token) if hf_token is None else hf_token
        if serving.needs_internet and known:
            secrets["HF_TOKEN"] = HF_SECRET
    made, doubt = serving.container, region_doubt(target, region)
    if store is None:
        store = "" if may_carry(spec) else cache.store(site, spec)
    engine: vllm.Container = made
    if store:
        gpu = target.accelerator or ""
        found = compile_cache(spec, image=made.image, accelerator=gpu, store=store)
        engine = carried(made, found)
    decided = {
        **dict(serving),
        "container": engine.model_copy(update={"secrets": secrets}),
        "doubts": tuple(filter(None, (doubt, *serving.doubts))),
    }
    return Blueprint(
        **decided,
        name=spec.name,
        project=project,
        region=region,
        labels={"managed-by": MANAGED_BY, TARGET_LABEL: target.name, SPEC_LABEL: spec.fingerprint},
        spec=spec,
        gpu=target.accelerator or "",
        startup=_startup(target, serving),
        # A server is given up only after minutes of silence.
        liveness=Probe(path=made.health, port=made.port, **rules().liveness_probe.model_dump()),
        network=_network(spec, serving),
        store=store,
    )


def _startup(target: Target, serving: Serving) -> Probe:
    chosen, made = rules().startup_probe, serving.container
    most = place_of(target).startup_seconds_max or 0
    return vllm.startup_probe(
        chosen,
        serving.boot_seconds,
        path=made.health,
        port=made.port,
        most_seconds=most,
        most_failures=most // chosen.period_seconds,
    )


def _network(spec: DeploymentSpec, serving: Serving) -> Network | None:
    """Attach to a subnetwork; what must reach the internet does not go through it."""
    if spec.network is None:
        return None
    network, slash, subnetwork = spec.network.partition("/")
    if not (network and slash and subnetwork) or "/" in subnetwork:
        raise errors.InvalidArgument(
            f"{spec.network} names no subnetwork.", fix="Give network=NETWORK/SUBNETWORK."
        )
    return Network(network=network, subnetwork=subnetwork, all_traffic=not serving.needs_internet)


def _refuse(spec: DeploymentSpec, model: ModelShape) -> None:
    refuse_name(spec.name)
    vllm.refuse_unkept(spec)
    vllm.refuse_spread(spec, "An instance of Cloud Run")
    vllm.refuse_length(spec, model)
    vllm.refuse_foreign_fields(spec, "Cloud Run")
    if spec.build_machine and (spec.engine != "ollama" or spec.image):
        raise errors.InvalidArgument(
            "Nothing is built here: build_machine is for the image of engine=ollama.",
            fix="Leave build_machine out.",
        )
    refuse_idle(spec)
    if spec.access == "internal":
        raise errors.InvalidArgument(
            "A service of Cloud Run is not kept inside a network here.",
            fix="Take access=private: it answers only whom Google knows and you have let in.",
        )


def refuse_idle(spec: DeploymentSpec) -> None:
    """Refuse another sleep than Cloud Run's own, about 15 minutes after the last request."""
    vllm.refuse_unkept(spec)
    minutes = spec.max_idle_minutes
    if minutes and minutes < IDLE_MINUTES:
        raise errors.InvalidArgument(
            f"Cloud Run keeps an instance about {IDLE_MINUTES} minutes after its last request.",
            fix=f"Give max_idle_minutes={IDLE_MINUTES} or more; ttl_minutes ends it sooner.",
        )


def service_of(drawn: Blueprint, *, lease: Lease | None = None) -> Service:
    """Type the service, as it is created; its name is said beside it.

    Args:
        drawn: The values.
        lease: When it ends: labels, as only who applies knows.
    """
    spec, guard, mount, network = drawn.spec, drawn.guard, drawn.container.mount, drawn.network
    engine = {
        **_typed(drawn.container, drawn.size, gpu=True),
        "name": ENGINE if guard else "",
        # No name: HTTP/1, as uvicorn speaks it; h2c would break it. Requests reach the container
        # with a port alone: behind the guard, the engine's own is for Cloud Run's probes, which
        # are not documented to reach a sidecar's loopback.
        "ports": [] if guard else [{"container_port": drawn.container.port}],
        "volume_mounts": [{"name": VOLUME, "mount_path": mount.path}] if mount else [],
        "startup_probe": _probe(drawn.startup),
        "liveness_probe": _probe(drawn.liveness),
    }
    containers, volumes = [engine], list[dict[str, Any]]()
    if guard:
        row = {
            **_typed(guard, rules().guard.size),
            "name": vllm.GUARD_NAME,
            "ports": [{"container_port": guard.port}],
            # Requests come once this one listens: not before the engine answers.
            "depends_on": [ENGINE],
        }
        containers.append(row)
    if mount:
        bucket = {"bucket": mount.bucket, "read_only": True, "mount_options": list(mount.options)}
        volumes.append({"name": VOLUME, "gcs": bucket})
    template: dict[str, Any] = {
        "labels": dict(drawn.labels),
        "scaling": {"max_instance_count": spec.max_replicas},
        "timeout": {"seconds": rules().limits.timeout_seconds},
        "service_account": runtime_account(drawn.project),
        "containers": containers,
        "volumes": volumes,
        "execution_environment": run_v2.ExecutionEnvironment.EXECUTION_ENVIRONMENT_GEN2,
        "max_instance_request_concurrency": drawn.concurrency,
        "node_selector": {"accelerator": drawn.gpu},
        "gpu_zonal_redundancy_disabled": True,
    }
    if network:
        egress = run_v2.VpcAccess.VpcEgress
        template["vpc_access"] = {
            "network_interfaces": [{"network": network.network, "subnetwork": network.subnetwork}],
            "egress": egress.ALL_TRAFFIC if network.all_traffic else egress.PRIVATE_RANGES_ONLY,
        }
    return Service(
        labels={**drawn.labels, **(lease.labels if lease else {})},
        annotations={SPEC_ANNOTATION: spec.model_dump_json(exclude_defaults=True)},
        client=MANAGED_BY,
        launch_stage=_stage(drawn.launch_stage or spec.launch_stage),
        ingress=run_v2.IngressTraffic.INGRESS_TRAFFIC_ALL,
        # Anybody may call a public one who has the engine's key; Google checks nobody's identity.
        invoker_iam_disabled=spec.access == "public",
        # Of the service, not of a revision: changing them makes no new one.
        scaling=_scaling(spec.least_replicas, spec.max_replicas),
        template=template,
    )


def _typed(container: vllm.Container, size: Size, *, gpu: bool = False) -> dict[str, Any]:
    limits = {"cpu": str(size.vcpu), "memory": f"{size.ram_gib}Gi", **({_GPU: "1"} if gpu else {})}
    kept = [
        {"name": name, "value_source": {"secret_key_ref": {"secret": one, "version": "latest"}}}
        for name, one in container.secrets.items()
    ]
    plain = [{"name": name, "value": value} for name, value in container.env.items()]
    return {
        "image": container.image,
        "command": list(container.command),
        "args": list(container.args),
        "env": [*plain, *kept],
        "resources": {"limits": limits, "cpu_idle": False, "startup_cpu_boost": gpu},
    }


def _probe(probe: Probe) -> dict[str, Any]:
    return {
        "initial_delay_seconds": probe.initial_delay_seconds,
        "timeout_seconds": probe.timeout_seconds,
        "period_seconds": probe.period_seconds,
        "failure_threshold": probe.failures,
        "http_get": {"path": probe.path, "port": probe.port},
    }


def _stage(name: str | None) -> Any:
    """Return a launch stage of the API; None is left to Google."""
    return LaunchStage.Value(name.upper() if name else "LAUNCH_STAGE_UNSPECIFIED")


def _scaling(minimum: int, maximum: int) -> ServiceScaling:
    return ServiceScaling(
        scaling_mode=ServiceScaling.ScalingMode.AUTOMATIC,
        min_instance_count=minimum,
        max_instance_count=maximum,
    )


def _may_be_beta(service: Service, exc: errors.CloudRefused) -> bool:
    """Whether Google refuses it for its launch stage: it is to be sent again, as BETA.

    Source: docs.cloud.google.com/run/docs/troubleshooting, "The feature is not supported in the
    declared launch stage" (2026-11-23).
    """
    if service.launch_stage or "launch stage" not in exc.cause.lower():
        return False
    note(f"Google has this in BETA only, so that is what it is sent as: {exc.cause}")
    service.launch_stage = _stage("beta")
    return True


def as_running(drawn: Blueprint, service: Service) -> Blueprint:
    """Give it the images that run, pinned as they may be, and the launch stage that Google took."""
    images = {row.name: row.image for row in service.template.containers}
    running, guard = engine_in(service), drawn.guard
    changed: dict[str, Any] = {}
    if running:
        changed["container"] = drawn.container.model_copy(update={"image": running.image})
    if guard and vllm.GUARD_NAME in images:
        changed["guard"] = guard.model_copy(update={"image": images[vllm.GUARD_NAME]})
    if service.launch_stage == _stage("beta"):
        changed["launch_stage"] = "beta"
    return drawn.model_copy(update=changed)


def is_stopped(service: Service) -> bool:
    scaling = service.scaling
    by_hand = scaling.scaling_mode == ServiceScaling.ScalingMode.MANUAL
    return by_hand and scaling.manual_instance_count == 0


def engine_in(service: Service) -> run_v2.Container | None:
    """Return the container of a service that has its GPU, or else its first."""
    rows = list(service.template.containers)
    return next((row for row in rows if row.resources.limits.get(_GPU)), rows[0] if rows else None)


def store_of(service: Service) -> str:
    """Return where a service's engine carries what it compiles; empty where nowhere."""
    engine = engine_in(service)
    said = [one.value for one in (engine.env if engine else ()) if one.name == "COMPILE_CACHE"]
    try:
        return str(json.loads(said[0])["store"]) if said else ""
    except (ValueError, LookupError, TypeError):  # somebody wrote into it
        return ""


def is_open(service: Service) -> bool:
    """Whether everybody's requests reach an engine that asks for its key at some paths alone."""
    engine = engine_in(service)
    return bool(service.invoker_iam_disabled and engine and engine.ports)


def is_ours(service: Service) -> bool:
    return service.labels.get("managed-by") == MANAGED_BY


def target_of(service: Service) -> str:
    return service.labels.get(TARGET_LABEL, "another target")


def read_spec(service: Service) -> DeploymentSpec | None:
    try:
        return DeploymentSpec.model_validate_json(service.annotations.get(SPEC_ANNOTATION, ""))
    except ValidationError:
        return None


def version_of(site: Site, service: Service) -> str | None:
    """Return vLLM's version: by the image's tag, or as the target's own image has it."""
    engine, own = engine_in(service), gpu_of(site.target)
    return vllm.version_of(engine.image, own.image, own.vllm) if engine else None


def service_path(site: Site, name: str) -> str:
    return f"{site.clients.parent}/services/{name}"


async def list_services(site: Site) -> Sequence[Service]:
    client = await site.clients.run()
    with translated("list the services"):
        pager = await client.list_services(parent=site.clients.parent, **reading())
        return [row async for row in pager if is_ours(row) and target_of(row) == site.target.name]


async def find_service(site: Site, name: str) -> Service | None:
    """Return the service of that name, whoever made it; None if there is none."""
    if not re.fullmatch(NAME_PATTERN, name):
        return None
    client = await site.clients.run()
    looked = client.get_service(name=service_path(site, name), **reading())
    return await find(f"look at the service {name}", looked)


async def get_service(site: Site, name: str) -> Service:
    """Return the service of a deployment.

    Raises:
        NotOurs: It was not made here.
        DeploymentNotFound: There is none, or it is another target's.
    """
    return own_service(site, name, await find_service(site, name))


def own_service(site: Site, name: str, service: Service | None) -> Service:
    """Return a service that was found, if it is this target's. Raises what `get_service` does."""
    if service is None:
        raise not_found(name, site.target)
    _refuse_strangers(site, name, service)
    if target_of(service) != site.target.name:
        raise not_found(name, site.target, f": it is on {target_of(service)}")
    return service


def _refuse_strangers(site: Site, name: str, service: Service) -> None:
    if not is_ours(service):
        raise errors.NotOurs(
            f"The service {name} in {site.clients.region} was not made here: it is left alone.",
            fix="Take another name; or label it managed-by=vllm-devops-agent to hand it over.",
        )


async def refuse_foreign(site: Site, name: str) -> Service | None:
    """Return the service that a deployment of that name would change, None if there is none.

    Raises:
        NotOurs: It was not made here, or for another target.
        ConcurrentChange: It is being deleted.
    """
    service, region = await find_service(site, name), site.clients.region
    if service is None:
        return None
    _refuse_strangers(site, name, service)
    if (target := target_of(service)) != site.target.name:
        raise errors.NotOurs(
            f"The service {name} in {region} belongs to the target {target}.",
            fix=f"Deploy under another name, or to {target}.",
        )
    if service.delete_time:
        raise errors.ConcurrentChange(
            f"The service {name} in {region} is being deleted.",
            fix="Call the tool again in a minute.",
        )
    return service


async def find_revision(site: Site, name: str) -> Revision | None:
    """Return a revision by its full name, None if there is none (any more)."""
    if not name:
        return None
    client = await site.clients.revisions()
    return await find("look at its revision", client.get_revision(name=name, **reading()))


def newest_revision(service: Service) -> str:
    """Return its newest revision's full name; Google gives it with or without its parent."""
    name = service.latest_created_revision
    return f"{service.name}/revisions/{name}" if name and "/" not in name else name


class Change(NamedTuple):
    """A change of a service that there is."""

    what: str
    edit: Callable[[Service], None]
    holds: Callable[[Service], bool]
    """Whether it is so by now."""


def limits_change(
    what: str,
    lease: Lease | None,
    count: tuple[int, int] | None,
    spec: DeploymentSpec | None = None,
    changed: Mapping[str, int] | None = None,
) -> Change:
    """Return what gives a service another end and, unless it is None, another count of instances.

    A `spec` is kept in place of the one that it has, of which it changes nothing else than limits;
    `changed` is what alone is changed of it.
    """

    def edit(service: Service) -> None:
        for key in LABELS:
            service.labels.pop(key, None)
        service.labels.update(lease.labels if lease else {})
        if said := spec or read_spec(service):
            said = said.model_copy(update=changed)
            service.annotations[SPEC_ANNOTATION] = said.model_dump_json(exclude_defaults=True)
            service.labels[SPEC_LABEL] = said.fingerprint
        if count:
            service.scaling, revision = _scaling(*count), service.template.scaling
            if 0 < revision.max_instance_count < count[1]:
                note("A new revision boots: the one that runs was made for fewer instances.")
                revision.max_instance_count = count[1]

    def holds(service: Service) -> bool:
        now = service.scaling.min_instance_count, service.scaling.max_instance_count
        counted = count is None or (not is_stopped(service) and now == count)
        return counted and read_lease(service.labels) == lease

    return Change(what, edit, holds)


def stop_change(name: str) -> Change:
    """Return what sets it to no instance by hand: no request starts one then."""

    def edit(service: Service) -> None:
        service.scaling = ServiceScaling(
            scaling_mode=ServiceScaling.ScalingMode.MANUAL,
            manual_instance_count=0,
            max_instance_count=service.scaling.max_instance_count,
        )

    return Change(f"stop {name}", edit, is_stopped)


def _replacement(name: str, wanted: Service, former: Service) -> Change:
    """Return what puts another template in the place of one; labels of others stay."""
    if former.labels.get(SPEC_LABEL) == wanted.labels[SPEC_LABEL]:
        wanted.template.labels[_ATTEMPT_LABEL] = str(int(time.time()))

    def edit(service: Service) -> None:
        labels: Mapping[str, str] = service.labels
        others = {key: text for key, text in labels.items() if not key.startswith("vllm-devops-")}
        service.labels = {**others, **wanted.labels}
        service.annotations = {**service.annotations, **wanted.annotations}
        for field in ("scaling", "template", "client", "ingress", "launch_stage"):
            setattr(service, field, getattr(wanted, field))
        service.invoker_iam_disabled = wanted.invoker_iam_disabled
        service.traffic = []

    def holds(service: Service) -> bool:
        return bool(service.template.labels == wanted.template.labels)

    return Change(f"replace the service {name}", edit, holds)


async def change_service(
    site: Site, name: str, change: Change, *, seconds: float = _REFUSAL_SECONDS
) -> None:
    """Edit a service and write it back; read again, it holds.

    Raises:
        ConcurrentChange: Somebody else was first, twice, or has undone it.
        CloudError: Google refuses it.
    """
    if (operation := await _edit(site, name, change)) and seconds:
        with suppress(errors.WaitedTooLong):
            now = await wait_until(
                partial(_read_operation, site, operation, change.what),
                lambda now: now is None or now.done,
                waiting_for=change.what,
                every=_LOOK_SECONDS,
                timeout=seconds,
            )
            _raise_error(now, change.what)
    if not change.holds(await get_service(site, name)):
        raise errors.ConcurrentChange(
            f"Google took it, and somebody else has undone it: {change.what}.",
            fix="Look with status_vllm, then call again.",
        )


async def _edit(site: Site, name: str, change: Change, *, again: bool = True) -> str:
    """Edit a service and write it back; the operation's name, none where it is over."""
    service = await get_service(site, name)
    change.edit(service)
    try:
        return await write_service(site, service, change.what)
    except errors.ConcurrentChange:
        if not again:
            raise
    except UNSURE:
        if not change.holds(await get_service(site, name)):
            raise
        return ""
    return await _edit(site, name, change, again=False)  # somebody else was first


async def write_service(
    site: Site, service: Service, what: str, *, name: str = "", dry: bool = False
) -> str:
    """Send a whole service and return the operation's name; `dry`: Google only judges it.

    One that was read goes back, and its etag refuses to undo another's change; a new one has a
    `name`. What Google has in BETA alone is sent as that.
    """
    client, request = await site.clients.run(), {"service": service, "validate_only": dry}
    new = {**request, "parent": site.clients.parent, "service_id": name}
    while True:
        try:
            with strictly(what):
                under_way = await (
                    client.create_service(request=new, **writing())
                    if name
                    else client.update_service(request=request, **writing())
                )
            return str(under_way.operation.name)
        except errors.CloudRefused as exc:
            if not name and not dry:
                await get_service(site, service.name.rsplit("/", 1)[-1])  # or it is gone
            if not _may_be_beta(service, exc):
                raise


async def _read_operation(site: Site, operation: str, what: str) -> Operation | None:
    """Read a change that Google has taken; where it cannot be read, what is true is read later."""
    client = await site.clients.run()
    try:
        with strictly(what):
            return await client.get_operation(GetOperationRequest(name=operation), **reading())
    except errors.CloudError as exc:
        note(f"Google took it, and does not say how it went: {what}. {exc.cause}".strip())
        return None


def _raise_error(operation: Operation | None, what: str) -> None:
    if operation is not None and operation.HasField("error"):
        words = operation.error
        raise error_of(from_grpc_status(words.code, words.message, errors=(words,)), what)


class Rollout:
    """The service of one deployment, brought to what is wanted by one course of steps.

    It is created where there is none `now`, changed where a `change` is enough, and else replaced
    or, where it is `done`, left as it is.
    """

    def __init__(
        self,
        site: Site,
        drawn: Blueprint,
        *,
        now: Service | None = None,
        change: Change | None = None,
        done: bool = False,
        lease: Lease | None = None,
    ) -> None:
        self._site, self._drawn = site, drawn
        self._now, self._change, self._done = now, change, done
        self._lease = lease
        self._put, self._operation = False, ""
        self._what = f"{'replace' if now else 'create'} the service {drawn.name}"

    async def get(self) -> Service | None:
        """Return the service; where there is none, why it was refused is raised.

        One that there is tells by itself why it does not run.
        """
        service, refusal = await find_service(self._site, self._drawn.name), None
        if self._operation:
            now = await _read_operation(self._site, self._operation, self._what)
            if now is None or now.done:
                self._operation, refusal = "", now
        if service is None:
            _raise_error(refusal, self._what)
        return service

    def status(self, found: Service) -> Status:
        """Return how far it is: a boot is not waited for, only that it has begun."""
        if not self._put:
            return Status.READY if self._done else Status.STALE
        if found.labels.get(SPEC_LABEL) != self._drawn.labels[SPEC_LABEL]:
            return Status.STALE
        former = self._now.latest_created_revision if self._now else ""
        begun = found.latest_created_revision not in {"", former}
        return Status.READY if begun or not self._operation else Status.PENDING

    async def put(self) -> None:
        site, name, self._put = self._site, self._drawn.name, True
        if self._change:
            await change_service(site, name, self._change)
            return
        wanted = await self._wanted()
        if self._now is not None:
            self._operation = await _edit(site, name, _replacement(name, wanted, self._now))
        else:
            self._operation = await write_service(site, wanted, self._what, name=name)

    async def _wanted(self) -> Service:
        pin = partial(pinned, self._site)
        drawn = await with_digests(self._drawn, ("container", "guard"), pin)
        return service_of(drawn, lease=self._lease)
