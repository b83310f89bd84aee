"""What fits and is nearest to what does not."""

from collections.abc import Iterator
from typing import Any

from operations.plans.alternatives import MODEST, Alternatives
from operations.plans.foreseeing import arguments
from planner.advise import Goal, engine_line
from planner.catalog import QUANTIZED, find
from planner.flags import Flags
from planner.layouts import Ground, arrange, near_misses, of_weights, text_only
from planner.model import catalog_shape


def nearer(
    ground: Ground, goal: Goal, beside: Alternatives, *, said: Flags
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give what fits and asks for less; where no request that long does, a short text, or int4."""
    model = ground.model.model
    found = list(nearest(ground, goal, said=said))
    yield from ((words, arguments(flags)) for words, flags in found)
    if found:
        return
    if flags := beside.flags.get("text only"):
        held = ground.plan(flags).max_model_len
        yield f"text only, {held:,} tokens: {engine_line(model, flags)}", arguments(flags)
    smaller = f"{model}{QUANTIZED}"
    if find(smaller) is None or ground.model.quantization:
        return
    other_ground = Ground(catalog_shape(smaller), ground.accelerator, ground.count)
    length = min(goal.max_model_len, MODEST)
    wish = goal.wish._replace(max_model_len=length)
    for words, other in (
        ("", arrange(other_ground, wish)),
        (" as text only", text_only(other_ground, wish)),
    ):
        if other and other.enough:
            line = engine_line(smaller, other.flags)
            yield (
                f"its int4 weights (QAT){words}: {line}",
                {"model": smaller, **arguments(other.flags)},
            )
            return


def nearest(
    ground: Ground, goal: Goal, *, said: Flags | None = None
) -> Iterator[tuple[str, Flags]]:
    """Give the same length with other flags where that is enough, else what asks for less.

    Both first of the weights as they were said, then of the plainest.
    """
    own = (of_weights(goal.wish, said),) if said else ()
    for wish in (*own, goal.wish):
        same = arrange(ground, wish)
        if same.enough:
            yield f"with other flags: {engine_line(ground.model.model, same.flags)}", same.flags
            return
    misses = (near for wish in own if (near := list(near_misses(ground, wish))))
    for miss in next(misses, None) or near_misses(ground, goal.wish):
        flags = miss.arrangement.flags
        line = engine_line(ground.model.model, flags)
        yield f"with another {miss.gives_up} ({miss.buys}): {line}", flags
