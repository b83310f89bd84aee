"""Resources of any service, made, found, listed, changed and deleted as the SDK's messages say.

A subclass of `Kind` names its messages and adds what a resource does beyond being kept. The SDK's
messages carry no field behaviour; their generated docstrings do, and these are read here.
"""

import hashlib
import importlib
import re
import time
import uuid
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, ClassVar, Final

import grpc.aio
from google.iam.v1.iam_policy_pb2 import (
    GetIamPolicyRequest,
    SetIamPolicyRequest,
    TestIamPermissionsRequest,
    TestIamPermissionsResponse,
)
from google.iam.v1.policy_pb2 import Policy
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from simulators.google import iam
from simulators.google.logging import Fits
from simulators.google.serving import Method, add, page_of, refusal
from simulators.google.state import Project, World

_BEHAVIOUR: Final = re.compile(
    r"^ +(?P<field>\w+) \([^\n]*(?:\n[^\n]*)?\):\n\s+(?P<behaviour>Required|Output only)\b",
    re.MULTILINE,
)


def fields(message: Any, behaviour: str) -> set[str]:
    """Return the fields of a message that are Required, or Output only."""
    found = _BEHAVIOUR.finditer(message.__doc__ or "")
    return {one["field"] for one in found if one["behaviour"] == behaviour}


def moment(seconds: float | None = None) -> Timestamp:
    """Return a moment, or now."""
    told = time.time() if seconds is None else seconds
    return Timestamp(seconds=int(told), nanos=int(told % 1 * 1e9))


def etag_of(message: Any) -> str:
    """Return a new etag, which no earlier state of anything has."""
    seed = type(message).serialize(message) + str(time.time_ns()).encode()
    return f'"{hashlib.sha256(seed).hexdigest()[:24]}"'


def merged(kept: Any, asked: Any, mask: FieldMask) -> Any:
    """Return what is kept with a mask's fields as they are asked for; of none all that is set."""
    pb, made = type(kept).pb, type(kept)(kept)
    fields_set = [field.name for field, _ in pb(asked).ListFields()]
    paths = FieldMask(paths=mask.paths or fields_set)
    paths.MergeMessage(pb(asked), pb(made), True, True)  # noqa: FBT003  its own order
    return made


