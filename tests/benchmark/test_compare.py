"""Runs side by side: what may be compared, what differs, and whether that is sure."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.advising.hardware import find_accelerator
from benchmark.comparing import sampled
from benchmark.comparing.bootstrap import Blocks, Ratio, from_half_widths, number_of_blocks, ratio
from benchmark.comparing.compare import compare
from benchmark.comparing.comparison_report import write_comparison
from benchmark.comparing.sides import Loaded, axes, file_name, load, names
from benchmark.errors import Outcome
from benchmark.figures import parquet
from benchmark.folder import RunFolder
from benchmark.records import Arrivals, CellResult, CellSpec, Code, Counts, Load, Workload
from benchmark.runs import Manifest
from benchmark.samples import Samples
from core.errors import DiskFull, InvalidArgument, NotFound
from tests.benchmark.made import a_cell, a_grid, a_manifest, some_samples, spread, with_verdict

WINDOW = (100.0, 120.0)
REQUEST_SECONDS = 0.5
USERS = 16


def one_chip() -> Manifest:
    return a_manifest("one", target="tpu-v6e-1", accelerator="v6e", accelerator_count=1)


def four_chips() -> Manifest:
    chips = a_manifest("four", target="tpu-v6e-4", accelerator="v6e", accelerator_count=4)
    priced = chips.provenance.model_copy(update={"usd_per_hour": 14.68})
    return chips.model_copy(update={"provenance": priced})


def faster(
    cells: Sequence[CellResult], by: Callable[[CellResult], float]
) -> tuple[CellResult, ...]:
    """Cells of an engine that is so many times as fast and four times as dear."""
    return tuple(
        a_cell(
            cell.spec.context,
            cell.spec.load.concurrency or 1,
            request_throughput=(cell.request_throughput or 0) * by(cell),
            output_token_throughput=(cell.output_token_throughput or 0) * by(cell),
            e2el=spread((cell.e2el.mean if cell.e2el else 0) / by(cell)),
            usd_per_million_tokens=(cell.usd_per_million_tokens or 0) * 4 / by(cell),
        )
        for cell in cells
    )


def changed(manifest: Manifest, **workload: object) -> Manifest:
    plan = manifest.plan.model_copy(update={"workload": Workload.model_validate(workload)})
    return manifest.model_copy(update={"plan": plan})


def by_article(manifest: Manifest) -> Manifest:
    plan = manifest.plan.model_copy(update={"profile": "article"})
    return manifest.model_copy(update={"plan": plan})


def closed_loop(seed: int, *, speed: float = 1.0) -> Samples:
    """Users who each ask again at once; times are log-normal about half a second."""
    random = np.random.default_rng(seed)
    each = int(30 * speed / REQUEST_SECONDS)
    taken = random.lognormal(np.log(REQUEST_SECONDS / speed), 0.3, (USERS, each))
    ends = 95.0 + taken.cumsum(axis=1)
    begins, ends, taken = (ends - taken).ravel(), ends.ravel(), taken.ravel()
    whole = np.zeros(len(begins), dtype=np.int64)
    made = some_samples(len(begins), tokens=64)
    return Samples(
        **{
            name: getattr(made, name)
            for name in made.__dataclass_fields__
            if name not in {"intended", "first_token", "last_token", "done", "outcome"}
        },
        intended=begins,
        first_token=begins + taken / 10,
        last_token=ends,
        done=ends,
        outcome=np.where(begins < WINDOW[1], whole + Outcome.OK, whole + Outcome.CUT),
    )


def cut(samples: Samples, speed: float = 1.0) -> sampled.Cut:
    return sampled.cut(samples, WINDOW, REQUEST_SECONDS / speed)


def point(blocks: Blocks) -> float:
    return float(blocks.numerators.sum() / blocks.denominators.sum())


def held_against(first: sampled.Cut, other: sampled.Cut, figure: str, seed: int) -> Ratio:
    value = point(other[figure]) / point(first[figure])
    return ratio(value, first[figure], other[figure], seed=seed)


def test_two_runs_of_one_law_rarely_differ() -> None:
    """Of a hundred pairs at most ten seem to, in throughput as in every latency."""
    wrong = dict.fromkeys(("throughput", "ttft", "tpot", "e2el"), 0)
    for seed in range(100):
        first, other = cut(closed_loop(2 * seed)), cut(closed_loop(2 * seed + 1))
        for figure in wrong:
            wrong[figure] += bool(held_against(first, other, figure, seed).significant)
    assert all(number <= 10 for number in wrong.values()), wrong


def test_a_difference_of_20_percent_is_found() -> None:
    """In throughput and in latency, whatever the seed."""
    for seed in range(20):
        first, other = cut(closed_loop(2 * seed)), cut(closed_loop(2 * seed + 1, speed=1.2), 1.2)
        assert held_against(first, other, "throughput", seed).significant
        assert held_against(first, other, "e2el", seed).significant


@given(st.floats(0.1, 100), st.floats(0.01, 100))
def test_stretches_are_longer_than_requests_where_there_is_room(
    window: float, request: float
) -> None:
    """Few of them rather than short ones, but never fewer than six."""
    count = number_of_blocks(window, request)
    assert 6 <= count <= 32
    assert count == 6 or window / count >= request


def test_blocks_without_an_end_give_no_interval() -> None:
    """Nothing finished in most stretches: the ratio stands alone."""
    empty = Blocks(np.array([5.0, *[0.0] * 9]), np.ones(10))
    assert ratio(1.2, empty, empty).low is None


def test_half_widths_that_overlap_are_no_difference() -> None:
    """Where requests were not kept, the cells' own intervals decide."""
    assert from_half_widths(1.02, 0.02, 0.02).significant is False
    assert from_half_widths(1.2, 0.02, 0.02).significant is True
    assert from_half_widths(1.2, None, 0.02).significant is None


