"""Runs side by side: what may be compared, what differs, and whether that is sure."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmark.advice import find_accelerator
from benchmark.compare import (
    Comparison,
    Loaded,
    axes,
    break_evens,
    compare,
    file_name,
    load,
    names,
    ratio,
    write_comparison,
)
from benchmark.folder import RunFolder
from benchmark.profiles import plan_of
from benchmark.records import Arrivals, CellResult, CellSpec, Code, Load, Manifest
from core.errors import DiskFull, InvalidArgument, NotFound
from tests.benchmark.comparable import by_article, changed, faster, four_chips, one_chip
from tests.benchmark.made import a_cell, a_grid, a_manifest, known, spread, with_verdict


def one_and_four(
    cells: Sequence[CellResult] = (), by: Callable[[CellResult], float] = lambda _: 1.0
) -> Comparison:
    """One chip against four that are so many times as fast."""
    grid = cells or a_grid()
    return compare([Loaded(one_chip(), grid), Loaded(four_chips(), faster(grid, by))])


@pytest.mark.parametrize(
    ("other", "differs", "words"),
    [
        (changed(four_chips(), output_tokens=128), "output_tokens", "64 in one, 128 in four"),
        (changed(four_chips(), api="chat"), "api", "completion in one, chat in four"),
        (changed(four_chips(), prefix_share=0.5), "prefix_share", "0.0 in one, 0.5 in four"),
        (changed(four_chips(), fixed_output=False), "fixed_output", "True in one, False in four"),
        (changed(four_chips(), dataset="a.jsonl"), "dataset", "None in one, a.jsonl in four"),
        (by_article(four_chips()), "article method", "False in one, True in four"),
    ],
)
def test_another_workload_or_method_is_refused_and_named(
    other: Manifest, differs: str, words: str
) -> None:
    """Ratios of different things would mean nothing."""
    with pytest.raises(InvalidArgument) as refused:
        compare([Loaded(one_chip(), a_grid()), Loaded(other, a_grid())])
    assert f"{differs} is {words}" in refused.value.summary
    assert refused.value.data["differs"] == [differs]


def test_a_dataset_is_known_by_its_prompts_wherever_it_is(tmp_path: Path) -> None:
    """One path of two contents was taken for the same, one content at two paths was refused."""
    runs = []
    for folder, words in (("a", "Why?"), ("b", "Why?"), ("b", "How?")):
        file = tmp_path / folder / "turns.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'{{"prompt": "{words}"}}\n', encoding="utf-8")
        plan = plan_of(dataset=str(file))
        runs.append(Loaded(one_chip().model_copy(update={"plan": plan}), a_grid()))
    here, there, other = runs
    assert compare([here, there])
    with pytest.raises(InvalidArgument, match="dataset is"):
        compare([there, other])
    plan = other.manifest.plan.model_copy(update={"dataset_sha256": None})
    older = other.manifest.model_copy(update={"plan": plan})
    assert compare([there, Loaded(older, a_grid())]), "an older run's is known by its path"


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
    assert "No cell of four can be used: get_benchmark says why" in refused.value.fix
    with pytest.raises(InvalidArgument, match="no usable cell in common"):
        compare([Loaded(one_chip(), a_grid(contexts=(8,))), Loaded(four_chips(), a_grid((16,)))])


def test_axes_that_differ_are_named_and_name_the_runs() -> None:
    """Chips, target and price differ; model and engine do not."""
    made = one_and_four()
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
    made = one_and_four(by=lambda _: 3.0)
    for each in made.cells:
        assert each.throughput.value == pytest.approx(3.0)
        assert known(each.e2el).value == pytest.approx(1 / 3)
        assert known(each.e2el).significant
        assert known(each.ttft).significant is None
        price = known(each.usd_per_million_tokens)
        assert price.value == pytest.approx(4 / 3)
        assert price.significant
        assert known(price.low) < price.value < known(price.high)


def test_a_price_stands_beside_the_run_that_it_is_of() -> None:
    """Dearer at one length and cheaper at another is no mean: each length has its own."""
    made = one_and_four(by=lambda cell: 3.0 if cell.spec.context < 4096 else 8.0)
    (told,) = [said for name, said in made.facts().items() if name.startswith("$ per")]
    one, four = told["1 x v6e"], told["4 x v6e"]
    ratios = {length: four[length] / one[length] for length in one}
    assert ratios == {
        "8 tokens": pytest.approx(4 / 3),
        "512 tokens": pytest.approx(4 / 3),
        "4,096 tokens": pytest.approx(0.5),
    }


def test_half_widths_that_overlap_are_no_difference() -> None:
    """The cells' own intervals decide; without them nothing is sure."""
    for other, widths, sure in (
        (1.02, (0.02, 0.02), False),
        (1.2, (0.02, 0.02), True),
        (1.2, (None, 0.02), None),
    ):
        found = ratio(1.0, other, *widths)
        assert known(found).significant is sure
    assert ratio(1.0, 0.0, 0.02, 0.02) is None


