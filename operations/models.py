"""Models: which there are, where they lie, how they are copied, and the Hub's token."""

import functools
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
from pydantic import SecretStr

from backends.base import (
    KeepsSecrets,
    ListsRegistry,
    ListsWeights,
    RegisteredModel,
    StoredModel,
    TakesUploads,
)
from core.environment import inherited_environment
from core.errors import InvalidArgument, ModelNotFound, NextStep
from core.records import Answer, DeploymentSpec, Record, State, Target
from core.reply import note
from core.settings import Settings
from operations.resolve import choose_target, everything
from operations.runtime import Command, Runtime, command
from planner.boot import file_bytes
from planner.catalog import entries, entry, not_on_hub, short_name
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import catalog_shape, faults, full_name, is_path, read_model, weights_in
from planner.places import accelerator

_GIB: Final = 2**30
_CLOUDS: Final = {"gs": "cloud_run", "files": "aca"}
"""Whose targets look into what is written so."""
_CONTAINER_CACHE: Final = "~/.cache/huggingface/hub"
"""Of whoever runs there, where neither HF_HOME nor HF_HUB_CACHE is set."""


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
        if self.snapshot is None:
            return f"{self.model} is not on this machine; it would go to {self.folder}."
        whole = "whole" if not self.missing else "not whole"
        return f"{self.model} is in {self.snapshot}, {whole}."

    def warnings(self) -> tuple[str, ...]:
        return self.missing


def download_path(model: str) -> DownloadPath:
    """Say where the Hub's library keeps a model on this machine, and whether it is there.

    Raises:
        InvalidArgument: It is no Hub id.
    """
    from huggingface_hub import constants, try_to_load_from_cache
    from huggingface_hub.file_download import repo_folder_name

    name = hub_id(model)
    short = repo_folder_name(repo_id=name, repo_type="model")
    config = try_to_load_from_cache(name, "config.json")
    snapshot = Path(config).parent if isinstance(config, str) else None
    missing: tuple[str, ...] = ()
    if snapshot:
        none = () if weights_in(snapshot) else ("There are no safetensors in it.",)
        missing = (*none, *faults(snapshot))
    return DownloadPath(
        model=name,
        folder=str(Path(constants.HF_HUB_CACHE) / short),
        snapshot=str(snapshot) if snapshot else None,
        missing=missing,
        in_container=f"{_CONTAINER_CACHE}/{short}",
        gib=gib(name),
        steps=(
            command("Download it there, or go on with it.", "hf", "download", name),
            command("See that every file is whole.", "hf", "cache", "verify", name),
        ),
    )


def hub_id(model: str) -> str:
    """Give the Hub id that is meant, also by a short name such as `12b qat`.

    Raises:
        InvalidArgument: It is none.
        ModelNotFound: It is known not to be there.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # found lazily
        validate_repo_id,
    )

    name = full_name(model)
    try:
        validate_repo_id(name)
        valid_id = not (is_path(name) or name.startswith("-") or name.count("/") != 1)
    except HFValidationError:
        valid_id = False
    if not valid_id:
        raise InvalidArgument(
            f"{model[:100]!r} is no model of the Hugging Face Hub.",
            fix="Give an id such as google/gemma-4-E4B-it, or a short name such as `12b qat`.",
            next_steps=(NextStep("list_models"),),
        )
    if why := not_on_hub(name):
        raise _not_there(name, why)
    return name


async def require_on_hub(
    settings: Settings, target: Target, spec: DeploymentSpec, *, ask: bool = True
) -> None:
    """Refuse what is known not to be on the Hub where a cloud would fetch it from there.

    With `ask` the Hub has the last word: it may have come since. Of a model that nobody knows here,
    what it answers is noted: it shows a private one only to whoever may read it. This machine may
    have its files in the Hub's cache.

    Raises:
        ModelNotFound: It is not there, as far as is known.
    """
    model, weights = spec.model, spec.weights or "hub"
    of_hub = spec.engine == "vllm" and weights.partition(":")[0] == "hub"
    from backends.common.models import on_hub

    why = not_on_hub(model) if of_hub else None
    if why is None:
        unknown = of_hub and all(one.model != model for one in entries())
        if ask and unknown and target.backend != "local":
            answer = await on_hub(settings, model)
            if answer.passed is False:
                note(f"{answer.detail} {answer.fix}")
        return
    if target.backend == "local":
        note(f"{why} It is served here only if its files are in the Hub's cache of this machine.")
        return
    if ask:
        answer = await on_hub(settings, model)
        if answer.passed:
            note(f"{model} is on the Hub now.")
            return
        if answer.passed is False:
            why = f"{why} Asked again: {answer.detail}"
    raise _not_there(model, why)


def gib(model: str) -> float | None:
    """Give the size of a model's files where the catalog knows it, None elsewhere."""
    shape = read_model(model)
    known = shape.weight_bytes or shape.groups
    return round(file_bytes(shape) / _GIB, 2) if known else None


