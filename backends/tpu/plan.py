"""What a deployment would be: its steps, price and memory, as gcloud commands and requests."""

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import anyio
from google.cloud import secretmanager_v1

from backends.base import DeploymentConfig
from backends.common.preflight import price_doubts, tagged
from backends.container import as_yaml
from backends.google.clients import DEPLOYMENT_LABEL, MANAGED_BY, as_sent
from backends.google.errors import not_configured
from backends.tpu import chips, vm
from backends.tpu import store as memory
from backends.tpu.compute import FLEX_WAIT_SECONDS
from backends.tpu.rules import rules
from backends.tpu.site import ACCOUNT_SCOPE, SPEC_METADATA, Blueprint, Place, Request, Site
from backends.tpu.vm import blueprint
from core.errors import NotFound
from core.records import DeploymentSpec, MemoryPlan, ModelShape, Plan, PlannedStep
from planner.memory import foresee
from planner.model import read_model
from planner.places import accelerator
from planner.price import Price, price

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
        command=key_commands(made),
    )


def _grant(made: Blueprint) -> PlannedStep:
    reader = {"role": ACCESSOR, "members": [f"serviceAccount:{made.service_account}"]}
    secret = f"projects/{made.project}/secrets/{made.container.secrets['VLLM_API_KEY']}"
    return PlannedStep(
        what="Let the account that the VM runs as read that key, and nobody else.",
        request={"resource": secret, "policy": {"bindings": [reader]}},
        command=grant_commands(made),
    )


