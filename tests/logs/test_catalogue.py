"""The catalogue of failures."""

import functools
import re
from collections.abc import Sequence
from string import Formatter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs.failures import (
    LINE_CHARACTERS,
    RANKS,
    WRITERS,
    Pattern,
    Writer,
    advised,
    asked_words,
    catalogue,
    meaning,
)
from logs.read import gravity
from logs.verdict import UNKNOWN_CAUSE, Judge, Verdict, died_of, evidence, recognize
from tests.logs.failures import SEEN, Seen

ENDING = {"destroy_vllm", "stop_vllm", "destroy_queued_resource", "stop_azure_vm"}


def judged(lines: Sequence[str], writer: Writer) -> Verdict | None:
    """Judge lines of which nobody says whether the engine or its platform wrote them."""
    judge = Judge(writer, mixed=True)
    judge.feed(lines)
    return judge.verdict()


@functools.cache
def seen_by(writer: Writer) -> list[tuple[Seen, Pattern]]:
    """Give each line that was seen of a writer, and the entry that it fits."""
    lines = [(seen, meaning(writer, seen.line)) for seen in SEEN if seen.writer == writer]
    assert [seen.line for seen, entry in lines if entry is None or entry.code != seen.code] == []
    return [(seen, entry) for seen, entry in lines if entry]


def is_told(seen: Seen, verdict: Verdict | None) -> bool:
    """Whether a verdict on the second line of a log has its code, words and evidence."""
    return (
        verdict is not None
        and (verdict.failure.code, verdict.number) == (seen.code, 2)
        and seen.words in verdict.failure.cause
        and bool(verdict.failure.fix)
        and verdict.failure.evidence[0] in seen.line
    )


@pytest.mark.parametrize("writer", WRITERS)
def test_a_line_that_was_seen_is_recognized(writer: Writer) -> None:
    """Each known failure gets its code, and the figures of the line stand in the cause."""
    missed = []
    for seen, entry in seen_by(writer):
        verdict = judged(["INFO before", f"\x1b[31m{seen.line}\x1b[0m", "INFO after"], writer)
        # A warning that calls itself news ended nothing.
        quiet = entry.rank == "warning" and gravity(seen.line)[:2] == ("info", True)
        if not (verdict is None if quiet else is_told(seen, verdict)):
            missed.append((seen.line, verdict))
    assert missed == []


@pytest.mark.parametrize("writer", WRITERS)
def test_every_entry_has_a_line_that_it_recognizes(writer: Writer) -> None:
    """No entry stands there untested, and none hides behind an earlier one."""
    hit = {entry.pattern for _, entry in seen_by(writer)}
    assert {entry.pattern for entry in catalogue(writer)} == hit


@pytest.mark.parametrize("writer", WRITERS)
def test_a_cloud_that_is_asked_for_words_sends_every_line_that_counts(writer: Writer) -> None:
    """One of those asked for stands in it, and so does a hint of the entry itself."""
    lost = [
        seen.line
        for seen, entry in seen_by(writer)
        for low in [seen.line.lower()]
        if not any(word in low for word in entry.hints)
        or not any(word in low for word in asked_words(writer))
    ]
    assert lost == []


def faults(entry: Pattern, writer: Writer) -> list[str]:
    """Name what an entry lacks, or has and must not."""
    names = dict.fromkeys(re.compile(entry.pattern).groupindex, "{x}")
    arguments = [str(value) for step in entry.next for value in step.arguments.values()]
    texts = [entry.cause, entry.fix, *arguments, *(advised(entry, by).fix for by in WRITERS)]
    words = {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}
    rules = {
        "hints are words in lower case": entry.hints
        and all(word == word.lower() and len(word) > 1 for word in entry.hints),
        "a short fix": 0 < len(entry.fix) <= 420,
        "where it was seen": re.search(r"\d|Linux|Python", entry.seen),
        "a tool that ends nothing": entry.next and not ENDING & {one.tool for one in entry.next},
        "placeholders are groups of its pattern": words <= set(names),
        "its platform's own advice": advised(entry, writer) is entry,
        "says how far it looks": not re.search(r"(?<!\\)\.[*+]", entry.pattern),
    }
    return [rule for rule, kept in rules.items() if not kept]


