"""What an image's tag means now, as its registry says."""

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from math import inf
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import anyio
import httpx2

from core.endpoint import trusted
from core.errors import CloudRefused
from core.records import Record
from core.reply import note

R = TypeVar("R", bound=Record)

_ACCEPTED: Final = (
    "application/vnd.oci.image.index.v1+json, "
    "application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, "
    "application/vnd.docker.distribution.manifest.v2+json"
)
_DOCKER_HUB: Final = "registry-1.docker.io"
_DOCKER_NAMES: Final = ("docker.io", "index.docker.io", _DOCKER_HUB)
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}$")
_CHALLENGE: Final = re.compile(r'(\w+)="([^"]*)"')
_TIMEOUT: Final = 10.0
_PIN_SECONDS: Final = 900.0
_pins: Final[dict[tuple[str, str, bool], tuple[float, str]]] = {}
"""When this process found which digest: a plan, its check and its deployment mean one image.

No longer: a server runs for weeks, and a tag such as `nightly` means another image each day.
"""


class Reference(NamedTuple):
    """An image's name, taken apart."""

    name: str
    """Without tag and digest, as it was written."""
    registry: str
    path: str
    """Of the repository at its registry."""
    tag: str


def reference(image: str) -> Reference:
    """Take a name apart; without a registry it is Docker Hub's, without a tag the latest."""
    head, _, last = image.rpartition("/")
    short, _, tag = last.partition(":")
    name = f"{head}/{short}" if head else short
    first, _, rest = name.partition("/")
    if not rest or not (set(".:") & set(first) or first == "localhost"):
        first, rest = _DOCKER_HUB, name
    if first in _DOCKER_NAMES:
        first, rest = _DOCKER_HUB, rest if "/" in rest else f"library/{rest}"
    return Reference(name, first, rest, tag or "latest")


async def pinned(
    image: str,
    simulated: str | None,
    *,
    refusals: Collection[int],
    fix: str,
    token: Callable[[], Awaitable[str | None]] | None = None,
    login: tuple[str, str] | None = None,
) -> str | None:
    """Return the image as NAME@sha256:…; None where its registry cannot be asked.

    `simulated` is the base URL that stands for every registry; `refusals` are the statuses by which
    one says that the cloud cannot pull it, and `fix` what is said then. `token` and `login` are the
    caller's there.

    Raises:
        CloudRefused: The registry has no such image, or shows it to nobody.
    """
    if "@" in image:
        return image
    wanted = reference(image)
    base = simulated or f"https://{wanted.registry}"
    at, known = _pins.get(asked := (base, image, bool(login)), (-inf, ""))
    if anyio.current_time() - at < _PIN_SECONDS:
        return known
    reply = await ask_registry(base, wanted, await token() if token else None, login=login)
    if reply and reply.status_code in refusals:
        raise CloudRefused(
            f"{wanted.registry} has no image {wanted.path}:{wanted.tag} that all may pull.",
            cause=f"Its registry answers {reply.status_code}.",
            fix=fix,
        )
    digest = reply.headers.get("docker-content-digest", "") if reply and reply.is_success else ""
    if not _DIGEST.match(digest):
        return None
    found = f"{wanted.name}@{digest}"
    _pins[asked] = (anyio.current_time(), found)
    return found


async def with_digests(
    made: R, parts: Sequence[str], pin: Callable[[str], Awaitable[str | None]]
) -> R:
    """Return the same with the images of these containers by their digests, as far as told.

    Raises what `pinned` does.
    """
    pins = dict[str, Any]()
    for part in parts:
        if one := getattr(made, part):
            image = await pin(one.image)
            if image is None:
                note(f"{one.image} is not pinned: its registry cannot be asked.")
            pins[part] = one.model_copy(update={"image": image or one.image})
    return made.model_copy(update=pins)


async def ask_registry(
    base: str, wanted: Reference, token: str | None = None, *, login: tuple[str, str] | None = None
) -> httpx2.Response | None:
    """Ask the registry at `base` for an image; None where it is not to be reached.

    `login` is an account's name and password, shown to whoever gives that registry's tokens.
    """
    url = f"{base}/v2/{wanted.path}/manifests/{wanted.tag}"
    try:
        async with httpx2.AsyncClient(
            timeout=_TIMEOUT, follow_redirects=True, verify=trusted()
        ) as client:
            reply = await _asked(client, url, token)
            if reply.status_code == 401 and token is None:
                token = await _token(client, reply, login)
                reply = await _asked(client, url, token) if token else reply
            return reply
    except (httpx2.TransportError, httpx2.InvalidURL, ValueError):
        return None


async def _asked(client: httpx2.AsyncClient, url: str, token: str | None) -> httpx2.Response:
    # HEAD does not count against Docker Hub's limit of pulls.
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    return await client.head(url, headers={"Accept": _ACCEPTED, **shown})


async def _token(
    client: httpx2.AsyncClient, reply: httpx2.Response, login: tuple[str, str] | None
) -> str | None:
    """Fetch what the registry's challenge asks for, as somebody without an account if need be."""
    asked = dict(_CHALLENGE.findall(reply.headers.get("www-authenticate", "")))
    realm = asked.pop("realm", "")
    if urlsplit(realm).scheme not in {"http", "https"}:
        return None
    answer = await client.get(realm, params=asked, auth=login)
    body = answer.json() if answer.is_success else {}
    token = body.get("token") or body.get("access_token")
    return token if isinstance(token, str) else None
