"""A planted flaw is found by its own code and by no other; a sound run earns none."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.figures import RULES, judged, limits, unsupported
from benchmark.records import Arrivals, CellResult, CellState, Code, Load, StopRule, Workload
from benchmark.samples import UNKNOWN, Finish, Outcome
from tests.benchmark.made import known
from tests.benchmark.simulated import Loop, Run, played

SOUND = played(Loop(), rule=StopRule(min_requests=300, max_seconds=1e9))
INTENDED = SOUND.measured.samples.intended
ORDER = np.argsort(INTENDED)
BEGUN = ORDER[
    (INTENDED[ORDER] >= SOUND.measured.window_begin) & (INTENDED[ORDER] < SOUND.measured.window_end)
]


def first_of(share: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The rows of the first share of the measured requests, one at least."""
    return BEGUN[: max(1, int(share * len(BEGUN)))]


def column(name: str, rows: object, value: object) -> Run:
    values = getattr(SOUND.measured.samples, name).copy()
    values[rows] = value
    return SOUND.with_samples(**{name: values})


def planned(**fields: object) -> Run:
    return SOUND.with_(plan=SOUND.plan.model_copy(update=fields))


def slow_at_first(factor: float, *, decode_too: bool) -> Run:
    samples, rows = SOUND.measured.samples, first_of(0.4)
    first, last = samples.first_token.copy(), samples.last_token.copy()
    if decode_too:
        last[rows] = first[rows] + (last - first)[rows] * factor
    else:
        first[rows] = samples.intended[rows] + (first - samples.intended)[rows] * factor
        last += first - samples.first_token
    return SOUND.with_samples(first_token=first, last_token=last)


def natural(capped: float) -> Run:
    run = column("finish", BEGUN, Finish.STOP)
    finish = run.measured.samples.finish.copy()
    finish[first_of(capped)] = Finish.LENGTH
    return run.with_samples(finish=finish).with_(
        plan=SOUND.plan.model_copy(
            update={"workload": Workload(output_tokens=16, fixed_output=False)}
        )
    )


def uneven(size: float) -> Run:
    slices = SOUND.measured.slices
    half = len(slices) // 2
    more = tuple(s._replace(output_tokens=int(s.output_tokens * (1 + size))) for s in slices[:half])
    return SOUND.with_(measured=replace(SOUND.measured, slices=more + slices[half:]))


def bounded(name: str) -> Callable[[float], Run]:
    return lambda x: SOUND.with_client(error_bounds={name: x})


def ended(outcome: Outcome) -> Callable[[float], Run]:
    return lambda x: column("outcome", first_of(x), outcome)


def far_node(share: float, node: int = 2, of: Run = SOUND) -> Run:
    """One node's requests take longer to their first token, by a share of the usual time."""
    run = of.on_nodes()
    samples = run.measured.samples
    late = np.where(samples.worker == node, share * 0.05, 0.0)
    return run.with_samples(
        first_token=samples.first_token + late, last_token=samples.last_token + late
    )


def hungry(x: float) -> Run:
    return planned(stop=SOUND.plan.stop.model_copy(update={"min_requests": int(1000 * x)}))