def test_scaling_is_told_by_load_with_its_share_of_the_ideal() -> None:
    """Four chips that give three times as much scale to 75 %."""
    made = one_and_four(by=lambda cell: 3.0 if cell.spec.load.concurrency != 1 else 1.0)
    assert [each.load for each in made.scaling] == [f"{n} in flight" for n in (1, 8, 32, 128)]
    assert [each.factor for each in made.scaling] == pytest.approx([1.0, 3.0, 3.0, 3.0])
    assert [each.efficiency for each in made.scaling] == pytest.approx([0.25, *[0.75] * 3])


def test_a_planted_crossover_is_found_between_its_loads() -> None:
    """Four chips lose at 1 and 8 in flight and win from 32 on."""
    made = one_and_four(by=lambda c: 0.8 if (c.spec.load.concurrency or 0) < 32 else 2.0)
    assert [each.context for each in made.crossovers] == [8, 512, 4096]
    for each in made.crossovers:
        assert (each.below, each.above) == ("8 in flight", "32 in flight")
        assert 8 < each.at < 32
        assert (each.better_below, each.better_above) == ("1 x v6e", "4 x v6e")


def test_differences_within_the_interval_are_no_crossover() -> None:
    """Two per cent up and down is noise."""
    assert not one_and_four(
        by=lambda c: 0.99 if (c.spec.load.concurrency or 0) < 32 else 1.01
    ).crossovers


def test_in_open_loops_latency_decides_which_is_better() -> None:
    """The rate was set: both reach it."""
    poisson = Load(arrivals=Arrivals.POISSON, requests_per_second=2.0)
    spec = CellSpec(context=8, load=poisson)
    first = a_cell(8, 8, spec=spec, e2el=spread(2.0))
    other = a_cell(8, 8, spec=spec, e2el=spread(1.0))
    made = compare([Loaded(one_chip(), [first]), Loaded(four_chips(), [other])])
    assert made.cells[0].throughput.value == 1
    assert made.cells[0].better == pytest.approx(2.0)


def test_the_dearer_hour_is_the_cheaper_one_from_the_rate_at_which_the_other_needs_more() -> None:
    """Four times the price: the fifth chip costs more, if four chips do more than four times it."""
    grid, four = a_grid(contexts=(512,)), four_chips()
    best = max(cell.request_throughput or 0 for cell in grid)  # 25 requests/s: 1,600 tokens/s of 64
    (found,) = break_evens(
        {"1": Loaded(one_chip(), grid), "4": Loaded(four, faster(grid, lambda _: 8.0))}
    )
    assert (found.cheap.name, found.dear.name) == ("1", "4")
    assert (found.begins, found.ends, found.stays) == (4 * best, None, 4 * best)
    daily = 4 * best * (512 + 64) * 86_400 / 1e6
    assert f"from {4 * best:g} requests/s ({daily:,.0f} million tokens a day)" in str(found)
    assert "more load" not in str(found)


