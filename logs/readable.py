"""A line made fit to keep: of bounded length, of printable characters, no secret cut in half."""

from typing import Final

from core.foreign import printable, shortened

LONGEST: Final = 2_000
"""Characters of a line that count; vLLM's longest, its configuration, has some 3,000."""
_LOOKED_AT: Final = 4 * LONGEST
"""Colours and control characters are not yet out of it."""


def readable(text: str) -> tuple[str, bool]:
    r"""Give the line in printable characters, and whether it was too long to be kept whole.

    >>> readable("a\x1b[31m red\u202e line\ud800")
    ('a red line\ufffd', False)
    """
    looked_at = shortened(text, _LOOKED_AT)
    text = printable(looked_at)
    kept = shortened(text, LONGEST)
    return kept, len(looked_at) > _LOOKED_AT or kept is not text