FLAWS: dict[str, tuple[Code, float, float, Callable[[float], Run]]] = {
    "hits": (Code.PREFIX_CACHED, 0.011, 1, lambda x: SOUND.with_server(prefix_cache_hit_rate=x)),
    "usage says cached": (
        Code.PREFIX_CACHED, 0.012, 1, lambda x: column("cached_tokens", slice(None), int(x * 513)),
    ),
    "cpu": (Code.CLIENT_SATURATED, 0.901, 1, lambda x: SOUND.with_client(cpu_share=x)),
    "moved medians": (Code.CLIENT_SATURATED, 0.0011, 1, bounded("ttft_p50")),
    "moved means": (Code.CLIENT_SATURATED, 0.00022, 1, bounded("tpot_mean")),
    "moved tails": (Code.CLIENT_NOISE, 0.002, 1, bounded("ttft_p95")),
    "moved gaps": (Code.CLIENT_NOISE, 0.00022, 1, bounded("itl_p50")),
    "unsettled": (
        Code.COLD, 0, 1, lambda _: SOUND.with_(measured=replace(SOUND.measured, settled=False)),
    ),
    "slow prefill at first": (Code.COLD, 1.8, 50, lambda x: slow_at_first(x, decode_too=False)),
    "slow decode at first": (Code.COLD, 1.8, 50, lambda x: slow_at_first(x, decode_too=True)),
    "short": (Code.SHORT_OUTPUT, 0, 1, lambda x: column("output_tokens", first_of(x), 15)),
    "short by its end, where no usage is told": (
        Code.SHORT_OUTPUT, 0, 1,
        lambda x: column("output_tokens", slice(None), UNKNOWN)
        .with_samples(finish=column("finish", first_of(x), Finish.STOP).measured.samples.finish),
    ),
    "prompts cut": (
        Code.PROMPT_CUT, 0.11, 1, lambda x: column("prompt_tokens", slice(None), int(512 * (1 - x)))
    ),
    "some refused as too long": (Code.LENGTH_CAPPED, 0, 0.009, ended(Outcome.TOO_LONG)),
    "natural ends at the cap": (Code.LENGTH_CAPPED, 0.51, 1, natural),
    "KV full": (
        Code.KV_QUEUED, 0.95, 1,
        lambda x: SOUND.with_server(kv_cache_usage_max=x, requests_waiting_mean=3.0),
    ),
    "late answers": (Code.TIMEOUTS, 0, 0.5, ended(Outcome.TIMEOUT)),
    "cut answers": (Code.TIMEOUTS, 0.02, 0.5, ended(Outcome.CUT)),
    "throttled": (Code.THROTTLED, 0, 0.5, ended(Outcome.THROTTLED)),
    "resets": (Code.ERRORS, 0.02, 0.5, ended(Outcome.RESET)),
    "few": (Code.TOO_FEW_SAMPLES, 1, 9, hungry),
    "restart": (
        Code.SERVER_CHANGED, 2, 1e6, lambda x: SOUND.with_server(process_start_time=1000.0 + x),
    ),
    "clock": (Code.CLOCK_STEPPED, 0.011, 9, lambda x: SOUND.with_client(clock_step_seconds=-x)),
    "uneven": (Code.WIDE_INTERVAL, 0.3, 3, uneven),
    "others": (
        Code.OTHER_LOAD, 0.02, 1,
        lambda x: SOUND.with_server(requests_finished=1000, other_requests=int(1000 * x)),
    ),
    "lost node": (Code.NODE_LOST, 0, 1, lambda _: SOUND.on_nodes(lost="not heard of for 6 s")),
    "far node": (Code.NODE_UNEVEN, 0.1, 3, far_node),
    "near node": (Code.NODE_UNEVEN, 0.1, 0.8, lambda x: far_node(-x)),
    "unsure clock": (
        Code.CLOCK_UNSURE, 1.01, 9, lambda x: SOUND.on_nodes(clock_bound_seconds=x),
    ),
    "article": (Code.ARTICLE_METHOD, 0, 1, lambda _: planned(profile="article")),
    "simulated": (
        Code.SIMULATED, 0, 1,
        lambda _: SOUND.with_(subject=SOUND.subject.model_copy(update={"simulated": True})),
    ),
}  # fmt: skip


def codes(cell: CellResult) -> set[Code]:
    return {verdict.code for verdict in cell.verdicts}


@pytest.mark.parametrize("flaw", FLAWS)
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_planted_flaw_is_found_by_its_code_alone(flaw: str, data: st.DataObject) -> None:
    code, least, most, plant = FLAWS[flaw]
    cell = plant(data.draw(st.floats(least, most))).judged()
    assert cell.state is CellState.MEASURED
    assert codes(cell) == {code}


def test_as_many_answers_as_are_wanted_are_enough() -> None:
    counts = SOUND.judged().counts
    assert counts
    for more, said in ((0, set()), (1, {Code.TOO_FEW_SAMPLES})):
        stop = SOUND.plan.stop.model_copy(update={"min_requests": counts.succeeded + more})
        assert codes(planned(stop=stop).judged()) == said


def test_every_code_that_a_cell_can_earn_was_planted() -> None:
    assert {code for code, *_ in FLAWS.values()} == set(RULES)