def test_hardware_that_gains_less_than_it_costs_is_never_cheaper_or_only_for_a_while() -> None:
    """Between two steps it may be: two of the cheap one cost more than one of the other."""
    grid, one = a_grid(contexts=(512,)), one_chip()
    runs = {"one": Loaded(one, grid), "four": Loaded(four_chips(), faster(grid, lambda _: 3.0))}
    (never,) = break_evens(runs)
    assert never.begins is None
    assert "one ($3.67/h, 25/s) is cheaper than four ($14.68/h, 75/s) at every rate" in str(never)
    dearer = one.provenance.model_copy(update={"usd_per_hour": 5.5})
    other = one.model_copy(update={"provenance": dearer})
    little = Loaded(other, faster(grid, lambda _: 1.4))
    (while_,) = break_evens({"one": runs["one"], "other": little})
    assert while_.begins == pytest.approx(25)
    assert while_.ends == pytest.approx(35)
    assert while_.stays is None


def test_no_break_even_rests_on_a_spoiled_cell_a_missed_limit_or_an_unknown_price() -> None:
    """What is left decides; where a greater load may still be served, that is said."""
    grid = a_grid(contexts=(512,), loads=(1, 8))
    spoiled = (grid[0], with_verdict(grid[1], Code.OTHER_LOAD))
    late = (grid[0], a_cell(512, 8, goodput_share=0.5))
    for cells, open_ended in ((spoiled, True), (late, False)):
        runs = {"1": Loaded(one_chip(), grid), "4": Loaded(four_chips(), cells)}
        (found,) = break_evens(runs)
        assert found.dear.requests_per_second == grid[0].request_throughput
        assert found.dear.at_its_limit is not open_ended
        assert ("1 and 4: more load may be served." in str(found)) is open_ended
    free = a_manifest(usd_per_hour=None)
    assert not list(break_evens({"1": Loaded(free, grid), "4": Loaded(four_chips(), grid)}))


def test_spoiled_cells_are_left_out_and_counted() -> None:
    """A warm cache in one run takes that cell from the comparison."""
    cells = a_grid()
    spoiled = (with_verdict(cells[0], Code.PREFIX_CACHED), *cells[1:])
    made = compare([Loaded(one_chip(), cells), Loaded(four_chips(), spoiled)])
    assert len(made.cells) == len(cells) - 1
    assert made.runs[1].cells_spoiled == 1
    assert made.runs[1].spoiled_by == {"PREFIX_CACHED": 1}
    assert made.facts()["runs"][1] == "4 x v6e: four, 11 cells, 1 spoiled"


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


def test_what_is_no_run_or_cannot_be_written_says_so(tmp_path: Path) -> None:
    """An empty folder, and one that is not there."""
    with pytest.raises(NotFound):
        load(RunFolder(tmp_path))
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
    eager = a_manifest("eager", deployment_spec=spec | {"enforce_eager": True, "max_num_seqs": 8})
    cells = {"cells": [a_cell(8, 1, request_throughput=1.0)]}
    made = compare([Loaded(plain, **cells), Loaded(eager, **cells)])
    told = ["defaults", "enforce_eager True, max_num_seqs 8"]
    assert ([side.name for side in made.runs], made.facts()["differs"]) == (told, "")
    # What says how it is made is no axis; where it stands is one, as it is for a run that goes on.
    apart = a_manifest("apart", deployment_spec=spec | {"boot_disk_gb": 200, "network": "own"})
    assert axes(apart)["other flags"] == "network own"
    newer = eager.model_copy(
        update={"subject": eager.subject.model_copy(update={"vllm_version": "1"})}
    )
    made = compare([Loaded(eager, **cells), Loaded(newer, **cells)])
    assert made.facts()["differs"] == f"vLLM: {eager.subject.vllm_version} | 1"
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
