"""Commands for a person who copies a model: from the Hub, from a registry, into a cloud."""

import re
import shlex
from typing import Final, NamedTuple

from backends.base import Backend, TakesUploads, Upload
from core.errors import InvalidArgument, NextStep
from core.records import Answer
from operations.abilities import chosen
from operations.commands import Command, command
from operations.models.hub_models import downloaded, gib, hub_id, rounded
from operations.runtime import Runtime

_FILES: Final = "files://"
_USUAL_REGION: Final = "us-central1"
_LOCATION: Final = re.compile(
    r"(?:gs://)?([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/([^\x00-\x20]*))?"
)
_RESOURCE: Final = re.compile(r"projects/([\w.:-]+)/locations/([\w-]+)/models/([\w.@-]+)")
_NUMBER: Final = re.compile(r"\d+(@[\w-]+)?")
_TITLE: Final = re.compile(r"[^\x00-\x1f\"\\]{1,128}")
_GATED: Final = "A gated model wants `hf auth login` first, and its licence accepted on its page."
_OF_THE_HUB: Final = (
    _GATED,
    "Cloud Shell's home has 5 GB: take a machine with more disk, best in the bucket's region.",
    "Each command may be repeated: what is there already is not copied again.",
)
_OF_VERTEX: Final = (
    "What came straight from Model Garden may name no files: copy such a model from the Hub.",
    "vLLM must know the format of the files: config.json and safetensors.",
)


class CopyInstructions(Answer):
    """How a person copies a model into a bucket."""

    model: str
    destination: str
    """What `weights` takes afterwards."""
    target: str | None = None
    """Where it can be served from there, if that was said."""
    gib: float | None
    """Of the weights' files; None is not known."""
    steps: tuple[Command, ...]
    notes: tuple[str, ...]

    def summary(self) -> str:
        """Say from where to where, and how much."""
        much = "of a size not known here" if self.gib is None else f"{self.gib:.1f} GiB"
        return f"{len(self.steps)} commands copy {self.model}, {much}, to {self.destination}."

    def next_steps(self) -> tuple[NextStep, ...]:
        """See afterwards that it is there and whole, and serve it."""
        scheme, _, rest = self.destination.rpartition("://")
        bucket = rest.partition("/")[0]
        if not self.target:
            return (NextStep("list_bucket_models", {"bucket": bucket}),)
        here = {"target": self.target}
        serve = {**here, "model": self.model, "weights": self.destination}
        return (
            NextStep("list_bucket_models", {**here, "bucket": f"{scheme}://{bucket}"}),
            NextStep("deploy_vllm", serve),
        )


class _Bucket(NamedTuple):
    name: str
    folder: str

    @property
    def url(self) -> str:
        return f"gs://{self.name}/{self.folder}"


def from_the_hub(
    runtime: Runtime, model: str, bucket: str | None, target: str | None = None
) -> CopyInstructions:
    """Say how to copy a model of the Hub to where the target's cloud keeps weights.

    Flags: gcloud's reference of `storage rsync`, `storage du` and
    `storage buckets create`, read 2026-11.

    Raises:
        InvalidArgument: It is no Hub id, or no bucket is named.
        TargetNotFound, Ambiguous, Unsupported: It is not clear which target is meant, or it
            keeps no weights.
    """
    name = hub_id(model)
    folder = name.rpartition("/")[2]
    where = _uploads(runtime, bucket, target)
    if where:
        return _onto_a_share(name, where[0], where[1].upload(folder, f"./{folder}", bucket))
    to = _destination(runtime, bucket, folder)
    here = f"./{to.folder.rpartition('/')[2]}"
    steps = (
        *downloaded(name, here),
        *_into(runtime, to, shlex.quote(here), exclude=r"^\.cache/.*"),
    )
    return CopyInstructions(
        model=name, destination=to.url, gib=rounded(gib(name)), steps=steps, notes=_OF_THE_HUB
    )


def from_vertex(runtime: Runtime, model: str, bucket: str | None) -> CopyInstructions:
    """Say how to copy the files of a model of Vertex AI's registry, given by name, id or title.

    Flags: gcloud's reference of `ai models describe`, `ai models list` and `storage rsync`, read
    2026-11.

    Raises:
        InvalidArgument: It can be no model of a registry, or no bucket is named.
    """
    asked, short = _lookup(runtime, model)
    to = _destination(runtime, bucket, short)
    files = '"${FILES:?The registry names no files of this model.}"'
    steps = (
        Command(what="See where its files are.", command=asked),
        *_into(runtime, to, files, before=f'FILES="$({asked})"; '),
    )
    return CopyInstructions(
        model=model, destination=to.url, gib=None, steps=steps, notes=_OF_VERTEX
    )


