"""Commands for a person who copies a model: from the Hub, from a registry, into a bucket."""

import re
import shlex
from pathlib import Path
from typing import Final, NamedTuple

from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # found lazily

from core.errors import InvalidArgument, NextStep
from core.records import Answer
from operations.commands import Command, command
from operations.runtime import Runtime
from planner.boot import file_bytes
from planner.folders import faults, weights_in
from planner.model import full_name, is_path, read_model

_GIB: Final = 2**30
_CONTAINER_CACHE: Final = "~/.cache/huggingface/hub"
"""Of whoever runs there, where neither HF_HOME nor HF_HUB_CACHE is set."""
_USUAL_REGION: Final = "us-central1"
_LOCATION: Final = re.compile(
    r"(?:gs://)?([a-z0-9][a-z0-9._-]{1,220}[a-z0-9])(?:/([^\x00-\x20]*))?"
)
_RESOURCE: Final = re.compile(r"projects/([\w.:-]+)/locations/([\w-]+)/models/([\w.@-]+)")
_NUMBER: Final = re.compile(r"\d+(@[\w-]+)?")
_TITLE: Final = re.compile(r"[^\x00-\x1f\"\\]{1,128}")
_OF_THE_HUB: Final = (
    "A gated model wants `hf auth login` first, and its licence accepted on its page.",
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
    gib: float | None
    """Of the weights' files; None is not known."""
    steps: tuple[Command, ...]
    notes: tuple[str, ...]

    def summary(self) -> str:
        """Say from where to where, and how much."""
        much = "of a size not known here" if self.gib is None else f"{self.gib:.1f} GiB"
        return f"{len(self.steps)} commands copy {self.model}, {much}, to {self.destination}."

    def next_steps(self) -> tuple[NextStep, ...]:
        """See afterwards that it is there and whole."""
        bucket = self.destination.removeprefix("gs://").partition("/")[0]
        return (NextStep("list_bucket_models", {"bucket": bucket}),)


class DownloadPath(Answer):
    """Where the Hub's library keeps a model."""

    model: str
    folder: str
    """On this machine, of all its revisions."""
    snapshot: str | None
    """The newest revision's files, where there are any."""
    missing: tuple[str, ...]
    """What the snapshot lacks to be served."""
    in_container: str
    """The same folder in an engine's container."""
    gib: float | None
    steps: tuple[Command, ...]

    def summary(self) -> str:
        """Say where it is, or would be."""
        if self.snapshot is None:
            return f"{self.model} is not on this machine; it would go to {self.folder}."
        whole = "whole" if not self.missing else "not whole"
        return f"{self.model} is in {self.snapshot}, {whole}."

    def warnings(self) -> tuple[str, ...]:
        """Warn of what is missing."""
        return self.missing


class _Bucket(NamedTuple):
    name: str
    folder: str

    @property
    def url(self) -> str:
        return f"gs://{self.name}/{self.folder}"


def from_the_hub(runtime: Runtime, model: str, bucket: str | None) -> CopyInstructions:
    """Say how to copy a model of the Hub.

    Flags: `hf` 2.4.0's own help; gcloud's reference of `storage rsync`, `storage du` and
    `storage buckets create`, read 2026-11.

    Raises:
        InvalidArgument: It is no Hub id, or no bucket is named.
    """
    name = hub_id(model)
    to = _destination(runtime, bucket, name.rpartition("/")[2])
    here = f"./{to.folder.rpartition('/')[2]}"
    size = gib(name)
    room = f"; it takes {size:.1f} GiB of disk" if size else ""
    known = () if size else (command("See how large it is.", "hf", "download", name, "--dry-run"),)
    steps = (
        *known,
        command(f"Download it{room}.", "hf", "download", name, "--local-dir", here),
        command(
            "See that every file is whole.",
            *("hf", "cache", "verify", name, "--local-dir", here, "--fail-on-missing-files"),
        ),
        *_into(runtime, to, shlex.quote(here), exclude=r"^\.cache/.*"),
    )
    return CopyInstructions(
        model=name, destination=to.url, gib=_rounded(size), steps=steps, notes=_OF_THE_HUB
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


def download_path(model: str) -> DownloadPath:
    """Say where the Hub's library keeps a model on this machine, and whether it is there.

    Raises:
        InvalidArgument: It is no Hub id.
    """
    name = hub_id(model)
    short = repo_folder_name(repo_id=name, repo_type="model")
    config = try_to_load_from_cache(name, "config.json")
    snapshot = Path(config).parent if isinstance(config, str) else None
    return DownloadPath(
        model=name,
        folder=str(Path(constants.HF_HUB_CACHE) / short),
        snapshot=str(snapshot) if snapshot else None,
        missing=_missing(snapshot) if snapshot else (),
        in_container=f"{_CONTAINER_CACHE}/{short}",
        gib=_rounded(gib(name)),
        steps=(
            command("Download it there, or go on with it.", "hf", "download", name),
            command("See that every file is whole.", "hf", "cache", "verify", name),
        ),
    )


def hub_id(model: str) -> str:
    """Give the Hub id that is meant, also by a short name such as `26b qat`.

    Raises:
        InvalidArgument: It is none.
    """
    name = full_name(model)
    try:
        validate_repo_id(name)
    except HFValidationError as exc:
        raise _no_hub_id(model) from exc
    if is_path(name) or name.startswith("-") or name.count("/") != 1:
        raise _no_hub_id(model)
    return name


def gib(model: str) -> float | None:
    """Give the size of a model's files where the catalog knows it, None elsewhere."""
    shape = read_model(model)
    return file_bytes(shape) / _GIB if shape.weight_bytes or shape.groups else None


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


def _missing(snapshot: Path) -> tuple[str, ...]:
    none = () if weights_in(snapshot) else ("There are no safetensors in it.",)
    return (*none, *faults(snapshot))


def _rounded(size: float | None) -> float | None:
    return None if size is None else round(size, 2)


def _no_hub_id(model: str) -> InvalidArgument:
    return InvalidArgument(
        f"{model[:100]!r} is no model of the Hugging Face Hub.",
        fix="Give an id such as google/gemma-4-E4B-it, or a short name such as `26b qat`.",
        next_steps=(NextStep("list_models"),),
    )
