"""Policies, service accounts, the project itself, the metadata server and gcloud's login."""

import base64
import hashlib
import re
import shutil
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc.aio
from google.cloud.iam_admin_v1.types import (
    CreateServiceAccountRequest,
    DeleteServiceAccountRequest,
    GetServiceAccountRequest,
    ListServiceAccountsRequest,
    ListServiceAccountsResponse,
    ServiceAccount,
)
from google.cloud.resourcemanager_v3.types import GetProjectRequest
from google.cloud.resourcemanager_v3.types import Project as ProjectMessage
from google.iam.v1 import iam_policy_pb2
from google.iam.v1.policy_pb2 import Binding, Policy
from google.protobuf.empty_pb2 import Empty
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from simulators.google import serving
from simulators.google.serving import Refused, add, invalid, page_of, unary
from simulators.google.state import GCLOUD_CLIENT, IdTokens, Project, World

PERMISSIONS: Final[Mapping[str, frozenset[str]]] = {
    "roles/secretmanager.secretAccessor": frozenset({"secretmanager.versions.access"}),
    "roles/run.invoker": frozenset({"run.routes.invoke"}),
    "roles/run.servicesInvoker": frozenset({"run.routes.invoke"}),
    "roles/iam.serviceAccountTokenCreator": frozenset(
        {"iam.serviceAccounts.getOpenIdToken", "iam.serviceAccounts.getAccessToken"}
    ),
    "roles/iam.serviceAccountOpenIdTokenCreator": frozenset({"iam.serviceAccounts.getOpenIdToken"}),
    "roles/iam.serviceAccountUser": frozenset({"iam.serviceAccounts.actAs"}),
    "roles/artifactregistry.reader": frozenset({"artifactregistry.repositories.downloadArtifacts"}),
    "roles/artifactregistry.writer": frozenset(
        {
            "artifactregistry.repositories.downloadArtifacts",
            "artifactregistry.repositories.uploadArtifacts",
        }
    ),
    "roles/logging.logWriter": frozenset({"logging.logEntries.create"}),
    "roles/monitoring.metricWriter": frozenset({"monitoring.timeSeries.create"}),
    "roles/storage.objectViewer": frozenset({"storage.objects.get", "storage.objects.list"}),
}
"""What the roles that are granted here allow, as far as it is asked for.

Source: docs.cloud.google.com/iam/docs/roles-permissions, read 2026-11.
"""
_EVERYBODY: Final = frozenset({"allUsers", "allAuthenticatedUsers"})
_MEMBER: Final = re.compile(r"^(user|serviceAccount|group|domain|principal|principalSet):\S+$")
_ROLE: Final = re.compile(r"^(projects/[^/]+/|organizations/[^/]+/)?roles/[A-Za-z0-9_.]+$")
_PERMISSION: Final = re.compile(r"^[a-z0-9]+(\.[A-Za-z0-9]+){2,}$")
_CONFLICT: Final = (
    "There were concurrent policy changes. Please retry the whole read-modify-write with"
    " exponential backoff."
)


def asked(kept: Policy, request: iam_policy_pb2.GetIamPolicyRequest) -> Policy:
    """Answer one GetIamPolicy; conditions are told to those who ask for version 3.

    Raises:
        Refused: There is no such version.
    """
    version = request.options.requested_policy_version
    if version not in {0, 1, 3}:
        raise invalid(f"Policy version {version} is not supported.")
    found = Policy()
    found.CopyFrom(kept)
    found.etag = _etag(kept)
    if version < 3:
        _hide_conditions(found)
    return found


def replaced(kept: Policy, request: iam_policy_pb2.SetIamPolicyRequest, project: Project) -> Policy:
    """Give what is to be kept after one SetIamPolicy.

    Raises:
        Refused: The etag is that of an older policy; or a role, a member (an account of the
            project must be there) or the version cannot be.
    """
    wanted = request.policy
    if wanted.etag and wanted.etag != _etag(kept):
        raise Refused("ABORTED", _CONFLICT)
    fresh = Policy(version=wanted.version)
    for binding in wanted.bindings:
        _check(binding, wanted.version, project)
        if binding.members:
            fresh.bindings.append(binding)
    return fresh