@settings(max_examples=40, deadline=None)
@given(
    st.builds(
        Loop,
        users=st.integers(1, 24),
        ttft=st.floats(0.005, 0.5),
        tpot=st.floats(0.002, 0.04),
        tokens=st.integers(2, 32),
        jitter=st.floats(0.01, 0.3),
        seed=st.integers(0, 2**32 - 1),
    )
)
def test_a_sound_run_raises_no_alarm(loop: Loop) -> None:
    by_chance = {Code.WIDE_INTERVAL}  # a mark: one run in some hundred ends before it is narrow
    assert codes(played(loop).judged()) <= by_chance


@pytest.mark.parametrize(
    "run",
    [
        SOUND.with_server(prefix_cache_hit_rate=0.01),
        SOUND.with_client(cpu_share=0.9),
        SOUND.with_client(error_bounds={"ttft_p50": 0.0009, "tpot_mean": 0.00019}),
        SOUND.with_client(loop_lag_p99_5_seconds=1.0, cpu_wait_p99_5_seconds=1.0),
        SOUND.with_server(kv_cache_usage_max=0.99, requests_waiting_mean=0.0),
        SOUND.with_server(kv_cache_usage_max=0.9, requests_waiting_mean=5.0),
        SOUND.with_server(process_start_time=1000.5),
        SOUND.with_client(clock_step_seconds=0.01),
        SOUND.with_server(requests_finished=1000, other_requests=10),
        column("outcome", first_of(0.009), Outcome.RESET),
        column("outcome", first_of(0.009), Outcome.CUT),
        column("output_tokens", first_of(0.5), -1),
        natural(0.49),
        slow_at_first(1.3, decode_too=True),
        SOUND.on_nodes(16),
        far_node(0.015),
        far_node(0.019, of=played(Loop(jitter=0.001))),
        SOUND.on_nodes(clock_bound_seconds=1.0),
    ],
)
def test_what_is_at_a_limit_or_below_it_is_no_flaw(run: Run) -> None:
    assert codes(run.judged()) == set()


def said(cell: CellResult, code: Code) -> str:
    return next(verdict.because for verdict in cell.verdicts if verdict.code is code)


def test_what_is_wrong_with_a_node_names_the_node_and_its_figures() -> None:
    """Whoever reads it knows which machine to look at."""
    client, moved = SOUND.measured.client, {"ttft_p50": 0.003}
    bad = client.model_copy(update={"cpu_share": 0.95, "clock_step_seconds": -2.0})
    late = client.model_copy(update={"error_bounds": moved})
    busy = SOUND.with_client(cpu_share=0.95, clock_step_seconds=-2.0).on_nodes(client=client)
    nodes = (busy.measured.nodes[0], busy.measured.nodes[1].model_copy(update={"client": bad}))
    cell = busy.with_(measured=replace(busy.measured, nodes=nodes)).judged()
    assert said(cell, Code.CLIENT_SATURATED) == "CPU 95 % of a core on 10.0.0.1, limit 90 %"
    assert said(cell, Code.CLOCK_STEPPED) == "clock stepped 2 s on 10.0.0.1, limit 10 ms"
    one = SOUND.on_nodes().with_client(error_bounds=moved).on_nodes(client=late).judged()
    assert "(most on 10.0.0.2)" in said(one, Code.CLIENT_SATURATED)
    uneven = said(far_node(0.5).judged(), Code.NODE_UNEVEN)
    assert uneven.startswith("mean TTFT 75")
    assert "from 10.0.0.2, 50" in uneven
    lost = SOUND.on_nodes(lost="not heard of for 6 s").judged()
    assert said(lost, Code.NODE_LOST) == "1 of 3 nodes, 10.0.0.2: not heard of for 6 s"


