"""Policies, and how callers show who they are: metadata server, borrowed tokens, gcloud's login."""

import base64
import hashlib
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from google.iam.v1.policy_pb2 import Binding, Policy
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute

from simulators.google import serving
from simulators.google.grants import EVERYBODY
from simulators.google.serving import refusal
from simulators.google.state import GCLOUD_CLIENT, Project, World

_MEMBER: Final = re.compile(r"^(user|serviceAccount|group|domain|principal|principalSet):\S+$")
_ROLE: Final = re.compile(r"^(projects/[^/]+/|organizations/[^/]+/)?roles/[A-Za-z0-9_.]+$")


def as_answer(kept: Policy, version: int) -> Policy:
    """Return a policy as it is answered; conditions are told to those who ask for version 3."""
    found = Policy()
    found.CopyFrom(kept)
    found.etag = _etag(kept)
    if version < 3:
        found.version = 1
        for binding in found.bindings:
            if binding.HasField("condition"):
                words = binding.condition.SerializeToString(deterministic=True)
                binding.role += f"_withcond_{hashlib.sha256(words).hexdigest()[:20]}"
                binding.ClearField("condition")
    return found


def checked_policy(kept: Policy, wanted: Policy, project: Project) -> Policy:
    """Return what is to be kept after one SetIamPolicy.

    Raises:
        Refused: The etag is that of an older policy; or a role, a member (an account of the
            project must be there) or the version cannot be.
    """
    if wanted.etag and wanted.etag != _etag(kept):
        raise refusal("policy-etag")
    fresh = Policy(version=wanted.version)
    for binding in wanted.bindings:
        _check(binding, wanted.version, project)
        _check_own(binding.role, project, kept)
        if binding.members:
            fresh.bindings.append(binding)
    return fresh


def _check(binding: Binding, version: int, project: Project) -> None:
    if not _ROLE.match(binding.role) or "_withcond_" in binding.role:
        raise refusal("policy-role", role=binding.role)
    if binding.HasField("condition") and version != 3:
        raise refusal("policy-version")
    for member in binding.members:
        if member not in EVERYBODY and not _MEMBER.match(member):
            raise refusal("policy-member", member=member)
        kind, _, email = member.partition(":")
        ours = kind == "serviceAccount" and email.endswith(f"@{project.id}.iam.gserviceaccount.com")
        if ours and email not in {*project.accounts, project.caller}:
            raise refusal("policy-account", email=email)


def _check_own(role: str, project: Project, kept: Policy) -> None:
    """Refuse a role of the project's own that is not there; a grant of a deleted one may stay."""
    own = project.roles.get(role)
    if role.startswith("roles/") or (own and not own.deleted):
        return
    if not own or role not in {one.role for one in kept.bindings}:
        raise refusal("policy-own-role", role=role)


def _etag(kept: Policy) -> bytes:
    return hashlib.sha256(kept.SerializeToString(deterministic=True)).digest()[:8]


_FLAVOR: Final = {"Metadata-Flavor": "Google"}
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def metadata_routes(world: World) -> Sequence[BaseRoute]:
    """Serve what google-auth asks a metadata server for an ID token, and IAM credentials."""
    api = "iamcredentials.googleapis.com"

    async def metadata(project: Project, request: Request) -> Response:
        caller, audience = project.caller, request.query_params.get("audience", "")
        if project.knobs.identity_kind == "user":
            return PlainTextResponse("There is no metadata server here.", status_code=404)
        if request.url.path.endswith("/identity"):
            token = world.id_token(project, audience, caller)
            return PlainTextResponse(token, headers=_FLAVOR)
        told = {"aliases": ["default"], "email": caller, "scopes": [_SCOPE]}
        return JSONResponse(told, headers=_FLAVOR)

    async def minted(project: Project, request: Request) -> Response:
        """Let who owns the project mint, but for what is denied."""
        email = request.path_params["email"]
        serving.admit(project, api, "iam.serviceAccounts.getOpenIdToken", email)
        if email not in {*project.accounts, project.caller}:
            raise refusal("no-gaia", email=email)
        token = world.id_token(project, (await request.json())["audience"], email)
        return JSONResponse({"token": token})

    account = "/p/{project}/computeMetadata/v1/instance/service-accounts/{who}"
    minting = "/v1/projects/-/serviceAccounts/{email}:generateIdToken"
    mints = "google.iam.credentials.v1.IAMCredentials/getOpenIdToken"
    return (
        serving.rest(world, "GET", f"{account}/", "metadata/list", metadata),
        serving.rest(world, "GET", f"{account}/identity", "metadata/identity", metadata),
        serving.rest(world, "POST", minting, mints, minted),
    )


