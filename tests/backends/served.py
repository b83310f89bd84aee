"""A web server on this machine that says what a test wants it to."""

import http.server
import json
import threading
from types import TracebackType
from typing import Any, Self

MODELS = {"data": [{"id": "m", "root": "/models/m", "max_model_len": 2048}]}


class Served:
    """Answers by path: a status and JSON; what it has no answer for is 404."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {
            "/v1/models": (200, MODELS),
            "/version": (200, {"version": "0.32.0"}),
            "/v1/completions": (200, {"choices": []}),
        }
        self.asked: list[str] = []
        served = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                served.asked.append(self.path)
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, body = served.answers.get(self.path, (404, {"detail": "Not Found"}))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            do_POST = do_GET  # noqa: N815  http.server's name

            def log_message(self, *_arguments: Any) -> None:
                return

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.01,)).start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _exc: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