class Kind:
    """One kind of resource, and what the methods of its service do with it."""

    types: ClassVar[str]
    """Where its messages are, such as google.cloud.run_v2.types."""
    noun: ClassVar[str]
    """Of its messages: Service, as in CreateServiceRequest."""
    parent: ClassVar[str] = "projects/*/locations/*"
    collection: ClassVar[str]
    """The last part of its names but one, such as services."""
    permission: ClassVar[str]
    """What a method takes begins with it, such as run.services."""
    verbs: ClassVar[tuple[str, ...]] = ("Create", "Get", "List", "Delete")
    table: ClassVar[str] = ""
    """Where a project keeps them, by `key`."""
    identifier: ClassVar[str] = r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
    pages: ClassVar[tuple[int, int]] = (100, 1000)
    """How many come in a page: usually, and at most."""
    policies: ClassVar[bool] = False
    """Whether each has an IAM policy."""
    by_number: ClassVar[bool] = False
    """Whether its full names have the project's number in place of its id."""
    more: ClassVar[Mapping[str, str]] = {}
    """Further methods of its own, by name: each is answered by what its verb is called here."""

    @property
    def message(self) -> Any:
        """Its message."""
        return self.type_of(self.noun)

    def type_of(self, name: str) -> Any:
        """Return a message of its service."""
        return getattr(importlib.import_module(self.types), name)

    def methods(self) -> dict[str, Method]:
        """Return the methods of its service that are its own."""
        plural = f"{self.noun[:-1]}ies" if self.noun.endswith("y") else f"{self.noun}s"
        found = {}
        for verb in self.verbs:
            name = f"{verb}{plural if verb == 'List' else self.noun}"
            found[name] = self.method(name, verb.lower())
        found |= {name: self.method(name, verb) for name, verb in self.more.items()}
        if self.policies:
            get, put = self.may("getIamPolicy"), self.may("setIamPolicy")
            found["GetIamPolicy"] = Method(GetIamPolicyRequest, self.get_policy, get)
            found["SetIamPolicy"] = Method(SetIamPolicyRequest, self.set_policy, put)
            found["TestIamPermissions"] = Method(TestIamPermissionsRequest, self.permissions)
        return found

    def method(self, name: str, verb: str) -> Method:
        """Return a method by its name; its request is called like it."""
        return Method(f"{self.types}:{name}Request", getattr(self, verb), self.may(verb))

    def may(self, verb: str) -> str:
        """Return the permission that a verb takes."""
        return f"{self.permission}.{verb}"

    def rows(self, project: Project) -> MutableMapping[str, Any]:
        """Return what there is, by key."""
        found: MutableMapping[str, Any] = getattr(project, self.table)
        return found

    def key(self, _project: Project, name: str) -> str:
        """Return by what a resource of a (normal) full name is kept."""
        return name

    def as_message(self, _project: Project, row: Any) -> Any:
        """Return a row as its message."""
        return row

    def normal(self, project: Project, pattern: str, name: str) -> str:
        """Return a name, which must have a form, with the project as it is always named."""
        if not re.fullmatch(re.escape(pattern).replace(r"\*", "[^/]+"), name):
            raise refusal("name", name=name)
        named = project.number if self.by_number else project.id
        return re.sub(r"^projects/[^/]+", f"projects/{named}", name)

    def full(self, project: Project, name: str) -> str:
        """Return the normal form of a full name."""
        return self.normal(project, f"{self.parent}/{self.collection}/*".lstrip("/"), name)

    def find(self, project: Project, name: str) -> Any:
        """Return the row of a full name; refuses what is no name, or nobody's."""
        full = self.full(project, name)
        row = self.rows(project).get(self.key(project, full))
        if row is None:
            raise refusal("missing", name=full)
        return row

    async def get(self, _world: World, project: Project, request: Any) -> Any:
        """Answer Get."""
        return self.as_message(project, self.find(project, request.name))

    async def list(self, _world: World, project: Project, request: Any) -> Any:
        """Answer List: those below a parent that a filter lets through, in pages."""
        parent = self.normal(project, self.parent, _parent_of(request))
        fits = self.fitting(getattr(request, "filter", ""))
        rows = [one for one in self.listed(project, parent) if fits(one)]
        usual, most = self.pages
        page, token = page_of(rows, request.page_size, request.page_token, most=most, usual=usual)
        kind = self.type_of(type(request).__name__.replace("Request", "Response"))
        held = _field_of(kind, self.message)
        return kind({held: page, "next_page_token": token})

    def fitting(self, words: str) -> Fits[Any]:
        """Return whether one fits a filter of a list; most know none."""
        if words:
            raise refusal("list-filter", words=words)
        return lambda _row: True

    def listed(self, project: Project, parent: str) -> Iterable[Any]:
        """Return the messages of all below a parent, in which `-` stands for any."""
        below = re.compile(re.escape(f"{parent}/{self.collection}/").replace("/\\-/", "/[^/]+/"))
        told = (self.as_message(project, row) for row in self.rows(project).values())
        return (one for one in told if below.match(one.name))

    async def create(self, world: World, project: Project, request: Any) -> Any:
        """Answer Create: refuse what is wrong in the request, and begin."""
        kind = type(request)
        parent = self.normal(project, self.parent, _parent_of(request))
        held = _field_of(kind, self.message)
        named = next(
            name
            for name in names_in(kind)
            if name.endswith("_id") and name not in {"project_id", "request_id"}
        )
        given = getattr(request, named)
        if not re.fullmatch(self.identifier, given):
            raise refusal("identifier", field=named, given=given)
        self.check_required(request)
        asked = getattr(request, held)
        self.check_required(asked)
        full = f"{parent}/{self.collection}/{given}"
        if self.key(project, full) in self.rows(project):
            raise refusal("taken", name=full)
        made = self.message(asked)
        take_over(None, made)
        stamp(made, full, project)
        return await self.begin(world, project, request, made)

    async def begin(self, _world: World, project: Project, _request: Any, made: Any) -> Any:
        """Keep a new one; gives the answer."""
        return self.rows(project).setdefault(self.key(project, made.name), made)

    async def delete(self, world: World, project: Project, request: Any) -> Any:
        """Answer Delete."""
        row = self.find(project, request.name)
        self.check_etag(self.as_message(project, row), getattr(request, "etag", ""))
        return await self.end(world, project, request, row)

    async def end(self, _world: World, project: Project, _request: Any, row: Any) -> Any:
        """Forget one; gives the answer."""
        self.forget(project, self.as_message(project, row).name)
        return Empty()

    def forget(self, project: Project, name: str) -> None:
        """Forget one, and who may do what with it."""
        self.rows(project).pop(self.key(project, name), None)
        project.policies.pop(name, None)

    def check_etag(self, kept: Any, asked: str) -> None:
        """Refuse a change by whoever has read an older state."""
        if asked and asked != kept.etag:
            name = kept.name.rpartition("/")[2]
            raise refusal("etag", name=name, asked=asked, there=kept.etag)

    def check_required(self, message: Any) -> None:
        """Refuse a message without a field that has to be there."""
        pb = type(message).pb(message)
        for name in fields(type(message), "Required"):
            field = pb.DESCRIPTOR.fields_by_name.get(name)
            textual = field is not None and (
                field.message_type is not None or field.type == FieldDescriptor.TYPE_STRING
            )
            if textual and name not in {one.name for one, _ in pb.ListFields()}:
                raise refusal("required", message=type(message).__name__, field=name)

    def policy(self, project: Project, name: str) -> Policy:
        """Return the policy of one that is there."""
        found: Policy = project.policies.get(name) or Policy()
        return found

    def keep_policy(self, project: Project, name: str, policy: Policy) -> None:
        """Let it have another."""
        project.policies[name] = policy

    def _name_of(self, project: Project, resource: str) -> str:
        return str(self.as_message(project, self.find(project, resource)).name)

    async def get_policy(
        self, _world: World, project: Project, request: GetIamPolicyRequest
    ) -> Policy:
        """Answer GetIamPolicy."""
        version = request.options.requested_policy_version
        return iam.as_answer(
            self.policy(project, self._name_of(project, request.resource)), version
        )

    async def set_policy(
        self, _world: World, project: Project, request: SetIamPolicyRequest
    ) -> Policy:
        """Answer SetIamPolicy."""
        name = self._name_of(project, request.resource)
        fresh = iam.checked_policy(self.policy(project, name), request.policy, project)
        self.keep_policy(project, name, fresh)
        return iam.as_answer(fresh, 3)

    async def permissions(
        self, _world: World, project: Project, request: TestIamPermissionsRequest
    ) -> TestIamPermissionsResponse:
        """Answer TestIamPermissions."""
        self.find(project, request.resource)
        project.tested += request.permissions
        has = [one for one in request.permissions if not project.lacks(one, request.resource)]
        return TestIamPermissionsResponse(permissions=has)


