"""Why what wrote a log ended: `python -m logs find FILE... [--writer WRITER] [--json]`.

No deployment is needed, and nothing is asked of any cloud. Each file is judged by itself; `-` is
standard input. Plain text, JSON lines and exports of Cloud Logging or Log Analytics are read.

Exit status: 0 where nothing is wrong in any file, 1 where something is in one, 2 for a call that
is not understood or a file that cannot be read or holds no text.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any, Final

from core.redaction import printable, redact
from logs.failures import WRITERS, Writer
from logs.read import entry, shipped
from logs.reduce import mask
from logs.verdict import Judge, Verdict

_LINE_BYTES: Final = 16 * 1024
"""Of a line; what it says of itself stands at its beginning."""
_EXPORT_BYTES: Final = 256 * 1024 * 1024
_SILENT_SECONDS: Final = 5.0
"""Of reading, between two words of how far it is."""
_NO_TEXT: Final = (
    b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"\xff\xfe", b"\xfe\xff"
)  # fmt: skip
"""How gzip, zip, zstd, xz, bzip2 and UTF-16 begin."""
_BEGIN_LINES: Final = 2_000
_LOOKED_AT: Final = 200
"""Characters of a line by which text is told from bytes."""
_ODD_SHARE: Final = 0.1
"""Of lines that may be text by chance."""
_EMPTY: Final = "it holds no line of text, so it does not show whether anything is wrong"
_BEGIN_BYTES: Final = 256 * 1024
"""Of a log's beginning, by which its writer is known."""
_SIGNS: Final[tuple[tuple[Writer, tuple[str, ...]], ...]] = (
    ("cloud_run", ("cloud_run_revision", "run.googleapis.com%2F")),
    ("aca", ("ContainerAppName", "ContainerAppConsoleLogs", "ContainerAppController")),
    ("tpu", ("google_metadata_script_runner", "tpu.googleapis.com", "vllm-devops: ")),
    ("ollama", ("source=routes.go", "llama_model_load", "ollama", "level=INFO source=")),
)  # fmt: skip
_SYSTEM_ROWS: Final = ('"TimeStamp"', '"Type"', '"Msg"', '"Reason"')
"""Names that together only Container Apps' system log has."""
Written = tuple[int, str, str]
"""A line's number, its text, and the platform where that wrote it."""


def main(arguments: list[str] | None = None) -> int:
    """Judge the files that are named and print what each says; return the exit status."""
    given = _parser().parse_args(arguments)
    status = 0
    for name in given.files:
        try:
            row = find(name, given.writer)
        except (OSError, ValueError) as exc:
            sys.stderr.write(f"{printable(name)}: cannot be read: {printable(str(exc))}\n")
            status = 2
            continue
        sys.stdout.write(f"{json.dumps(row) if given.json else _text(row)}\n")
        status = max(status, int(row["code"] is not None))
    return status


def find(name: str, writer: Writer | None = None) -> dict[str, Any]:
    """Return what one log says: code, cause, fix and line, or that nothing is wrong.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is an export that is no JSON, or too large; or holds no line of text.
    """
    with nullcontext(sys.stdin.buffer) if name == "-" else Path(name).open("rb") as file:
        lines, begin = _lines(file)
        writer = writer or _guessed(begin)
        judge, told = Judge(writer, mixed=True), time.monotonic()
        for number, text, platform in lines:
            judge.take(text, number, platform)
            if time.monotonic() - told > _SILENT_SECONDS:
                told = time.monotonic()
                sys.stderr.write(f"{printable(name)}: {judge.lines:,} lines are read.\n")
    if not judge.lines:
        raise ValueError(_EMPTY)
    return {
        "file": printable(name),
        "writer": writer,
        "lines": judge.lines,
        **_row(judge.verdict()),
    }


def _row(verdict: Verdict | None) -> dict[str, Any]:
    if verdict is None:
        return dict.fromkeys(("code", "cause", "fix", "line", "number", "level")) | {"evidence": []}
    failure = verdict.failure
    row = {
        "code": failure.code,
        "cause": _safe(failure.cause),
        "fix": _safe(failure.fix),
        "line": _safe(verdict.line),
        "number": verdict.number,
        "level": verdict.level,
        "rank": verdict.rank,
        "known_to": verdict.writer,
        "evidence": [_safe(one) for one in failure.evidence],
    }
    return {**row, "search": _safe(verdict.search)} if verdict.search else row