def answer(kept: Policy) -> Policy:
    """Give a policy as SetIamPolicy answers: as it is, with its new etag."""
    return asked(kept, iam_policy_pb2.GetIamPolicyRequest(options={"requested_policy_version": 3}))


def allowed(
    project: Project, request: iam_policy_pb2.TestIamPermissionsRequest
) -> iam_policy_pb2.TestIamPermissionsResponse:
    """Answer one TestIamPermissions: the caller owns the project, but for what is denied.

    Raises:
        Refused: A permission is not one.
    """
    for one in request.permissions:
        if not _PERMISSION.match(one):
            raise invalid(f"Permission {one} is not valid for this resource.")
    denied = project.knobs.denied_permissions
    return iam_policy_pb2.TestIamPermissionsResponse(
        permissions=[one for one in request.permissions if one not in denied]
    )


def granted(kept: Policy, email: str, permission: str) -> bool:
    """Say whether one policy allows it, to an account or to everybody, without a condition."""
    names = {f"serviceAccount:{email}", f"user:{email}", *_EVERYBODY}
    return any(
        permission in PERMISSIONS.get(binding.role, ())
        and not binding.condition.expression
        and names.intersection(binding.members)
        for binding in kept.bindings
    )


def _hide_conditions(policy: Policy) -> None:
    policy.version = 1
    for binding in policy.bindings:
        if binding.HasField("condition"):
            words = binding.condition.SerializeToString(deterministic=True)
            binding.role += f"_withcond_{hashlib.sha256(words).hexdigest()[:20]}"
            binding.ClearField("condition")


def _check(binding: Binding, version: int, project: Project) -> None:
    if not _ROLE.match(binding.role) or "_withcond_" in binding.role:
        raise invalid(f"Role {binding.role} is not supported for this resource.")
    if binding.HasField("condition") and version != 3:
        raise invalid("Policies with conditions must have version 3.")
    for member in binding.members:
        if member not in _EVERYBODY and not _MEMBER.match(member):
            raise invalid(f"Invalid member {member}.")
        kind, _, email = member.partition(":")
        ours = kind == "serviceAccount" and email.endswith(f"@{project.id}.iam.gserviceaccount.com")
        if ours and email not in {*project.accounts, project.caller}:
            raise invalid(f"Service account {email} does not exist.")


def _etag(kept: Policy) -> bytes:
    return hashlib.sha256(kept.SerializeToString(deterministic=True)).digest()[:8]


_ID: Final = re.compile(r"^[a-z](?:[-a-z0-9]{4,28}[a-z0-9])$")
_NAME: Final = re.compile(r"^projects/[^/]+/serviceAccounts/(?P<email>[^/]+)$")
_MOST: Final = 100
"""Accounts of a project. Source: docs.cloud.google.com/iam/quotas, read 2026-11."""


def accounts_mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "CreateServiceAccount": unary(
            CreateServiceAccountRequest, ServiceAccount, _create, _may("create")
        ),
        "GetServiceAccount": unary(
            GetServiceAccountRequest, ServiceAccount, _get_accounts, _may("get")
        ),
        "ListServiceAccounts": unary(
            ListServiceAccountsRequest, ListServiceAccountsResponse, _list, _may("list")
        ),
        "DeleteServiceAccount": unary(DeleteServiceAccountRequest, Empty, _delete, _may("delete")),
        "GetIamPolicy": unary(
            iam_policy_pb2.GetIamPolicyRequest, Policy, _get_policy_accounts, _may("getIamPolicy")
        ),
        "SetIamPolicy": unary(
            iam_policy_pb2.SetIamPolicyRequest, Policy, _set_policy_accounts, _may("setIamPolicy")
        ),
        "TestIamPermissions": unary(
            iam_policy_pb2.TestIamPermissionsRequest,
            iam_policy_pb2.TestIamPermissionsResponse,
            _test_permissions_accounts,
        ),
    }
    add(server, world, "google.iam.admin.v1.IAM", methods, api="iam.googleapis.com")


