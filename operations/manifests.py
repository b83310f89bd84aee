"""Files that a person applies: a model on Kubernetes, and alert rules for Prometheus."""

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any, Final
from urllib.parse import urlsplit

import jinja2
from pydantic import Field

from backends.container import as_yaml, vllm_flags
from core.address import IDENTITY_HEADER, KEY_HEADER
from core.environment import read_toml
from core.errors import DoesNotFit, InvalidArgument, NextStep, NotReady
from core.records import Access, Answer, DeploymentName, DeploymentSpec, ModelShape, Record, valid
from core.reply import note
from core.settings import Settings
from operations.deployments import name_for
from operations.forecast import loads, memory_table
from operations.planning import check_startable, nearest
from operations.resolve import Found, find
from operations.runtime import TTFT_SECONDS, Command, Runtime, command
from planner.advise import Goal, candidates
from planner.boot import boot, file_bytes, loader
from planner.catalog import not_on_hub
from planner.flags import Flags, parsers_for
from planner.layouts import Arrangement, Ground, Layout, arrange
from planner.model import is_path
from planner.places import place

_FILE: Final = Path(__file__).with_name("manifests.toml")
"""Image, machines, commands and alerts, with their sources."""
_MANIFEST: Final = Path(__file__).with_name("gke.yaml.jinja")
PLACE: Final = "gke-l4"
"""Its name in the planner."""
_USUAL_LENGTH: Final = 8192
_LARGER: Final = ((1, 1), (2, 1), (2, 2), (2, 4))
"""Accelerators of a host, and hosts: what is looked at where it does not fit."""
_WEIGHTS: Final = "/weights"
"""Where weights are mounted, read-only."""
_MASTER_PORT: Final = 29501
"""Where the hosts of one replica meet; vLLM's own default."""
_USUAL_DISK_GIB: Final = 93
"""Of a node where nobody says: 100 GB."""
_SPARE_DISK_GIB: Final = 10
"""Compiled graphs and what the engine writes beside weights."""
_BUCKET: Final = re.compile(r"gs://([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])((?:/[\w.-]+)+)/?")
_CLAIM: Final = re.compile(r"pvc:([a-z0-9][a-z0-9.-]{0,251}[a-z0-9]|[a-z0-9])((?:/[\w.-]+)*)/?")


class GkeWish(Record):
    """What is asked for."""

    model: str
    gpus: int = Field(default=1, ge=1, le=2)
    """Of each host."""
    hosts: int = Field(default=1, ge=1, le=4)
    """That one replica is spread over."""
    name: DeploymentName | None = None
    namespace: str = Field(default="default", pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    weights: str | None = None
    """`hub`, `gs://BUCKET/FOLDER` or `pvc:CLAIM/FOLDER`."""
    max_model_len: int | None = Field(default=None, ge=256)
    layout: Layout | None = None
    image: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9./_:@-]*$")


class GkeConfig(Answer):
    """A manifest, with what a person types around it."""

    model: str
    name: str
    namespace: str
    kind: str
    """Deployment, or LeaderWorkerSet where tensor parallelism crosses hosts."""
    tensor_parallel_size: int
    machine_type: str
    holds: str
    """What the planner foresees of its memory."""
    startup_seconds: int
    """That a boot may take before the pod is started anew."""
    manifest: str
    steps: tuple[Command, ...]
    notes: tuple[str, ...]

    def summary(self) -> str:
        of = f"tensor parallel over {self.tensor_parallel_size} L4, {self.machine_type}"
        return f"A {self.kind} of {self.model} on GKE: {of}; {self.holds}"

    def facts(self) -> Mapping[str, Any]:
        return {"manifest": self.manifest}

    def warnings(self) -> tuple[str, ...]:
        return self.notes


def config(settings: Settings, said: dict[str, Any]) -> GkeConfig:
    """Plan a model and write its manifest; deterministic, and nothing is asked of any cluster.

    Raises:
        InvalidArgument: Something said cannot be, or nothing can be planned for the model.
        DoesNotFit: The memory of so many L4 does not suffice; the error names what would.
    """
    wish = valid(GkeWish, said)
    shape, arranged = _planned(wish)
    words = _words(wish, shape, arranged)
    template = jinja2.Environment(undefined=jinja2.StrictUndefined)  # noqa: S701  YAML
    manifest = template.from_string(_MANIFEST.read_text("utf-8")).render(words)
    memory = arranged.memory
    return GkeConfig(
        **{field: words[field] for field in ("name", "kind", "machine_type", "startup_seconds")},
        model=shape.model,
        namespace=wish.namespace,
        tensor_parallel_size=arranged.flags.tensor_parallel_size,
        holds=f"{memory.weights_gib:.2f} GiB of weights on each,"
        f" {memory.kv_cache_gib.expected:.2f} GiB of KV cache: at least"
        f" {memory.kv_low.max_concurrency:.1f} requests of {memory.max_model_len:,} tokens.",
        manifest=f"{manifest}\n",
        steps=tuple(_steps(settings, words)),
        notes=tuple(_notes(shape, words)),
    )


