"""A registry's manifests: those of Docker Hub that are asked for here, and the projects' own."""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from emulators.google.state import World

_KNOWN: Final = {
    "vllm/vllm-openai": re.compile(
        r"^(latest|nightly|v\d+\.\d+\.\d+(\.post\d+)?)(-[a-z0-9_.-]+)?$"
    ),
    "ollama/ollama": re.compile(r"^(latest|\d+\.\d+\.\d+(-rc\d+)?)$"),
    "library/python": re.compile(r"^3(\.\d+){0,2}(-slim)?$"),
}
"""Repositories of Docker Hub, each with the tags that it has."""
_DIGEST: Final = re.compile(r"^sha256:[0-9a-f]{64}$")
_INDEX: Final = "application/vnd.oci.image.index.v1+json"


def routes(world: World) -> Sequence[BaseRoute]:
    """Serve `/v2/`, `/v2/{name}/manifests/{reference}` and the token that they ask for."""

    async def base(request: Request) -> Response:
        return _challenge(world, "") if _anonymous(request) else JSONResponse({})

    async def token(request: Request) -> Response:
        if request.query_params.get("service") != _service(world):
            return JSONResponse({"details": "unknown service"}, status_code=400)
        return JSONResponse({"token": _token(request.query_params.get("scope", ""))})

    async def manifest(request: Request) -> Response:
        world.touch()
        name, reference = request.path_params["name"], request.path_params["reference"]
        scope = f"repository:{name}:pull"
        if request.headers.get("authorization") != f"Bearer {_token(scope)}":
            return _challenge(world, scope)
        digest = digest_of(world, name, reference)
        if digest is None:
            return _error("MANIFEST_UNKNOWN", "manifest unknown", 404)
        body = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": []}
        headers = {"docker-content-digest": digest, "content-type": _INDEX}
        return JSONResponse(body, headers=headers)

    return (
        Route("/v2/", base, methods=["GET"]),
        Route("/token", token, methods=["GET"]),
        Route("/v2/{name:path}/manifests/{reference}", manifest, methods=["GET"]),
    )


def digest_of(world: World, name: str, reference: str) -> str | None:
    """Give the digest of NAME:TAG or NAME@DIGEST; None where there is no such image.

    `name` is without a host: that of a project's own image begins with the project's id.
    """
    tags = _KNOWN.get(name)
    if tags is not None:
        if _DIGEST.match(reference):
            return reference
        return published(name, reference) if tags.match(reference) else None
    owner = world.projects.get(name.partition("/")[0])
    images = owner.images if owner else {}
    for image, digest in images.items():
        path, _, tag = image.partition("/")[2].rpartition(":")
        if path == name and reference in {tag, digest}:
            return digest
    return None


def published(name: str, tag: str) -> str:
    """Give the digest that a tag of Docker Hub has here."""
    return "sha256:" + hashlib.sha256(f"{name}:{tag}".encode()).hexdigest()


def _anonymous(request: Request) -> bool:
    return not request.headers.get("authorization", "").startswith("Bearer ")


def _challenge(world: World, scope: str) -> Response:
    words = f'Bearer realm="{world.http}/token",service="{_service(world)}"'
    reply = _error("UNAUTHORIZED", "authentication required", 401)
    reply.headers["www-authenticate"] = words + (f',scope="{scope}"' if scope else "")
    return reply


def _service(world: World) -> str:
    return world.http.partition("://")[2]


def _token(scope: str) -> str:
    return hashlib.sha256(f"rehearsal {scope}".encode()).hexdigest()


def _error(code: str, message: str, status: int) -> Response:
    return JSONResponse({"errors": [{"code": code, "message": message}]}, status_code=status)
