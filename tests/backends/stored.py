"""Cloud Storage's JSON API and the metadata server's login, as far as the carried cache asks them.

It refuses what is documented: another token, a generation that is not the stored one, what is not
there. source: Cloud Storage's reference (objects: get, insert, rewrite, delete), read 2026-11-29.
"""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "ya29.not-to-be-said"
Ill = Literal["forbidden", "cut off", "no head", "no login"]


class Stored:
    """Objects of one bucket by name, and what is wrong with it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.generations: dict[str, int] = {}
        self.ill: Ill | None = None
        self.url = ""

    def put(self, name: str, body: bytes) -> None:
        self.objects[name] = body
        self.generations[name] = self.generations.get(name, 100) + 1

    def answer(self, door: http.server.BaseHTTPRequestHandler) -> tuple[int, bytes, int]:
        """Give status, body and the object's generation."""
        asked = urlsplit(door.path)
        body = door.rfile.read(int(door.headers.get("Content-Length", 0)))
        if asked.path.endswith("/default/token"):
            well = door.headers["Metadata-Flavor"] == "Google" and self.ill != "no login"
            return (200 if well else 404), json.dumps({"access_token": TOKEN}).encode(), 0
        if door.headers["Authorization"] != f"Bearer {TOKEN}":
            return 401, b"", 0
        if self.ill == "forbidden":
            return 403, b"", 0
        query = {name: values[0] for name, values in parse_qs(asked.query).items()}
        way, _, rest = asked.path.partition("/storage/v1/b/bucket/o")
        name, _, to = rest[1:].partition("/rewriteTo/b/bucket/o/")
        name = query["name"] if way == "/upload" else unquote(name)
        wanted = int(query.get("ifGenerationMatch", self.generations.get(name, 0)))
        if way != "/upload" and name not in self.objects:
            return 404, b"", 0
        if wanted != (self.generations.get(name, 0) if name in self.objects else 0):
            return 412, b"", 0
        if way == "/upload":
            self.put(name, body)
        elif to and door.headers["Content-Type"] != "application/json":
            return 400, b"", 0
        elif to:
            self.put(unquote(to), self.objects[name])
        elif door.command == "DELETE":
            del self.objects[name]
        else:
            return 200, self.objects[name], self.generations[name]
        return 200, b"{}", 0


@contextmanager
def stored() -> Iterator[Stored]:
    """Serve an empty bucket on this machine."""
    bucket = Stored()

    class Door(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, generation = bucket.answer(self)
            if generation and bucket.ill == "no head":
                self.wfile.write(b"HTTP/1.1 200 O")
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("x-goog-generation", str(generation))
            self.end_headers()
            half = generation and bucket.ill == "cut off"
            self.wfile.write(body[: len(body) // 2] if half else body)

        do_POST = do_DELETE = do_GET  # noqa: N815  http.server's names

        def log_message(self, *_arguments: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door)
    bucket.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,)).start()
    try:
        yield bucket
    finally:
        server.shutdown()
        server.server_close()
