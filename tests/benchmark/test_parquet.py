"""Samples come back from Parquet as they were, and the file says what they mean."""

from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq  # type: ignore[import-untyped]  # it has no types
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmark import samples as parquet
from benchmark.samples import Samples
from core.errors import DiskFull
from tests.benchmark.made import some_samples


def drawn(rows: int, seed: int) -> Samples:
    """Any values of the right types, NaN and the largest among them."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 5, rows)
    columns: dict[str, object] = {}
    for name in (f.name for f in fields(Samples)):
        like = getattr(some_samples(1), name)
        size = int(counts.sum()) if name == "gaps" else rows
        raw = rng.integers(0, 2**63 - 1, size)
        columns[name] = raw if like.dtype == np.int64 else raw.view(np.float64).astype(like.dtype)
        if like.dtype != np.int64 and size:
            columns[name][:1] = np.nan  # type: ignore[index]  # an array
    return Samples(**{**columns, "gap_counts": counts})  # type: ignore[arg-type]  # arrays all


def read(path: Path) -> Samples:
    """As anybody reads it."""
    # Without threads: pyarrow 26's readers abort the process when it ends (seen 2026-11).
    table = pq.ParquetFile(path).read(use_threads=False)
    lists = table.column("gaps").combine_chunks()
    plain = {name: table.column(name).to_numpy() for name in table.column_names if name != "gaps"}
    counts = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    return Samples(**plain, gap_counts=counts, gaps=lists.flatten().to_numpy())


def same(one: Samples, other: Samples) -> bool:
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(Samples)]
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.integers(0, 200), seed=st.integers(0, 2**32 - 1))
def test_every_value_comes_back_to_the_bit(tmp_path: Path, rows: int, seed: int) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        samples = drawn(rows, seed)
    parquet.write(tmp_path / "x.parquet", [samples], cell="8x1")
    assert same(read(tmp_path / "x.parquet"), samples)


def test_the_file_is_made_for_other_readers_too(tmp_path: Path) -> None:
    """One row for each request, its gaps a list; zstd; a unit on every column that has one."""
    path = tmp_path / "samples" / "512x8.parquet"
    parquet.write(path, [some_samples(7)], cell="512x8")
    file = pq.ParquetFile(path)
    schema = file.schema_arrow
    assert file.metadata.num_rows == 7
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert str(schema.field("gaps").type) in {"list<item: float>", "list<element: float>"}
    assert schema.field("sent").metadata[b"unit"] == b"s, monotonic clock"
    assert schema.field("gaps").metadata[b"unit"] == b"s"
    assert schema.field("prompt_tokens").metadata[b"unit"] == b"tokens"
    assert "gap_counts" not in schema.names
    said = schema.metadata
    assert (said[b"schema_version"], said[b"cell"]) == (b"1", b"512x8")
    assert b"6 timeout" in said[b"outcome"]


def test_a_second_writing_replaces_the_first_and_one_that_fails_leaves_nothing(
    tmp_path: Path,
) -> None:
    for rows in (3, 2):
        parquet.write(tmp_path / "x.parquet", [some_samples(rows)], cell="8x1")
    assert len(read(tmp_path / "x.parquet")) == 2
    (tmp_path / "y.parquet").mkdir()
    with pytest.raises(DiskFull):
        parquet.write(tmp_path / "y.parquet", [some_samples(2)], cell="8x1")
    assert {path.name for path in tmp_path.iterdir()} == {"x.parquet", "y.parquet"}