def email_of(project: Project, name: str) -> str:
    """Find the account that a full name means; its last part may be the unique id.

    Raises:
        Refused: There is none.
    """
    found = _NAME.match(name)
    if found is None:
        raise invalid(f"The service account name {name} is not valid.")
    for email, account in project.accounts.items():
        if found["email"] in {email, account.unique_id or email}:
            return email
    raise Refused("NOT_FOUND", f"Unknown service account: {found['email']}.")


def _may(what: str) -> str:
    return f"iam.serviceAccounts.{what}"


async def _create(
    _world: World, project: Project, request: CreateServiceAccountRequest
) -> ServiceAccount:
    if not _ID.match(request.account_id):
        raise invalid(f'"{request.account_id}" does not match the format of an account id.')
    email = f"{request.account_id}@{project.id}.iam.gserviceaccount.com"
    name = f"projects/{project.id}/serviceAccounts/{email}"
    if email in project.accounts:
        raise Refused(
            "ALREADY_EXISTS",
            f"Service account {request.account_id} already exists within project"
            f" projects/{project.id}.",
        )
    if len(project.accounts) >= _MOST:
        raise Refused(
            "RESOURCE_EXHAUSTED", "Maximum number of service accounts on project reached."
        )
    account = ServiceAccount(request.service_account)
    account.name, account.email, account.project_id = name, email, project.id
    account.unique_id = f"{int(project.number) * 10**9 + len(project.accounts):021d}"
    project.accounts[email] = account
    return account


async def _get_accounts(
    _world: World, project: Project, request: GetServiceAccountRequest
) -> ServiceAccount:
    found: ServiceAccount = project.accounts[email_of(project, request.name)]
    return found


async def _list(
    _world: World, project: Project, request: ListServiceAccountsRequest
) -> ListServiceAccountsResponse:
    rows: list[Any] = list(project.accounts.values())
    page, token = page_of(rows, request.page_size, request.page_token, most=100, usual=20)
    return ListServiceAccountsResponse(accounts=page, next_page_token=token)


async def _delete(_world: World, project: Project, request: DeleteServiceAccountRequest) -> Empty:
    email = email_of(project, request.name)
    del project.accounts[email]
    project.account_policies.pop(email, None)
    return Empty()


async def _get_policy_accounts(
    _world: World, project: Project, request: iam_policy_pb2.GetIamPolicyRequest
) -> Policy:
    email = email_of(project, request.resource)
    return asked(project.account_policies.get(email, Policy()), request)


async def _set_policy_accounts(
    _world: World, project: Project, request: iam_policy_pb2.SetIamPolicyRequest
) -> Policy:
    email = email_of(project, request.resource)
    kept = replaced(project.account_policies.get(email, Policy()), request, project)
    project.account_policies[email] = kept
    return answer(kept)


async def _test_permissions_accounts(
    _world: World, project: Project, request: iam_policy_pb2.TestIamPermissionsRequest
) -> iam_policy_pb2.TestIamPermissionsResponse:
    email_of(project, request.resource)
    project.tested += request.permissions
    return allowed(project, request)


def projects_mount(server: grpc.aio.Server, world: World) -> None:
    """Serve it."""
    methods = {
        "GetProject": unary(
            GetProjectRequest, ProjectMessage, _get_projects, "resourcemanager.projects.get"
        ),
        "GetIamPolicy": unary(
            iam_policy_pb2.GetIamPolicyRequest,
            Policy,
            _get_policy_projects,
            "resourcemanager.projects.getIamPolicy",
        ),
        "SetIamPolicy": unary(
            iam_policy_pb2.SetIamPolicyRequest,
            Policy,
            _set_policy_projects,
            "resourcemanager.projects.setIamPolicy",
        ),
        "TestIamPermissions": unary(
            iam_policy_pb2.TestIamPermissionsRequest,
            iam_policy_pb2.TestIamPermissionsResponse,
            _test_permissions_projects,
        ),
    }
    api = "cloudresourcemanager.googleapis.com"
    add(server, world, "google.cloud.resourcemanager.v3.Projects", methods, api=api)


