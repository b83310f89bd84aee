"""What upstream's own tests say of a model on an accelerator, by release: `upstream.toml`."""

import functools
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from core.records import Record

Implementation = Literal["default", "vllm"]
_FILE: Final = Path(__file__).with_suffix(".toml")


class Mark(Record):
    """What a release's tests say of one model."""

    accelerator: str
    vllm_version: str
    model: str
    """A pattern of its id."""
    implementation: Implementation
    doubt: str
    """Empty where it passes."""
    source: str


@functools.cache
def marks() -> tuple[Mark, ...]:
    """Return every row."""
    rows = tomllib.loads(_FILE.read_text("utf-8"))["marks"]
    return tuple(Mark.model_validate(row) for row in rows)


def upstream_doubts(
    model: str, accelerator: str, vllm_version: str | None, implementation: Implementation
) -> Iterator[str]:
    """Return what upstream's tests leave open of a model, in a sentence.

    >>> list(upstream_doubts("google/gemma-4-E2B-it", "v6e", "0.27.0", "default"))
    []
    """
    wanted = (accelerator, vllm_version, implementation)
    for one in marks():
        asked = (one.accelerator, one.vllm_version, one.implementation)
        if asked == wanted and one.doubt and re.search(one.model, model, re.IGNORECASE):
            yield (
                f"Upstream's tests of tpu-inference {vllm_version} on {accelerator} do not vouch"
                f" for {model}: {one.doubt} ({one.source}). See that it answers well before you pay"
                " for hours of it."
            )
