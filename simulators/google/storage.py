"""Cloud Storage, by gcp-storage-emulator, and Vertex AI's registry of models."""

import hashlib
import io
import json
import logging
import re
from collections.abc import Iterable
from functools import partial
from http.server import HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import grpc.aio
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage as Kept

from simulators.google.grants import AS, acting_as
from simulators.google.serving import Refused, not_permitted
from simulators.google.state import Project, World
from simulators.google.store import Kind, serve

_PATH: Final = re.compile(
    r"^(?:/(?:upload|download))?(?:/storage/v1)?/b(?:/(?P<bucket>[^/]+))?(?P<rest>/.*)?$"
)
_CODES: Final = {"PERMISSION_DENIED": 403, "FAILED_PRECONDITION": 412}
_VERBS: Final = {"GET": "get", "POST": "create", "DELETE": "delete"}
_FIRST_ETAG: Final = "CAE="


class Storage:
    """The JSON API on a port of its own; its buckets lie below a folder.

    A bucket belongs to the project that made it, whose caller may be denied things.
    """

    def __init__(self, folder: Path, world: World) -> None:
        logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)
        logging.getLogger("api").setLevel(logging.CRITICAL)
        kept: Any = Kept(data_dir=str(folder.absolute()))
        self._server = HTTPServer(("127.0.0.1", 0), partial(_Door, world, kept))
        self._thread = Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> str:
        """Listen; gives the base URL."""
        self._thread.start()
        return f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Door(RequestHandler):  # type: ignore[misc]  # without types
    """Refuses what the emulator lets through: a denied caller, a policy that changed meanwhile."""

    def __init__(self, world: World, kept: Any, *more: Any) -> None:
        self._world = world
        self.rfile: Any
        super().__init__(kept, *more)

    def handle_one_request(self) -> None:
        """Answer; a bucket that is there afterwards and was not before belongs to who made it."""
        known = set(self.storage.buckets)
        super().handle_one_request()
        for made in set(self.storage.buckets) - known:
            self._own(made, _maker(self.path))

    def parse_request(self) -> bool:
        """Read a request's head, and refuse there and then what cannot be."""
        if not super().parse_request():
            return False
        verb = _VERBS.get(self.command, "update")
        found = _PATH.match(urlsplit(self.path).path)
        bucket, rest = (found["bucket"], found["rest"] or "") if found else (None, "")
        try:
            self._admit(_permission(bucket, rest, verb), bucket)
            if rest == "/iam" and verb == "update":
                self._check_etag(str(bucket))
        except Refused as refused:
            self._refuse(refused)
            return False
        return True

    def _admit(self, permission: str, bucket: str | None) -> None:
        kept = self.storage.buckets.get(bucket, {})
        owner = _maker(self.path) or kept.get("projectNumber", "")
        if not owner:
            return
        project = self._world.project(owner)
        project.called(permission)
        with acting_as(self.headers.get(AS, "")):
            denied = project.denies(permission)
        if denied:
            raise not_permitted(permission, f"projects/_/buckets/{bucket or ''}")

    def _own(self, bucket: str, maker: str) -> None:
        if maker:
            row = self.storage.buckets[bucket]
            row["projectNumber"] = self._world.project(maker).number
            self.storage.create_bucket(bucket, row)

    def _check_etag(self, bucket: str) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        policy = json.loads(data)
        kept = self.storage.get_bucket_iam_policy(bucket) or {}
        if policy.get("etag") not in {None, kept.get("etag", _FIRST_ETAG)}:
            raise Refused("FAILED_PRECONDITION", "The policy was changed since it was read.")
        policy["etag"] = hashlib.sha256(data).hexdigest()[:12]
        written = json.dumps(policy).encode()
        self.headers.replace_header("Content-Length", str(len(written)))
        self.rfile = io.BytesIO(written)

    def _refuse(self, refused: Refused) -> None:
        code = _CODES[refused.status]
        words = json.dumps({"error": {"code": code, "message": refused.message}}).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(words)))
        self.end_headers()
        self.wfile.write(words)


def _maker(path: str) -> str:
    return parse_qs(urlsplit(path).query).get("project", [""])[0]


def _permission(bucket: str | None, rest: str, verb: str) -> str:
    if rest.startswith("/iam"):
        return f"storage.buckets.{'get' if verb == 'get' else 'set'}IamPolicy"
    if rest == "/o" and verb == "get":
        return "storage.objects.list"
    if rest:
        return f"storage.objects.{verb}"
    return f"storage.buckets.{verb if bucket or verb != 'get' else 'list'}"


class _Models(Kind):
    """A model of Vertex AI's registry: what the rehearsal has set."""

    types = "google.cloud.aiplatform_v1.types"
    noun, collection = "Model", "models"
    permission = "aiplatform.models"
    verbs = ("List",)
    by_number = True

    def listed(self, project: Project, parent: str) -> Iterable[Any]:
        """Return those of a region, and those that are in every region."""
        region = parent.rpartition("/")[2]
        for number, row in enumerate(project.knobs.vertex_models, start=1):
            if row.get("region", region) == region:
                own = {key: value for key, value in row.items() if key != "region"}
                yield self.message({"name": f"{parent}/models/{number}", "version_id": "1", **own})


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve Vertex AI's registry; its messages, which take half a second, come with a call."""
    serve(server, world, "google.cloud.aiplatform.v1.ModelService", "aiplatform", _Models())