@pytest.mark.parametrize("writer", WRITERS)
def test_an_entry_says_all_that_is_wanted_of_it(writer: Writer) -> None:
    """Cause, fix and arguments can be filled, also with a platform's advice for its engine's line;
    one that takes any number of any characters would try a number of ways that is squared.
    """
    found = {entry.pattern: faults(entry, writer) for entry in catalogue(writer)}
    assert {pattern: lacks for pattern, lacks in found.items() if lacks} == {}


def test_each_refusal_of_one_code_keeps_its_own_advice() -> None:
    """Two limits of Azure: processors of a region, and environments of a subscription."""
    lines = ("Maximum Allowed Cores exceeded for the Managed Environment",
             "The subscription 's' cannot have more than 1 environments.")  # fmt: skip
    told = [judged([line], "aca") for line in lines]
    assert [one.failure.code for one in told if one] == ["QUOTA_EXCEEDED"] * 2
    assert len({one.failure.fix for one in told if one}) == 2


def test_no_engine_on_a_tpu_fails_of_what_only_cards_have() -> None:
    """What is said of a card's kernels names one there, and on a TPU the line itself."""
    line = "ValueError: FlashAttention only supports Ampere GPUs or newer."
    told = [judged([line], writer) for writer in ("engine", "tpu")]
    assert [one.failure.code for one in told if one] == [
        "NO_KERNEL_FOR_ACCELERATOR",
        UNKNOWN_CAUSE,
    ]


def test_causes_stand_before_what_comes_of_them() -> None:
    """So that the first entry that fits a dead engine's log is a mere result only without any."""
    ranks = [RANKS.index(entry.rank) for entry in catalogue()]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2, 3}


KV = (
    "max seq len (131,072), 8.5 GiB KV cache is needed, which is larger than the available KV cache"
)
MM = "Chunked MM input disabled but max_tokens_per_mm_item (2496) is larger than"


@pytest.mark.parametrize(
    ("line", "tool", "arguments"),
    [
        (
            f"{KV} memory (2.17 GiB). The estimated maximum model length is 33,312.",
            "deploy_vllm",
            {"max_model_len": 33312},
        ),
        (f"{KV} memory (0.5 GiB).", "deploy_vllm", {}),
        (f"{MM} max_num_batched_tokens (2048).", "deploy_vllm", {"max_num_batched_tokens": 2496}),
    ],
)
def test_the_next_call_has_the_figures_of_the_line(
    line: str, tool: str, arguments: dict[str, int]
) -> None:
    """As numbers; what the line does not say is left out."""
    failure = recognize([line])
    assert failure is not None
    step = next(step for step in failure.next if step.tool == tool)
    assert dict(step.arguments) == arguments


def test_no_word_of_a_log_becomes_an_argument() -> None:
    """Only digits pass: a line can say whatever somebody wants a tool to be called with."""
    line = "max seq len (9), 1 GiB KV cache is needed, which is larger than the available KV cache"
    failure = recognize([f"{line} memory (0 GiB), estimated maximum model length is {'9' * 40}"])
    assert failure is not None
    assert [dict(step.arguments) for step in failure.next] == [{}, {}]


def test_what_the_line_leaves_out_is_left_out_of_the_fix() -> None:
    """An older wording without the longest possible length."""
    line = "max seq len (8192), 1.0 GiB KV cache is needed, which is larger than the available"
    failure = recognize([f"{line} KV cache memory (0.5 GiB)"])
    assert failure is not None
    assert failure.fix.startswith("Lower max_model_len, or")


@given(st.text())
def test_the_words_of_a_log_are_never_read_as_a_format(words: str) -> None:
    """Braces and percent signs in an engine's words stay what they are."""
    line = f"vllm serve: error: {{0}} {{words}} {words}".splitlines()[0]
    failure = recognize([line])
    assert failure is not None
    assert "{0} {words}" in failure.cause


