"""Continuous batching, without a clock."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulators.engine.scheduler import Batch, Limits, Request, Scheduler

EOS_NEVER = 7


USUAL = Limits(block_size=4, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=32)


def limits(**changes: int) -> Limits:
    return replace(USUAL, **changes)  # type: ignore[arg-type]  # switches are given as 0 and 1


def ask(length: int, max_tokens: int = 1, *, first: int = 0) -> Request:
    return Request(prompt=range(first, first + length), max_tokens=max_tokens)


def step(scheduler: Scheduler) -> Batch:
    """One step in which every ready request says the same token."""
    batch = scheduler.plan()
    for request in scheduler.commit(batch):
        request.tokens.append(EOS_NEVER)
        if request.generated == request.max_tokens:
            scheduler.finish(request)
    return batch


def run(scheduler: Scheduler, *requests: Request) -> list[Batch]:
    for request in requests:
        scheduler.add(request)
    batches = []
    while scheduler.has_work:
        batches.append(step(scheduler))
        assert len(batches) < 10_000
    return batches


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    """70 tokens at 32 per step take three steps, then one token is there."""
    batches = run(Scheduler(limits()), ask(70))
    assert [batch.prefill_tokens for batch in batches] == [32, 32, 6]


def test_a_repeated_prompt_is_found_in_the_prefix_cache() -> None:
    """All full blocks but the one that holds the last token are hits."""
    scheduler = Scheduler(limits())
    run(scheduler, ask(16))
    again = ask(16)
    run(scheduler, again)
    assert (again.cached, scheduler.prefix_hits, scheduler.prefix_queries) == (12, 12, 32)


def test_the_youngest_request_is_preempted_when_blocks_run_out() -> None:
    """Two requests that outgrow the cache: the second is thrown out and still ends."""
    scheduler = Scheduler(limits(num_blocks=8))
    first, second = ask(12, 12), ask(12, 12, first=100)
    scheduler.add(first)
    scheduler.add(second)
    while not first.finished:
        step(scheduler)
    assert scheduler.preemptions > 0
    assert not second.finished
    run(scheduler)
    assert second.generated == 12


def test_what_could_never_fit_is_refused() -> None:
    """Otherwise it would wait for ever."""
    with pytest.raises(ValueError, match="blocks"):
        Scheduler(limits(num_blocks=4)).add(ask(16, 1))


def test_an_aborted_request_frees_its_blocks_in_the_middle_of_a_step() -> None:
    """What a client no longer wants is not committed."""
    scheduler = Scheduler(limits())
    request = ask(16, 4)
    scheduler.add(request)
    batch = scheduler.plan()
    scheduler.finish(request)
    scheduler.finish(request)
    assert scheduler.commit(batch) == []
    assert scheduler.pool.num_free == 64


_SIZES = st.tuples(st.integers(1, 40), st.integers(1, 24), st.integers(0, 2))
_LIMITS = st.builds(
    Limits,
    block_size=st.sampled_from([1, 4, 16]),
    num_blocks=st.integers(64, 80),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(6, 64),
    prefix_caching=st.booleans(),
)


def _requests(sizes: list[tuple[int, int, int]]) -> list[Request]:
    return [ask(length, more, first=family) for length, more, family in sizes]


@settings(deadline=None)
@given(_LIMITS, st.lists(_SIZES, min_size=1, max_size=12))
def test_every_request_ends_within_the_limits(
    bounds: Limits, sizes: list[tuple[int, int, int]]
) -> None:
    """Whatever comes, nobody starves, no limit is broken and all blocks come back."""
    scheduler = Scheduler(bounds)
    requests = _requests(sizes)
    for request in requests:
        scheduler.add(request)
    for _ in range(10_000):
        if not scheduler.has_work:
            break
        batch = step(scheduler)
        assert len(scheduler.running) <= bounds.max_num_seqs
        assert sum(chunk.tokens for chunk in batch.chunks) <= bounds.max_num_batched_tokens
        held = {block for request in scheduler.running for block in request.blocks}
        assert len(held) + scheduler.pool.num_free == bounds.num_blocks
    assert [request.generated for request in requests] == [more for _, more, _ in sizes]
    assert scheduler.pool.num_free == bounds.num_blocks
    assert scheduler.prefix_hits <= scheduler.prefix_queries


@settings(deadline=None)
@given(_LIMITS, st.lists(_SIZES, min_size=1, max_size=8))
def test_the_same_requests_make_the_same_batches(
    bounds: Limits, sizes: list[tuple[int, int, int]]
) -> None:
    """Nothing in it depends on chance or on the clock."""
    runs = [run(Scheduler(bounds), *_requests(sizes)) for _ in range(2)]
    first, second = ([[chunk.tokens for chunk in b.chunks] for b in batches] for batches in runs)
    assert first == second