def test_what_a_lost_node_leaves_is_kept_but_not_for_decisions() -> None:
    """Its requests are gone and what was on its way was cut: that is one cause, said once."""
    run = SOUND.on_nodes(lost="not heard of for 6 s")
    samples = run.measured.samples
    outcome = samples.outcome.copy()
    outcome[BEGUN[-len(BEGUN) // 5 :]] = Outcome.CUT
    cut = run.with_samples(outcome=outcome)
    left = cut.measured.samples.rows(samples.worker != 2)
    cell = cut.with_(measured=replace(cut.measured, samples=left)).judged()
    assert (cell.state, codes(cell)) == (CellState.MEASURED, {Code.NODE_LOST})
    assert not cell.valid
    assert cell.counts
    first, second, gone = cell.nodes
    assert (first.requests or 0) + (second.requests or 0) == cell.counts.measured > 0
    assert (gone.requests, gone.ttft, gone.lost) == (None, None, "not heard of for 6 s")
    early = replace(cut.measured, samples=left, failed="It was lost before the window began.")
    failed = cut.with_(measured=early).judged()
    assert (failed.state, codes(failed)) == (CellState.FAILED, {Code.NODE_LOST})


def test_a_node_has_the_figures_of_its_own_requests() -> None:
    """Of three nodes one is slower by half, and one of its requests failed."""
    run = far_node(0.5)
    outcome, mine = run.measured.samples.outcome.copy(), run.measured.samples.worker == 2
    outcome[BEGUN[mine[BEGUN]][0]] = Outcome.RESET
    cell = run.with_samples(outcome=outcome).judged()
    assert sum(node.requests or 0 for node in cell.nodes) == known(cell.counts).measured
    assert [node.failed for node in cell.nodes] == [0, 0, 1]
    means = [node.ttft.mean for node in cell.nodes if node.ttft]
    assert means == pytest.approx([0.05, 0.05, 0.075], rel=0.02)
    assert all(0 < (node.ttft_half_width_seconds or 0) < 0.002 for node in cell.nodes)


def test_a_node_with_too_few_requests_has_no_interval_and_is_accused_of_nothing() -> None:
    """Five requests at one moment are no sample of a window."""
    run = far_node(2.0)
    few = np.flatnonzero(run.measured.samples.worker == 2)
    keep = np.ones(len(run.measured.samples), dtype=np.bool_)
    keep[few] = False
    keep[BEGUN[np.isin(BEGUN, few)][:5]] = True
    cell = run.with_(measured=replace(run.measured, samples=run.measured.samples.rows(keep)))
    last = cell.judged().nodes[2]
    assert (last.requests, last.ttft_half_width_seconds) == (5, None)
    assert Code.NODE_UNEVEN not in codes(cell.judged())


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8))
def test_chance_alone_accuses_no_node(seed: int, nodes: int) -> None:
    """However wide the scatter is, as long as all ways are alike."""
    run = played(Loop(users=64, jitter=0.5, tokens=4, seed=seed)).on_nodes(nodes)
    assert Code.NODE_UNEVEN not in codes(run.judged())


@pytest.mark.parametrize(
    ("arrivals", "stands", "falls"),
    [
        (Arrivals.CLOSED, 0.99, 1.01),
        (Arrivals.POISSON, 0.009, 0.011),
        (Arrivals.CONSTANT, 0.0024, 0.0026),
        (Arrivals.BURSTS, 0.0024, 0.0026),
        (Arrivals.ONCE, 0.0024, 0.0026),
    ],
)
def test_a_clock_is_as_sure_as_what_it_can_spoil(
    arrivals: Arrivals, stands: float, falls: float
) -> None:
    """Of the ramp, of the window, or of a TTFT of 50 ms; the window is set to 1 s."""
    load = Load(arrivals=arrivals, concurrency=8)
    if arrivals not in {Arrivals.CLOSED, Arrivals.ONCE}:
        load = load.model_copy(update={"requests_per_second": 100.0})
    for bound, found in ((stands, False), (falls, True)):
        run = SOUND.on_nodes(clock_bound_seconds=bound)
        spec = run.spec.model_copy(update={"load": load})
        cell = run.with_(spec=spec).cell().model_copy(update={"window_seconds": 1.0})
        said = judged(cell, measured=run.measured, plan=run.plan, subject=run.subject, before=())
        assert (Code.CLOCK_UNSURE in codes(said)) is found


def test_a_shared_prefix_that_was_asked_for_is_no_flaw_but_more_than_it_is() -> None:
    asked = planned(workload=Workload(output_tokens=16, prefix_share=0.5))
    assert not codes(asked.with_server(prefix_cache_hit_rate=0.5).judged())
    more = asked.with_server(prefix_cache_hit_rate=0.52).judged()
    assert codes(more) == {Code.PREFIX_CACHED}


