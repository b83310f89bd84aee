"""Cloud Storage, by gcp-storage-emulator, and Vertex AI's registry of models."""

import hashlib
import io
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from http.server import HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

import grpc.aio
import httpx2
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage as Kept
from google.iam.v1.policy_pb2 import Policy
from google.protobuf.json_format import ParseDict

from simulators.common.carrying import Missing, Store
from simulators.common.doors import NO_TLS
from simulators.google.grants import AS, acting_as
from simulators.google.serving import Refused, refusal
from simulators.google.state import Project, World
from simulators.google.store import Kind, serve

_PATH: Final = re.compile(
    r"^(?:/(?:upload|download))?(?:/storage/v1)?/b(?:/(?P<bucket>[^/]+))?(?P<rest>/.*)?$"
)
_CODES: Final = {"PERMISSION_DENIED": 403, "FAILED_PRECONDITION": 412, "INVALID_ARGUMENT": 400}
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

    def start(self) -> str:
        """Listen; gives the base URL."""
        Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}"


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
        for made in set(self.storage.buckets) - known if _maker(self.path) else ():
            row = self.storage.buckets[made]
            row["projectNumber"] = self._world.project(_maker(self.path)).number
            self.storage.create_bucket(made, row)
        self._retain()

    def parse_request(self) -> bool:
        """Read a request's head, and refuse there and then what cannot be."""
        if not super().parse_request():
            return False
        parts = urlsplit(self.path)
        query = {name: said[0] for name, said in parse_qs(parts.query).items()}
        verb, found = _VERBS.get(self.command, "update"), _PATH.match(parts.path)
        bucket, rest = (found["bucket"], found["rest"] or "") if found else (None, "")
        try:
            if rest == "/iam/testPermissions":
                self._test(str(bucket), parse_qs(parts.query).get("permissions", []))
                return False
            for permission, name in self._asked(str(bucket or ""), rest, verb, query):
                self._admit(permission, bucket, name)
            if not bucket and verb == "get":
                self._list(query.get("project", ""))
                return False
            self._check_generation(str(bucket), rest, query)
            if verb == "delete" and rest.startswith("/o/"):
                self._check_retention(str(bucket), unquote(rest[3:]))
            if rest == "/iam" and verb == "update":
                self._check_policy(str(bucket))
        except Refused as refused:
            self._refuse(refused)
            return False
        return True

    def _asked(
        self, bucket: str, rest: str, verb: str, query: Mapping[str, str]
    ) -> Iterator[tuple[str, str]]:
        """Give the permissions that a call takes, each with the object that it is about."""
        name = unquote(rest[3:])
        if rest != "/o" or verb != "create":
            yield _permission(bucket, rest, verb), name
            return
        name = query.get("name", "")
        yield "storage.objects.create", name
        if self._has(bucket, name):  # which is replaced
            yield "storage.objects.delete", name

    def _admit(self, permission: str, bucket: str | None, name: str = "") -> None:
        project = self._project(bucket)
        if project is None:
            return
        project.called(permission)
        resource = f"projects/_/buckets/{bucket or ''}{f'/objects/{name}' if name else ''}"
        missing = name and permission == "storage.objects.get" and not self._has(bucket, name)
        with acting_as(self.headers.get(AS, "")):
            if self._lacks(project, permission, bucket, resource):
                raise refusal("not-permitted", permission=permission, resource=resource)
            # Who may not list learns of no name that there is none of it.
            if missing and self._lacks(project, "storage.objects.list", bucket, bucket or ""):
                where = f"projects/_/buckets/{bucket}"
                raise refusal("not-permitted", permission="storage.objects.list", resource=where)

    def _lacks(self, project: Project, permission: str, bucket: str | None, resource: str) -> bool:
        if not project.account:
            return project.denies(permission)
        kept = self.storage.get_bucket_iam_policy(bucket) or {}
        own = ParseDict({"bindings": kept.get("bindings", [])}, Policy())
        policies = (project.policy, own)
        return not project.grants(project.account, permission, *policies, resource=resource)

    def _project(self, bucket: str | None) -> Project | None:
        kept = self.storage.buckets.get(bucket, {})
        owner = _maker(self.path) or kept.get("projectNumber", "")
        return self._world.project(owner) if owner else None

    def _has(self, bucket: str | None, name: str) -> bool:
        return name in self.storage.objects.get(bucket, {})

    def _test(self, bucket: str, permissions: Iterable[str]) -> None:
        project = self._project(bucket)
        where = f"projects/_/buckets/{bucket}"
        with acting_as(self.headers.get(AS, "")):
            has = [
                one
                for one in permissions
                if project is None or not self._lacks(project, one, bucket, where)
            ]
        self._answer(200, {"kind": "storage#testIamPermissionsResponse", "permissions": has})

    def _list(self, project: str) -> None:
        number = self._world.project(project).number
        rows = self.storage.buckets.values()
        items = [one for one in rows if one.get("projectNumber") == number]
        self._answer(200, {"kind": "storage#buckets", "items": items})

    def _check_retention(self, bucket: str, name: str) -> None:
        kept = self.storage.objects.get(bucket, {}).get(name, {})
        until = kept.get("retentionExpirationTime")
        if until and datetime.fromisoformat(until) > datetime.now(UTC):
            raise refusal("retained", bucket=bucket, name=name, until=until)

    def _check_generation(self, bucket: str, rest: str, query: Mapping[str, str]) -> None:
        wanted = query.get("ifGenerationMatch")
        if wanted is None:
            return
        name = query.get("name", "") if rest == "/o" else unquote(rest[3:])
        now = self.storage.objects.get(bucket, {}).get(name, {}).get("generation", "0")
        if wanted != now:
            raise refusal("generation")

    def _retain(self) -> None:
        """Say of each object how long its bucket keeps it."""
        for name, bucket in self.storage.buckets.items():
            seconds = int(bucket.get("retentionPolicy", {}).get("retentionPeriod", 0))
            for one in self.storage.objects.get(name, {}).values() if seconds else ():
                ends = datetime.fromisoformat(one["timeCreated"]) + timedelta(seconds=seconds)
                one["retentionExpirationTime"] = f"{ends:%Y-%m-%dT%H:%M:%S.%fZ}"

    def _check_policy(self, bucket: str) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        policy = json.loads(data)
        kept = self.storage.get_bucket_iam_policy(bucket) or {}
        if policy.get("etag") not in {None, kept.get("etag", _FIRST_ETAG)}:
            raise refusal("bucket-policy")
        uniform = self.storage.buckets.get(bucket, {}).get("iamConfiguration", {})
        if any(one.get("condition") for one in policy.get("bindings", [])) and not (
            policy.get("version") == 3 and uniform["uniformBucketLevelAccess"]["enabled"]
        ):
            raise refusal("bucket-condition")
        policy["etag"] = hashlib.sha256(data).hexdigest()[:12]
        written = json.dumps(policy).encode()
        self.headers.replace_header("Content-Length", str(len(written)))
        self.rfile = io.BytesIO(written)

    def _refuse(self, refused: Refused) -> None:
        code = _CODES[refused.status]
        self._answer(code, {"error": {"code": code, "message": refused.message}})

    def _answer(self, code: int, said: Mapping[str, Any]) -> None:
        words = json.dumps(said).encode()
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


def carried(world: World, store: str, account: str) -> Store:
    """Return a folder of a bucket, as an account reads and writes it.

    A name that is not there is refused as one that the account may not read.
    """
    bucket, _, folder = store.removeprefix("gs://").partition("/")

    async def ask(verb: str, path: str, **more: Any) -> httpx2.Response:
        async with httpx2.AsyncClient(trust_env=False, verify=NO_TLS) as client:
            url = f"{world.buckets}{path}"
            reply = await client.request(verb, url, headers={AS: account}, **more)
        if reply.status_code in {403, 404} and verb == "GET":
            raise Missing
        if not reply.is_success:
            raise OSError(f"HTTP Error {reply.status_code}")
        return reply

    async def read(name: str) -> bytes:
        path = quote(f"{folder}/{name}", safe="")
        return (
            await ask("GET", f"/storage/v1/b/{bucket}/o/{path}", params={"alt": "media"})
        ).content

    async def write(name: str, data: bytes) -> None:
        how = {"uploadType": "media", "name": f"{folder}/{name}", "ifGenerationMatch": "0"}
        await ask("POST", f"/upload/storage/v1/b/{bucket}/o", params=how, content=data)

    return Store(read, write)