def test_the_first_entry_wins_over_the_first_line() -> None:
    """A cause is told before the core process that died of it, wherever it stands."""
    lines = ["Engine core initialization failed", ("torch.OutOfMemoryError: CUDA out of memory. "
             "Tried to allocate 20.00 MiB.")]  # fmt: skip
    failure = recognize(lines)
    assert failure is not None
    assert failure.code == "DOES_NOT_FIT"


def test_what_stands_behind_the_cut_is_not_looked_at() -> None:
    """A line of a megabyte costs no more than its beginning."""
    line = " No space left on device"
    assert recognize(["x" * (LINE_CHARACTERS - len(line)) + line]) is not None
    assert recognize(["x" * LINE_CHARACTERS + line]) is None
    assert meaning("engine", "x" * LINE_CHARACTERS + line) is None


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (-9, "KILLED", "signal 9 (often the kernel"),
        (-11, "KILLED", "signal 11"),
        (-15, "KILLED", "signal 15"),
        (0, "ENGINE_EXITED", "exit status 0"),
        (1, "ENGINE_EXITED", "exit status 1"),
        (None, "ENGINE_GONE", ""),
    ],
)
def test_an_unknown_death_is_told_by_its_status(status: int | None, code: str, words: str) -> None:
    """Signal, exit status, or that nobody saw it; with the last lines as evidence."""
    failure = died_of(status, ["one", "", "two"])
    assert (failure.code, failure.evidence) == (code, ("one", "two"))
    assert words in failure.cause


def test_a_known_cause_is_told_before_the_signal() -> None:
    """What the engine wrote says more than how it ended."""
    assert died_of(-9, ["No space left on device"]).code == "DISK_FULL"


def test_the_evidence_is_the_last_lines_that_say_anything() -> None:
    """Twelve, newest last, cut and without colours."""
    lines = [f"\x1b[1mline {n}\x1b[0m  " for n in range(20)] + ["", "   ", "x" * 1000]
    found = evidence(lines)
    assert found[:-1] == tuple(f"line {n}" for n in range(9, 20))
    assert found[-1] == "x" * 400


HUB = "https://huggingface.co"
REFUSED = (
    f"requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: {HUB}/a/b/resolve"
)
PRIVATE = "If you are trying to access a private or gated repo, make sure you are authenticated."


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([REFUSED, f"Repository Not Found for url: {HUB}/a/b.", PRIVATE], "MODEL_NOT_FOUND"),
        ([REFUSED, f"Cannot access gated repo for url {HUB}/a/b."], "MODEL_GATED"),
        ([REFUSED, "HfHubHTTPError: Invalid credentials in Authorization header"],
         "HUB_TOKEN_REFUSED"),
    ],
)  # fmt: skip
def test_the_three_refusals_of_the_hub_are_told_apart(lines: list[str], code: str) -> None:
    """It answers 401 to all: for a model that is not there, a gated one, and a token it refuses."""
    failure = recognize(lines)
    assert failure is not None
    assert failure.code == code


def test_a_file_that_is_not_there_is_no_model_that_is_not_there() -> None:
    """Engines look for files that a model need not have."""
    url = f"{HUB}/a/b/resolve/main/generation_config.json"
    assert recognize([f"404 Client Error: Not Found for url: {url}"]) is None


def test_an_entry_of_few_wordings_keeps_its_own_advice_on_a_platform() -> None:
    """A container without its toolkit is no card whose devices a user may not open."""
    lacks = 'could not select device driver "nvidia" with capabilities: [[gpu]]'
    of_engine = meaning("engine", lacks)
    verdict = judged([f"Error response from daemon: {lacks}"], "ollama")
    assert verdict
    assert of_engine
    assert verdict.failure.fix == of_engine.fix
    at_large = meaning("engine", "OSError: [Errno 28] No space left on device: '/data/x'")
    assert at_large
    assert "OLLAMA_MODELS" in advised(at_large, "ollama").fix
