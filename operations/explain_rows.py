"""Each flag of a deployment: what it does here, and what it trades."""

import math
from collections.abc import Iterator
from typing import Final, Literal

from core.records import MemoryPlan
from operations.deployments import comes_back
from operations.explain_case import Case, FlagRow, at_once, bytes_per_token, rest, usd
from operations.forecast import precision
from planner.boot import Boot
from planner.flags import defaults
from planner.kv import kv_precisions

_MEMORY_ROWS_UNKNOWN: Final = (
    "How much, nobody can say here: model or memory of the accelerator are not known."
)
_STEP: Final = 0.05
"""Of gpu_memory_utilization, for what a little less would do."""


def memory_rows(case: Case) -> Iterator[FlagRow]:
    """Give the rows of context, cache and weights."""
    yield _length(case)
    yield _utilization(case)
    yield _kv_dtype(case)
    if case.spec.kv_cache_memory_bytes:
        yield _kv_bytes(case)
    yield _quantization(case)
    yield _dtype(case)
    yield _offload(case)


def _length(case: Case) -> FlagRow:
    plan, asked = case.memory, case.spec.max_model_len
    own = case.model.max_position_embeddings
    return FlagRow(
        flag="--max-model-len",
        value=_tokens(case.length),
        default=f"{_tokens(own)}, the model's own",
        differs=asked is not None and asked != own,
        does=_holds(plan) if plan else _MEMORY_ROWS_UNKNOWN,
        trades=_length_trade(case, plan) if plan else "Context against requests at once.",
    )


def _holds(plan: MemoryPlan) -> str:
    return (
        f"Prompt and answer together have at most {plan.max_model_len:,} tokens. The KV cache,"
        f" {plan.kv_cache_gib.expected:.2f} GiB, holds {plan.kv_expected.kv_tokens:,} tokens:"
        f" {at_once(plan)} requests of that length at once, more of shorter ones."
    )


