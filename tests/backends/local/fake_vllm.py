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

    answered = False

    def do_GET(self) -> None:
        if MODE == "hangs-up" and Handler.answered:
            return
        self.send_response(500 if MODE == "ill" else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        right = self.headers.get("Authorization") == f"Bearer {os.environ['VLLM_API_KEY']}"  # noqa: TID251  no part of this project
        self.send_response(500 if MODE == "mute" else 200 if right else 401)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")
        Handler.answered = True
        if MODE == "counts":
            say("asked")

    def log_message(self, *_arguments: object) -> None:
        return


def say(words: object) -> None:
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def sleep() -> None:
    say("asleep")
    time.sleep(60)  # noqa: TID251  no part of this project


def serve() -> None:
    server = http.server.HTTPServer(("127.0.0.1", PORT), Handler)
    say("INFO:     Application startup complete.")
    server.serve_forever()


def main() -> None:
    if MODE == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MODE == "dies":
        say("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.62 GiB.")
        sys.exit(7)
    if MODE == "leaves-a-worker" and os.fork():
        sys.exit(3)
    if MODE == "has-a-worker":
        os.fork()
    if MODE == "boots":
        say("INFO 11-20 11:00:00 [x.py:1] Starting to load model m...")
    if MODE == "tells":
        say([sorted(os.environ), os.getcwd(), sys.argv])  # noqa: PTH109, TID251  no part of it
    if MODE in {"ready", "ill", "mute", "hangs-up", "counts"}:
        serve()
    sleep()


main()
