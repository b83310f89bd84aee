"""Bytes of a file as Azure Storage gives them: all, or those that a header names."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from starlette.responses import Response

from emulators.azure.storage_accounts_serving import http_date, refused

_RANGE: Final = re.compile(r"^bytes=(\d+)-(\d*)$")


def range_of(headers: Mapping[str, str]) -> tuple[int, int | None] | None:
    """Give first and last byte that are asked for; None is all of them, or up to the end.

    Raises:
        Refused: It is none that can be read.
    """
    named = headers.get("x-ms-range") or headers.get("range")
    if not named:
        return None
    found = _RANGE.match(named)
    if not found:
        raise refused(400, "InvalidHeaderValue")
    return int(found.group(1)), int(found.group(2)) if found.group(2) else None


def downloaded(file: Path, headers: Mapping[str, str], told: Mapping[str, str]) -> Response:
    """Give what is asked for of a file; `told` are more headers.

    Raises:
        Refused: The range begins beyond the end.
    """
    asked, size = range_of(headers), file.stat().st_size
    own = {**described(file), **told}
    if asked is None:
        return Response(file.read_bytes(), headers=own, media_type="application/octet-stream")
    first, last = asked
    if first >= size:
        raise refused(416, "InvalidRange")
    last = min(size - 1 if last is None else last, size - 1)
    with file.open("rb") as stream:
        stream.seek(first)
        content = stream.read(last - first + 1)
    own["Content-Range"] = f"bytes {first}-{last}/{size}"
    return Response(content, 206, headers=own, media_type="application/octet-stream")


def described(path: Path) -> dict[str, str]:
    """Give the headers that tell when something was changed."""
    seen = path.stat()
    return {
        "ETag": f'"0x{seen.st_mtime_ns:X}"',
        "Last-Modified": http_date(seen.st_mtime),
        "Accept-Ranges": "bytes",
    }
