"""A model on the Hub, read by its config.json and the headers of its files alone."""

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from core.errors import ModelNotFound, Unsupported
from core.records import ModelShape
from planner.model import read_config, shape_of

_LIBRARY: Final = "huggingface_hub"


def read_hub_model(
    model: str,
    *,
    revision: str | None = None,
    token: SecretStr | None = None,
    endpoint: str | None = None,
) -> ModelShape:
    """Read a model of the Hub: a few ranges of a few kB, never its weights.

    `endpoint` is another Hub than the public one.

    Raises:
        ModelNotFound: The Hub has no such model, it is gated, or it cannot be reached.
        Unsupported: huggingface_hub is not installed.
    """
    hub, errors = _libraries()
    api = hub.HfApi(endpoint, token=token.get_secret_value() if token else None)
    try:
        config = api.hf_hub_download(model, "config.json", revision=revision)
        found = api.get_safetensors_metadata(model, revision=revision)
    except errors as exc:
        raise ModelNotFound(
            f"{model} could not be read from the Hub.",
            fix="Check its name and, if it is gated, that HF_TOKEN may read it.",
            cause=(str(exc).splitlines() or [""])[0],
        ) from exc
    headers = tuple(header_of(file.tensors) for file in found.files_metadata.values())
    return shape_of(
        model,
        read_config(Path(config)),
        headers=headers,
        weight_bytes=sum(_size(header) for header in headers),
    )


def header_of(tensors: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Write huggingface_hub's records of tensors as the file's own header."""
    fields = ("dtype", "shape", "data_offsets")
    return {
        name: {field: getattr(tensor, field) for field in fields}
        for name, tensor in tensors.items()
    }


def _size(header: Mapping[str, Mapping[str, Any]]) -> int:
    ends: Iterable[int] = (entry["data_offsets"][1] for entry in header.values())
    return max(ends, default=0)


def _libraries() -> tuple[Any, tuple[type[Exception], ...]]:
    # Both take a while to import, and nothing else here needs them.
    try:
        hub = importlib.import_module(_LIBRARY)
        errors = importlib.import_module(f"{_LIBRARY}.errors")
    except ImportError as exc:
        raise Unsupported(
            "Models of the Hub cannot be read: huggingface_hub is not installed.",
            fix="Run ./init.sh again, or give a folder or a catalog name.",
        ) from exc
    unreadable = (errors.NotASafetensorsRepoError, errors.SafetensorsParsingError)
    return hub, (*unreadable, errors.HTTPError, OSError)
