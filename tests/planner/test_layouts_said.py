"""Layouts are arranged for the weights and flags that a person said."""

from typing import Final

import pytest

from planner.flags import Flags
from planner.layouts import Ground, Layout, Wish, arrange_said
from planner.places import accelerator
from tests.planner.shapes import catalogued

WISH: Final = Wish(max_model_len=8192, usual_tokens=1280)


def test_eight_bits_give_a_layout_what_they_leave() -> None:
    """In bf16 the model does not load there, and would be given one sequence."""
    ground = Ground(catalogued("12b"), accelerator("l4"), 1)
    said = Flags(quantization="fp8")
    many = arrange_said(ground, WISH._replace(layout="concurrency"), said)
    long = arrange_said(ground, WISH._replace(layout="context"), said)
    assert (many.enough, many.flags.max_num_seqs) == (True, 32)
    assert (long.enough, long.flags.max_model_len) == (True, 262_144)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (Flags(quantization="fp8"), ["--quantization=fp8"]),
        (Flags(cpu_offload_gb=8), ["--cpu-offload-gb", "8"]),
        (Flags(language_model_only=True, quantization="fp8"), ["--language-model-only", "-q=fp8"]),
    ],
    ids=["bits", "offload", "towers"],
)
@pytest.mark.parametrize("layout", ["speed", "concurrency", "context"])
def test_what_engine_args_say_of_weights_is_arranged_alike(
    flags: Flags, words: list[str], layout: Layout
) -> None:
    """It is the same engine."""
    ground = Ground(catalogued("12b"), accelerator("l4"), 1)
    wish = WISH._replace(layout=layout)
    found = arrange_said(ground, wish, flags, words)
    assert found.flags == arrange_said(ground, wish, flags).flags
    assert found.enough


def test_a_spread_over_fewer_chips_is_kept() -> None:
    """A layout would take all that there are."""
    ground = Ground(catalogued("e4b"), accelerator("l4"), 2)
    wish = WISH._replace(layout="context")
    assert arrange_said(ground, wish, Flags(tensor_parallel_size=1)).memory.count == 1
    assert arrange_said(ground, wish, Flags(tensor_parallel_size=2)).memory.count == 2


def test_a_layout_takes_no_more_sequences_than_engine_args_leave_room_for() -> None:
    """They win, so the memory that they leave is what it arranges."""
    ground = Ground(catalogued("e4b"), accelerator("l4"), 1)
    wish = Wish(max_model_len=131_072, layout="concurrency")
    roomy = arrange_said(ground, wish, Flags())
    words = ["--gpu-memory-utilization=0.85"]
    tight = arrange_said(ground, wish, Flags(gpu_memory_utilization=0.85), words)
    assert tight.enough
    assert tight.flags.gpu_memory_utilization == 0.85
    assert (tight.flags.max_num_seqs or 0) < (roomy.flags.max_num_seqs or 0)


def test_engine_args_win_over_what_a_layout_computes() -> None:
    """vLLM reads them last: also the length, which a wish says itself."""
    ground = Ground(catalogued("12b qat"), accelerator("l4"), 1)
    words = ["--max-model-len=4k", "--max-num-seqs", "3", "--kv-cache-dtype=auto"]
    found = arrange_said(ground, WISH._replace(layout="context"), Flags(), words).flags
    assert (found.max_model_len, found.max_num_seqs, found.kv_cache_dtype) == (4000, 3, "auto")