def _not_there(model: str, why: str) -> ModelNotFound:
    """Say that it is not on the Hub; the next smaller of its format is, and it unquantized."""
    known = [one for one in entries() if not one.absent]
    wanted = entry(model)
    small = [one for one in known if one.quantized and one.parameters < wanted.parameters]
    smaller = max(small, key=lambda one: one.parameters, default=None)
    plain = next((one for one in known if one.parameters == wanted.parameters), None)
    near = [one.model for one in (smaller, plain) if one]
    return ModelNotFound(
        why,
        fix=f"Take {' or '.join(near)}; or, with its files in a bucket of yours, give"
        " weights=gs://BUCKET/FOLDER (files://SHARE/FOLDER on Container Apps).",
        next_steps=(NextStep("recommend_deployment", {"model": near[0]}),),
    )


def _downloaded(name: str, here: str) -> tuple[Command, ...]:
    """Say how a model of the Hub comes whole into the folder `here`.

    Flags: `hf` 2.4.0's own help.
    """
    size = gib(name)
    room = f"; it takes {size:.1f} GiB of disk" if size else ""
    known = () if size else (command("See how large it is.", "hf", "download", name, "--dry-run"),)
    return (
        *known,
        command(f"Download it{room}.", "hf", "download", name, "--local-dir", here),
        command(
            "See that every file is whole.",
            *("hf", "cache", "verify", name, "--local-dir", here, "--fail-on-missing-files"),
        ),
    )


_GPU: Final = "h100"
"""That what stays in memory is reckoned on: the same on every GPU with bf16."""
_FLAGS: Final = Flags(max_num_batched_tokens=2496)
"""vLLM's own on most cards: E2B and E4B keep a buffer of that many rows."""

FORMATS: Final[dict[str, str]] = {
    "bf16": "the published weights; vLLM, SGLang, TPU. The reference for quality.",
    "qat-w4a16-ct": "int4 weights trained for it (compressed-tensors); vLLM and SGLang on GPUs, "
    "on TPUs since tpu-inference 0.32.",
    "qat-q4_0-gguf": "one file for llama.cpp and Ollama; vLLM is not the engine for it.",
    "qat-q4_0-unquantized": "bf16 weights to quantize yourself; with its assistant model as the "
    "drafter of speculative decoding.",
}
"""Formats in which Gemma 4 is published, and what each is for. Source: the project's collected
notes on published checkpoints, 2026-11-20."""


class CatalogRow(Record):
    """One model of the catalog."""

    model: str
    precision: str
    parameters: int
    files_gib: float
    weights_gib: float
    """On one GPU, with what vLLM keeps beside the files' tensors."""
    max_position_embeddings: int | None
    runs_on: str
    """Which engines read this format, and what it is for."""
    not_on_hub: str | None = None
    """Of one that is known not to be there: when that was seen."""


