"""The machine of whoever calls: what a login left there, and a gcloud that prints credentials.

Source: gcloud 578's own surface/auth/print_identity_token.py, which refuses `--audiences` to a
person (2026-11).
"""

import base64
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from emulators.google import answering
from emulators.google.idtokens import GCLOUD_CLIENT
from emulators.google.state import Project, World

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


def routes(world: World) -> Sequence[BaseRoute]:
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
        return f"{_token(world, project, flags)}\n"
    if path[:3] == _SECRET:
        return _secret(world, project, flags)
    raise _Failed(f"(gcloud) Invalid choice: '{' '.join(path)}'.")


def _token(world: World, project: Project, flags: dict[str, str]) -> str:
    account, seconds = project.knobs.gcloud, project.knobs.token_seconds
    audience = flags.get("audiences", "")
    other = flags.get("impersonate-service-account", "")
    if other:
        refused = answering.refused(
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