def _uploads(
    runtime: Runtime, bucket: str | None, target: str | None
) -> tuple[str, TakesUploads] | None:
    """Give the target that takes uploads, None where a bucket of Cloud Storage is meant."""
    stage = runtime.stage
    named = target or (None if bucket else stage.settings.vllm_target)
    if (bucket or "").startswith(_FILES):
        where, backend = chosen(stage, _takes, "read a share of files", target, shared=True)
        return where.name, backend
    backend_named = _takes(stage.backend(named)) if named else None
    return (named, backend_named) if named and backend_named else None


def _takes(backend: Backend) -> TakesUploads | None:
    return backend if isinstance(backend, TakesUploads) else None


def _onto_a_share(name: str, target: str, upload: Upload) -> CopyInstructions:
    here = f"./{name.rpartition('/')[2]}"
    steps = (
        *downloaded(name, here),
        *(Command(what=what, command=words) for what, words in upload.steps),
    )
    return CopyInstructions(
        model=name,
        destination=upload.location,
        target=target,
        gib=rounded(gib(name)),
        steps=steps,
        notes=(_GATED, *upload.notes),
    )


def _into(
    runtime: Runtime, to: _Bucket, source: str, *, before: str = "", exclude: str = ""
) -> tuple[Command, ...]:
    """Make the bucket if need be, copy what is not there yet, and look."""
    bucket, url, settings = f"gs://{to.name}", shlex.quote(to.url), runtime.settings
    project = settings.google_cloud_project
    made = ["gcloud", "storage", "buckets", "create", bucket, f"--location={_region(runtime)}"]
    made += ["--uniform-bucket-level-access", *([f"--project={project}"] if project else [])]
    seen = shlex.join(["gcloud", "storage", "buckets", "describe", bucket, "--format=value(name)"])
    left_out = f" --exclude={shlex.quote(exclude)}" if exclude else ""
    return (
        Command(
            what="Make the bucket if it is not there.", command=f"{seen} || {shlex.join(made)}"
        ),
        Command(
            what="Copy what is not there yet.",
            command=f"{before}gcloud storage rsync {source} {url} --recursive{left_out}",
        ),
        command(
            "See how much is there.",
            *("gcloud", "storage", "du", to.url, "--summarize", "--readable-sizes"),
        ),
    )


def _lookup(runtime: Runtime, model: str) -> tuple[str, str]:
    """Give the command that prints where a registered model's files are, and a short name."""
    project, region, wanted = runtime.settings.google_cloud_project, _region(runtime), model
    if found := _RESOURCE.fullmatch(model):
        project, region, wanted = found.groups()
    scope = [f"--region={region}", *([f"--project={project}"] if project else [])]
    shown = [*scope, "--format=value(artifactUri)"]
    if found or _NUMBER.fullmatch(wanted):
        words = ["gcloud", "ai", "models", "describe", wanted, *shown]
        return shlex.join(words), f"vertex-{wanted.partition('@')[0]}"
    if not _TITLE.fullmatch(wanted) or wanted.startswith("-"):
        raise InvalidArgument(
            "That can be no model of the registry.",
            fix="Give its name, id or title as list_vertex_models shows it.",
            next_steps=(NextStep("list_vertex_models"),),
        )
    named = f'--filter=displayName="{wanted}"'
    words = ["gcloud", "ai", "models", "list", named, "--limit=1", *shown]
    short = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted).strip("-.")
    return shlex.join(words), short or "vertex-model"


def _destination(runtime: Runtime, bucket: str | None, folder: str) -> _Bucket:
    wanted = bucket or runtime.settings.bucket_name
    if not wanted:
        raise InvalidArgument("Which bucket?", fix="Give `bucket`, or set BUCKET_NAME.")
    found = _LOCATION.fullmatch(wanted)
    if not found:
        raise InvalidArgument(
            f"{wanted[:100]!r} is no bucket.", fix="Give BUCKET, or gs://BUCKET/FOLDER."
        )
    name, inside = found.groups()
    return _Bucket(name, (inside or "").strip("/") or folder)


def _region(runtime: Runtime) -> str:
    """Give the region that deployments go to."""
    settings, targets = runtime.settings, runtime.stage.targets
    preferred = targets.get(settings.vllm_target or "")
    regions = (preferred.region if preferred else None, *(t.region for t in targets.values()))
    return settings.google_cloud_location or next(filter(None, regions), _USUAL_REGION)