def _safe(text: str) -> str:
    return mask(redact(printable(text)))


def _text(row: dict[str, Any]) -> str:
    if row["code"] is None:
        return f"{row['file']}: nothing is wrong in {row['lines']} lines."
    lines = [
        f"{row['file']}: {row['code']}: {row['cause']}",
        f"  Fix: {row['fix']}",
        f"  Line {row['number']} ({row['level']}): {row['line']}",
    ]
    others = [one for one in row["evidence"] if one not in row["line"]]
    return "\n".join([*lines, *(f"  Beside it: {one}" for one in others)])


def _lines(file: IO[bytes]) -> tuple[Iterable[Written], str]:
    """Return the lines, and the text at their beginning."""
    first = file.readline(_LINE_BYTES)
    while first and not first.strip():
        first = file.readline(_LINE_BYTES)
    if first.startswith(_NO_TEXT):
        raise ValueError(
            "it is compressed or UTF-16; unpack it (zcat, zstdcat) or save it as UTF-8"
        )
    if first.strip() == b"[" or first.lstrip().startswith(b"[{"):
        raw = first + file.read(_EXPORT_BYTES)
        return _exported(raw), raw[:_BEGIN_BYTES].decode(errors="replace")
    lines = _written(first, file)
    begin = list(islice(lines, _BEGIN_LINES))
    if sum(_is_text(text) for _, text, _ in begin) <= _ODD_SHARE * len(begin):
        raise ValueError(_EMPTY)
    stamps = [at for _, text, _ in begin if text[:1] == "{" and (at := shipped(text).at)]
    lines = chain(begin, lines)
    if stamps and stamps[0] > stamps[-1]:
        lines = _backwards(lines)
    return lines, "\n".join(text for _, text, _ in begin)


def _is_text(line: str) -> bool:
    """Whether a line has letters, and hardly a sign that no text has."""
    begin = line[:_LOOKED_AT]
    odd = sum(not (one.isprintable() or one in "\t\x1b") or one == "\ufffd" for one in begin)
    return 10 * odd <= len(begin) and any(map(str.isalpha, begin))


def _backwards(lines: Iterable[Written]) -> Iterator[Written]:
    """Give JSON lines that stand newest first in the order in which they were written."""
    kept: list[Written] = []
    size = 0
    for line in lines:
        kept.append(line)
        size += len(line[1])
        if size >= _EXPORT_BYTES:
            raise ValueError("it is newest first and larger than 256 MiB; export the oldest first")
    return reversed(kept)


def _written(line: bytes, file: IO[bytes]) -> Iterator[Written]:
    """Give each line, of one that is too long its beginning."""
    number = 1
    while line:
        for part in line.decode(errors="replace").rstrip("\n").split("\r"):
            yield number, part, ""
        while len(line) == _LINE_BYTES and not line.endswith(b"\n"):
            line = file.readline(_LINE_BYTES)
        line = file.readline(_LINE_BYTES)
        number += 1


def _exported(raw: bytes) -> Iterator[Written]:
    """Give the entries of an export in the order of time; clouds give the newest first."""
    if len(raw) >= _EXPORT_BYTES:
        raise ValueError("the export is larger than 256 MiB; export less, or JSON lines")
    try:
        rows = json.loads(raw)
    except RecursionError as exc:
        raise ValueError("the export is nested too deeply") from exc
    found = [(one.at, number, one) for number, one in _entries(rows)]
    if all(at for at, _, _ in found):
        if found and found[0][0] > found[-1][0]:
            found.reverse()  # or what has one time would stay as it is
        found.sort(key=lambda row: row[0])
    for _, number, one in found:
        yield number, one.text, one.platform


def _entries(rows: Any) -> Iterator[tuple[int, Any]]:
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict) and (one := entry(row)):
            yield number, one


def _guessed(begin: str) -> Writer:
    """Say whose log it is by words that only its writer has; vLLM's where nobody's are there."""
    if all(name in begin for name in _SYSTEM_ROWS):
        return "aca"
    return next((by for by, words in _SIGNS if any(word in begin for word in words)), "engine")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m logs", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True, metavar="find")
    command = commands.add_parser("find", help="say why what wrote a log ended")
    command.add_argument("files", nargs="+", metavar="FILE", help="a log; - is standard input")
    command.add_argument(
        "--writer", choices=WRITERS, help="whose log it is (default: by its words)"
    )
    command.add_argument("--json", action="store_true", help="one JSON object a line for each file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
