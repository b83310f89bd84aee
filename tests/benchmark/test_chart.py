"""The picture shows what was measured, and any run has one; drawing one takes half a second."""

import io
import struct

import numpy as np
import pytest
from matplotlib.image import imread

from benchmark import chart
from benchmark.imports import import_file
from benchmark.records import Arrivals, CellResult, CellState, Code, Load
from tests.benchmark.importing import A100, ARTICLE
from tests.benchmark.made import a_cell, a_grid, a_manifest, with_verdict

PNG = b"\x89PNG\r\n\x1a\n"


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(PNG)
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def pixels_of(png: bytes, colour: str) -> int:
    """How many have exactly that colour."""
    pixels = (imread(io.BytesIO(png))[..., :3] * 255).round().astype(np.uint8)
    return int((pixels == np.frombuffer(bytes.fromhex(colour), np.uint8)).all(axis=-1).sum())


def at_rate(rate: float) -> CellResult:
    cell = a_cell()
    load = Load(arrivals=Arrivals.POISSON, requests_per_second=rate)
    return cell.model_copy(update={"spec": cell.spec.model_copy(update={"load": load})})


@pytest.mark.parametrize(
    "cells",
    [
        (),
        (a_cell(state=CellState.FAILED), a_cell(8, 1, state=CellState.SKIPPED)),
        (a_cell(ttft=None, tpot=None, e2el=None, output_token_throughput=None),),
        (a_cell(tpot=None),),
        (at_rate(1), at_rate(2.5)),
    ],
    ids=["empty", "failed", "no figures", "one token", "open loop"],
)
def test_every_run_has_a_picture(cells: tuple[CellResult, ...]) -> None:
    """An empty one says that it is empty; no warning is given."""
    assert size_of(chart.png(a_manifest(), cells)) == (1600, 680)


def test_the_markers_of_spoiled_cells_are_hollow_and_those_of_marked_ones_as_any() -> None:
    """They have less of their line's colour; the first three of the palette are seen."""
    cells = a_grid((8,), (1, 8))
    full, hollow, marked = (
        chart.png(a_manifest(), [with_verdict(cell, code) if code else cell for cell in cells])
        for code in (None, Code.COLD, Code.KV_QUEUED)
    )
    assert pixels_of(hollow, "0072B2") < 0.8 * pixels_of(full, "0072B2")
    assert full == marked
    grid = chart.png(a_manifest(), a_grid())
    assert all(pixels_of(grid, colour) for colour in ("0072B2", "D55E00", "009E73"))


def test_any_name_can_be_drawn() -> None:
    """Neither formula signs nor letters that the font lacks stop it or warn."""
    manifest = a_manifest()
    subject = manifest.subject.model_copy(update={"model": "$\\frac{a$ 模型\n" + "x" * 300})
    named = manifest.model_copy(update={"subject": subject})
    assert size_of(chart.png(named, a_grid())) == (1600, 680)


def test_many_lines_differ_in_more_than_colour() -> None:
    """Twelve prompt lengths, twelve pairs of marker and stroke."""
    contexts = tuple(2**n for n in range(3, 15))
    lines = chart.lines(a_grid(contexts, (1, 8)))
    assert len({(line.style["marker"], line.style["linestyle"]) for line in lines}) == 12
    assert len({(line.style["color"], line.style["linestyle"]) for line in lines}) == 12
    assert [line.name for line in lines if line.band] == ["8", "16,384"]


def test_an_imported_run_is_drawn_with_what_it_has() -> None:
    """An article's grid has requests per second and mean E2EL; nothing else gets an axis."""
    made = import_file(ARTICLE, claims=A100)
    assert [middle.key for middle, _ in chart.panels(made.manifest, made.cells)] == [
        "requests", "e2el_mean",
    ]  # fmt: skip
    ours = chart.panels(a_manifest(), a_grid())
    assert [middle.key for middle, _ in ours] == ["output", "ttft_p50", "tpot_p50"]
    assert size_of(chart.png(made.manifest, made.cells)) == (1600, 680)


def test_what_must_be_known_first_is_whole_in_the_title() -> None:
    """A long name is cut, the caveat is not."""
    made = import_file(
        ARTICLE, claims=A100.model_copy(update={"accelerator": "A100 " * 40})
    ).manifest
    first, second = chart.title(made).splitlines()
    assert first.endswith("...")
    assert second.endswith("not measured here; THE ARTICLES' METHOD, which no decision can rest on")
