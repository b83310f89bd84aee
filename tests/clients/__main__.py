"""`make clients`: every client at our server, in one table; `--write` puts it into docs."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import anyio

from tests import readme
from tests.clients.matrix import HEADS, WAYS, Result, Way, run
from tests.listing import listing


def _main() -> int:
    options = _parser().parse_args()
    chosen = _chosen(options.client)
    with tempfile.TemporaryDirectory(prefix="clients-") as folder:
        results = anyio.run(_all, chosen, Path(folder))
    wrong = [one for one in results if one.wrong and not (one.missing and options.allow_missing)]
    _say(results)
    if options.write and len(chosen) == len(WAYS) and not any(one.wrong for one in results):
        readme.write("clients", markdown(results))
    return 1 if wrong else 0


async def _all(ways: Sequence[Way], folder: Path) -> list[Result]:
    names = [tool.name for tool in await listing()]
    return await run(ways, names, folder)


def markdown(results: Sequence[Result]) -> str:
    """Return the table as docs/clients.md has it."""
    head, *rows = (f"| {' | '.join(row)} |" for row in (HEADS, *(one.cells() for one in results)))
    return "\n".join([head, "|---" * len(HEADS) + "|", *rows])


def _say(results: Sequence[Result]) -> None:
    rows = [(*HEADS, "seconds"), *((*one.cells(), f"{one.seconds:.0f}") for one in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    for one in results:
        for said in one.wrong:
            print(f"\n{one.way.title}: {said}", file=sys.stderr)
    good = sum(not one.wrong for one in results)
    print(f"\n{good} of {len(results)} clients as they should be.")


def _chosen(beginnings: Sequence[str]) -> list[Way]:
    said = tuple(one.lower() for one in beginnings)
    found = [way for way in WAYS if not said or way.title.lower().startswith(said)]
    if not found:
        sys.exit(f"There are: {', '.join(way.title for way in WAYS)}.")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("client", nargs="*", help="only those whose name begins so")
    parser.add_argument(
        "--allow-missing", action="store_true", help="a client that cannot be installed is no fault"
    )
    parser.add_argument(
        "--write", action="store_true", help="write docs' table, if all is as it should be"
    )
    return parser


if __name__ == "__main__":
    sys.exit(_main())