_PROGRAM: Final = """#!{python}
import json, sys, urllib.request
told = json.dumps(sys.argv[1:]).encode()
said = json.load(urllib.request.urlopen(urllib.request.Request({url!r}, data=told)))
sys.stdout.write(said["stdout"])
sys.stderr.write(said["stderr"])
sys.exit(said["returncode"])
"""
_ADC_CLIENT: Final = "764086051850-6qr4p6gpi6hn506pt8ejuq83di341hur.apps.googleusercontent.com"


class _Failed(Exception):
    """gcloud ends with status 1 and these words."""


def programs(world: World) -> Path:
    """Give the folder of all machines' programs."""
    return world.folder / "programs"


def install(world: World, project: Project, account: str) -> None:
    """Put gcloud onto the machine of a project's caller, or take it away where nobody uses it."""
    remove(world, project)
    if account:
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
        install(world, project, project.knobs.gcloud)


async def login(_world: World, project: Project, _request: Request) -> dict[str, Any]:
    """Return what `gcloud auth application-default login` wrote, for a person alone."""
    if project.knobs.identity_kind != "user":
        return {}
    words = ("client_secret", "refresh_token", "token")
    told = {"type": "authorized_user", "client_id": _ADC_CLIENT, "account": project.caller}
    billed = project.knobs.quota_project
    paid = {"quota_project_id": billed} if billed else {}
    return {**told, **dict.fromkeys(words, "rehearsal"), **paid}


async def gcloud(world: World, project: Project, request: Request) -> dict[str, Any]:
    """Return what gcloud prints, and how it ends."""
    try:
        said, words, code = _gcloud(world, project, await request.json()), "", 0
    except _Failed as failed:
        said, words, code = "", f"ERROR: {failed}\n", 1
    return {"stdout": said, "stderr": words, "returncode": code}


def _gcloud(world: World, project: Project, words: list[str]) -> str:
    flags = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    path = [word for word in words if not word.startswith("--")]
    if path[:3] == ["secrets", "versions", "access"]:
        owner = world.project(flags.get("project", project.id))
        held = owner.secrets.get(flags.get("secret", ""))
        if held is None:
            raise _Failed("(gcloud.secrets.versions.access) NOT_FOUND: Secret not found.")
        return base64.b64decode(held.versions[-1].data).decode()
    if path != ["auth", "print-identity-token"]:
        raise _Failed(f"(gcloud) Invalid choice: '{' '.join(path)}'.")
    account, audience = project.knobs.gcloud, flags.get("audiences", "")
    other = flags.get("impersonate-service-account", "")
    if other:
        denied = project.denies("iam.serviceAccounts.getOpenIdToken")
        if denied or other not in project.accounts:
            raise _Failed(f"(gcloud.auth.print-identity-token) Failed to impersonate [{other}].")
    elif audience and not account.endswith(".gserviceaccount.com"):
        raise _Failed(
            "(gcloud.auth.print-identity-token) Invalid account Type for `--audiences`. Requires"
            " valid service account."
        )
    return world.id_token(project, audience or GCLOUD_CLIENT, other or account) + "\n"