def _firewall(site: "Site", made: Blueprint) -> PlannedStep:
    sources = sources_of(site, made)
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
            "description": rule_description(made),
        },
        command=firewall_command(made, sources),
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
        script=vm.startup_script(made, image=made.container.image),
        labels=made.labels,
    )
    asked = f"{_ASKED[place.plane]} in {place.zone} for {made.accelerator} ({made.provisioning})"
    others = len(made.places) - 1
    more = f", then {others} more places, one at a time" if others and is_first else ""
    return PlannedStep(
        what=f"Ask {asked}{more}." if is_first else f"If it has none, ask {asked}.",
        request=dict(site.planes[place.plane].bodies(wanted)),
        command=request_command(made, place),
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


ACCESSOR: Final = "roles/secretmanager.secretAccessor"
ANYBODY: Final = "0.0.0.0/0"
YOURS: Final = "YOUR_ADDRESS/32"
"""Said while nobody has asked with which address this machine is seen."""
_DELIMITERS: Final = "~|@;!%#+\x1f"
_MODELS: Final = {"on-demand": "STANDARD", "spot": "SPOT", "flex-start": "FLEX_START"}
_KEY: Final = (
    "The key is made in a pipe and kept in Secret Manager; it is in no file and no argument."
)
_BODY: Final = (
    "yaml is the body of the request that makes the VM; its startup script, saved as {script},"
    " is what the commands take."
)
_DISK: Final = (
    "gcloud's words for the size of a node's disk are not known here: only the YAML asks for it."
)


def gcloud_commands(made: Blueprint, place: Place, sources: Sequence[str]) -> str:
    """Give every command that makes the deployment at one place, to be pasted one by one."""
    steps = (
        key_commands(made),
        grant_commands(made),
        *([firewall_command(made, sources)] if made.opened else []),
    )
    return "\n".join((*steps, request_command(made, place)))


def key_commands(made: Blueprint) -> str:
    """Make a random key and keep it; it is in no file, no argument and no variable."""
    labels = _pairs({"managed-by": MANAGED_BY, DEPLOYMENT_LABEL: made.spec.name})
    kept = ("gcloud", "secrets", "create", made.container.secrets["VLLM_API_KEY"])
    how = ("--replication-policy=automatic", f"--labels={labels}", "--data-file=-")
    words = (*kept, f"--project={made.project}", *how)
    return f"openssl rand -hex 32 | tr -d '\\n' | {shlex.join(words)}"


def grant_commands(made: Blueprint) -> str:
    """Let the VM's account read every secret of the deployment."""
    whom = (f"--member=serviceAccount:{made.service_account}", f"--role={ACCESSOR}")
    allow = ("gcloud", "secrets", "add-iam-policy-binding")
    return "\n".join(
        shlex.join((*allow, secret, f"--project={made.project}", *whom))
        for secret in dict.fromkeys(made.container.secrets.values())
    )


def firewall_command(made: Blueprint, sources: Sequence[str]) -> str:
    """Let callers in, at one port of one VM."""
    return shlex.join(
        (
            *("gcloud", "compute", "firewall-rules", "create", made.id),
            f"--project={made.project}",
            f"--network={made.network}",
            "--direction=INGRESS",
            "--action=allow",
            f"--rules=tcp:{made.container.port}",
            f"--source-ranges={','.join(sources)}",
            f"--target-tags={made.id}",
            f"--description={rule_description(made)}",
        )
    )


def request_command(made: Blueprint, place: Place) -> str:
    """Ask for the chip, of whichever control plane."""
    if place.plane == "compute":
        return shlex.join((*_instance(made, place.zone), *_common(made)))
    return shlex.join((*_queued(made, place.zone), *_common(made)))


def rule_description(made: Blueprint) -> str:
    """Say whose a firewall rule is: rules have no labels."""
    target = made.labels["vllm-devops-target"]
    return f"managed-by={MANAGED_BY} deployment={made.spec.name} target={target}"


def sources_of(site: "Site", made: Blueprint) -> tuple[str, ...]:
    """Give whom a firewall rule would let in, as far as it is known without asking."""
    return (ANYBODY,) if made.anybody else site.settings.google_allowed_addresses or (YOURS,)


def docker_command(made: Blueprint) -> str:
    """Give what the VM's startup script runs; the key comes from the shell's environment."""
    before = vm.guard_of(made)
    asked = (*vm.guard_arguments(made), before.image, *before.command, *before.args)
    image = (made.container.image, *vm.container_command(made))
    run = ("docker", "run", "--detach")
    proxy = shlex.join((*run, *asked))
    return f"{proxy}\n{shlex.join((*run, *vm.docker_arguments(made), *image))}"


async def config(site: "Site", name: str) -> DeploymentConfig:
    """Write a deployment as commands and as the body of its request, where it is or is asked for.

    Raises:
        DeploymentNotFound: There is none.
        NotFound: What was asked for cannot be read any more.
    """
    made, place = await _as_made(site, name)
    wanted = Request(
        made=made,
        zone=place.zone,
        script=vm.startup_script(made, image=made.container.image),
        labels=made.labels,
    )
    flex_node = place.plane == "queued" and made.provisioning == "flex-start"
    return DeploymentConfig(
        command=gcloud_commands(made, place, sources_of(site, made)),
        docker_run=docker_command(made),
        yaml=as_yaml(site.planes[place.plane].bodies(wanted)),
        notes=(_BODY.format(script=script_file(made)), _KEY, *([_DISK] if flex_node else [])),
    )


def script_file(made: Blueprint) -> str:
    """Name the file that the commands take the startup script from."""
    return f"{made.id}.sh"


async def _as_made(site: "Site", name: str) -> tuple[Blueprint, Place]:
    """Give what this machine remembers of it, else what its VM's metadata says."""
    chip = await chips.chip_of(site, name)
    kept = memory.record_of(site, name)
    if kept:
        current = kept.current.place if kept.current else kept.blueprint.places[0]
        return kept.blueprint, chip.place if chip else kept.placed or current
    spec = await chips.spec_of(site, name)
    if spec is None or chip is None:
        raise NotFound(
            f"What was asked for when {name} was made cannot be read any more.",
            fix="Read the VM itself: `gcloud compute instances list`, or"
            " `gcloud compute tpus queued-resources list --zone=-`.",
        )
    model = await anyio.to_thread.run_sync(read_model, spec.model)
    return blueprint(site, spec, model), chip.place


def _instance(made: Blueprint, zone: str) -> Iterable[str]:
    yield from ("gcloud", "compute", "instances", "create", made.id)
    yield from (f"--project={made.project}", f"--zone={zone}")
    yield f"--machine-type={made.machine_type}"
    yield f"--provisioning-model={_MODELS[made.provisioning]}"
    yield from ("--maintenance-policy=TERMINATE", "--no-restart-on-failure")
    if made.run_seconds:
        yield f"--max-run-duration={made.run_seconds}s"
    if made.run_seconds or made.provisioning != "on-demand":
        yield "--instance-termination-action=DELETE"
    if made.provisioning == "flex-start":
        shortest, longest = FLEX_WAIT_SECONDS
        yield f"--request-valid-for-duration={min(max(made.wait_seconds, shortest), longest)}s"
        yield "--reservation-affinity=none"
    if made.chips == 8:  # the only machine that must have one thread per core
        yield "--threads-per-core=1"
    project, _, family = made.image.removeprefix("projects/").partition("/global/images/family/")
    yield from (f"--image-project={project}", f"--image-family={family}")
    yield from (f"--boot-disk-size={made.disk_gb}GB", f"--boot-disk-type={made.disk_type}")
    yield from () if made.external_ip else ("--no-address",)
    yield f"--subnet={made.subnetwork}" if made.subnetwork else f"--network={made.network}"


def _queued(made: Blueprint, zone: str) -> Iterable[str]:
    alpha = made.provisioning != "on-demand"
    yield from ("gcloud", *(["alpha"] if alpha else []), "compute", "tpus", "queued-resources")
    yield from ("create", made.id, f"--node-id={made.id}")
    yield from (f"--project={made.project}", f"--zone={zone}")
    yield f"--accelerator-type={made.accelerator}"
    yield f"--runtime-version={made.runtime_version}"
    yield f"--valid-until-duration={made.wait_seconds}s"
    if alpha:  # --spot is refused by some releases as a contradiction of their own default
        yield f"--provisioning-model={made.provisioning}"
    if made.provisioning == "flex-start":
        yield f"--max-run-duration={made.run_seconds}s"
    yield f"--network={made.network}"
    yield f"--subnetwork={made.subnetwork or made.network}"
    yield from () if made.external_ip else ("--internal-ips",)


def _common(made: Blueprint) -> Iterable[str]:
    spec = made.spec.model_dump_json(exclude_defaults=True)
    between = next(one for one in _DELIMITERS if one not in spec)
    yield from (f"--service-account={made.service_account}", f"--scopes={ACCOUNT_SCOPE}")
    yield from (f"--tags={made.id}", f"--labels={_pairs(made.labels)}")
    # A comma would end the value: `gcloud topic escaping`.
    yield f"--metadata=^{between}^{SPEC_METADATA}={spec}"
    yield f"--metadata-from-file=startup-script={script_file(made)}"


def _pairs(values: Mapping[str, object]) -> str:
    return ",".join(f"{name}={value}" for name, value in values.items())
