"""Write the lists anew: `python -m tests.golden --write`; the diff is for review."""

import sys

import anyio

from tests.golden import PROFILES, file_of, sent, written


async def write() -> None:
    """Write every file."""
    for profile in PROFILES:
        text = written(await sent(profile))
        await anyio.Path(file_of(profile)).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    anyio.run(write)