async def _get_projects(
    _world: World, project: Project, _request: GetProjectRequest
) -> ProjectMessage:
    return ProjectMessage(
        name=f"projects/{project.number}",
        project_id=project.id,
        display_name=project.id,
        state=ProjectMessage.State.ACTIVE,
    )


async def _get_policy_projects(
    _world: World, project: Project, request: iam_policy_pb2.GetIamPolicyRequest
) -> Policy:
    return asked(project.policy, request)


async def _set_policy_projects(
    _world: World, project: Project, request: iam_policy_pb2.SetIamPolicyRequest
) -> Policy:
    project.policy = replaced(project.policy, request, project)
    return answer(project.policy)


async def _test_permissions_projects(
    _world: World, project: Project, request: iam_policy_pb2.TestIamPermissionsRequest
) -> iam_policy_pb2.TestIamPermissionsResponse:
    project.tested += request.permissions
    return allowed(project, request)


_FLAVOR: Final = {"Metadata-Flavor": "Google"}
_PLAIN_PROJECT: Final = "rehearsal"
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_LONGEST_TOKEN_SECONDS: Final = 3600

Told = Callable[[World, Project, Request], Awaitable[Response]]


def metadata_routes(world: World) -> Sequence[BaseRoute]:
    """Serve `/computeMetadata/v1/…`, also below `/p/{project}`, and IAM credentials."""
    tokens = world.tokens
    found: list[BaseRoute] = []
    for path, tell in _metadata(tokens).items():
        handler = _of_machine(world, tell)
        found += [
            Route(f"{prefix}/computeMetadata/v1/{path}", handler, methods=["GET"])
            for prefix in ("", "/p/{project}")
        ]
    account = "/v1/projects/-/serviceAccounts/{email}"
    return (
        *found,
        Route("/", _of_machine(world, _root), methods=["GET"]),
        Route(f"{account}:generateIdToken", _id_token(world, tokens), methods=["POST"]),
        Route(f"{account}:generateAccessToken", _access_token(world), methods=["POST"]),
    )


def _metadata(tokens: IdTokens) -> dict[str, Told]:
    async def identity(_world: World, project: Project, request: Request) -> Response:
        audience = request.query_params.get("audience", "")
        if not audience:
            return PlainTextResponse("non-empty audience parameter required", status_code=400)
        token = tokens.mint(audience, project.caller, project.knobs.token_seconds)
        return PlainTextResponse(token)

    account = "instance/service-accounts/{who}"
    return {
        "": _root,
        "project/project-id": _project_id,
        "project/numeric-project-id": _project_number,
        "universe/universe-domain": _universe,
        "instance/service-accounts/": _accounts,
        account: _for_account(_account),
        f"{account}/": _for_account(_account),
        f"{account}/email": _for_account(_email),
        f"{account}/scopes": _for_account(_scopes),
        f"{account}/token": _for_account(_token_metadata),
        f"{account}/identity": _for_account(identity),
    }


def _of_machine(world: World, tell: Told) -> Callable[[Request], Awaitable[Response]]:
    """Answer as the metadata server does: to those who send its header, with its header."""

    async def handle(request: Request) -> Response:
        world.touch()
        project = world.project(request.path_params.get("project", _PLAIN_PROJECT))
        if project.knobs.identity_kind == "user":
            return PlainTextResponse("There is no metadata server here.", status_code=404)
        if request.headers.get("metadata-flavor") != "Google":
            refusal = "Missing required header: Metadata-Flavor"
            return PlainTextResponse(refusal, status_code=403, headers=_FLAVOR)
        what = request.url.path.rpartition("/")[2] or "list"
        reply = await serving.faulted(project, f"metadata/{what}")
        reply = reply or await tell(world, project, request)
        reply.headers.update(_FLAVOR)
        return reply

    return handle


def _for_account(tell: Told) -> Told:
    async def known(world: World, project: Project, request: Request) -> Response:
        if request.path_params["who"] not in {"default", project.caller}:
            return PlainTextResponse("Not Found", status_code=404)
        return await tell(world, project, request)

    return known


