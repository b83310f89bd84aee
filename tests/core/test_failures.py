"""The catalogue of failures."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.failures import catalogue, died_of, evidence, recognize
from core.logfile import head_lines

SEEN = [
    (
        "PORT_IN_USE",
        "OSError: [Errno 98] Address already in use",
        "Another process",
    ),
    (
        "PORT_IN_USE",
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): "
        "address already in use",
        "Another process",
    ),
    (
        "MM_JSON_LOST_QUOTES",
        "vllm serve: error: argument --limit-mm-per-prompt: Value {image:0,audio:0} cannot be "
        "converted to <function loads at 0x7f0000000000>.",
        "{image:0,audio:0}",
    ),
    (
        "BAD_ENGINE_ARGUMENT",
        "vllm serve: error: unrecognized arguments: --no-such-flag",
        "unrecognized arguments: --no-such-flag",
    ),
    (
        "BAD_ENGINE_ARGUMENT",
        "vllm: error: argument --max-num-seqs: invalid int value: 'many'",
        "--max-num-seqs",
    ),
    (
        "DOES_NOT_FIT",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.62 GiB. GPU 0 has a total "
        "capacity of 21.96 GiB of which 2.15 GiB is free.",
        "2.62 GiB",
    ),
    (
        "KV_CACHE_TOO_SMALL",
        "ValueError: To serve at least one request with the model's max seq len (131072), (8.5 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (2.17 GiB). Based "
        "on the available memory, the estimated maximum model length is 33312.",
        "131072 tokens needs 8.5 GiB of KV cache and there are 2.17 GiB",
    ),
    (
        "KV_CACHE_TOO_SMALL",
        "ValueError: To serve at least one request with the models's max seq len (8,192), 1.0 GiB "
        "KV cache is needed, which is larger than the available KV cache memory (0.5 GiB).",
        "8,192 tokens needs 1.0 GiB",
    ),
    (
        "KV_CACHE_TOO_SMALL",
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine.",
        "Nothing is left",
    ),
    (
        "MAX_MODEL_LEN_TOO_LONG",
        "  Value error, User-specified max_model_len (9999) is greater than the derived "
        "max_model_len (max_position_embeddings=4096 or model_max_length=None in model's "
        "config.json).",
        "9999",
    ),
    (
        "MM_BATCH_TOO_SMALL",
        "ValueError: Chunked MM input disabled but max_tokens_per_mm_item (2496) is larger than "
        "max_num_batched_tokens (2048). Please increase max_num_batched_tokens.",
        "2496",
    ),
    (
        "TPU_PROGRAM_DOES_NOT_FIT",
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU runtime "
        "RuntimeProgramAllocationFailure: Error loading program 'jit_step_fun': Attempting to "
        "reserve 384.11M at the bottom of memory. There are 346.77M free.",
        "A compiled program",
    ),
    (
        "TPU_HBM_EXCEEDED",
        "RESOURCE_EXHAUSTED: HLO temporaries (16.23G) exceeds available HBM (15.75G)",
        "16.23G of temporaries and there are 15.75G",
    ),
    (
        "NO_KERNEL_FOR_QUANTIZATION",
        "ValueError: Failed to find a kernel that can implement the WNA16 linear layer. Reasons:",
        "WNA16",
    ),
    (
        "SHARED_MEMORY_TOO_SMALL",
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 98304, "
        "Hardware limit: 65536. Reducing block sizes or `num_stages` may help.",
        "98304",
    ),
    (
        "VERSION_MISMATCH",
        "transformers.configuration_utils.AmbiguousGlobalPerLayerAttributeError: 'head_dim' is a "
        "per-layer attribute",
        "transformers",
    ),
    (
        "MODEL_GATED",
        "Cannot access gated repo for url https://huggingface.co/google/gemma-4-31B-it/resolve/"
        "main/config.json.",
        "gated",
    ),
    (
        "MODEL_NOT_FOUND",
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.",
        "no such model",
    ),
    (
        "MODEL_NOT_FOUND",
        "OSError: nosuch is not a local folder and is not a valid model identifier listed on 'hub'",
        "no such model",
    ),
    (
        "HUB_UNREACHABLE",
        "huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached "
        "snapshot folder and outgoing traffic has been disabled.",
        "cannot be reached",
    ),
    ("DISK_FULL", "OSError: [Errno 28] No space left on device: '/root/.cache/x'", "full"),
    ("NO_ACCELERATOR", "RuntimeError: Failed to infer device type", "no accelerator"),
    (
        "ENGINE_CORE_DIED",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
        "proc(s): {}",
        "core process",
    ),
    (
        "ENGINE_CORE_DIED",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
        "trace (above) for the root cause.",
        "core process",
    ),
]
"""Code, a line that was seen (facts/earlier-servers.md §2, vLLM's own sources), words of ours."""


@pytest.mark.parametrize(("code", "line", "words"), SEEN)
def test_a_line_that_was_seen_is_recognized(code: str, line: str, words: str) -> None:
    """Each known failure gets its code, and the figures of the line stand in the cause."""
    failure = recognize(["INFO something before", f"\x1b[31m{line}\x1b[0m", "INFO after"])
    assert failure is not None
    assert failure.code == code
    assert words in failure.cause
    assert failure.fix
    assert failure.evidence[0] == line.strip()[:400]


def test_every_entry_has_a_line_that_it_recognizes() -> None:
    """No entry stands there untested, and none hides behind an earlier one."""
    hit = set()
    for _, line, _ in SEEN:
        hit.add(next(entry for entry in catalogue() if re.search(entry.pattern, line)).pattern)
    assert {entry.pattern for entry in catalogue()} == hit


def test_a_healthy_boot_is_no_failure(real_log: Path) -> None:
    """None of the catalogue's wordings occurs when all is well, the shut-down included."""
    assert recognize(list(head_lines(real_log))) is None


@pytest.mark.parametrize("entry", catalogue(), ids=lambda entry: entry.code)
def test_the_placeholders_of_an_entry_are_groups_of_its_pattern(entry: object) -> None:
    """Cause and fix can always be filled, also by groups that took no part."""
    assert entry in catalogue()
    names = dict.fromkeys(re.compile(getattr(entry, "pattern")).groupindex, "{x}")  # noqa: B009
    for text in (getattr(entry, "cause"), getattr(entry, "fix")):  # noqa: B009
        assert text.format(**names)


def test_what_the_line_leaves_out_is_said_to_be_left_out() -> None:
    """An older wording without the longest possible length."""
    line = "max seq len (8192), 1.0 GiB KV cache is needed, which is larger than the available"
    failure = recognize([f"{line} KV cache memory (0.5 GiB)"])
    assert failure is not None
    assert "not said" in failure.fix


@given(st.text())
def test_the_words_of_a_log_are_never_read_as_a_format(words: str) -> None:
    """Braces and percent signs in an engine's words stay what they are."""
    line = f"vllm serve: error: {{0}} {{words}} {words}".splitlines()[0]
    failure = recognize([line])
    assert failure is not None
    assert "{0} {words}" in failure.cause


def test_the_first_entry_wins_over_the_first_line() -> None:
    """A cause is told before the core process that died of it, wherever it stands."""
    lines = ["Engine core initialization failed", "torch.OutOfMemoryError: CUDA out of memory. "
             "Tried to allocate 20.00 MiB."]  # fmt: skip
    failure = recognize(lines)
    assert failure is not None
    assert failure.code == "DOES_NOT_FIT"


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