class Catalog(Answer):
    """Models that plans work for without a download, and what is served now."""

    models: tuple[CatalogRow, ...]
    formats: dict[str, str]
    served: tuple[str, ...]

    def summary(self) -> str:
        sizes = dict.fromkeys(short_name(row.model).partition(" ")[0] for row in self.models)
        served = f"Served now: {', '.join(self.served)}." if self.served else "Nothing is served."
        many = f"Gemma 4 in {len(sizes)} sizes, each in bf16 and QAT (int4)"
        absent = [short_name(row.model) for row in self.models if row.not_on_hub]
        but = f" ({', '.join(absent)} is not on the Hub)" if absent else ""
        return f"{many}: {', '.join(sizes)}{but}. {served}"

    def facts(self) -> Mapping[str, Any]:
        rows = [
            {
                "model": row.model.removeprefix("google/"),
                "weights_gib": row.weights_gib,
                "max_model_len": row.max_position_embeddings,
                "not on the Hub": row.not_on_hub and "from a bucket of your own alone",
            }
            for row in self.models
        ]
        return {"models": rows, "formats": dict(self.formats)}

    def next_steps(self) -> tuple[NextStep, ...]:
        return (NextStep("recommend_deployment", {"model": "12b qat", "max_model_len": 16384}),)


async def catalog(runtime: Runtime) -> Catalog:
    """Give every model of the catalog and every one that is served."""
    served = [
        f"{one.deployment.served_model_name} ({one.name} on {one.deployment.target})"
        for one in await everything(runtime.stage)
        if one.deployment.state is State.READY
    ]
    return Catalog(models=_rows(), formats=FORMATS, served=tuple(served))


@functools.cache
def _rows() -> tuple[CatalogRow, ...]:
    rows = []
    for each in entries():
        shape = catalog_shape(each.model)
        memory = plan_memory(shape, accelerator(_GPU), _FLAGS)
        rows.append(
            CatalogRow(
                model=each.model,
                precision="int4 weights, bf16 rest" if shape.quantization else "bf16",
                parameters=shape.parameters,
                files_gib=round(file_bytes(shape) / _GIB, 2),
                weights_gib=round(memory.weights_gib, 2),
                max_position_embeddings=shape.max_position_embeddings,
                runs_on=FORMATS["qat-w4a16-ct" if shape.quantization else "bf16"],
                not_on_hub=not_on_hub(each.model),
            )
        )
    return tuple(rows)


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
        much = "of a size not known here" if self.gib is None else f"{self.gib:.1f} GiB"
        return f"{len(self.steps)} commands copy {self.model}, {much}, to {self.destination}."

    def next_steps(self) -> tuple[NextStep, ...]:
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
    if where := _uploads(runtime, bucket, target):
        upload = where[1].upload(folder, f"./{folder}", bucket)
        uploaded = (Command(what=what, command=words) for what, words in upload.steps)
        return CopyInstructions(
            model=name,
            destination=upload.location,
            target=where[0],
            gib=gib(name),
            steps=(*_downloaded(name, f"./{folder}"), *uploaded),
            notes=(_GATED, *upload.notes),
        )
    url = _destination(runtime, bucket, folder)
    here = f"./{url.rpartition('/')[2]}"
    copied = _into(runtime, url, shlex.quote(here), exclude=r"^\.cache/.*")
    return CopyInstructions(
        model=name,
        destination=url,
        gib=gib(name),
        steps=(*_downloaded(name, here), *copied),
        notes=_OF_THE_HUB,
    )


def from_vertex(runtime: Runtime, model: str, bucket: str | None) -> CopyInstructions:
    """Say how to copy the files of a model of Vertex AI's registry, given by name, id or title.

    Flags: gcloud's reference of `ai models describe`, `ai models list` and `storage rsync`, read
    2026-11.

    Raises:
        InvalidArgument: It can be no model of a registry, or no bucket is named.
    """
    asked, short = _lookup(runtime, model)
    url = _destination(runtime, bucket, short)
    files = '"${FILES:?The registry names no files of this model.}"'
    steps = (
        Command(what="See where its files are.", command=asked),
        *_into(runtime, url, files, before=f'FILES="$({asked})"; '),
    )
    return CopyInstructions(model=model, destination=url, gib=None, steps=steps, notes=_OF_VERTEX)


def _uploads(
    runtime: Runtime, bucket: str | None, target: str | None
) -> tuple[str, TakesUploads] | None:
    """Give the target that takes uploads, None where a bucket of Cloud Storage is meant."""
    stage = runtime.stage
    named = target or (None if bucket else stage.settings.vllm_target)
    if (bucket or "").startswith(_FILES):
        where, backend = choose_target(
            stage, TakesUploads, "read a share of files", target, shared=True
        )
        return where.name, backend
    if named and isinstance(usual := stage.backend(named), TakesUploads):
        return named, usual
    return None


