"""How a cache is divided into blocks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.records import LayerShape, ModelShape
from planner.kv import KvAsk, block_size, divide, longest_length, plan_kv
from planner.model import shape_of
from tests.planner.shapes import LLAMA_8B, catalogued, gemma3

MIB = 2**20
ASK = KvAsk(max_model_len=8192, in_flight_tokens=2048)


def layer(kind: str, **more: Any) -> LayerShape:
    window = 512 if kind == "sliding" else None
    shape = {"attention": kind, "window": window, "kv_heads": 2, "head_size": 64, **more}
    return LayerShape.model_validate(shape)


def model(*layers: LayerShape) -> ModelShape:
    return ModelShape(model="x", layers=layers)


@pytest.mark.parametrize(
    ("name", "groups", "bytes_per_block"),
    [
        ("e2b", [(3, 4, 32), (3, 1, 16)], 3 * 32 * 1024),
        ("e4b", [(4, 5, 32), (4, 1, 16)], 4 * 64 * 1024),
        ("12b", [(8, 5, 16), (8, 1, 64)], MIB),
        ("26b", [(5, 5, 16), (5, 1, 32)], 640 * 1024),
        ("31b", [(10, 5, 16), (10, 1, 32)], 2 * MIB + MIB // 2),
    ],
)
def test_gemma_4_is_dealt_into_its_known_groups(
    name: str, groups: list[tuple[int, int, int]], bytes_per_block: int
) -> None:
    """One group of full layers and four or five of sliding ones; small pages get long blocks."""
    layout = divide(catalogued(name), ASK)
    found = [(each.layers, each.number, each.spec.block_size) for each in layout.groups]
    assert found == groups
    assert layout.bytes_per_block == bytes_per_block


def test_layers_that_are_all_alike_are_one_group() -> None:
    """Llama 3 takes as many blocks as its length has."""
    kv = plan_kv(shape_of("x", LLAMA_8B), 1000 * 32 * 16 * 8 * 256 * 2, ASK)
    assert (kv.num_blocks, kv.blocks_per_request) == (1000, 512)


def test_full_layers_of_two_sizes_are_one_group_too() -> None:
    """They need the same number of slots, so their pages lie side by side."""
    layout = divide(model(layer("full"), layer("full", head_size=128)), ASK)
    assert len(layout.groups) == 1
    assert layout.bytes_per_block == 16 * 2 * 2 * 2 * (64 + 128)


def test_a_page_that_does_not_divide_the_largest_is_padded() -> None:
    """Its block stays as long as it was."""
    layout = divide(model(layer("full", kv_heads=3), layer("sliding")), ASK)
    assert {each.spec.block_size for each in layout.groups} == {16}
    assert layout.bytes_per_block == 16 * 3 * 2 * 64 * 2


def test_nearly_as_many_layers_of_one_kind_are_padded_into_one_group() -> None:
    """Three sliding and four full layers become two groups of four."""
    layers = [layer("sliding")] * 3 + [layer("full")] * 4
    assert [(each.layers, each.number) for each in divide(model(*layers), ASK).groups] == [
        (4, 1),
        (4, 1),
    ]


def test_without_the_hybrid_manager_every_layer_is_cached_in_full() -> None:
    """--disable-hybrid-kv-cache-manager costs what windows would save."""
    shape = shape_of("x", gemma3(26, 1152, 4, 1, 6912))
    whole = plan_kv(shape, 2**30, ASK._replace(hybrid=False))
    assert whole.max_concurrency < plan_kv(shape, 2**30, ASK).max_concurrency * 0.51


def test_old_versions_logged_another_number_for_the_same_cache() -> None:
    """Until 0.20.1 vLLM logged the blocks of one group."""
    old = plan_kv(catalogued("12b"), 6000 * MIB, ASK._replace(tokens_logged="blocks"))
    assert old.kv_tokens == 1000 * 16


def test_an_override_replaces_the_bytes() -> None:
    """--num-gpu-blocks-override is taken as it is."""
    assert plan_kv(catalogued("12b"), MIB, ASK._replace(blocks_override=77)).num_blocks == 77


def test_one_block_is_kept_back() -> None:
    """A request that needs every block does not fit: vLLM keeps the null block."""
    shape = shape_of("x", LLAMA_8B)
    exact = plan_kv(shape, 512 * 32 * 16 * 8 * 256 * 2, ASK)
    more = plan_kv(shape, 513 * 32 * 16 * 8 * 256 * 2, ASK)
    assert (exact.fits, exact.max_len_that_fits) == (False, 511 * 16)
    assert (more.fits, more.max_len_that_fits) == (True, 8192)


def test_a_cache_of_nothing_holds_nothing() -> None:
    """No bytes, no blocks, no length, and no error."""
    kv = plan_kv(catalogued("e2b"), 0, ASK)
    assert (kv.num_blocks, kv.kv_tokens, kv.max_len_that_fits, kv.fits) == (0, 0, 0, False)


@pytest.mark.parametrize(
    ("length", "seqs", "tokens"),
    [(16_384, 256, 32), (32_768, 256, 64), (65_536, 256, 128), (16_384, 8, 16), (2048, 256, 128)],
)
def test_a_tpus_blocks_grow_with_the_length(length: int, seqs: int, tokens: int) -> None:
    """All block tables must fit the scalar memory."""
    assert block_size(length, seqs) == tokens


layers = st.builds(
    layer,
    st.sampled_from(["full", "sliding"]),
    kv_heads=st.sampled_from([1, 2, 3, 4, 8]),
    head_size=st.sampled_from([32, 64, 128, 256]),
)


@given(
    st.lists(layers, min_size=1, max_size=12),
    st.integers(0, 2**32),
    st.integers(1, 20_000),
    st.integers(1, 5000),
)
def test_the_longest_length_fits_and_the_next_does_not(
    found: list[LayerShape], size: int, limit: int, in_flight: int
) -> None:
    """The search ends where one more token would need a block that is not there."""
    ask = KvAsk(max_model_len=limit, in_flight_tokens=in_flight)
    layout = divide(model(*found), ask)
    blocks = size // layout.bytes_per_block
    longest = longest_length(layout, blocks, ask)
    assert not longest or layout.blocks(longest, in_flight) <= blocks - 1
    assert longest == limit or layout.blocks(longest + 1, in_flight) > blocks - 1


@given(
    st.lists(layers, min_size=1, max_size=12),
    st.integers(0, 2**32),
    st.integers(0, 2**32),
    st.integers(1, 20_000),
    st.integers(1, 20_000),
)
def test_more_memory_and_shorter_requests_are_never_worse(
    found: list[LayerShape], size: int, more: int, length: int, longer: int
) -> None:
    """Neither concurrency nor length nor the verdict."""
    ask = KvAsk(max_model_len=length, in_flight_tokens=2048, longest=40_000)
    shape = model(*found)
    base = plan_kv(shape, size, ask)
    richer = plan_kv(shape, size + more, ask)
    slower = plan_kv(shape, size, ask._replace(max_model_len=length + longer))
    for better, worse in ((richer, base), (base, slower)):
        assert better.max_concurrency >= worse.max_concurrency
        assert better.max_len_that_fits >= worse.max_len_that_fits
        assert better.fits >= worse.fits
