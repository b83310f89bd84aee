"""A checkpoint, read from its own files."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.errors import ModelNotFound
from core.records import ModelShape


def is_path(model: str) -> bool:
    """Whether a model's name means a folder rather than a Hub id."""
    return model[:1] in {"/", "~", "."}


def read_model(model: str) -> ModelShape:
    """Read what a folder says of its model; a Hub id is not looked up and says nothing.

    Raises:
        ModelNotFound: The folder does not exist or has no readable config.json.
    """
    if not is_path(model):
        return ModelShape(model=model)
    folder = _folder(model)
    return _shape(str(folder.resolve()), folder, _config(folder / "config.json"))


def _folder(model: str) -> Path:
    cause = ""
    try:
        folder = Path(model).expanduser()
        if folder.is_dir():
            return folder
    except (OSError, RuntimeError) as exc:  # a name too long, a home of nobody
        cause = str(exc)
    raise ModelNotFound(
        f"There is no folder {model}.",
        fix="Check the path, or give a Hub id such as google/gemma-4-E4B-it.",
        cause=cause,
    )


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ModelNotFound(
            f"{path} is not a model's configuration.",
            fix="Give the folder that holds config.json and the safetensors files.",
            cause=str(exc),
        ) from exc
    return config if isinstance(config, dict) else {}


def _shape(model: str, folder: Path, config: dict[str, Any]) -> ModelShape:
    text = {**config, **_dict(config, "text_config")}
    names = config.get("architectures")
    files = [file for file in folder.glob("*.safetensors") if file.is_file()]
    shape = {
        "model": model,
        "architecture": names[0] if isinstance(names, list) and names else None,
        "max_position_embeddings": text.get("max_position_embeddings"),
        "dtype": text.get("dtype") or text.get("torch_dtype"),
        "quantization": _dict(config, "quantization_config").get("quant_method"),
        "weight_bytes": sum(file.stat().st_size for file in files) or None,
    }
    try:
        return ModelShape.model_validate(shape)
    except ValidationError as exc:
        raise ModelNotFound(
            f"{folder / 'config.json'} says what no model's configuration does.",
            fix="Give a folder as Transformers writes it.",
            cause=str(exc).replace("\n", " ")[:200],
        ) from exc


def _dict(config: dict[str, Any], name: str) -> dict[str, Any]:
    found = config.get(name)
    return found if isinstance(found, dict) else {}
