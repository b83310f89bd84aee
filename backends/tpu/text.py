"""A blueprint in words for a person: gcloud commands, a docker line, the request as YAML."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import anyio

from backends.base import DeploymentConfig
from backends.container import as_yaml
from backends.google.clients import DEPLOYMENT_LABEL, MANAGED_BY
from backends.tpu import kept as memory
from backends.tpu import looking, script
from backends.tpu.blueprint import Blueprint
from backends.tpu.chip import Place
from backends.tpu.compute_bodies import FLEX_WAIT_SECONDS
from backends.tpu.drawing import blueprint
from backends.tpu.names import ACCOUNT_SCOPE, SPEC_METADATA
from backends.tpu.planes import Request
from core.errors import NotFound
from planner.model import read_model

if TYPE_CHECKING:
    from backends.tpu.site import Site

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


def gcloud(made: Blueprint, place: Place, sources: Sequence[str]) -> str:
    """Give every command that makes the deployment at one place, to be pasted one by one."""
    steps = (key(made), grants(made), *([firewall(made, sources)] if made.opened else []))
    return "\n".join((*steps, request(made, place)))


def key(made: Blueprint) -> str:
    """Make a random key and keep it; it is in no file, no argument and no variable."""
    labels = _pairs({"managed-by": MANAGED_BY, DEPLOYMENT_LABEL: made.spec.name})
    kept = ("gcloud", "secrets", "create", made.container.secrets["VLLM_API_KEY"])
    how = ("--replication-policy=automatic", f"--labels={labels}", "--data-file=-")
    words = (*kept, f"--project={made.project}", *how)
    return f"openssl rand -hex 32 | tr -d '\\n' | {shlex.join(words)}"


def grants(made: Blueprint) -> str:
    """Let the VM's account read every secret of the deployment."""
    whom = (f"--member=serviceAccount:{made.service_account}", f"--role={ACCESSOR}")
    allow = ("gcloud", "secrets", "add-iam-policy-binding")
    return "\n".join(
        shlex.join((*allow, secret, f"--project={made.project}", *whom))
        for secret in dict.fromkeys(made.container.secrets.values())
    )


def firewall(made: Blueprint, sources: Sequence[str]) -> str:
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
            f"--description={described(made)}",
        )
    )


def request(made: Blueprint, place: Place) -> str:
    """Ask for the chip, of whichever control plane."""
    if place.plane == "compute":
        return shlex.join((*_instance(made, place.zone), *_common(made)))
    return shlex.join((*_queued(made, place.zone), *_common(made)))


def described(made: Blueprint) -> str:
    """Say whose a firewall rule is: rules have no labels."""
    target = made.labels["vllm-devops-target"]
    return f"managed-by={MANAGED_BY} deployment={made.spec.name} target={target}"


def sources_of(site: "Site", made: Blueprint) -> tuple[str, ...]:
    """Give whom a firewall rule would let in, as far as it is known without asking."""
    return (ANYBODY,) if made.anybody else site.settings.google_allowed_addresses or (YOURS,)


def docker(made: Blueprint) -> str:
    """Give what the VM's startup script runs; the key comes from the shell's environment."""
    before = script.guard_of(made)
    asked = (*script.guard_arguments(made), before.image, *before.command, *before.args)
    image = (made.container.image, *script.command(made))
    run = ("docker", "run", "--detach")
    proxy = shlex.join((*run, *asked))
    return f"{proxy}\n{shlex.join((*run, *script.docker_arguments(made), *image))}"


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
        script=script.startup(made, image=made.container.image),
        labels=made.labels,
    )
    flex_node = place.plane == "queued" and made.provisioning == "flex-start"
    return DeploymentConfig(
        command=gcloud(made, place, sources_of(site, made)),
        docker_run=docker(made),
        yaml=as_yaml(site.planes[place.plane].bodies(wanted)),
        notes=(_BODY.format(script=script_file(made)), _KEY, *([_DISK] if flex_node else [])),
    )


def script_file(made: Blueprint) -> str:
    """Name the file that the commands take the startup script from."""
    return f"{made.id}.sh"


async def _as_made(site: "Site", name: str) -> tuple[Blueprint, Place]:
    """Give what this machine remembers of it, else what its VM's metadata says."""
    chip = await looking.chip_of(site, name)
    kept = memory.of(site, name)
    if kept:
        current = kept.current.place if kept.current else kept.blueprint.places[0]
        return kept.blueprint, chip.place if chip else kept.placed or current
    spec = await looking.spec_of(site, name)
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
