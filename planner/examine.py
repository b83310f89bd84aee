"""A deployment with given flags: what it would do there, or why not and what would."""

from collections.abc import Collection

from core.records import ModelShape
from planner.accelerators import accelerator
from planner.flags import Flags
from planner.goal import Goal
from planner.layouts import Arrangement, Ground, Wish
from planner.near import near_misses, offload
from planner.offers import (
    Offer,
    Refusal,
    Site,
    host_gib,
    host_too_small,
    make_offer,
    no_room,
    spare_gib,
)
from planner.places import Place


def examine(
    model: ModelShape,
    where: Place,
    flags: Flags,
    *,
    goal: Goal | None = None,
    backends: Collection[str] = (),
) -> Offer | Refusal:
    """Foresee exactly these flags; the place's accelerators all work together.

    Raises:
        InvalidArgument: A flag is none that vLLM takes, or the place's accelerator is not known.
        Unsupported: The model's shape is not known.
    """
    wanted = goal or Goal(model=model.model)
    asked = _complete(flags, where)
    ground = Ground(model, accelerator(where.accelerator), asked.tensor_parallel_size)
    memory = ground.plan(asked)
    arranged = Arrangement(layout=None, flags=asked, memory=memory, enough=memory.fits)
    if not memory.fits:
        return _refusal(model, where, ground, arranged, wanted)
    needed = host_gib(model, where, asked)
    size = where.size_for(needed)
    if where.sizes and size is None:
        return host_too_small(model, where, needed)
    site = Site(
        place=where,
        load=wanted.load,
        context=memory.max_model_len // 2,
        duty=wanted.duty,
        deployable=where.deployable(backends),
    )
    return make_offer(model, site, arranged, size)


def _complete(flags: Flags, where: Place) -> Flags:
    if flags.tensor_parallel_size != 1:
        return flags
    return flags.model_copy(update={"tensor_parallel_size": where.count})


def _refusal(
    model: ModelShape, where: Place, ground: Ground, arranged: Arrangement, goal: Goal
) -> Refusal:
    memory, device = arranged.memory, ground.accelerator
    loads = memory.load_peak_gib <= (device.memory_gib or 0) * device.free_at_start
    wish = Wish(
        max_model_len=memory.max_model_len,
        requests=1,
        text_only=arranged.flags.language_model_only,
        usual_tokens=goal.load.prompt_tokens + goal.load.output_tokens,
        vllm_version=arranged.flags.vllm_version,
    )
    return no_room(
        model,
        where,
        memory,
        reason=" ".join(memory.reasons),
        nearest=tuple(near_misses(ground, wish)) if loads else (),
        offload=None if loads else offload(ground, wish, spare_gib(model, where)),
    )
