"""A container registry's manifests: those of Docker Hub that are asked for in rehearsals."""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

_KNOWN: Final = {
    "vllm/vllm-openai": re.compile(
        r"^(latest|nightly|v\d+\.\d+\.\d+(\.post\d+)?)(-[a-z0-9_.-]+)?$"
    ),
    "vllm/vllm-tpu": re.compile(r"^(latest|nightly(-[0-9a-z-]+)?|v\d+\.\d+\.\d+)$"),
    "ollama/ollama": re.compile(r"^(latest|\d+\.\d+\.\d+(-rc\d+)?)$"),
    "library/nginx": re.compile(r"^(latest|stable|\d+(\.\d+){1,2})(-alpine(-slim)?)?$"),
    "you/vllm-sm75": re.compile(r"^v0\.32\.0$"),  # stands for an image of one's own
    "library/python": re.compile(r"^3(\.\d+){0,2}(-slim)?$"),
}
"""Repositories of Docker Hub, each with the tags that it has."""
_DIGEST: Final = re.compile(r"^sha256:[0-9a-f]{64}$")
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
_EMPTY_INDEX: Final = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": []}

DigestOf = Callable[[str, str], str | None]


def routes(
    base_url: Callable[[], str], touch: Callable[[], None], digest_of: DigestOf
) -> Sequence[BaseRoute]:
    """Serve `/v2/`, `/v2/{name}/manifests/{reference}` and the token that they ask for.

    `base_url` is where; `touch` is told that somebody has called.
    """

    async def base(request: Request) -> Response:
        return _challenge(base_url(), "") if _anonymous(request) else JSONResponse({})

    async def token(request: Request) -> Response:
        if request.query_params.get("service") != _service(base_url()):
            return JSONResponse({"details": "unknown service"}, status_code=400)
        return JSONResponse({"token": _token(request.query_params.get("scope", ""))})

    async def manifest(request: Request) -> Response:
        touch()
        name, reference = request.path_params["name"], request.path_params["reference"]
        scope = f"repository:{name}:pull"
        if request.headers.get("authorization") != f"Bearer {_token(scope)}":
            return _challenge(base_url(), scope)
        digest = digest_of(name, reference)
        if digest is None:
            return _error("MANIFEST_UNKNOWN", "manifest unknown", 404)
        headers = {"docker-content-digest": digest, "content-type": _INDEX}
        return JSONResponse(_EMPTY_INDEX, headers=headers)

    return (
        Route("/v2/", base, methods=["GET"]),
        Route("/token", token, methods=["GET"]),
        Route("/v2/{name:path}/manifests/{reference}", manifest, methods=["GET"]),
    )


def is_known(name: str) -> bool:
    """Whether it is a repository of Docker Hub that is known here."""
    return name in _KNOWN


def hub_digest_of(name: str, reference: str) -> str | None:
    """Give the digest of Docker Hub's NAME:TAG or NAME@DIGEST; None where it has none such."""
    tags = _KNOWN.get(name)
    if tags is None:
        return None
    if _DIGEST.match(reference):
        return reference
    return published(name, reference) if tags.match(reference) else None


def published(name: str, tag: str) -> str:
    """Give the digest that a tag of Docker Hub has here."""
    return "sha256:" + hashlib.sha256(f"{name}:{tag}".encode()).hexdigest()


def _anonymous(request: Request) -> bool:
    return not request.headers.get("authorization", "").startswith("Bearer ")


def _challenge(base_url: str, scope: str) -> Response:
    words = f'Bearer realm="{base_url}/token",service="{_service(base_url)}"'
    reply = _error("UNAUTHORIZED", "authentication required", 401)
    reply.headers["www-authenticate"] = words + (f',scope="{scope}"' if scope else "")
    return reply


def _service(base_url: str) -> str:
    return base_url.partition("://")[2]


def _token(scope: str) -> str:
    return hashlib.sha256(f"rehearsal {scope}".encode()).hexdigest()


def _error(code: str, message: str, status: int) -> Response:
    return JSONResponse({"errors": [{"code": code, "message": message}]}, status_code=status)