def saved(root: Path, manifest: Manifest, speed: float) -> Loaded:
    """A run's folder with one cell and its requests."""
    folder = RunFolder(root / manifest.run_id)
    folder.create(manifest)
    samples = closed_loop(round(speed * 10), speed=speed)
    inside = (samples.intended >= WINDOW[0]) & (samples.intended < WINDOW[1])
    measured, rate = int(inside.sum()), point(cut(samples, speed)["throughput"])
    counts = Counts(sent=len(samples), measured=measured, succeeded=measured)
    cell = a_cell(
        8, USERS, window_seconds=20.0, counts=counts, request_throughput=rate,
        e2el=spread(REQUEST_SECONDS / speed), relative_half_width=None,
    )  # fmt: skip
    folder.add(cell)
    parquet.write(folder.samples_file(cell.id), samples, cell=cell.id)
    return load(folder)


def test_intervals_come_from_the_requests_that_were_kept(tmp_path: Path) -> None:
    """A faster engine is found from two folders alone."""
    runs = [saved(tmp_path, one_chip(), 1.0), saved(tmp_path, four_chips(), 1.2)]
    found = compare(runs).cells[0]
    assert found.throughput.significant
    assert found.e2el is not None
    assert found.e2el.significant
    assert found.throughput.value == pytest.approx(1.2, rel=0.05)


def test_the_window_is_found_again_among_all_requests() -> None:
    """Ramps and cut requests around it do not shift it by a request."""
    samples = closed_loop(3)
    inside = (samples.intended >= WINDOW[0]) & (samples.intended < WINDOW[1])
    counts = Counts(sent=len(samples), measured=int(inside.sum()), succeeded=1)
    cell = a_cell(8, USERS, counts=counts, window_seconds=20.0)
    window = sampled.window_of(samples, cell)
    assert window is not None
    assert window[0] == pytest.approx(WINDOW[0], abs=0.1)
    assert sampled.window_of(samples, a_cell(8, 1, counts=None)) is None
    assert sampled.window_of(samples.rows(inside & ~inside), cell) is None


@pytest.mark.parametrize(
    ("workload", "words"),
    [
        ({"output_tokens": 128}, "output_tokens is 64 in one, 128 in four"),
        ({"api": "chat"}, "api is completion in one, chat in four"),
        ({"prefix_share": 0.5}, "prefix_share is 0.0 in one, 0.5 in four"),
        ({"fixed_output": False}, "fixed_output is True in one, False in four"),
        ({"dataset": "a.jsonl"}, "dataset is None in one, a.jsonl in four"),
    ],
)
def test_another_workload_is_refused_and_named(workload: dict[str, object], words: str) -> None:
    """Ratios of different things would mean nothing."""
    other = changed(four_chips(), **workload)
    with pytest.raises(InvalidArgument) as refused:
        compare([Loaded(one_chip(), a_grid()), Loaded(other, a_grid())])
    assert words in refused.value.summary
    assert refused.value.data["differs"] == list(workload)


