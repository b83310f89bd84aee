"""The flags that say how requests share an engine: what each does here, and what it trades."""

import math
from collections.abc import Iterator
from typing import Final

from core.records import MemoryPlan
from operations.explaining.case import Case, at_once
from operations.explaining.records import FlagRow
from operations.explaining.spec_words import rest
from planner.boot import Boot
from planner.flags import defaults

_UNKNOWN: Final = "not known here"
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
        does, trades = _MEANS.get(flag, ("Passed on to vLLM as it is.", _UNKNOWN))
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
        value=_UNKNOWN if value is None else str(value),
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
        value=_UNKNOWN if value is None else f"{value:,}",
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
