"""`server.py doctor`: what is missing on this machine, and what to do about it."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Final

from operations.doctor import Finding, Report, examined

_HTTP_PORT: Final = 8765
"""That of `server.py --http`."""
_WIDTHS: Final = (8, 28)


def examine(arguments: Sequence[str]) -> int:
    """Print what was found; the exit status is 0 where nothing that is needed fails."""
    parser = argparse.ArgumentParser(
        prog="server.py doctor", description="Look at this machine; change nothing."
    )
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    options = parser.parse_args(arguments)
    report = examined(_HTTP_PORT)
    print(_json(report) if options.json else _table(report))
    status = 0 if report.ok else 1
    if not report.finished:
        sys.stdout.flush()
        os._exit(status)  # libraries' own threads may hang, and the end would wait for them
    return status


def _table(report: Report) -> str:
    return "\n".join((*(_row(one) for one in report.findings), "", report.summary()))


def _row(one: Finding) -> str:
    state, name = _WIDTHS
    todo = f"\n{'':{state}} → {one.fix}" if one.fix else ""
    return f"{one.verdict:{state}} {one.about:{name}} {one.detail}{todo}"


def _json(report: Report) -> str:
    rows = [one.model_dump(mode="json") for one in report.findings]
    return json.dumps({"ok": report.ok, "summary": report.summary(), "findings": rows}, indent=1)
