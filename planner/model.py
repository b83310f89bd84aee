"""A checkpoint, read from its own files."""

import json
from pathlib import Path
from typing import Any

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
    folder = Path(model).expanduser()
    if not folder.is_dir():
        raise ModelNotFound(
            f"There is no folder {folder}.",
            fix="Check the path, or give a Hub id such as google/gemma-4-E4B-it.",
        )
    return _shape(str(folder.resolve()), folder, _config(folder / "config.json"))


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
    text = {**config, **config.get("text_config", {})}
    quantization = config.get("quantization_config") or {}
    files = list(folder.glob("*.safetensors"))
    return ModelShape(
        model=model,
        architecture=next(iter(config.get("architectures") or ()), None),
        max_position_embeddings=text.get("max_position_embeddings"),
        dtype=text.get("dtype") or text.get("torch_dtype"),
        quantization=quantization.get("quant_method"),
        weight_bytes=sum(file.stat().st_size for file in files) or None,
    )
