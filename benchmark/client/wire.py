"""Whole requests as they go onto the wire."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from benchmark.client.jobs import Job
from benchmark.workload.prompts import bodies


class Wire:
    """Makes the bytes of the request with a number; the credential is the newest there is."""

    def __init__(self, job: Job) -> None:
        self._body: Callable[[int], bytes] = bodies(
            job.workload,
            context=job.context,
            model=job.model,
            token_ids=job.token_ids,
            words=job.words,
            template_tokens=job.template_tokens,
        )
        self._front = _front(job)
        self._credential = _Credential(job.credential_file)
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
    def __init__(self, file: Path | None) -> None:
        self._file = file
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
            key = self._file.read_bytes().strip()
        except OSError:
            return False
        self._seen = seen
        self.line = b"authorization: Bearer %b\r\n" % key if key else b""
        return True


def _front(job: Job) -> bytes:
    url = urlsplit(job.base_url)
    path = url.path.rstrip("/") + job.path
    host = url.netloc.rpartition("@")[2]
    return (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        "accept: text/event-stream\r\naccept-encoding: identity\r\n"
    ).encode()