def _planned(wish: GkeWish) -> tuple[ModelShape, Arrangement]:
    """Compute the flags that make it fit."""
    said = {"model": wish.model, "layout": wish.layout, "vllm_version": read_toml(_FILE)["vllm"]}
    goal = valid(Goal, {**said, "max_model_len": wish.max_model_len or _USUAL_LENGTH})
    (shape,) = candidates(goal)
    check_startable(shape, place(PLACE), Flags(max_model_len=goal.max_model_len))

    def on(count: int) -> tuple[Ground, Arrangement]:
        ground = Ground(shape, place(PLACE).device, count)
        return ground, arrange(ground, goal.wish)

    count = wish.gpus * wish.hosts
    ground, arranged = on(count)
    if arranged.enough:
        return shape, arranged
    memory, model = arranged.memory, shape.model
    near = [words for words, _ in nearest(ground, goal)][:2] if loads(ground, memory) else []
    larger = ((g, h) for g, h in _LARGER if g * h > count and on(g * h)[1].enough)
    fix, steps = "Call recommend_deployment", list[NextStep]()
    if more := next(larger, None):
        fix = f"Take gpus={more[0]}, hosts={more[1]}"
        again = {"model": wish.model, "gpus": more[0], "hosts": more[1]}
        steps.append(NextStep("get_vllm_gpu_deployment_config", again))
    raise DoesNotFit(
        f"{model} does not fit on {count} L4: {' '.join(memory.reasons)}",
        fix=f"{fix}{f', or serve it {near[0]}' if near else ''}.",
        data={"memory": memory_table(memory).model_dump(mode="json"), "nearest": near},
        next_steps=(*steps, NextStep("recommend_deployment", {"model": model})),
    )


def _words(wish: GkeWish, shape: ModelShape, arranged: Arrangement) -> dict[str, Any]:
    """Return what fills the manifest and the commands in."""
    data, flags, where = read_toml(_FILE), arranged.flags, wish.weights or "hub"
    bucket, claim = _BUCKET.fullmatch(where), _CLAIM.fullmatch(where)
    mounted = bucket or claim
    from_hub = where == "hub" and not is_path(shape.model)
    if not from_hub and (mounted is None or {".", ".."} & set(mounted[2].split("/"))):
        raise InvalidArgument(
            f"GKE cannot read the weights of {shape.model} from {where[:100]}.",
            fix="Give weights=gs://BUCKET/FOLDER, pvc:CLAIM/FOLDER, or hub with a Hub id.",
        )
    foreseen = boot(shape, place(PLACE), flags, weights_from="gcs-fuse" if bucket else "hub")
    host, *inside = foreseen.phases
    startup = sum(phase.seconds.high for phase in inside) + data["startup_margin_seconds"]
    failures = math.ceil(startup / data["period_seconds"])
    startup_seconds = failures * data["period_seconds"]
    rollout = startup_seconds + host.seconds.high + data["rollout_margin_seconds"]
    name = wish.name or name_for(shape.model)
    asked = flags.model_dump(exclude_none=True, include=set(DeploymentSpec.model_fields))
    version = None if wish.image else data["vllm"]
    asked["engine_args"] = parsers_for(shape.model_type, version, ()).words
    spec = valid(DeploymentSpec, {"name": name, "model": shape.model, **asked})
    args = [shape.model]
    if mounted:
        args = [f"{_WEIGHTS}{mounted[2]}", "--served-model-name", spec.served_model_name]
    if bucket:
        args += loader("gcs-streamed").args
    args += ["--host", "0.0.0.0", "--port", "8000", *vllm_flags(spec)]  # noqa: S104  a Service sends to it
    if wish.hosts > 1:
        args += ["--nnodes", str(wish.hosts), "--node-rank", "$(LWS_WORKER_INDEX)"]
        args += ["--master-addr", "$(LWS_LEADER_ADDRESS)", "--master-port", str(_MASTER_PORT)]
    return {
        **data,
        **data["machines"][str(wish.gpus)],
        "namespace": wish.namespace,
        "gpus": wish.gpus,
        "hosts": wish.hosts,
        "name": name,
        "kind": "Deployment" if wish.hosts == 1 else "LeaderWorkerSet",
        # A LeaderWorkerSet makes a Service of its own name for its pods.
        "service": name if wish.hosts == 1 else f"{name}-api",
        "image": wish.image or data["image"],
        "source": "bucket" if bucket else "claim" if claim else "hub",
        "mounted": bool(mounted),
        "shared": wish.gpus * wish.hosts > 1,
        "bucket": bucket[1] if bucket else "",
        "claim": claim[1] if claim else "",
        "disk_gib": _SPARE_DISK_GIB + (0 if mounted else math.ceil(file_bytes(shape) / 2**30)),
        "startup_seconds": startup_seconds,
        "startup_failures": failures,
        "rollout_seconds": math.ceil(rollout),
        "master_port": _MASTER_PORT,
        "args": args,
    }