def _length_trade(case: Case, plan: MemoryPlan) -> str:
    lengths = (plan.max_model_len // 2, plan.max_model_len * 2)
    most = case.model.max_position_embeddings or lengths[1]
    others = "; ".join(
        f"with {one:,} tokens {at_once(case.plan(max_model_len=one))}"
        for one in lengths
        if 0 < one <= most
    )
    return (
        f"Context against requests at once: {others}. The longest single request that fits is"
        f" {plan.kv_low.max_len_that_fits:,} tokens."
    )


def _utilization(case: Case) -> FlagRow:
    plan = case.memory
    value = f"{plan.gpu_memory_utilization:g}" if plan else _or_default(case, "not known")
    return FlagRow(
        flag="--gpu-memory-utilization",
        value=value,
        default=_own_share(case),
        differs=case.spec.gpu_memory_utilization is not None,
        does=_share(plan) if plan and plan.requested_gib else _MEMORY_ROWS_UNKNOWN,
        trades=_share_trade(case, plan) if plan and plan.visible_gib else "Cache against headroom.",
    )


def _own_share(case: Case) -> str:
    plan = case.plan(gpu_memory_utilization=None)
    return f"{plan.gpu_memory_utilization:g}" if plan else "vLLM's own"


def _or_default(case: Case, unknown: str) -> str:
    said = case.spec.gpu_memory_utilization
    return unknown if said is None else f"{said:g}"


def _share(plan: MemoryPlan) -> str:
    taken = f"{plan.requested_gib or 0:.2f} of {plan.visible_gib or 0:.2f} GiB"
    if any(part.name == "KV cache" for part in plan.parts):
        return f"vLLM takes {taken}."
    return (
        f"vLLM takes {taken}: {plan.weights_gib:.2f} of weights, {plan.kv_cache_gib.expected:.2f}"
        f" of KV cache{' on all chips together' if plan.kv_is_shared else ''}, the rest to work in."
    )


def _share_trade(case: Case, plan: MemoryPlan) -> str:
    less = round(plan.gpu_memory_utilization - _STEP, 2)
    outside = (plan.visible_gib or 0) - (plan.requested_gib or 0)
    return (
        f"Cache against headroom: {outside:.2f} GiB stay for what vLLM does not count; {less:g}"
        f" would leave {outside + _STEP * (plan.visible_gib or 0):.2f} and hold"
        f" {at_once(case.plan(gpu_memory_utilization=less))} requests of full length."
    )


def _kv_dtype(case: Case) -> FlagRow:
    plan, value = case.memory, case.flags.kv_cache_dtype or "auto"
    each = bytes_per_token(plan.kv_expected) if plan else 0
    on_average = f" A token of a full-length request takes {each:,} bytes of it." if each else ""
    kinds = precision(case.model, case.flags, case.device)
    return FlagRow(
        flag="--kv-cache-dtype",
        value=value,
        default="auto: as the model computes",
        differs=value != "auto",
        does=f"{kinds[:1].upper()}{kinds[1:]}.{on_average}",
        trades=_kv_trade(case, plan),
    )


def _kv_trade(case: Case, plan: MemoryPlan | None) -> str:
    able = {one.kv_cache_dtype: one for one in kv_precisions(case.device) if one.planned}
    other = "auto" if case.fp8_kv else "fp8"
    if case.device.kind == "cpu" or other not in able:
        return "A little accuracy of attention against room: fp8 is not planned for here."
    if not able[other].possible:
        return f"Nothing: fp8 is not to be had here ({able[other].why.rstrip('.')})."
    held = at_once(case.plan(kv_cache_dtype=None if other == "auto" else other))
    now = f", now {at_once(plan)}" if plan else ""
    return (
        f"A little accuracy of attention against room: with {other} the cache would hold {held}"
        f" requests of full length{now}."
    )


def _kv_bytes(case: Case) -> FlagRow:
    return FlagRow(
        flag="--kv-cache-memory-bytes",
        value=str(case.spec.kv_cache_memory_bytes),
        default="left out: what gpu_memory_utilization leaves",
        differs=True,
        does=_holds(case.memory) if case.memory else _MEMORY_ROWS_UNKNOWN,
        trades="Certainty against room: it is taken as it is, whatever else needs memory.",
    )


def _quantization(case: Case) -> FlagRow:
    own, said = case.model.quantization, case.spec.quantization
    plan = case.memory
    weights = (
        f"Weights take {plan.weights_gib:.2f} GiB on each accelerator."
        if plan
        else _MEMORY_ROWS_UNKNOWN
    )
    return FlagRow(
        flag="--quantization",
        value=said or own or "none",
        default=own or "none",
        differs=said is not None and said != own,
        does=weights,
        trades=_quantization_trade(case, said or own),
    )


def _quantization_trade(case: Case, method: str | None) -> str:
    if method:
        bits = case.model.quantization_bits
        size = f"{bits}-bit weights" if bits else "quantized weights"
        return f"Quality against memory and speed: {size} are smaller and sooner read."
    fp8 = case.plan(quantization="fp8")
    if fp8 is None or case.device.kind != "gpu":
        return "Quality against memory: 16 bits, as trained; list_models has quantized checkpoints."
    return (
        f"Quality against memory: with fp8 the weights would take {fp8.weights_gib:.2f} GiB and the"
        f" cache would hold {at_once(fp8)} requests of full length."
    )


def _dtype(case: Case) -> FlagRow:
    said = case.spec.dtype
    kind = case.model.dtype or "not known"
    return FlagRow(
        flag="--dtype",
        value=said or f"auto ({kind})",
        default=f"auto: the checkpoint's, {kind}",
        differs=said not in {None, "auto", kind},
        does="What is not quantized, and all arithmetic, is of this type.",
        trades="Range against hardware: bfloat16 needs SM 8.0 or newer; float16 overflows sooner.",
    )


def _offload(case: Case) -> FlagRow:
    said = case.spec.cpu_offload_gb or 0
    without = case.plan(cpu_offload_gb=None)
    needed = bool(said and without and not without.fits)
    return FlagRow(
        flag="--cpu-offload-gb",
        value=f"{said:g}",
        default="0",
        differs=bool(said),
        does=f"{said:g} GiB of weights lie in the host's memory."
        if said
        else "All weights lie on the accelerator."
        if case.device.kind != "cpu"
        else "Nothing: there is only the host's memory.",
        trades=_offload_trade(case, needed=needed),
    )


def _offload_trade(case: Case, *, needed: bool) -> str:
    device = case.device
    if not (device.bandwidth_gb_per_s and device.pcie_gb_per_s):
        return "Memory against speed: what is offloaded is moved for every step."
    times = device.bandwidth_gb_per_s / device.pcie_gb_per_s
    why = " Without it the model would not fit." if needed else ""
    return (
        f"Memory against speed: every step moves what is offloaded over PCIe,"
        f" {device.pcie_gb_per_s:.0f} GB/s against {device.bandwidth_gb_per_s:,.0f} GB/s of its own"
        f" memory, {times:.0f} times slower.{why}"
    )


def _tokens(count: int | None) -> str:
    return "not known" if count is None else f"{count:,}"


_SERVING_ROWS_UNKNOWN: Final = "not known here"
_THOUGHTS: Final = (
    "`content` is null while max_tokens goes into thoughts; with thinking on a JSON schema holds"
    " only after them. Before vLLM 0.29 gemma4's switches schemas off, unless a request says"
    " enable_thinking=false."
)
_MEANS: Final = {
    "--enable-prefix-caching": (
        "Prompts that begin alike are computed once; vLLM's default.",
        "Some memory of old prompts, which goes first when room is short.",
    ),
    "--no-enable-prefix-caching": (
        "Every prompt is computed anew, however alike.",
        "The first token comes later for prompts that begin alike.",
    ),
    "--enable-chunked-prefill": (
        "Long prompts are read in pieces between other requests' tokens; vLLM's default.",
        "Nothing that is felt.",
    ),
    "--language-model-only": (
        "No vision or audio tower is loaded.",
        "Images and sound, for the memory that they took.",
    ),
    "--limit-mm-per-prompt": (
        "At most so many images, videos and sounds in a prompt.",
        "Richer prompts, for the memory that is kept for them.",
    ),
    "--disable-chunked-mm-input": (
        "An image is read in one piece.",
        "Freedom to batch: a batch must hold the largest image.",
    ),
    "--load-format": ("How weights are read.", "The same weights, sooner or later."),
    "--async-scheduling": (
        "The next batch is made while one is computed; the default of newer versions.",
        "KV room for one more batch in flight.",
    ),
    "--no-async-scheduling": (
        "A batch is made when the last one is done.",
        "Speed: the accelerator waits for the scheduler.",
    ),
    "--speculative-config": (
        "A small model guesses tokens that the large one checks.",
        "Memory and arithmetic, for sooner tokens while few ask.",
    ),
    "--block-size": ("Tokens of one KV block.", "Waste at a request's end, for fewer blocks."),
    "--tool-call-parser": (
        "Calls of tools go from the answer's text to `tool_calls`.",
        "With gemma4 no grammar makes the model call: one that is `required` may fail to come.",
    ),
    "--enable-auto-tool-choice": (
        "The model may choose to call `tools`; without it such a request is refused (400).",
        "An answer may then be a call, and its `content` null.",
    ),
    "--no-enable-auto-tool-choice": (
        "No parser of tool calls is added.",
        "A request whose `tools` the model may choose from is refused (400).",
    ),
    "--reasoning-parser": (
        "Thoughts go to `reasoning`, the answer to `content`.",
        _THOUGHTS,
    ),
    "--chat-template": ("How a conversation is written as a prompt.", "Nothing that is felt."),
}
"""Flags of vLLM that people set often and that have no field of their own: does, trades."""


def serving_rows(case: Case) -> Iterator[FlagRow]:
    """Give the rows of batches, accelerators, graphs and everything else that is passed on."""
    yield _sequences(case)
    yield _batched(case)
    if case.place.count > 1:
        yield _parallel(case)
    yield _eager(case)
    for words in rest(case.spec):
        flag, _, value = words.replace("=", " ", 1).partition(" ")
        does, trades = _MEANS.get(flag, ("Passed on to vLLM as it is.", _SERVING_ROWS_UNKNOWN))
        yield FlagRow(
            flag=flag,
            value=value or "on",
            default="left out",
            differs=f"{flag} {value}".strip() not in defaults(),
            does=does,
            trades=trades,
        )


def together(plan: MemoryPlan) -> int:
    """Give how many requests of full length really run together."""
    held = max(1, int(plan.kv_low.max_concurrency))
    return min(held, plan.max_num_seqs)


def _sequences(case: Case) -> FlagRow:
    plan = case.memory
    value = plan.max_num_seqs if plan else case.spec.max_num_seqs
    return FlagRow(
        flag="--max-num-seqs",
        value=_SERVING_ROWS_UNKNOWN if value is None else str(value),
        default=_default(case, "max_num_seqs"),
        differs=case.spec.max_num_seqs is not None,
        does=_sequences_do(plan) if plan else "At most so many requests decode together.",
        trades=_latency(case, plan) or "Latency of each against throughput of all.",
    )


def _default(case: Case, flag: str) -> str:
    plan = case.plan(**{flag: None})
    return f"{getattr(plan, flag):,}, by the accelerator" if plan else "by the accelerator"


def _sequences_do(plan: MemoryPlan) -> str:
    held = int(plan.kv_low.max_concurrency)
    bound = "this" if plan.max_num_seqs <= held else "the KV cache"
    return (
        f"At most {plan.max_num_seqs} requests decode together and the cache holds {at_once(plan)}"
        f" of full length: for such, {bound} is the limit; further ones wait."
    )


def _latency(case: Case, plan: MemoryPlan | None) -> str:
    if plan is None:
        return ""
    context, many = plan.max_model_len // 2, together(plan)
    alone = case.decode(1, context=context)
    crowd = case.decode(many, context=context)
    if alone is None or crowd is None or many == 1:
        return ""
    return (
        f"Latency of each against throughput of all: alone a request gets"
        f" {alone.tokens_per_second_per_user} tokens/s, with {many} at once"
        f" {crowd.tokens_per_second_per_user} each and {crowd.tokens_per_second} together."
    )


def _batched(case: Case) -> FlagRow:
    plan = case.memory
    value = plan.max_num_batched_tokens if plan else case.spec.max_num_batched_tokens
    return FlagRow(
        flag="--max-num-batched-tokens",
        value=_SERVING_ROWS_UNKNOWN if value is None else f"{value:,}",
        default=_default(case, "max_num_batched_tokens"),
        differs=case.spec.max_num_batched_tokens is not None,
        does=_pieces(case, plan) if plan else "A step reads at most so many tokens of prompts.",
        trades=_batched_trade(case, plan)
        if plan
        else "A sooner first token against gaps in the answers of others.",
    )


def _pieces(case: Case, plan: MemoryPlan) -> str:
    steps = math.ceil(plan.max_model_len / plan.max_num_batched_tokens)
    read = case.prefill(plan.max_model_len // 2)
    first = f" One of {read.prompt_tokens:,} is read in {read.seconds} s." if read else ""
    return (
        f"A step reads at most {plan.max_num_batched_tokens:,} tokens of prompts: the longest one"
        f" takes {steps} step{'s' if steps > 1 else ''}.{first}"
    )


def _batched_trade(case: Case, plan: MemoryPlan) -> str:
    double = plan.max_num_batched_tokens * 2
    more = case.plan(max_num_batched_tokens=double)
    room = f"; {double:,} would leave a cache for {at_once(more)}" if more else ""
    return (
        "A sooner first token against gaps in the answers of others, and against room: what a step"
        f" works in grows with it{room}."
    )


def _parallel(case: Case) -> FlagRow:
    ways, plan = case.flags.tensor_parallel_size, case.memory
    there = case.place.count
    each = f", {plan.weights_gib:.2f} GiB of weights on each" if plan else ""
    return FlagRow(
        flag="--tensor-parallel-size",
        value=str(ways),
        default="1",
        differs=ways != 1,
        does=f"The model is spread over {ways} of {there} x {case.device.title}{each}.",
        trades="Room and bandwidth against talk between accelerators in every layer.",
    )


def _eager(case: Case) -> FlagRow:
    if case.device.kind == "cpu":
        return _eager_row(
            case,
            "No graphs are captured on a processor; on, nothing is compiled.",
            "A shorter boot against speed.",
        )
    eager = case.flags.enforce_eager
    without, with_it = case.boot(enforce_eager=True), case.boot(enforce_eager=False)
    gib = _graphs_gib(case.plan(enforce_eager=False))
    does = "Steps run one call at a time." if eager else "Steps run as captured graphs."
    return _eager_row(
        case,
        f"{does} Graphs take {gib:.2f} GiB here." if gib else does,
        f"A shorter boot against speed{_sooner(without, with_it)}; with small batches every"
        " step waits for Python.",
    )


def _eager_row(case: Case, does: str, trades: str) -> FlagRow:
    eager = case.flags.enforce_eager
    return FlagRow(
        flag="--enforce-eager",
        value="on" if eager else "off",
        default="off",
        differs=eager,
        does=does,
        trades=trades,
    )


def _graphs_gib(plan: MemoryPlan | None) -> float:
    parts = plan.parts if plan else ()
    return sum(part.gib.expected for part in parts if part.name == "CUDA graphs")


def _sooner(without: Boot | None, with_it: Boot | None) -> str:
    if without is None or with_it is None:
        return ""
    saved = with_it.seconds.expected - without.seconds.expected
    return f": without graphs and compilation it is about {saved:,.0f} s shorter" if saved else ""


_ACCESS: Final = {
    "private": "Whoever calls shows the engine's key, and what the cloud asks of its own users.",
    "public": "Whoever has the engine's key may call, from anywhere.",
    "internal": "Only the cloud's own network reaches it, and the engine's key is asked for.",
}
_ON_A_SOCKET: Final = "It listens on a unix socket that only its owner reaches, and on no port."
_OTHERS: Final = {
    "image": ("image", "The engine's image in place of the target's own."),
    "network": ("network", "The network that a replica is attached to."),
    "zones": ("zones", "Where a chip is looked for, in this order."),
    "control_plane": ("control_plane", "Who is asked for the chip."),
    "engine": ("engine", "What serves the model."),
    "port": ("port", "Where it listens."),
    "env": ("env", "Variables of the engine's environment."),
    "cpu": ("cpu", "vCPUs of a replica."),
    "memory_gib": ("memory_gib", "GiB of a replica's memory."),
    "launch_stage": ("launch_stage", "The stage of Cloud Run's API that is asked."),
    "build_machine": ("build_machine", "What builds the image."),
    "boot_disk_gb": ("boot_disk_gb", "The VM's disk."),
    "zone_wait_minutes": ("zone_wait_minutes", "How long each zone is waited for."),
}


def running_rows(case: Case) -> Iterator[FlagRow]:
    """Give the rows of replicas, end, callers and weights, and of what else was said."""
    yield _least(case)
    yield _most(case)
    yield _end(case)
    yield _access(case)
    yield _weights(case)
    plain = type(case.spec)(name=case.spec.name, model=case.spec.model)
    for field, (flag, does) in _OTHERS.items():
        said = getattr(case.spec, field)
        if said != getattr(plain, field):
            value = ", ".join(said) if isinstance(said, tuple) else str(said)
            yield FlagRow(
                flag=flag,
                value=value,
                default="the target's own",
                differs=True,
                does=does,
                trades="What is tried here against what you know.",
            )


def cold_start(case: Case) -> str:
    """Say how long the first request after an idle time waits."""
    boot = case.boot()
    return f"{boot.seconds} s" if boot else "nobody can say how long"


def idle_cost(case: Case, replicas: int) -> str:
    """Say what so many replicas cost while nobody asks."""
    hourly, month = case.usd_per_hour, case.month(replicas)
    if not replicas:
        return "nothing"
    if case.place.provider == "own":
        return "nothing, the machine being your own"
    if hourly is None or month is None:
        return "a price that nobody has said"
    return f"{usd(hourly * replicas)}/h, {usd(month)} a month"


def asleep_cost(case: Case) -> str:
    """Say what one that may sleep costs while nobody asks."""
    hourly, stays = case.usd_per_hour, case.stays_seconds
    if stays is None:
        awake = f", and {usd(hourly)}/h until then" if hourly is not None else ""
        return f"nothing once it sleeps{awake}"
    each = f", {usd(hourly * stays / 3600)} each time" if hourly is not None else ""
    return f"nothing once {stays / 60:.0f} min after the last request are over{each}"


def resting_cost(case: Case) -> str:
    """Say what it costs while nobody asks, as it is deployed."""
    least = case.spec.min_replicas
    return idle_cost(case, least) if least else asleep_cost(case)


def ended(case: Case) -> Literal["stopped", "destroyed"]:
    """Say how its bill is ended for certain; of TPUs only Cloud TPU's queue can stop some."""
    stops = case.device.kind != "tpu" or comes_back(case.spec, case.place)
    return "stopped" if stops else "destroyed"


def _least(case: Case) -> FlagRow:
    least, sleeps = case.spec.min_replicas, case.place.scale_to_zero
    return FlagRow(
        flag="min_replicas",
        value=str(least),
        default="0" if sleeps else "1",
        differs=least != (0 if sleeps else 1),
        does=_idle(case),
        trades=_sleep_trade(case, least)
        if sleeps
        else f"There is no scaling to zero: it runs until it is {ended(case)}"
        + ("." if case.place.provider == "own" else ", and is billed for it."),
    )


def _idle(case: Case) -> str:
    if case.spec.min_replicas == 0:
        then = f"the first request then waits {cold_start(case)} for a boot"
    else:
        then = "nobody waits for a boot"
    return f"Idle it costs {resting_cost(case)}; {then}."


def _sleep_trade(case: Case, least: int) -> str:
    if least == 0:
        kept = idle_cost(case, 1)
        return f"Money against the first answer: min_replicas=1 spares the cold start for {kept}."
    return (
        f"The first answer against money: min_replicas=0 costs {asleep_cost(case)}; the first"
        f" answer then waits for a cold start of {cold_start(case)}."
    )


def _most(case: Case) -> FlagRow:
    most, plan = case.spec.max_replicas, case.memory
    costs = f"Costs at most {idle_cost(case, most)} with all of them." if case.usd_per_hour else ""
    each = f" Each holds {at_once(plan)} requests of full length." if plan else ""
    return FlagRow(
        flag="max_replicas",
        value=str(most),
        default="1",
        differs=most != 1,
        does=f"{costs}{each}".strip() or "At most so many run.",
        trades="Money and quota against requests at once; a new one boots while others wait.",
    )


def _end(case: Case) -> FlagRow:
    minutes = case.spec.ttl_minutes
    hourly = case.usd_per_hour
    if not minutes:
        does = "Nothing ends it by itself."
    else:
        most = f", at most {usd(hourly * minutes / 60)} for each replica" if hourly else ""
        does = f"It is ended {minutes:,} minutes after it was made{most}."
    return FlagRow(
        flag="ttl_minutes",
        value=str(minutes) if minutes is not None else "none",
        default="none",
        differs=minutes is not None,
        does=does,
        trades="A forgotten one stops by itself, and so does one that is still needed.",
    )


def _access(case: Case) -> FlagRow:
    return FlagRow(
        flag="access",
        value=case.spec.access,
        default="private",
        differs=case.spec.access != "private",
        does=_reached(case),
        trades="Who can reach it against how easily.",
    )


def _reached(case: Case) -> str:
    if case.place.provider != "own":
        return _ACCESS[case.spec.access]
    return _ON_A_SOCKET if case.spec.access == "internal" else case.place.network


def _weights(case: Case) -> FlagRow:
    boot = case.boot()
    loading = next((one for one in boot.phases if one.name == "weights"), None) if boot else None
    does = f"A boot reads them in {loading.seconds} s." if loading else ""
    return FlagRow(
        flag="weights",
        value=case.spec.weights or case.weights_from,
        default="the Hub, or this machine's folder",
        differs=case.spec.weights not in {None, "hub"},
        does=does or "How long reading them takes, nobody can say here.",
        trades=_faster(case) or "Work beforehand against a shorter boot.",
    )


def _faster(case: Case) -> str:
    """Say what other places for the weights would do to a boot on this provider."""
    other = {"google": ("gcs-streamed", "gcs-fuse", "hub"), "azure": ("azure-files", "hub")}
    places = [one for one in other.get(case.place.provider, ()) if one != case.weights_from]
    if not case.place.scale_to_zero:
        return ""
    found = [(one, case.boot(weights_from=one)) for one in places]
    told = "; ".join(f"from {one} {boot.seconds} s in all" for one, boot in found if boot)
    return f"Work beforehand against a shorter boot: {told}." if told else ""