async def _root(_world: World, _project: Project, _request: Request) -> Response:
    return PlainTextResponse("instance/\nproject/\nuniverse/\n")


async def _project_id(_world: World, project: Project, _request: Request) -> Response:
    return PlainTextResponse(project.id)


async def _project_number(_world: World, project: Project, _request: Request) -> Response:
    return PlainTextResponse(project.number)


async def _universe(_world: World, _project: Project, _request: Request) -> Response:
    return PlainTextResponse("googleapis.com")


async def _accounts(_world: World, project: Project, request: Request) -> Response:
    account = {"aliases": ["default"], "email": project.caller, "scopes": [_SCOPE]}
    if request.query_params.get("recursive") == "true":
        return JSONResponse({"default": account, project.caller: account})
    return PlainTextResponse(f"default/\n{project.caller}/\n")


async def _account(_world: World, project: Project, request: Request) -> Response:
    if request.query_params.get("recursive") == "true":
        return JSONResponse({"aliases": ["default"], "email": project.caller, "scopes": [_SCOPE]})
    return PlainTextResponse("aliases\nemail\nidentity\nscopes\ntoken\n")


async def _email(_world: World, project: Project, _request: Request) -> Response:
    return PlainTextResponse(project.caller)


async def _scopes(_world: World, _project: Project, _request: Request) -> Response:
    return PlainTextResponse(f"{_SCOPE}\n")


async def _token_metadata(_world: World, project: Project, _request: Request) -> Response:
    return JSONResponse(
        {
            "access_token": f"rehearsal.{uuid.uuid4().hex}",
            "expires_in": int(project.knobs.token_seconds),
            "token_type": "Bearer",
        }
    )


def _id_token(world: World, tokens: IdTokens) -> Callable[[Request], Awaitable[Response]]:
    def minted(project: Project, email: str, body: dict[str, Any]) -> Response:
        audience = str(body.get("audience") or "")
        if not audience:
            return serving.error("INVALID_ARGUMENT", "The audience must be given.")
        return JSONResponse({"token": tokens.mint(audience, email, project.knobs.token_seconds)})

    return _of_account(world, "getOpenIdToken", minted)


