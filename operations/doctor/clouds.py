"""Whether each cloud that is configured gives a token; none is ever shown."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import anyio

from backends.aca.site import Clients
from backends.base import World
from backends.google.clients import GoogleClients
from core.errors import CloudUnavailable, NotAuthenticated
from core.records import Target
from core.settings import Settings
from operations.doctor.findings import Finding, Look, plain
from operations.doctor.reach import LOGIN
from operations.stage import Stage

_SECONDS: Final = 14.0
"""A machine that is none of the cloud's looks for its metadata server for some seconds."""
_TITLES: Final = {"google": "Google Cloud", "azure": "Azure"}
_SETTING: Final = {"google": "google_cloud_project", "azure": "azure_subscription_id"}
_LOGIN: Final = "Run `gcloud auth application-default login`."
_RUN_OUT: Final = f"{_LOGIN} The one that is kept has run out or was withdrawn."


def looks(settings: Settings, unreachable: Sequence[str]) -> Iterator[Look]:
    """Give one look for each cloud; `unreachable` are hosts that did not answer just now."""
    for area, find in (("google", _google), ("azure", _azure)):
        yield Look(
            area, f"{_TITLES[area]} login", _asked(area, find, settings, unreachable), _SECONDS
        )


def _asked(area: str, find: Any, settings: Settings, unreachable: Sequence[str]) -> Any:
    name, setting = _TITLES[area], _SETTING[area]

    def row(verdict: Any, detail: str, fix: str = "") -> Finding:
        return Finding(area=area, about=f"{name} login", verdict=verdict, detail=detail, fix=fix)

    def look() -> Iterator[Finding]:
        if settings.rehearsal:
            yield row("ok", "A rehearsal needs none.")
        elif not getattr(settings, setting):
            said = f"{setting.upper()} is not set: nothing can be deployed on {name}."
            yield row("missing", said, "Set it (`source init.sh` asks for it) if you want to.")
        elif LOGIN[area] in unreachable:
            yield row("warning", f"Not tried: {LOGIN[area]} cannot be reached.")
        else:
            yield row("ok", find(settings))

    return look


def _google(settings: Settings) -> str:
    """Fetch a token and forget it; say whose it is."""
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.auth.transport.requests import Request

    clients = GoogleClients(*_stage(settings, "google_cloud_project"))
    found: Any = anyio.run(clients.credentials)
    try:
        if not found.valid:
            found.refresh(Request())
    except TransportError as exc:
        said = "Google does not answer: give a token."
        raise CloudUnavailable(said, cause=plain(str(exc)), fix="Run it again.") from exc
    except GoogleAuthError as exc:
        said = "Google refuses the login that is kept."
        raise NotAuthenticated(said, cause=plain(str(exc)), fix=_RUN_OUT) from exc
    kind = type(found).__module__.partition("google.")[2] or type(found).__module__
    return f"A token for {settings.google_cloud_project} can be had ({kind})."


def _azure(settings: Settings) -> str:
    """Fetch a token and forget it."""

    async def ask() -> None:
        clients = Clients(*_stage(settings, "azure_subscription_id"))
        try:
            await clients.caller()
        finally:
            await clients.aclose()

    anyio.run(ask)
    return f"A token for subscription {settings.azure_subscription_id} can be had."


def _stage(settings: Settings, needs: str) -> tuple[Target, World]:
    stage = Stage(settings)
    target = next(one for one in stage.targets.values() if one.needs == needs)
    return target, World(settings, stage.folder, ())