def _into(
    runtime: Runtime, url: str, source: str, *, before: str = "", exclude: str = ""
) -> tuple[Command, ...]:
    """Make the bucket if need be, copy what is not there yet, and look."""
    bucket = "/".join(url.split("/")[:3])
    project = runtime.settings.google_cloud_project
    made = ["gcloud", "storage", "buckets", "create", bucket, f"--location={_region(runtime)}"]
    made += ["--uniform-bucket-level-access", *([f"--project={project}"] if project else [])]
    seen = shlex.join(["gcloud", "storage", "buckets", "describe", bucket, "--format=value(name)"])
    left_out = f" --exclude={shlex.quote(exclude)}" if exclude else ""
    copy = f"{before}gcloud storage rsync {source} {shlex.quote(url)} --recursive{left_out}"
    return (
        Command(
            what="Make the bucket if it is not there.", command=f"{seen} || {shlex.join(made)}"
        ),
        Command(what="Copy what is not there yet.", command=copy),
        command(
            "See how much is there.",
            *("gcloud", "storage", "du", url, "--summarize", "--readable-sizes"),
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


def _destination(runtime: Runtime, bucket: str | None, folder: str) -> str:
    wanted = bucket or runtime.settings.bucket_name
    if not wanted:
        raise InvalidArgument("Which bucket?", fix="Give `bucket`, or set BUCKET_NAME.")
    found = _LOCATION.fullmatch(wanted)
    if not found:
        raise InvalidArgument(
            f"{wanted[:100]!r} is no bucket.", fix="Give BUCKET, or gs://BUCKET/FOLDER."
        )
    name, inside = found.groups()
    return f"gs://{name}/{(inside or '').strip('/') or folder}"


def _region(runtime: Runtime) -> str:
    """Give the region that deployments go to."""
    settings, targets = runtime.settings, runtime.stage.targets
    preferred = targets.get(settings.vllm_target or "")
    regions = (preferred.region if preferred else None, *(t.region for t in targets.values()))
    return settings.google_cloud_location or next(filter(None, regions), _USUAL_REGION)


NAME: Final = "hf-token"
"""Of the secret, wherever it is kept."""
_SETTING: Final = "HF_TOKEN"
_SHAPE: Final = re.compile(r"(?:hf|api_org)_[A-Za-z0-9._-]{16,500}")
"""Nothing else is sent to the Hub: a call may name any variable and any file."""
_MAX_FILE_BYTES: Final = 4096
_ASK_SECONDS: Final = 15.0


class Known(NamedTuple):
    """What the Hub says of a token; `why_not` where it was not asked or did not say."""

    account: str | None = None
    role: str | None = None
    why_not: str | None = None


class SavedToken(Answer):
    """A token that is kept; its value is nowhere in here."""

    target: str
    secret: str
    version: str
    source: str
    """Where the token was read."""
    validated: bool
    """The Hub has said whose it is."""
    account: str | None
    """Whose it is."""
    role: str | None
    """What it may do: read, write or fineGrained."""
    why_not_validated: str | None
    readable_by: tuple[str, ...]
    """Identities of ours that may read it."""

    def summary(self) -> str:
        head = f"The token is kept as {self.secret}, version {self.version}, for {self.target}"
        if self.validated:
            return f"{head}; it is {self.account}'s."
        return f"{head}; it was not validated: {self.why_not_validated}."

    def warnings(self) -> tuple[str, ...]:
        doubts = {
            "Nobody has asked the Hub whether this token is good.": not self.validated,
            "It may also write; a token that only reads is enough.": self.role == "write",
            "No identity of a deployment was seen to be allowed to read it: call setup_target.": (
                not self.readable_by
            ),
            "It went through this conversation: with `env` or `file` it need not.": (
                self.source == "the argument"
            ),
        }
        return tuple(words for words, true in doubts.items() if true)

    def next_steps(self) -> tuple[NextStep, ...]:
        return (NextStep("deploy_vllm", {"target": self.target}),)


async def save(
    runtime: Runtime,
    *,
    token: str | None = None,
    env: str | None = None,
    file: str | None = None,
    target: str | None = None,
) -> SavedToken:
    """Read a token, let the Hub say whose it is, and keep it; one that the Hub refuses is not kept.

    Raises:
        InvalidArgument: No token is found, what is found is none, or the Hub refuses it.
        Unsupported: The target keeps no secrets.
        Ambiguous: Several targets do, and none is named.
        CloudError: It could not be kept.
    """
    where, backend = choose_target(
        runtime.stage, KeepsSecrets, "keep secrets", target, shared=True, tool="save_hf_token"
    )
    read, source = read_token(runtime.settings, token=token, env=env, file=file)
    runtime.remember_secret(read)
    known = await ask_the_hub(runtime.settings, read)
    kept = await backend.keep_secret(NAME, read)
    return SavedToken(
        target=where.name,
        secret=kept.name,
        version=kept.version,
        source=source,
        validated=known.why_not is None,
        account=known.account,
        role=known.role,
        why_not_validated=known.why_not,
        readable_by=kept.readable_by,
    )


def read_token(
    settings: Settings, *, token: str | None = None, env: str | None = None, file: str | None = None
) -> tuple[SecretStr, str]:
    """Read a token from one place, and name it; left out, from the setting HF_TOKEN.

    Raises:
        InvalidArgument: Several places are named, there is nothing, or it is no token.
    """
    if len([said for said in (token, env, file) if said]) > 1:
        raise InvalidArgument(
            "A token can be read from one place only.", fix="Give one of token, env and file."
        )
    if token:
        text, source = token, "the argument"
    elif file:
        text, source = _of_file(Path(file).expanduser()), f"the file {file}"
    else:
        text, source = _of_variable(settings, env or _SETTING), f"the variable {env or _SETTING}"
    if not _SHAPE.fullmatch(word := text.strip()):
        raise InvalidArgument(
            f"What {source} holds is no token of the Hugging Face Hub; nothing was sent or kept.",
            fix="A token begins with hf_ and is one word: make one at"
            " huggingface.co/settings/tokens.",
        )
    return SecretStr(word), source


async def ask_the_hub(settings: Settings, token: SecretStr) -> Known:
    """Let the Hub say whose token it is; in a rehearsal it is not asked.

    Raises:
        InvalidArgument: The Hub refuses it.
    """
    if settings.rehearsal:
        return Known(why_not="a rehearsal asks nobody outside this machine")
    with anyio.move_on_after(_ASK_SECONDS):
        return await anyio.to_thread.run_sync(_whoami, token, abandon_on_cancel=True)
    return Known(why_not=f"the Hub did not answer within {_ASK_SECONDS:.0f} s")


def _whoami(token: SecretStr) -> Known:
    import huggingface_hub
    from huggingface_hub.errors import (  # type: ignore[attr-defined]  # it says which httpx it uses
        HfHubHTTPError,
        HTTPError,
        OfflineModeIsEnabled,
    )

    try:
        answer = huggingface_hub.HfApi().whoami(token.get_secret_value())
    except OfflineModeIsEnabled:
        return Known(why_not="HF_HUB_OFFLINE forbids to ask the Hub")
    except HfHubHTTPError as exc:
        if exc.response.status_code == 401:
            raise InvalidArgument(
                "The Hub refuses this token; it was not kept.",
                fix="Make one that may read at huggingface.co/settings/tokens, and give it by"
                " `env` or `file`.",
            ) from exc
        return Known(why_not=f"the Hub answered {exc.response.status_code}")
    except (HTTPError, OSError, ValueError) as exc:
        return Known(why_not=f"the Hub could not be asked ({type(exc).__name__})")
    name = answer.get("name") if isinstance(answer, Mapping) else None
    if not isinstance(name, str):
        return Known(why_not="the Hub's answer names no account")
    access = (answer.get("auth") or {}).get("accessToken") or {}
    return Known(account=name, role=access.get("role"))


def _of_variable(settings: Settings, name: str) -> str:
    own = settings.hf_token.get_secret_value() if settings.hf_token else None
    found = own if name == _SETTING else inherited_environment().get(name)
    if not found:
        raise InvalidArgument(
            f"The server's environment has no {name[:60]}.",
            fix="Set it where the server is started, or give `file`: after `hf auth login` the"
            " token lies in ~/.cache/huggingface/token.",
        )
    return found


def _of_file(path: Path) -> str:
    fix = "Name a file with the token alone, such as ~/.cache/huggingface/token."
    try:
        if path.is_file() and path.stat().st_size <= _MAX_FILE_BYTES:
            return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"{path} cannot be read as text.", fix=fix) from exc
    raise InvalidArgument(f"{path} is no file that holds just a token.", fix=fix)


class StoredRow(StoredModel):
    """A model in a bucket, with its size as a person reads it."""

    gib: float


class BucketModels(Answer):
    """Every folder of a bucket that holds a model."""

    target: str
    models: tuple[StoredRow, ...]

    def summary(self) -> str:
        if not self.models:
            return "No model lies in the bucket."
        ready = sum(row.complete is True for row in self.models)
        return f"{_count(self.models)} in the bucket, {ready} complete."

    def warnings(self) -> tuple[str, ...]:
        return tuple(f"{row.location} {_ill(row)}" for row in self.models if _ill(row))

    def next_steps(self) -> tuple[NextStep, ...]:
        here = {"target": self.target}
        for row in self.models:
            if row.complete and row.model:
                serve = {**here, "model": row.model, "weights": row.location}
                return (NextStep("deploy_vllm", serve),)
        wanted = {**here, "model": "google/gemma-4-E4B-it"}
        return (NextStep("get_huggingface_model_copy_instructions", wanted),)


async def models_in_bucket(
    runtime: Runtime, bucket: str | None, target: str | None
) -> BucketModels:
    """Look through a bucket; left out, that of the settings.

    Whose it is its form says: gs://BUCKET, files://SHARE.

    Raises:
        Unsupported: The target cannot look into buckets.
        Ambiguous: Several can, and none is named.
        CloudError: The bucket cannot be read.
    """
    stage, tool = runtime.stage, "list_bucket_models"
    scheme = (bucket or "").partition("://")[0] if "://" in (bucket or "") else ""
    if bucket is None and stage.settings.bucket_name and not stage.settings.vllm_target:
        scheme = "gs"
    # A target of the cloud that a bucket's form, or the setting of one, speaks of.
    names = (one for one in stage.usable if stage.targets[one].backend == _CLOUDS.get(scheme))
    meant = target or next(names, None)
    where, backend = choose_target(
        stage, ListsWeights, "look into buckets", meant, shared=True, tool=tool
    )
    meant = bucket.removeprefix("gs://").strip("/") if bucket else None
    found = await backend.stored_models(meant)
    rows = tuple(
        StoredRow(**one.model_dump(), gib=round(one.size_bytes / _GIB, 2)) for one in found
    )
    return BucketModels(target=where.name, models=rows)


def _count(models: Sequence[object]) -> str:
    return f"{len(models)} model{'' if len(models) == 1 else 's'}"


def _ill(row: StoredRow) -> str:
    if row.complete is False:
        return f"is not complete: {row.detail}"
    return "" if row.complete else f"may be incomplete: {row.detail or 'that cannot be read.'}"


class RegistryModels(Answer):
    """Every model of a registry."""

    target: str
    models: tuple[RegisteredModel, ...]

    def summary(self) -> str:
        if not self.models:
            return "The registry holds no model in this region."
        files = sum(bool(one.artifact) for one in self.models)
        return f"{_count(self.models)} in the registry, {files} with files in a bucket."

    def next_steps(self) -> tuple[NextStep, ...]:
        able = [one.name for one in self.models if one.artifact][:1]
        tool = "get_vertex_ai_model_copy_instructions"
        return tuple(NextStep(tool, {"model": name}) for name in able)


async def models_in_registry(runtime: Runtime, target: str | None) -> RegistryModels:
    """Ask the registry of a target's region.

    Raises:
        Unsupported: The target has no registry.
        Ambiguous: Several have one, and none is named.
        CloudError: It cannot be asked.
    """
    where, backend = choose_target(
        runtime.stage, ListsRegistry, "ask a registry of models", target, shared=True
    )
    return RegistryModels(target=where.name, models=tuple(await backend.registered_models()))