def test_another_method_is_refused_and_named() -> None:
    """A burst and its drain is no closed loop."""
    with pytest.raises(InvalidArgument) as refused:
        compare(
            [
                Loaded(one_chip(), a_grid()),
                Loaded(by_article(four_chips()), a_grid()),
            ]
        )
    assert "article method is False in one, True in four" in refused.value.summary


def test_another_seed_is_the_same_workload() -> None:
    """Prompts of one length are alike."""
    assert compare([Loaded(one_chip(), a_grid()), Loaded(changed(four_chips(), seed=9), a_grid())])


def test_one_run_or_none_in_common_is_refused() -> None:
    """There must be two, and a cell that both have."""
    with pytest.raises(InvalidArgument, match="two runs"):
        compare([Loaded(one_chip(), a_grid())])
    cold = [with_verdict(cell, Code.COLD) for cell in a_grid()]
    with pytest.raises(InvalidArgument) as refused:
        compare([Loaded(one_chip(), a_grid()), Loaded(four_chips(), cold)])
    assert refused.value.cause == "one: 12 usable of 12; four: 0 usable of 12 (COLD 12)"
    with pytest.raises(InvalidArgument, match="no usable cell in common"):
        compare([Loaded(one_chip(), a_grid(contexts=(8,))), Loaded(four_chips(), a_grid((16,)))])


def test_axes_that_differ_are_named_and_name_the_runs() -> None:
    """Chips, target and price differ; model and engine do not."""
    made = compare([Loaded(one_chip(), a_grid()), Loaded(four_chips(), a_grid())])
    assert made.axes == ("target", "accelerator", "$/h")
    assert [side.name for side in made.runs] == ["1 x v6e", "4 x v6e"]
    assert file_name([side.name for side in made.runs]) == "1_x_v6e_vs_4_x_v6e_comparison.md"


def test_a_quantized_model_is_told_by_name_and_precision() -> None:
    """The catalog knows what its weights are stored as."""
    plain = a_manifest("plain")
    subject = plain.subject.model_copy(update={"model": "google/gemma-4-E4B-it-qat-w4a16-ct"})
    quantized = a_manifest("qat").model_copy(update={"subject": subject})
    assert axes(plain)["precision"] == "bfloat16"
    assert axes(quantized)["precision"].startswith("4-bit")
    assert names([Loaded(plain, ()), Loaded(quantized, ())])[1] == "gemma-4-E4B-it-qat-w4a16-ct"


def test_runs_alike_in_everything_are_called_by_their_ids() -> None:
    """A repetition has no other name."""
    runs = [Loaded(a_manifest("monday"), ()), Loaded(a_manifest("tuesday"), ())]
    assert names(runs) == ("monday", "tuesday")
    assert names([runs[0], runs[0]]) == ("monday (1)", "monday (2)")


def test_throughput_latency_and_price_are_ratios_over_the_first_run() -> None:
    """Three times as fast at four times the price is a third dearer by the token."""
    other = faster(a_grid(), lambda _: 3.0)
    made = compare([Loaded(one_chip(), a_grid()), Loaded(four_chips(), other)])
    for each in made.cells:
        assert each.throughput.value == pytest.approx(3.0)
        assert each.e2el is not None
        assert each.e2el.value == pytest.approx(1 / 3)
        assert each.usd_per_million_tokens is not None
        assert each.usd_per_million_tokens.value == pytest.approx(4 / 3)
        price = each.usd_per_million_tokens
        assert price.significant
        assert price.low is not None
        assert price.high is not None
        assert price.low < price.value < price.high
    assert "gives 0.75 times the tokens for a dollar" in " ".join(f.text for f in made.findings)


def test_scaling_is_told_by_load_with_its_share_of_the_ideal() -> None:
    """Four chips that give three times as much scale to 75 %."""
    other = faster(a_grid(), lambda cell: 3.0 if cell.spec.load.concurrency != 1 else 1.0)
    made = compare([Loaded(one_chip(), a_grid()), Loaded(four_chips(), other)])
    assert [each.load for each in made.scaling] == [f"{n} in flight" for n in (1, 8, 32, 128)]
    assert [each.factor for each in made.scaling] == pytest.approx([1.0, 3.0, 3.0, 3.0])
    assert [each.efficiency for each in made.scaling] == pytest.approx([0.25, *[0.75] * 3])