def _steps(settings: Settings, words: Mapping[str, Any]) -> Iterator[Command]:
    """Give every command that a person types, in order."""
    region, project = settings.google_cloud_location, settings.google_cloud_project
    flags = ((" --location=", region), (" --project=", project))
    said = {
        **words,
        "place": "".join(f"{flag}{shlex.quote(value)}" for flag, value in flags if value),
        "project": shlex.quote(project) if project else '"$(gcloud config get-value project)"',
    }
    there = {"", words["kind"], words["source"]}
    there |= {"namespace"} if words["namespace"] != "default" else set()
    for row in words["step"]:
        if row.get("of", "") in there:
            yield Command(
                what=Template(row["what"]).safe_substitute(said),
                command=Template(row["command"]).safe_substitute(said),
            )


def _notes(shape: ModelShape, words: Mapping[str, Any]) -> Iterator[str]:
    """Warn of what only the cluster's owner can see."""
    unpublished = not_on_hub(shape.model) if words["source"] == "hub" else None
    if unpublished:
        yield f"{unpublished} Give weights=gs://BUCKET/FOLDER or pvc:CLAIM/FOLDER with its files."
    yield "Nothing was made: apply the manifest yourself. Its node bills until its pool shrinks."
    if "@" not in words["image"]:
        yield f"{words['image']} is a tag, which may move: give `image` by digest to pin it."
    if 2 * words["disk_gib"] > _USUAL_DISK_GIB:
        yield (
            f"It keeps {words['disk_gib']} GiB on its node's boot disk, of which pods get about"
            f" half: GKE's usual 100 GB are too few (the command takes {words['node_disk_gb']})."
        )
    if words["hosts"] > 1:
        yield "The hosts talk over the network for every token: one host with two L4 is faster."
    if words["source"] == "claim":
        many = ", and every host must be able to mount it" if words["hosts"] > 1 else ""
        yield f"The claim {words['claim']} must hold the files already{many}."


RULES: Final = "vllm.rules.yml"
_JOB: Final = "vllm"
_LOOK: Final = "15s"
"""Between two scrapes, and between two looks at the rules: `for: 30s` needs several."""
_CREDENTIAL: Final = "/etc/prometheus/vllm.credential"
_CERTIFICATE: Final = "/etc/prometheus/vllm.pem"
_MATCHER: Final = re.compile(
    r'\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*("(?:[^"\\\n]|\\[\\"nt])*")\s*(?:(,)|$)', re.ASCII
)
"""One label matcher, as Prometheus writes it, and whether another one follows."""
_NOWHERE: Final = "HOST:PORT"


class AlertRules(Answer):
    """Two files for Prometheus; nothing was sent anywhere."""

    target: str | None = None
    name: str | None = None
    selector: str
    """Of the series that the rules look at."""
    ttft_seconds: float
    alerts: tuple[str, ...]
    rules: str
    """The whole rule file."""
    scrape_config: str
    """What the selector expects in Prometheus' own configuration; it holds no key."""
    steps: tuple[Command, ...]

    def summary(self) -> str:
        return (
            f"{len(self.alerts)} alert rules for {{{self.selector}}}: detail='full' gives `rules`;"
            f" save them as {RULES}, then `promtool check rules {RULES}`."
        )

    def facts(self) -> Mapping[str, Any]:
        return {"selector": self.selector, "ttft_seconds": self.ttft_seconds, "alerts": self.alerts}

    def warnings(self) -> tuple[str, ...]:
        awake = "where a deployment scales to none, it keeps a GPU awake, which is paid for"
        return (f"A scrape is a request: {awake}. There, scrape what has min_replicas above 0.",)

    def next_steps(self) -> tuple[NextStep, ...]:
        here = {"target": self.target, "name": self.name} if self.name else {}
        return (NextStep("get_metrics", here),)


