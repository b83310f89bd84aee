"""What the engine says of its memory, held against the plan."""

from typing import Any, Final

import pytest

from core.records import MemoryPlan
from operations.forecast import each_gib
from operations.readings import Component, compare
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import catalog_shape
from planner.places import accelerator

MODEL: Final = "google/gemma-4-E2B-it"


def plan(where: str = "l4", **flags: Any) -> MemoryPlan:
    return plan_memory(catalog_shape(MODEL), accelerator(where), Flags(**flags))


def by_name(components: tuple[Component, ...]) -> dict[str, Component]:
    return {each.name: each for each in components}


def as_foreseen(foreseen: MemoryPlan) -> dict[str, float | int | None]:
    """What a log would say if all came as expected."""
    parts = {part.name: part.gib.expected for part in foreseen.parts}
    chips = foreseen.count if foreseen.kv_is_shared else 1
    return {
        "weights_gib": foreseen.weights_gib,
        "graphs_gib": parts.get("CUDA graphs"),
        "non_torch_gib": parts.get("libraries"),
        "kv_cache_gib": foreseen.kv_cache_gib.expected / chips,
        "kv_cache_tokens": foreseen.kv_expected.kv_tokens,
        "max_concurrency": foreseen.kv_expected.max_concurrency,
        "max_concurrency_tokens": foreseen.max_model_len,
    }


@pytest.mark.parametrize(("where", "ways"), [("l4", 1), ("a100-80", 1), ("v6e", 1), ("v6e", 4)])
def test_what_comes_as_expected_is_inside(where: str, ways: int) -> None:
    """Of GPUs and TPUs; a TPU's log tells of one chip what its plan has of all."""
    foreseen = plan(where, max_model_len=8192, tensor_parallel_size=ways)
    found = by_name(compare(foreseen, as_foreseen(foreseen)))
    told = {name: each.verdict for name, each in found.items() if each.measured is not None}
    assert set(told.values()) == {"inside"}
    assert {"weights", "KV cache", "KV cache tokens"} <= set(told)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("weights", "weights_gib"),
        ("KV cache", "kv_cache_gib"),
        ("CUDA graphs", "graphs_gib"),
        ("peak activation", "peak_activation_gib"),
        ("outside PyTorch", "non_torch_gib"),
        ("KV cache tokens", "kv_cache_tokens"),
        ("full-length requests at once", "max_concurrency"),
    ],
)
def test_each_part_is_judged_by_its_own_bounds(name: str, key: str) -> None:
    """Far below, far above and not told: one part says so, and no other."""
    foreseen = plan(max_model_len=8192)
    usual = as_foreseen(foreseen)
    bounds = by_name(compare(foreseen, usual))[name]
    assert bounds.low <= bounds.expected <= bounds.high
    for measured, verdict in ((bounds.low * 0.5, "below"), (bounds.high * 1.5, "above")):
        found = by_name(compare(foreseen, {**usual, key: measured}))
        assert (found[name].verdict, found[name].measured) == (verdict, measured)
        assert {each.verdict for each in found.values() if each.name != name} <= {
            "inside",
            "not in the log",
        }
    assert by_name(compare(foreseen, {**usual, key: None}))[name].verdict == "not in the log"


def test_what_the_log_rounds_is_no_difference() -> None:
    """A cache of a given size is foreseen to the byte, and printed with two decimals."""
    foreseen = plan(max_model_len=8192, kv_cache_memory_bytes=50_000_000)
    exact = foreseen.kv_cache_gib.expected
    assert foreseen.kv_cache_gib.low == foreseen.kv_cache_gib.high == exact
    found = by_name(compare(foreseen, {"kv_cache_gib": round(exact, 2)}))
    assert round(exact, 2) != exact
    assert found["KV cache"].verdict == "inside"


def test_requests_of_another_length_are_not_compared() -> None:
    """How many fit at once means nothing beside a plan for longer ones."""
    foreseen = plan(max_model_len=8192)
    told = {**as_foreseen(foreseen), "max_concurrency_tokens": 4096}
    found = by_name(compare(foreseen, told))["full-length requests at once"]
    assert (found.measured, found.verdict) == (None, "not in the log")


def test_what_the_log_tells_of_a_part_comes_before_what_was_foreseen() -> None:
    """In the table of one accelerator's memory; the rest is made up to what it is sold with."""
    foreseen = plan(max_model_len=8192)
    told = each_gib(foreseen, {"weights_gib": 9.5, "kv_cache_gib": 3.25})
    assert (told["weights"], told["KV cache"]) == (9.5, 3.25)
    assert each_gib(foreseen)["weights"] == round(foreseen.weights_gib, 2)
    parts = sum(gib for name, gib in told.items() if name != "sold")
    assert abs(parts - told["sold"]) < 0.05