def test_a_planted_crossover_is_found_between_its_loads() -> None:
    """Four chips lose at 1 and 8 in flight and win from 32 on."""
    other = faster(a_grid(), lambda c: 0.8 if (c.spec.load.concurrency or 0) < 32 else 2.0)
    made = compare([Loaded(one_chip(), a_grid()), Loaded(four_chips(), other)])
    assert [each.context for each in made.crossovers] == [8, 512, 4096]
    for each in made.crossovers:
        assert (each.below, each.above) == ("8 in flight", "32 in flight")
        assert 8 < each.at < 32
        assert (each.better_below, each.better_above) == ("1 x v6e", "4 x v6e")


def test_differences_within_the_interval_are_no_crossover() -> None:
    """Two per cent up and down is noise."""
    other = faster(a_grid(), lambda c: 0.99 if (c.spec.load.concurrency or 0) < 32 else 1.01)
    assert not compare([Loaded(one_chip(), a_grid()), Loaded(four_chips(), other)]).crossovers


def test_in_open_loops_latency_decides_which_is_better() -> None:
    """The rate was set: both reach it."""
    poisson = Load(arrivals=Arrivals.POISSON, requests_per_second=2.0)
    spec = CellSpec(context=8, load=poisson)
    first = a_cell(8, 8, spec=spec, e2el=spread(2.0))
    other = a_cell(8, 8, spec=spec, e2el=spread(1.0))
    made = compare([Loaded(one_chip(), [first]), Loaded(four_chips(), [other])])
    assert made.cells[0].throughput.value == 1
    assert made.cells[0].better == pytest.approx(2.0)


def test_spoiled_cells_are_left_out_and_counted() -> None:
    """A warm cache in one run takes that cell from the comparison."""
    cells = a_grid()
    spoiled = (with_verdict(cells[0], Code.PREFIX_CACHED), *cells[1:])
    made = compare([Loaded(one_chip(), cells), Loaded(four_chips(), spoiled)])
    assert len(made.cells) == len(cells) - 1
    assert made.runs[1].cells_spoiled == 1
    assert made.runs[1].spoiled_by == {"PREFIX_CACHED": 1}
    assert any("1 of 4 x v6e (PREFIX_CACHED 1)" in each.text for each in made.findings)


def test_article_runs_are_compared_with_each_other_and_warned_of() -> None:
    """Their method is the same flaw in both; any other still spoils."""
    cells = [with_verdict(cell, Code.ARTICLE_METHOD) for cell in a_grid()]
    worse = [with_verdict(cells[0], Code.TIMEOUTS), *cells[1:]]
    made = compare(
        [
            Loaded(by_article(one_chip()), cells),
            Loaded(by_article(four_chips()), worse),
        ]
    )
    assert len(made.cells) == len(cells) - 1
    assert "one burst of requests and its drain" in made.warnings()[0]


def test_a_comparison_is_written_with_its_chart(tmp_path: Path) -> None:
    """Findings, matrices, scaling and crossovers stand in the Markdown, the chart beside it.

    It takes a second, in which matplotlib is imported and draws.
    """
    other = faster(a_grid(), lambda c: 0.8 if c.spec.load.concurrency == 1 else 3.0)
    path = tmp_path / "tpu_v6e4_vs_v6e1_comparison.md"
    made = write_comparison([Loaded(one_chip(), a_grid()), Loaded(four_chips(), other)], path)
    text = path.read_text(encoding="utf-8")
    assert made.file == str(path)
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "](tpu_v6e4_vs_v6e1_comparison.png)" in text
    for heading in ("Findings", "Runs", "Saturation and price", "Scaling by load", "Crossovers"):
        assert f"## {heading}" in text
    assert "| 512 | **0.8** (" in text
    assert "| Prompt tokens | 1 | 8 | 32 | 128 |" in text