def serve(server: grpc.aio.Server, world: World, service: str, api: str, *kinds: Kind) -> None:
    """Serve a service with these kinds of resources."""
    methods = {name: method for kind in kinds for name, method in kind.methods().items()}
    add(server, world, service, methods, api=f"{api}.googleapis.com")


def stamp(made: Any, name: str, project: Project) -> None:
    """Set what a server sets of whatever it makes, as far as the message has it."""
    known = set(names_in(type(made)))
    now = moment()
    values = {
        "name": name,
        "uid": str(uuid.uuid4()),
        "create_time": now,
        "update_time": now,
        "creator": project.caller,
        "generation": 0,
    }
    for field, value in values.items():
        if field in known:
            setattr(made, field, value)
    if "etag" in known:
        made.etag = etag_of(made)


def take_over(kept: Any, made: Any, *more: str) -> None:
    """Let a message have what is the server's own, and `more`, as it is kept: nobody sets it."""
    kind = type(made)
    for name in {*fields(kind, "Output only"), *more}.intersection(names_in(kind)):
        kind.pb(made).ClearField(name)
        if kept is not None and name in {field.name for field, _ in kind.pb(kept).ListFields()}:
            setattr(made, name, getattr(kept, name))


def names_in(message: Any) -> Iterable[str]:
    found: Iterable[str] = message.pb().DESCRIPTOR.fields_by_name
    return found


def _parent_of(request: Any) -> str:
    return str(request.parent if hasattr(request, "parent") else request.name)


def _field_of(kind: Any, message: Any) -> str:
    """Return the field of a request or an answer that holds resources."""
    wanted = message.pb().DESCRIPTOR
    return str(next(one.name for one in kind.pb().DESCRIPTOR.fields if one.message_type is wanted))
