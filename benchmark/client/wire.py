"""Whole requests as they go onto the wire."""

from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from benchmark.client.shares import Share
from benchmark.workload.prompts import bodies
from core.records import HTTP, IDENTITY_HEADER, KEY_HEADER, socket_of

_HEADERS: Final = (KEY_HEADER.lower().encode(), IDENTITY_HEADER.lower().encode())
"""Of the lines of a credential's file."""


class Wire:
    """Makes the bytes of the request with a number; the credential is the newest there is."""

    def __init__(self, share: Share) -> None:
        self._body: Callable[[int], bytes] = bodies(
            share,
            context=share.context,
            model=share.model,
            token_ids=share.token_ids,
            words=share.words,
            template_tokens=share.template_tokens,
        )
        self._front = _front(share)
        self._credential = _Credential(share.credential_file)
        self._heads: dict[int, bytes] = {}

    def __call__(self, number: int) -> bytes:
        """Give head and body."""
        body = self._body(number)
        size = len(body)
        return (self._heads.get(size) or self._head(size)) + body

    def refresh(self) -> None:
        """Read the credential again if its file has changed."""
        if self._credential.refresh():
            self._heads.clear()

    def _head(self, size: int) -> bytes:
        head = b"%b%bcontent-length: %d\r\n\r\n" % (self._front, self._credential.line, size)
        self._heads[size] = head
        return head


class _Credential:
    def __init__(self, file: str | None) -> None:
        self._file = None if file is None else Path(file)
        self._seen: tuple[int, int] | None = None
        self.line = b""
        self.refresh()

    def refresh(self) -> bool:
        """Say whether it is another now; one that cannot be read stays as it was."""
        if self._file is None:
            return False
        try:
            stat = self._file.stat()
            seen = (stat.st_mtime_ns, stat.st_ino)
            if seen == self._seen:
                return False
            said = [line.strip() for line in self._file.read_bytes().splitlines()]
        except OSError:
            return False
        self._seen = seen
        named = zip(_HEADERS, said, strict=False)
        self.line = b"".join(b"%b: Bearer %b\r\n" % (name, said) for name, said in named if said)
        return True


def _front(share: Share) -> bytes:
    url = urlsplit(HTTP if socket_of(share.base_url) else share.base_url)
    path = url.path.rstrip("/") + share.path
    host = url.netloc.rpartition("@")[2]
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        "accept: text/event-stream\r\naccept-encoding: identity\r\n"
    ).encode()