def test_without_a_crossover_the_file_says_so(tmp_path: Path) -> None:
    """One run is better everywhere; latencies that nobody measured have no table."""
    cells = [a_cell(8, load, ttft=None, tpot=None, e2el=None) for load in (1, 8)]
    runs = [Loaded(one_chip(), cells), Loaded(four_chips(), cells)]
    write_comparison(runs, tmp_path / "x.md")
    text = (tmp_path / "x.md").read_text(encoding="utf-8")
    assert "None: one run is the better one at every load" in text
    assert "mean TTFT" not in text


def test_a_comparison_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    """There is no such folder."""
    runs = [Loaded(one_chip(), a_grid((8,))), Loaded(four_chips(), a_grid((8,)))]
    with pytest.raises(DiskFull):
        write_comparison(runs, tmp_path / "nowhere" / "x.md")


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("A100 80GB", "a100-80"),
        ("NVIDIA H100 SXM", "h100"),
        ("nvidia-l4", "l4"),
        ("TPU v6e-4", "v6e"),
        ("NVIDIA RTX PRO 6000 Blackwell", "rtx-pro-6000"),
        ("RTX 6000 Ada", None),
        ("L40S", None),
        ("", None),
    ],
)
def test_accelerators_are_known_by_what_people_call_them(said: str, meant: str | None) -> None:
    """One that is only alike is another."""
    found = find_accelerator(said)
    assert (found.name if found else None) == meant


def test_a_run_that_shares_no_cell_is_named_beside_those_that_do() -> None:
    """The third was measured at other lengths."""
    other = a_manifest("other", target="elsewhere", accelerator="L4")
    made = compare(
        [
            Loaded(one_chip(), a_grid()),
            Loaded(four_chips(), a_grid()),
            Loaded(other, a_grid(contexts=(16,))),
        ]
    )
    assert any("1 x l4 and 1 x v6e have no usable cell in common" in f.text for f in made.findings)


def test_mostly_spoiled_runs_ask_for_another_measurement() -> None:
    """Simulated figures are warned of, too."""
    cells = a_grid()
    spoiled = (cells[0], *(with_verdict(cell, Code.COLD) for cell in cells[1:]))
    subject = four_chips().subject.model_copy(update={"simulated": True})
    simulated = four_chips().model_copy(update={"subject": subject})
    made = compare([Loaded(one_chip(), cells), Loaded(simulated, spoiled)])
    assert [step.tool for step in made.next_steps()] == ["run_benchmark"]
    assert made.warnings() == ("Simulated: 4 x v6e.",)
    assert not compare([Loaded(one_chip(), cells), Loaded(four_chips(), cells)]).next_steps()


def test_flags_of_the_deployment_are_axes() -> None:
    """What the engine was told is what tells the runs apart."""
    spec = {"name": "x", "model": "google/gemma-4-E4B-it", "tensor_parallel_size": 2}
    plain = a_manifest("plain", deployment_spec=spec)
    fp8 = a_manifest("fp8", deployment_spec=spec | {"quantization": "fp8", "kv_cache_dtype": "fp8"})
    assert axes(fp8)["precision"] == axes(fp8)["KV cache"] == "fp8"
    assert axes(fp8)["tensor parallel"] == "2"
    assert names([Loaded(plain, ()), Loaded(fp8, ())]) == ("bfloat16", "fp8")
    strange = a_manifest("strange", accelerator="Unheard Of")
    assert axes(strange)["precision"] == "not known"


def test_the_short_form_of_a_large_comparison_is_short() -> None:
    """Four runs of 144 cells stay below 2,000 tokens, at four characters each."""
    contexts = tuple(2**n for n in range(3, 15))
    loads = tuple(2**n for n in range(12))
    cells = a_grid(contexts, loads)
    crossing = faster(cells, lambda c: 0.5 if (c.spec.load.concurrency or 0) < 64 else 2.0)
    runs = [
        Loaded(a_manifest(f"run-{n}", target=f"target-{n}"), crossing if n else cells)
        for n in range(4)
    ]
    made = compare(runs)
    assert len(made.cells) == 3 * 144
    assert len(made.short().model_dump_json()) < 8000
    assert made.short().findings
    assert made.summary() == made.findings[0].text


def test_what_is_no_run_cannot_be_loaded(tmp_path: Path) -> None:
    """An empty folder says so."""
    with pytest.raises(NotFound):
        load(RunFolder(tmp_path))
