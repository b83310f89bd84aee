"""The command line of `vllm serve`."""

import pytest

from simulators.engine.flags import human_readable_int, non_default, parse


def test_the_flags_that_operators_use_are_taken() -> None:
    """With vLLM's spellings: underscores, short names, suffixes, `=` and `--no-`."""
    line = (
        "m --max_model_len=8k --kv-cache-memory-bytes 64M -tp 2 --api-key a b --enforce-eager "
        "--no-enable-prefix-caching --served-model-name x y --limit-mm-per-prompt"
    )
    flags = parse([*line.split(), '{"image": 0}'])
    assert (flags.model, flags.max_model_len, flags.kv_cache_memory_bytes) == ("m", 8000, 2**26)
    assert (flags.tensor_parallel_size, flags.api_key) == (2, ["a", "b"])
    assert (flags.enforce_eager, flags.enable_prefix_caching) == (True, False)
    assert (flags.served_model_name, flags.limit_mm_per_prompt) == (["x", "y"], {"image": 0})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--bogus-flag 3", "unrecognized arguments: --bogus-flag 3"),
        ("--max-model-len abc", "argument --max-model-len: invalid"),
        ("--limit-mm-per-prompt {image:0}", "Value {image:0} cannot be converted"),
        ("--dtype int3", "argument --dtype: invalid choice"),
    ],
)
def test_what_vllm_refuses_is_refused(
    flags: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Usage on stderr and status 2."""
    with pytest.raises(SystemExit) as left:
        parse(["m", *flags.split()])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("usage: vllm")
    assert words in said


@pytest.mark.parametrize(
    ("text", "number"), [("1k", 1000), ("1K", 1024), ("25.6k", 25_600), ("2048", 2048)]
)
def test_numbers_may_have_a_suffix(text: str, number: int) -> None:
    """A capital one counts in powers of 1024."""
    assert human_readable_int(text) == number


def test_auto_length_is_minus_one() -> None:
    """In either spelling."""
    assert parse(["m", "--max-model-len", "auto"]).max_model_len == -1


def test_the_key_is_not_told() -> None:
    """What the log shows of the flags has stars in its place."""
    told = non_default(parse(["m", "--api-key", "secret-key", "--port", "9"]))
    assert told == {"model_tag": "m", "model": "m", "api_key": "***", "port": 9}
