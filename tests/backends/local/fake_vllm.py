"""A `vllm serve` of forty lines; the model's name says how it behaves."""

import http.server
import os
import signal
import sys
import time

MODE = sys.argv[2].rsplit("/", 1)[-1]
PORT = int(sys.argv[sys.argv.index("--port") + 1])


class Handler(http.server.BaseHTTPRequestHandler):
    """Healthy, and answers whatever it is asked; unless its mode is another."""

    def do_GET(self) -> None:
        self.send_response(500 if MODE == "ill" else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        right = self.headers.get("Authorization") == f"Bearer {os.environ['VLLM_API_KEY']}"  # noqa: TID251  no part of this project
        self.send_response(500 if MODE == "mute" else 200 if right else 401)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_arguments: object) -> None:
        return


def sleep() -> None:
    print("asleep", flush=True)
    time.sleep(60)  # noqa: TID251  no part of this project


def serve() -> None:
    server = http.server.HTTPServer(("127.0.0.1", PORT), Handler)
    print("INFO:     Application startup complete.", flush=True)
    server.serve_forever()


def main() -> None:
    if MODE == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE == "dies":
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.62 GiB.", flush=True)
        sys.exit(7)
    if MODE == "leaves-a-worker" and os.fork():
        sys.exit(3)
    if MODE == "has-a-worker":
        os.fork()
    if MODE == "boots":
        print("INFO 11-20 11:00:00 [x.py:1] Starting to load model m...", flush=True)
    if MODE == "tells":
        print(sorted(os.environ), os.getcwd(), sys.argv, flush=True)  # noqa: PTH109, TID251
    if MODE in {"ready", "ill", "mute"}:
        serve()
    sleep()


main()
