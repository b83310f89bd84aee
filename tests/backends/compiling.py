"""An engine that compiles a file, serves, and does what a test wants of it: a process."""

import http.server
import json
import os
import signal
import sys
from pathlib import Path

wish = json.loads(sys.argv[1])
root = Path(os.environ["VLLM_CACHE_ROOT"])
carried = sorted(str(one.relative_to(root)) for one in root.rglob("*") if one.is_file())
os.write(1, f"{' '.join(('engine has', *carried))}\n".encode())
if "COMPILE_CACHE" in " ".join(os.environ):
    sys.exit("it inherits what is not its own")
if (carried and wish.get("crash")) or wish.get("broken"):
    sys.exit(wish.get("crash") or wish["broken"])
for name in wish["compiles"]:
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("x" * 1000)
if "exit" in wish:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(wish["exit"]))


class Door(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(503 if wish.get("loads") else 200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        return


server = http.server.HTTPServer(("127.0.0.1", wish["port"]), Door)
os.write(1, b"engine serves\n")
server.serve_forever()
