"""Models that can be planned without their files."""

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from core.environment import read_toml

QUANTIZED: Final = "-qat-w4a16-ct"
"""What the names of int4 checkpoints end with."""
_FOLDER: Final = Path(__file__).parent
_SILENT: Final = frozenset(
    {"gemma", "4", "gemma4", "it", "a4b", "standard", "bf16", "unified", "model"}
)
"""Words of a name that do not tell one model from another."""
_NOT: Final = frozenset({"non", "no", "not"})
"""Words that turn a mark of quantization round: `12b non qat`."""
_FOURTH: Final = frozenset({"4", "gemma4"})
"""Words that say which generation is meant."""


class Entry(NamedTuple):
    """One model of the catalog."""

    model: str
    """As the Hub calls it."""
    config: dict[str, Any]
    quantized: bool
    parameters: int
    """As published, for the unquantized one."""
    stored_bytes: int | None
    """As published; None where nobody has."""
    absent: str | None = None
    """The day on which the Hub was seen to have none; who has its files keeps them in a bucket."""


def find(name: str) -> Entry | None:
    """Give the model that a Hub id or a short name such as `26b qat` means, None for another.

    >>> find("gemma-4-12b-qat").model
    'google/gemma-4-12B-it-qat-w4a16-ct'
    >>> find("Gemma4 26AB").model
    'google/gemma-4-26B-A4B-it'
    >>> find("gemma 12b").model
    'google/gemma-4-12B-it'
    """
    owner, _, rest = name.strip().lower().rpartition("/")
    if owner not in {"", "google"}:
        return None
    words = {word for word in re.split(r"[\s_-]+", rest) if word}
    if {"gemma", "2b"} <= words and not words & _FOURTH:
        return None  # gemma-2b is a model of the first generation.
    sizes = _catalog()["sizes"].keys() & words
    marks = frozenset(_catalog()["quantized"]["words"])
    if len(sizes) != 1 or words - sizes - marks - _SILENT - _NOT:
        return None
    quantized = bool(words & marks) and not words & _NOT
    return _entry(_catalog()["sizes"][sizes.pop()], quantized=quantized)


def short_name(model: str) -> str:
    """Return what people call a model.

    >>> short_name("google/gemma-4-26B-A4B-it-qat-w4a16-ct")
    '26B-A4B QAT'
    """
    name = model.rstrip("/").rsplit("/", 1)[-1]
    plain = name.removesuffix(QUANTIZED)
    short = plain.removeprefix("gemma-4-").removesuffix("-it")
    return f"{short} QAT" if plain != name else short


def entry(model: str) -> Entry:
    """Give the model of exactly this Hub id."""
    return _entry(model.removesuffix(QUANTIZED), quantized=model.endswith(QUANTIZED))


def not_on_hub(model: str) -> str | None:
    """Say that the Hub has no such model, of one that is known not to be there.

    >>> not_on_hub("google/gemma-4-26B-A4B-it-qat-w4a16-ct")
    'The Hub has no google/gemma-4-26B-A4B-it-qat-w4a16-ct (404 on 2026-07-31).'
    """
    found = next((one for one in entries() if one.model == model), None)
    return f"The Hub has no {model} (404 on {found.absent})." if found and found.absent else None


def entries() -> Iterator[Entry]:
    """Give every model, each size as it is and quantized."""
    for model in _catalog()["models"]:
        yield _entry(model, quantized=False)
        yield _entry(model, quantized=True)


def names() -> Iterator[str]:
    """Yield the short names that people type, each also with `qat` behind it."""
    for name in _catalog()["sizes"]:
        yield from (name, f"{name} qat", f"gemma-4-{name}")


@functools.cache
def _catalog() -> dict[str, Any]:
    catalog = read_toml(_FOLDER / "catalog.toml")
    sizes = {
        name: model
        for model, row in catalog["models"].items()
        for name in (row["alias"], *row.get("also", ()))
    }
    return {**catalog, "sizes": sizes}


@functools.cache
def _entry(model: str, *, quantized: bool) -> Entry:
    row, how = _catalog()["models"][model], _catalog()["quantized"]
    config = json.loads((_FOLDER / row["config"]).read_text("utf-8"))
    if not quantized:
        return Entry(model, config, quantized, row["parameters"], row["stored_bytes"])
    config["quantization_config"] = how["quantization_config"]
    config["stored_again"] = how["stored_again"]
    absent = row.get("absent", {}).get(QUANTIZED.removeprefix("-"))
    return Entry(model + QUANTIZED, config, quantized, row["parameters"], None, absent)
