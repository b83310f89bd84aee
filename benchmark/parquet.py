"""Samples as Parquet: one row for each request, its gaps as a list, zstd."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmark.records import SCHEMA
from benchmark.samples import UNKNOWN, Finish, Outcome, Samples
from core.errors import DiskFull, NotFound

_SECONDS: Final = frozenset({"connect_seconds", "gaps"})
_MONOTONIC: Final = frozenset({"intended", "sent", "headers", "first_token", "last_token", "done"})
_TOKENS: Final = frozenset({"prompt_tokens", "output_tokens", "reasoning_tokens", "cached_tokens"})
_LISTED: Final = "gaps"
_IMPLIED: Final = "gap_counts"
"""The lengths of the lists."""


def write(path: Path, samples: Samples, *, cell: str) -> None:
    """Write all rows, or leave nothing; folders on the way are made.

    Raises:
        DiskFull: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _arrow().parquet.write_table(_table(samples, cell), beside, compression="zstd")
        beside.replace(path)
    except OSError as exc:
        beside.unlink(missing_ok=True)
        raise DiskFull(
            f"The samples of {cell} cannot be written.",
            fix="Make room there; `resume` measures the cell again.",
            cause=str(exc),
        ) from exc


def read(path: Path) -> Samples:
    """Read what `write` wrote, value for value.

    Raises:
        NotFound: There is no such file, or it holds no samples.
    """
    table = _opened(path)
    lists = table.column(_LISTED).combine_chunks()
    columns: dict[str, Any] = {
        f.name: table.column(f.name).to_numpy()
        for f in fields(Samples)
        if f.name not in {_LISTED, _IMPLIED}
    }
    return Samples(
        **columns,
        gap_counts=lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64),
        gaps=lists.flatten().to_numpy(),
    )


def about(path: Path) -> dict[str, str]:
    """Read what the file says of itself: schema version, cell and what its numbers mean.

    Raises:
        NotFound: There is no such file, or it holds no samples.
    """
    metadata = _opened(path).schema.metadata
    return {k.decode(): v.decode() for k, v in metadata.items() if not k.startswith(b"ARROW")}


def _arrow() -> Any:
    import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: PLC0415  has no types and takes 0.2 s that only a sweep needs

    return pyarrow


def _opened(path: Path) -> Any:
    arrow = _arrow()
    try:
        # Opened here: pyarrow would take a folder, or a name with a scheme, for something else.
        with path.open("rb") as file:
            # Without threads: pyarrow 26's readers abort the process when it ends (seen 2026-11).
            table = arrow.parquet.ParquetFile(file).read(use_threads=False)
        table.select([f.name for f in fields(Samples) if f.name != _IMPLIED])
    except (OSError, arrow.ArrowInvalid, KeyError) as exc:
        raise NotFound(
            f"{path.name} holds no samples of a cell.",
            fix="The samples of a run are in its folder `samples`, one file for each cell.",
            cause=str(exc)[:300],
        ) from exc
    return table


def _table(samples: Samples, cell: str) -> Any:
    arrow = _arrow()
    offsets = np.concatenate([[0], np.cumsum(samples.gap_counts)]).astype(np.int32)
    arrays = {
        f.name: arrow.array(getattr(samples, f.name))
        for f in fields(Samples)
        if f.name not in {_LISTED, _IMPLIED}
    }
    arrays[_LISTED] = arrow.ListArray.from_arrays(offsets, arrow.array(samples.gaps))
    schema = arrow.schema(
        [arrow.field(name, a.type, metadata=_unit(name)) for name, a in arrays.items()],
        metadata=_meaning(cell),
    )
    return arrow.table(list(arrays.values()), schema=schema)


def _unit(name: str) -> dict[str, str]:
    if name in _MONOTONIC:
        return {"unit": "s, monotonic clock"}
    if name in _SECONDS:
        return {"unit": "s"}
    return {"unit": "tokens"} if name in _TOKENS else {}


def _meaning(cell: str) -> dict[str, str]:
    return {
        "schema_version": str(SCHEMA),
        "cell": cell,
        "times": "Seconds on the client's monotonic clock; NaN: it never came.",
        "counts": f"{UNKNOWN}: the engine did not say.",
        "gaps": "Seconds between the request's token events.",
        "outcome": ", ".join(f"{o.value} {o.name.lower()}" for o in Outcome),
        "finish": ", ".join(f"{f.value} {f.name.lower()}" for f in Finish),
    }
