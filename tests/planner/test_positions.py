"""How long a model can be, as its configuration is overridden."""

import pytest

from core.errors import InvalidArgument
from core.records import ModelShape
from planner.flags import Flags, engine_flags, positions
from planner.model import read_model

_OWN = 131_072


def _model() -> ModelShape:
    return read_model("google/gemma-4-E4B-it")


@pytest.mark.parametrize(
    ("words", "most"),
    [
        ([], _OWN),
        (["--hf-overrides={}"], _OWN),
        (["--hf-overrides", '{"architectures": ["X"]}'], _OWN),
        (["--hf-overrides", '{"max_position_embeddings": 500000}'], 500_000),
        (["--hf_overrides", '{"text_config": {"max_position_embeddings": 4096}}'], 4096),
        (["--hf-overrides.max_position_embeddings=500000"], 500_000),
        (["--hf-overrides.text_config.max_position_embeddings", "500k"], 500_000),
        (["--hf-overrides.max-position-embeddings=500000"], _OWN),
        (["--hf-overrides", '{"rope_scaling": {"factor": 2}}'], None),
        (["--hf-overrides.text_config.rope_parameters.factor=2"], None),
        (["--hf-overrides.max_position_embeddings=9000", "--hf-overrides.rope_theta=1"], None),
        (["--hf-overrides", '{"max_position_embeddings": 9000}', "--hf-overrides={}"], _OWN),
        (["--hf-overrides.max_position_embeddings=9000", "--hf-overrides={}"], 9000),
        (["--hf-overrides", '{"max_position_embeddings": "x"}'], _OWN),
    ],
)
def test_only_what_names_a_length_changes_it(words: list[str], most: int | None) -> None:
    """The last JSON counts, and dotted keys come behind it, as vLLM's parser has them."""
    flags = Flags.model_validate(engine_flags(words))
    assert positions(_model(), flags) == most


@pytest.mark.parametrize(
    "word", ["--hf-overrides=nonsense", "--hf-overrides=[1]", "--hf-overrides"]
)
def test_what_overrides_nothing_is_refused(word: str) -> None:
    """The engine would not start with it."""
    with pytest.raises(InvalidArgument, match="--hf-overrides"):
        engine_flags([word])