@pytest.mark.parametrize("dataset", [None, "/turns.jsonl"])
def test_a_chats_template_is_in_the_cache_and_no_flaw(dataset: str | None) -> None:
    """gpt-oss and Llama 3 put a system text before each chat: its tokens are cached in use too."""
    work = Workload(output_tokens=16, prefix_share=0.5, dataset=dataset, api="chat")
    asked = planned(workload=work)
    subject = SOUND.subject.model_copy(update={"template_tokens": 128})  # a quarter of 512
    with_template = asked.with_(subject=subject)
    assert not codes(with_template.with_server(prefix_cache_hit_rate=0.625).judged())
    for run in (
        asked,
        with_template.with_(
            plan=planned(workload=work.model_copy(update={"api": "completion"})).plan
        ),
    ):
        assert codes(run.with_server(prefix_cache_hit_rate=0.625).judged()) == {Code.PREFIX_CACHED}


def test_what_a_datasets_prompts_share_is_its_workload_and_what_is_asked_again_is_not() -> None:
    """Bytes are counted where the engine counts tokens, so its limit is a little wider."""
    work = Workload(output_tokens=16, prefix_share=0.5, dataset="/turns.jsonl")
    asked = planned(workload=work)
    assert not codes(asked.with_server(prefix_cache_hit_rate=0.54).judged())
    again = asked.with_server(prefix_cache_hit_rate=0.9).judged()
    assert codes(again) == {Code.PREFIX_CACHED}


def test_scatter_that_lasts_is_not_taken_for_a_cold_start() -> None:
    """The first third is slower at the median, but the last has its slow answers too."""
    samples, last = SOUND.measured.samples, BEGUN[-len(BEGUN) // 3 :: 5]
    times = slow_at_first(2.0, decode_too=False).measured.samples.first_token - INTENDED
    times[last] = (samples.first_token - INTENDED)[last] * 3
    assert Code.COLD not in codes(SOUND.with_samples(first_token=INTENDED + times).judged())


def test_many_refusals_for_length_spoil_the_cell() -> None:
    cell = column("outcome", first_of(0.2), Outcome.TOO_LONG).judged()
    assert codes(cell) == {Code.LENGTH_CAPPED, Code.ERRORS}
    assert not cell.valid


def test_waiting_with_no_room_for_one_more_prompt_is_a_wait_for_the_cache() -> None:
    full = SOUND.with_server(kv_cache_usage_max=0.8, requests_waiting_mean=5.0)
    assert not codes(full.judged())
    whole = full.with_samples(prompt_tokens=full.measured.samples.prompt_tokens * 32)
    long = whole.with_(spec=full.spec.model_copy(update={"context": 16384}))
    assert codes(long.judged()) == {Code.KV_QUEUED}
    assert long.judged().valid


def test_one_burst_is_not_asked_for_an_interval_and_too_few_slices_give_none() -> None:
    load = Load(arrivals=Arrivals.ONCE, concurrency=8)
    burst = uneven(3).with_(spec=SOUND.spec.model_copy(update={"load": load}))
    assert not codes(burst.judged())
    few = SOUND.with_(measured=replace(SOUND.measured, slices=SOUND.measured.slices[:5]))
    assert codes(few.judged()) == {Code.WIDE_INTERVAL}


def test_the_first_engine_seen_is_the_one_to_keep_to() -> None:
    """A subject that does not say when it began leaves it to the first cell that does."""
    subject = SOUND.subject.model_copy(update={"process_start_time": None})
    first = SOUND.with_(subject=subject)
    later = first.with_server(process_start_time=900.0)
    assert codes(later.judged(SOUND.cell())) == {Code.SERVER_CHANGED}
    assert not codes(first.judged(SOUND.cell()))


def test_a_failed_cell_is_told_why() -> None:
    failed = column("outcome", BEGUN, Outcome.TIMEOUT).judged()
    assert failed.state is CellState.FAILED
    assert codes(failed) == {Code.TIMEOUTS}


def test_a_percentile_needs_so_many_requests_that_it_is_not_the_slowest() -> None:
    for count, names in ((100, ()), (99, ("p99",)), (9, ("p90", "p95", "p99"))):
        assert unsupported(count) == names


def test_every_limit_has_a_reason_and_a_source() -> None:
    for limit in limits().values():
        assert limit.why
        assert limit.source
        assert limit.code in RULES
