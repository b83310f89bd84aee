"""A container registry's manifests: those of Docker Hub that are asked for in rehearsals."""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

_KNOWN: Final = {
    "vllm/vllm-openai": r"(latest|nightly|v\d+\.\d+\.\d+(\.post\d+)?)(-[a-z0-9_.-]+)?",
    "vllm/vllm-tpu": r"latest|nightly(-[0-9a-z-]+)?|v\d+\.\d+\.\d+",
    "ollama/ollama": r"latest|\d+\.\d+\.\d+(-rc\d+)?",
    "library/nginx": r"(latest|stable|\d+(\.\d+){1,2})(-alpine(-slim)?)?",
    "you/vllm-sm75": r"v0\.32\.0",  # stands for an image of one's own
    "azurelinux/base/python": r"3(\.\d+)?",  # Microsoft's own registry has it
    "library/python": r"3(\.\d+){0,2}(-slim)?",
}
"""Repositories of Docker Hub, each with the tags that it has."""
_INDEX: Final = "application/vnd.oci.image.index.v1+json"


def routes(
    base_url: Callable[[], str],
    touch: Callable[[], None],
    digest_of: Callable[[str, str], str | None],
) -> Sequence[BaseRoute]:
    """Serve `/v2/{name}/manifests/{reference}` and the token that it asks for.

    `base_url` is where; `touch` is told that somebody has called.
    """

    async def token(request: Request) -> Response:
        return JSONResponse({"token": _token(request.query_params.get("scope", ""))})

    async def manifest(request: Request) -> Response:
        touch()
        name, reference = request.path_params["name"], request.path_params["reference"]
        scope, service = f"repository:{name}:pull", base_url().partition("://")[2]
        if request.headers.get("authorization") != f"Bearer {_token(scope)}":
            asked = f'Bearer realm="{base_url()}/token",service="{service}",scope="{scope}"'
            return _error("UNAUTHORIZED", 401, {"www-authenticate": asked})
        digest = digest_of(name, reference)
        if digest is None:
            return _error("MANIFEST_UNKNOWN", 404)
        headers = {"docker-content-digest": digest, "content-type": _INDEX}
        index = {"schemaVersion": 2, "mediaType": _INDEX, "manifests": []}
        return JSONResponse(index, headers=headers)

    return (
        Route("/token", token, methods=["GET"]),
        Route("/v2/{name:path}/manifests/{reference}", manifest, methods=["GET"]),
    )


def is_known(name: str) -> bool:
    """Whether it is a repository of Docker Hub that is known here."""
    return name in _KNOWN


def hub_digest_of(name: str, reference: str) -> str | None:
    """Return the digest of Docker Hub's NAME:TAG or NAME@DIGEST; None where it has none such."""
    if name not in _KNOWN:
        return None
    if re.fullmatch(r"sha256:[0-9a-f]{64}", reference):
        return reference
    digest = "sha256:" + hashlib.sha256(f"{name}:{reference}".encode()).hexdigest()
    return digest if re.fullmatch(_KNOWN[name], reference) else None


def _token(scope: str) -> str:
    return hashlib.sha256(f"rehearsal {scope}".encode()).hexdigest()


def _error(code: str, status: int, headers: dict[str, str] | None = None) -> Response:
    words = code.replace("_", " ").lower()
    errors = [{"code": code, "message": words}]
    return JSONResponse({"errors": errors}, status_code=status, headers=headers)
