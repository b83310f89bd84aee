"""Who the caller is: the metadata server of a machine, and IAM credentials, over HTTP."""

import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from emulators.google import answering
from emulators.google.idtokens import IdTokens
from emulators.google.state import Project, World

_FLAVOR: Final = {"Metadata-Flavor": "Google"}
_PLAIN_PROJECT: Final = "rehearsal"
_SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_LONGEST_TOKEN_SECONDS: Final = 3600

Told = Callable[[World, Project, Request], Awaitable[Response]]


def routes(world: World) -> Sequence[BaseRoute]:
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
        f"{account}/token": _for_account(_token),
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
        reply = await answering.faulted(project, f"metadata/{what}")
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


async def _token(_world: World, project: Project, _request: Request) -> Response:
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
            return answering.error("INVALID_ARGUMENT", "The audience must be given.")
        return JSONResponse({"token": tokens.mint(audience, email, project.knobs.token_seconds)})

    return _of_account(world, "getOpenIdToken", minted)


def _access_token(world: World) -> Callable[[Request], Awaitable[Response]]:
    def minted(project: Project, _email: str, body: dict[str, Any]) -> Response:
        if not body.get("scope"):
            return answering.error("INVALID_ARGUMENT", "The scope must be given.")
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
        refused = await answering.faulted(project, method) or answering.refused(
            project, "iamcredentials.googleapis.com", permission, email
        )
        if refused:
            return refused
        if email not in {*project.accounts, project.caller}:
            return answering.error("NOT_FOUND", f"Not found; Gaia id not found for email {email}")
        return minted(project, email, await request.json())

    return handle
