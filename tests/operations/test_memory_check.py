"""One accelerator's memory: what the engine says of it before what was planned."""

from operations.forecast import each_gib
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import catalog_shape
from planner.places import accelerator


def test_what_the_log_tells_of_a_part_comes_before_what_was_foreseen() -> None:
    """In the table of one accelerator's memory; the rest is made up to what it is sold with."""
    shape = catalog_shape("google/gemma-4-E2B-it")
    foreseen = plan_memory(shape, accelerator("l4"), Flags(max_model_len=8192))
    told = each_gib(foreseen, {"weights_gib": 9.5, "kv_cache_gib": 3.25})
    assert (told["weights"], told["KV cache"]) == (9.5, 3.25)
    assert each_gib(foreseen)["weights"] == round(foreseen.weights_gib, 2)
    parts = sum(gib for name, gib in told.items() if name != "sold")
    assert abs(parts - told["sold"]) < 0.05
