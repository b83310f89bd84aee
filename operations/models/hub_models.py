"""Models of the Hub: their ids, their size, and where its library keeps them."""

from pathlib import Path
from typing import Final

from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # found lazily

from backends.common.models import on_hub
from core.errors import InvalidArgument, ModelNotFound, NextStep
from core.records import Answer, DeploymentSpec, Target
from core.reply import note
from core.settings import Settings
from operations.commands import Command, command
from planner.boot import file_bytes
from planner.catalog import entries, entry, not_on_hub
from planner.model import faults, full_name, is_path, read_model, weights_in

_GIB: Final = 2**30
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
        """Say where it is, or would be."""
        if self.snapshot is None:
            return f"{self.model} is not on this machine; it would go to {self.folder}."
        whole = "whole" if not self.missing else "not whole"
        return f"{self.model} is in {self.snapshot}, {whole}."

    def warnings(self) -> tuple[str, ...]:
        """Warn of what is missing."""
        return self.missing


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
        gib=rounded(gib(name)),
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
    name = full_name(model)
    try:
        validate_repo_id(name)
    except HFValidationError as exc:
        raise _no_hub_id(model) from exc
    if is_path(name) or name.startswith("-") or name.count("/") != 1:
        raise _no_hub_id(model)
    if why := not_on_hub(name):
        raise _not_there(name, why)
    return name


async def require_on_hub(
    settings: Settings, target: Target, spec: DeploymentSpec, *, ask: bool = True
) -> None:
    """Refuse what is known not to be on the Hub where a cloud would fetch it from there.

    With `ask` the Hub has the last word: it may have come since. This machine may have its files
    in the Hub's cache.

    Raises:
        ModelNotFound: It is not there, as far as is known.
    """
    model, weights = spec.model, spec.weights or "hub"
    of_hub = spec.engine == "vllm" and weights.partition(":")[0] == "hub"
    why = not_on_hub(model) if of_hub else None
    if why is None:
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


def _not_there(model: str, why: str) -> ModelNotFound:
    near = _nearest_there(model)
    return ModelNotFound(
        why,
        fix=f"Take {' or '.join(near)}; or, with its files in a bucket of yours, give"
        " weights=gs://BUCKET/FOLDER (files://SHARE/FOLDER on Container Apps).",
        next_steps=(NextStep("recommend_deployment", {"model": near[0]}),),
    )


def _nearest_there(model: str) -> tuple[str, ...]:
    """Return the same weights unquantized, and the next smaller ones of the same format."""
    known = [one for one in entries() if not one.absent]
    wanted = entry(model)
    small = [one for one in known if one.quantized and one.parameters < wanted.parameters]
    near = max(small, key=lambda one: one.parameters, default=None)
    plain = next((one for one in known if one.parameters == wanted.parameters), None)
    return tuple(one.model for one in (near, plain) if one)


def gib(model: str) -> float | None:
    """Give the size of a model's files where the catalog knows it, None elsewhere."""
    shape = read_model(model)
    return file_bytes(shape) / _GIB if shape.weight_bytes or shape.groups else None


def rounded(size: float | None) -> float | None:
    """Give a size as it is shown."""
    return None if size is None else round(size, 2)


def downloaded(name: str, here: str) -> tuple[Command, ...]:
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


def _missing(snapshot: Path) -> tuple[str, ...]:
    none = () if weights_in(snapshot) else ("There are no safetensors in it.",)
    return (*none, *faults(snapshot))


def _no_hub_id(model: str) -> InvalidArgument:
    return InvalidArgument(
        f"{model[:100]!r} is no model of the Hugging Face Hub.",
        fix="Give an id such as google/gemma-4-E4B-it, or a short name such as `12b qat`.",
        next_steps=(NextStep("list_models"),),
    )