def _access_token(world: World) -> Callable[[Request], Awaitable[Response]]:
    def minted(project: Project, _email: str, body: dict[str, Any]) -> Response:
        if not body.get("scope"):
            return serving.error("INVALID_ARGUMENT", "The scope must be given.")
        seconds = min(project.knobs.token_seconds, _LONGEST_TOKEN_SECONDS)
        until = datetime.fromtimestamp(time.time() + seconds, UTC)
        return JSONResponse(
            {
                "accessToken": f"rehearsal.{uuid.uuid4().hex}",
                "expireTime": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )

    return _of_account(world, "getAccessToken", minted)


def _of_account(
    world: World, what: str, minted: Callable[[Project, str, dict[str, Any]], Response]
) -> Callable[[Request], Awaitable[Response]]:
    """Answer as IAM credentials do; who owns the project may mint, but for what is denied."""
    permission = f"iam.serviceAccounts.{what}"
    method = f"google.iam.credentials.v1.IAMCredentials/{what}"

    async def handle(request: Request) -> Response:
        world.touch()
        email = request.path_params["email"]
        project = world.project(email.rpartition("@")[2].partition(".")[0])
        refused = await serving.faulted(project, method) or serving.refused(
            project, "iamcredentials.googleapis.com", permission, email
        )
        if refused:
            return refused
        if email not in {*project.accounts, project.caller}:
            return serving.error("NOT_FOUND", f"Not found; Gaia id not found for email {email}")
        return minted(project, email, await request.json())

    return handle


_PROGRAM: Final = """#!{python}
import json, sys, urllib.request
told = json.dumps(sys.argv[1:]).encode()
said = json.load(urllib.request.urlopen(urllib.request.Request({url!r}, data=told)))
sys.stdout.write(said["stdout"])
sys.stderr.write(said["stderr"])
sys.exit(said["returncode"])
"""
_ADC_CLIENT: Final = "764086051850-6qr4p6gpi6hn506pt8ejuq83di341hur.apps.googleusercontent.com"
_TOKEN: Final = ("auth", "print-identity-token")
_SECRET: Final = ("secrets", "versions", "access")


class _Failed(Exception):
    """gcloud ends with status 1 and these words."""


def programs(world: World) -> Path:
    """Give the folder of all machines' programs."""
    return world.folder / "programs"


def install(world: World, project: Project) -> None:
    """Put gcloud onto the machine of a project's caller, or take it away, as its knob says."""
    remove(world, project)
    if project.knobs.gcloud:
        file = programs(world) / project.id / "gcloud"
        file.parent.mkdir(parents=True)
        url = f"{world.http}/rehearsal/projects/{project.id}/gcloud"
        file.write_text(_PROGRAM.format(python=sys.executable, url=url), encoding="utf-8")
        file.chmod(0o700)


def remove(world: World, project: Project) -> None:
    """Leave a machine without any program."""
    shutil.rmtree(programs(world) / project.id, ignore_errors=True)


def resume(world: World) -> None:
    """Install anew: the address of this process is another."""
    for project in world:
        install(world, project)


def gcloud_routes(world: World) -> Sequence[BaseRoute]:
    """Serve GET /rehearsal/projects/{project}/login, the file of a login, and POST …/gcloud."""

    async def login(request: Request) -> Response:
        return JSONResponse(_login(world.project(request.path_params["project"])))

    async def gcloud(request: Request) -> Response:
        world.touch()
        project = world.project(request.path_params["project"])
        try:
            said, words, code = _said(world, project, await request.json()), "", 0
        except _Failed as failed:
            said, words, code = "", f"ERROR: {failed}\n", 1
        return JSONResponse({"stdout": said, "stderr": words, "returncode": code})

    return (
        Route("/rehearsal/projects/{project}/login", login, methods=["GET"]),
        Route("/rehearsal/projects/{project}/gcloud", gcloud, methods=["POST"]),
    )


def _login(project: Project) -> dict[str, Any]:
    """Give what `gcloud auth application-default login` wrote; nothing for a machine's account."""
    if project.knobs.identity_kind != "user":
        return {}
    login = {
        "type": "authorized_user",
        "client_id": _ADC_CLIENT,
        "client_secret": "rehearsal",
        "refresh_token": "rehearsal",
        "token": "rehearsal",
        "account": project.caller,
    }
    billed = project.knobs.quota_project
    return {**login, **({"quota_project_id": billed} if billed else {})}


def _said(world: World, project: Project, words: list[str]) -> str:
    flags = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    path = tuple(word for word in words if not word.startswith("--"))
    if path == _TOKEN:
        return f"{_token_gcloud(world, project, flags)}\n"
    if path[:3] == _SECRET:
        return _secret(world, project, flags)
    raise _Failed(f"(gcloud) Invalid choice: '{' '.join(path)}'.")


def _token_gcloud(world: World, project: Project, flags: dict[str, str]) -> str:
    account, seconds = project.knobs.gcloud, project.knobs.token_seconds
    audience = flags.get("audiences", "")
    other = flags.get("impersonate-service-account", "")
    if other:
        refused = serving.refused(
            project, "iamcredentials.googleapis.com", "iam.serviceAccounts.getOpenIdToken", other
        )
        if refused or other not in project.accounts:
            raise _Failed(f"(gcloud.auth.print-identity-token) Failed to impersonate [{other}].")
        return world.tokens.mint(audience or GCLOUD_CLIENT, other, seconds)
    if audience and not account.endswith(".gserviceaccount.com"):
        raise _Failed(
            "(gcloud.auth.print-identity-token) Invalid account Type for `--audiences`. Requires"
            " valid service account."
        )
    return world.tokens.mint(audience or GCLOUD_CLIENT, account, seconds)


def _secret(world: World, project: Project, flags: dict[str, str]) -> str:
    held = world.project(flags.get("project", project.id)).secrets.get(flags.get("secret", ""))
    if held is None:
        raise _Failed("(gcloud.secrets.versions.access) NOT_FOUND: Secret not found.")
    return base64.b64decode(held.versions[-1].data).decode()
