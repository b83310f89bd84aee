"""Who may call, what goes wrong with a call, and what is said instead of an answer."""

import base64
import binascii
import fnmatch
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Never

import anyio
import trustme
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from core.records import Record
from simulators.azure.state import REFUSALS, Fault, Subscription, World


class Refused(Exception):
    """A call is answered with an error in ARM's form."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP."""
        self.code = code
        """Azure's own, such as ResourceNotFound."""
        self.message = message
        self.headers = dict(headers or {})
        self.inner: dict[str, Any] | None = None
        """The innererror that goes with it."""

    @property
    def error(self) -> dict[str, Any]:
        """The same as the error of a long-running operation."""
        told = {"code": self.code, "message": self.message}
        return told | ({"innererror": self.inner} if self.inner else {})

    def response(self) -> Response:
        """Return it as ARM does."""
        cause = {"x-ms-failure-cause": "gateway"} if self.code == "ResourceNotFound" else {}
        return JSONResponse({"error": self.error}, self.status, headers=cause | self.headers)


def refusal(name: str, /, **words: object) -> Refused:
    """Return one of `refusals.toml`, with its words filled in."""
    status, code, message = REFUSALS[name]
    return Refused(status, code.format(**words), message.format(**words))


def not_found(resource_id: str) -> Refused:
    """Return that nothing has that id."""
    group, _, rest = resource_id.partition("/providers/")
    return refusal("not-found", resource=rest or resource_id, group=group.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault that happens to this call."""

    when: str
    refused: Refused

    async def happen(self) -> Never:
        """Refuse, or never answer."""
        if self.when.startswith("hang"):
            await anyio.sleep_forever()
        raise self.refused


async def begin_call(sub: Subscription, method: str) -> Injected | None:
    """Note a call, and let the first fault that it meets happen, or return one for its end."""
    sub.called(method)
    for place, fault in enumerate(sub.knobs.faults):
        if fault.times and fnmatch.fnmatchcase(method.lower(), fault.method.lower()):
            spent = fault.model_copy(update={"times": max(-1, fault.times - 1)})
            faults = (*sub.knobs.faults[:place], spent, *sub.knobs.faults[place + 1 :])
            sub.knobs = sub.knobs.model_copy(update={"faults": faults})
            injected = Injected(fault.when, _injected(fault))
            if fault.when in {"before", "hang"}:
                await injected.happen()
            return injected
    return None


def _injected(fault: Fault) -> Refused:
    usual = {429: "TooManyRequests", 409: "Conflict"}.get(fault.status, "InternalServerError")
    headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
    message = fault.message or f"Rehearsed: {fault.status}."
    return Refused(fault.status, fault.code or usual, message, headers)


def denied(sub: Subscription, action: str) -> bool:
    """Return whether the caller may not do this, such as Microsoft.App/containerApps/write."""
    sub.need(action)
    return matches(action, sub.knobs.denied_actions)


def matches(action: str, patterns: tuple[str, ...]) -> bool:
    """Return whether an action is one of some; `*` stands for any letters."""
    return any(fnmatch.fnmatchcase(action.lower(), one.lower()) for one in patterns)


async def json_of(request: Request) -> dict[str, Any]:
    """Read a body; none is an empty one.

    Raises:
        Refused: It is not an object of JSON.
    """
    raw = await request.body()
    try:
        read = json.loads(raw) if raw else {}
    except ValueError as exc:
        raise refusal("content", why=exc) from exc
    if not isinstance(read, dict):
        raise refusal("content", why="it is not an object")
    return read


def endpoint(
    world: World, answer: Callable[[Request], Awaitable[Response | dict[str, Any]]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers a route: a dict as JSON, and a refusal as ARM does."""

    async def answered(request: Request) -> Response:
        world.touch()
        try:
            told = await answer(request)
        except Refused as refused:
            return refused.response()
        return JSONResponse(told) if isinstance(told, dict) else told

    return answered


ARM: Final = "https://management.azure.com"
AUTHORITY: Final = "ca.pem"


def certificate(folder: Path) -> Path:
    """Return the file with the key and certificate for 127.0.0.1 and localhost, signed anew."""
    shown, key, own = folder / AUTHORITY, folder / "ca.key", folder / "plane.pem"
    if key.exists():
        authority = trustme.CA.from_pem(shown.read_bytes(), key.read_bytes())
    else:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(shown)
        key.touch(mode=0o600)
        key.write_bytes(authority.private_key_pem.bytes())
    issued = authority.issue_cert("127.0.0.1", "localhost")
    own.touch(mode=0o600)
    own.write_bytes(issued.private_key_and_cert_chain_pem.bytes())
    return own


def signing_key(folder: Path) -> bytes:
    """Return the key that tokens are signed with; the first time, make it."""
    file = folder / "tokens.key"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(secrets.token_bytes(32))
    return file.read_bytes()


def derived_key(world: World, *words: str) -> str:
    """Return the key of an account or a workspace, always the same."""
    return base64.b64encode(hmac.digest(world.key, "/".join(words).encode(), "sha512")).decode()


class Claims(Record):
    """What a token that holds says."""

    rehearsed_subscription: str
    oid: str
    """The caller's object id."""
    aud: str
    """What it is meant for."""
    name: str
    exp: float


def issue_token(world: World, sub: Subscription, scopes: list[str]) -> tuple[str, int]:
    """Return a token for the caller, and until when it is valid (epoch seconds)."""
    ends = int(time.time() + sub.knobs.token_seconds)
    claims = {
        "aud": scopes[0].removesuffix("/.default") if scopes else ARM,
        "exp": ends,
        "oid": sub.caller,
        "sub": sub.caller,
        "tid": sub.tenant,
        "name": sub.caller_name,
        "rehearsed_subscription": sub.id,
    }
    parts = ({"alg": "HS256", "typ": "JWT"}, claims)
    signed = ".".join(_bare(json.dumps(one, separators=(",", ":")).encode()) for one in parts)
    return f"{signed}.{_signature(world, signed)}", ends


def login_refusal(sub: Subscription) -> tuple[str, str] | None:
    """Return the error and its description, of a login that gives no token."""
    if sub.knobs.login == "none":
        return "login_required", "Please run 'az login' to set up an account."
    if sub.knobs.login == "expired":
        told = "AADSTS700082: The refresh token has expired due to inactivity."
        return "invalid_grant", f"{told} Please run 'az login'."
    return None


def caller_of(world: World, headers: Mapping[str, str], *audiences: str) -> Claims:
    """Read whoever asks; an audience is the beginning of what the token must be meant for.

    Raises:
        Refused: There is no token, it is none of ours, it has run out or is for something else.
    """
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise _challenged(refusal("no-token"))
    signed, _, signature = token.rpartition(".")
    if not hmac.compare_digest(_signature(world, signed), signature):
        raise _challenged(refusal("bad-token"))
    packed = signed.partition(".")[2]
    try:
        told = json.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
    except (ValueError, binascii.Error) as exc:
        raise _challenged(refusal("bad-token")) from exc
    claims = Claims(**{name: told[name] for name in Claims.model_fields})
    if claims.exp <= time.time():
        raise _challenged(refusal("old-token", ended=_date(claims.exp), now=_date(time.time())))
    if audiences and not claims.aud.startswith(audiences):
        allowed = ", ".join(map(repr, audiences))
        raise _challenged(refusal("audience", got=claims.aud, allowed=allowed))
    return claims


def _challenged(refused: Refused) -> Refused:
    login = "https://login.microsoftonline.com/"
    told = f'Bearer authorization_uri="{login}", error="invalid_token"'
    refused.headers["WWW-Authenticate"] = told
    return refused


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%m/%d/%Y %I:%M:%S %p")


def _signature(world: World, signed: str) -> str:
    return _bare(hmac.digest(world.key, signed.encode(), hashlib.sha256))


def _bare(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode("ascii")
