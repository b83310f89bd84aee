"""Whether the APIs that are needed can be reached, and whether the clock agrees with theirs."""

import time
import urllib.request
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import httpx2

from core.endpoint import trusted
from core.errors import HostError
from core.settings import Settings
from operations.doctor.findings import Finding, Look, Verdict

LOGIN: Final[Mapping[str, str]] = {
    "google": "oauth2.googleapis.com",
    "azure": "login.microsoftonline.com",
}
"""Who must answer before a login can be tried."""
_HOSTS: Final[Mapping[str, tuple[str, ...]]] = {
    "google": (
        LOGIN["google"], "run.googleapis.com", "tpu.googleapis.com", "compute.googleapis.com",
        "secretmanager.googleapis.com", "logging.googleapis.com", "monitoring.googleapis.com",
    ),
    "azure": (LOGIN["azure"], "management.azure.com"),
    "hub": ("huggingface.co",),
}  # fmt: skip
_WHOAMI: Final = "https://huggingface.co/api/whoami-v2"
_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 5.0
"""Looking up a name may hang for longer than any timeout of the connection."""
_SKEW_SECONDS: Final = (60.0, 240.0)
"""Worth a word; and what logins refuse: clouds allow five minutes."""


def looks(settings: Settings) -> Iterator[Look]:
    """Give one look for each host that these settings need."""
    for area in needed(settings):
        for host in _HOSTS[area]:
            yield Look(area, host, partial(_reached, area, host), _LOOK_SECONDS, _without(area))
    if settings.hf_token:
        yield Look("hub", "HF_TOKEN", partial(_token, settings), _LOOK_SECONDS)
    yield Look("network", "proxies", _proxies, _LOOK_SECONDS)


def needed(settings: Settings) -> tuple[str, ...]:
    """Name whom these settings need: a rehearsal needs no cloud."""
    if settings.rehearsal:
        return ()
    google = ("google",) if settings.google_cloud_project else ()
    azure = ("azure",) if settings.azure_subscription_id else ()
    return (*google, *azure, "hub")


def _without(area: str) -> Verdict:
    """Say what it means that an API cannot be reached: without the Hub most things work."""
    return "warning" if area == "hub" else "failed"


def _reached(area: str, host: str) -> Iterator[Finding]:
    began = time.time()
    try:
        answer = _client().head(f"https://{host}/")
    except httpx2.HTTPError as exc:
        yield Finding(
            area=area,
            about=host,
            verdict=_without(area),
            detail=f"It cannot be reached: {type(exc).__name__}.",
            fix=_how(exc),
        )
        return
    seconds = time.time() - began
    yield Finding(area=area, about=host, verdict="ok", detail=f"It answers in {seconds:.1f} s.")
    yield from clock(host, answer.headers.get("date"), (began + time.time()) / 2)


def clock(host: str, date: str | None, now: float) -> Iterator[Finding]:
    """Say that the clock is wrong; one that is right is not worth a line for each host."""
    try:
        skew = now - parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return
    little, much = _SKEW_SECONDS
    if abs(skew) < little:
        return
    yield Finding(
        area="network",
        about="clock",
        verdict="failed" if abs(skew) > much else "warning",
        detail=f"This machine's clock is {skew:+.0f} s from that of {host}.",
        fix="Set it by NTP (timedatectl set-ntp true): logins are refused when it is far off.",
    )


def _token(settings: Settings) -> Iterator[Finding]:
    token = settings.hf_token
    assert token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
    try:
        status = _client().get(_WHOAMI, headers=headers).status_code
    except httpx2.HTTPError as exc:
        said = f"The Hub could not be asked: {type(exc).__name__}."
        yield Finding(area="hub", about="HF_TOKEN", verdict="warning", detail=said)
        return
    good = status != httpx2.codes.UNAUTHORIZED
    yield Finding(
        area="hub",
        about="HF_TOKEN",
        verdict="ok" if good else "failed",
        detail="The Hub knows it." if good else "The Hub does not know it, or no longer.",
        fix=""
        if good
        else "Make a new one (huggingface.co/settings/tokens), or unset it: with a"
        " bad one even public models are refused.",
    )


def _proxies() -> Iterator[Finding]:
    used = urllib.request.getproxies()
    said = ", ".join(
        f"{kind} through {_named(url)}" for kind, url in sorted(used.items()) if kind != "no"
    )
    yield Finding(
        area="network", about="proxies", verdict="ok", detail=f"{said}." if said else "None is set."
    )


def _named(url: str) -> str:
    try:
        return urlsplit(url).hostname or url.rpartition("@")[2]
    except ValueError:
        return "what is no address"


def _client() -> httpx2.Client:
    """Open what asks; what the environment says of proxies and authorities may not be usable.

    Nothing of that is repeated: a proxy's address may hold a password.
    """
    try:
        return httpx2.Client(verify=trusted(), timeout=_SECONDS)
    except (ValueError, ImportError, httpx2.InvalidURL) as exc:
        said = "A proxy that the environment names cannot be used."
        fix = "Let HTTPS_PROXY, HTTP_PROXY and ALL_PROXY begin with http:// and name host and port."
        raise HostError(said, fix=fix) from exc


def _how(exc: httpx2.HTTPError) -> str:
    if "CERTIFICATE" in str(exc).upper():
        return "Something between signs in its place: let SSL_CERT_FILE name its authority."
    return "Look at the network, a firewall, or HTTPS_PROXY."