async def alert_rules(
    runtime: Runtime,
    target: str | None,
    name: str | None,
    *,
    selector: str | None = None,
    ttft_seconds: float = TTFT_SECONDS,
) -> AlertRules:
    """Write the rules, of one deployment where one is named, else of all that a job scrapes.

    Raises:
        InvalidArgument: The selector is none.
        OpsError: The deployment that is named cannot be found.
    """
    found = await find(runtime.stage, target, name) if target or name else None
    labels = {"job": _JOB}  # that our own scrape configuration sets
    if found:
        labels |= {"target": found.deployment.target, "deployment": found.name}
    wanted = _checked(selector) if selector else ",".join(f'{k}="{v}"' for k, v in labels.items())
    access = await _access(runtime, found) if found else None
    rows = [_rule(row, wanted, ttft_seconds, found) for row in read_toml(_FILE)["alert"]]
    group = {"name": _JOB, "interval": _LOOK, "rules": rows}
    return AlertRules(
        target=found.deployment.target if found else None,
        name=found.name if found else None,
        selector=wanted,
        ttft_seconds=ttft_seconds,
        alerts=tuple(row["alert"] for row in rows),
        rules=as_yaml({"groups": [group]}),
        scrape_config=as_yaml({"scrape_configs": [_scrape(access, labels)]}),
        steps=(
            *_credential(access),
            command("Check the rules", "promtool", "check", "rules", RULES),
        ),
    )


def _rule(
    row: Mapping[str, Any], selector: str, ttft_seconds: float, found: Found | None
) -> dict[str, Any]:
    where = f"target={found.deployment.target} name={found.name}" if found else ""
    whose = f"with {where or 'the target and name of the deployment'}"
    first, *others = row["call"]
    more = f"; then, as it says: {', '.join(others)}" if others else ""
    expr, description = (
        row[part].strip().replace("SELECTOR", selector).replace("TTFT_SECONDS", f"{ttft_seconds:g}")
        for part in ("expr", "description")
    )
    return {
        "alert": row["name"],
        "expr": expr,
        "for": row["for"],
        "labels": {"severity": row["severity"]},
        "annotations": {
            "summary": row["summary"],
            "description": description,
            "runbook": f"Call {first} {whose}{more}.",
        },
    }


def _checked(selector: str) -> str:
    """Read label matchers one by one, so that nothing else gets into an expression."""
    rest, matchers = selector.strip().removeprefix("{").removesuffix("}"), []
    while match := _MATCHER.match(rest):
        label, how, value, more = match.groups()
        try:
            re.compile(value[1:-1] if "~" in how else "")
        except re.error:
            break
        matchers.append(f"{label}{how}{value}")
        if not more:
            return ",".join(matchers)
        rest = rest[match.end() :]
    raise InvalidArgument(
        f"{selector!r} is not a list of label matchers.",
        fix='Give it as Prometheus writes it: job="vllm",instance=~"gpu.*"',
    )


async def _access(runtime: Runtime, found: Found) -> Access | None:
    try:
        access = runtime.remember_credential(await found.backend.access(found.name))
    except NotReady as exc:
        note(f"Its address is not known yet. {exc.summary}")
        return None
    if access.socket:
        note(
            "Prometheus scrapes no unix socket: put a proxy on a port before it, or deploy it"
            " with access=private."
        )
    return access


def _scrape(access: Access | None, labels: Mapping[str, str]) -> dict[str, Any]:
    address = urlsplit(access.base_url if access else "")
    more = {key: value for key, value in labels.items() if key != "job"}
    at = {"targets": [address.netloc or _NOWHERE], **({"labels": more} if more else {})}
    config: dict[str, Any] = {
        "job_name": _JOB,
        "scrape_interval": _LOOK,
        "scheme": address.scheme or "https",
        "metrics_path": f"{address.path}/metrics",
    }
    if access is None or access.headers:
        config["authorization"] = {"credentials_file": _CREDENTIAL}
    if access and access.certificate:
        config["tls_config"] = {"ca_file": _CERTIFICATE}
    return {**config, "static_configs": [at]}


def _credential(access: Access | None) -> tuple[Command, ...]:
    """Say how the files are filled that the scrape configuration names."""
    if access is None:
        return ()
    header = IDENTITY_HEADER if IDENTITY_HEADER in access.header_commands else KEY_HEADER
    steps = []
    if shown := access.header_commands.get(header):
        often = " Again every half hour: it ends after one." if header == IDENTITY_HEADER else ""
        what = f"Keep what the endpoint wants to see where Prometheus reads it.{often}"
        steps.append(Command(what=what, command=f"{shown} > {_CREDENTIAL}"))
    if access.certificate_command:
        what = "Keep the certificate that it signs for itself."
        steps.append(Command(what=what, command=f"{access.certificate_command} > {_CERTIFICATE}"))
    return tuple(steps)
