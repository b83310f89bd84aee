"""Who may call, what goes wrong with a call, and what is said instead of an answer."""

import base64
import fnmatch
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Final

import jwt
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from core.records import Record
from simulators.azure.state import REFUSALS, Body, Fault, Subscription, World
from simulators.common.world import meeting_faults

ARM: Final = "https://management.azure.com"
_LOGIN: Final = "https://login.microsoftonline.com/"
_CHALLENGE: Final = 'Bearer authorization_uri="{login}", error="invalid_token"'


class Refused(Exception):
    """A call is answered with an error in ARM's form."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
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


def refusal(name: str, /, *, inner: str = "", **words: object) -> Refused:
    """Return one of `refusals.toml`, with its words filled in."""
    status, code, message = REFUSALS[name]
    refused = Refused(status, code.format(**words), message.format(**words))
    refused.inner = {"code": inner} if inner else None
    return refused


def not_found(resource_id: str) -> Refused:
    """Return that nothing has that id."""
    group, _, rest = resource_id.partition("/providers/")
    return refusal("not-found", resource=rest or resource_id, group=group.rpartition("/")[2])


def faults_of(sub: Subscription, method: str) -> AbstractAsyncContextManager[None]:
    """Note a call, and let the first fault that it meets happen."""
    return meeting_faults(sub, method, _of_fault)


def _of_fault(fault: Fault) -> Refused:
    usual = {429: "TooManyRequests", 409: "Conflict"}.get(fault.status, "InternalServerError")
    headers = {} if fault.retry_after is None else {"Retry-After": f"{fault.retry_after:g}"}
    message = fault.message or f"Rehearsed: {fault.status}."
    return Refused(fault.status, fault.code or usual, message, headers)


def denied(sub: Subscription, action: str) -> bool:
    """Return whether the caller may not do this, such as Microsoft.App/containerApps/write."""
    sub.need(action)
    return matches(action, sub.knobs.denied_actions)


def matches(action: str, patterns: Iterable[str]) -> bool:
    """Return whether an action is one of some; `*` stands for any letters."""
    return any(fnmatch.fnmatchcase(action.lower(), one.lower()) for one in patterns)


async def json_of(request: Request) -> Body:
    """Read a body; none is an empty one."""
    read: Body = json.loads(await request.body() or b"{}")
    return read


def endpoint(
    world: World,
    answer: Callable[[Request], Awaitable[Response | Body]],
    refused: Callable[[Refused], Response] = Refused.response,
) -> Callable[[Request], Awaitable[Response]]:
    """Return what answers a route: a dict as JSON, and a refusal as ARM does or as is said."""

    async def answered(request: Request) -> Response:
        world.touch()
        try:
            told = await answer(request)
        except Refused as exc:
            return refused(exc)
        return JSONResponse(told) if isinstance(told, dict) else told

    return answered


def derived_key(world: World, *words: str) -> str:
    """Return the key of an account or a workspace, always the same."""
    return base64.b64encode(
        hmac.digest(world.tokens.key, "/".join(words).encode(), "sha512")
    ).decode()


class Claims(Record):
    """What a token that holds says."""

    rehearsed_subscription: str
    oid: str
    """The caller's object id."""
    aud: str
    """What it is meant for."""
    name: str
    exp: float


def issue_token(
    world: World, sub: Subscription, scopes: list[str], *, oid: str = ""
) -> tuple[str, int]:
    """Return a token for the caller or for `oid`, and until when it is valid (epoch seconds)."""
    return world.tokens.mint(
        sub.knobs.token_seconds,
        aud=scopes[0].removesuffix("/.default") if scopes else ARM,
        oid=oid or sub.caller,
        tid=sub.tenant,
        name=oid or sub.caller_name,
        rehearsed_subscription=sub.id,
    )


def caller_of(
    world: World,
    headers: Mapping[str, str],
    *audiences: str,
    sub: Subscription | None = None,
    challenge: str = _CHALLENGE,
) -> Claims:
    """Read whoever asks, of one subscription where one is given.

    An audience is the beginning of what the token must be meant for; the challenge says where to
    get one.

    Raises:
        Refused: There is no token, it is none of ours, it has run out or is for something else.
    """
    try:
        return _claims(world, headers, audiences, sub)
    except Refused as refused:
        words = {"login": f"{_LOGIN}{sub.tenant if sub else ''}", "audience": audiences[0]}
        refused.headers["WWW-Authenticate"] = challenge.format(**words)
        raise


def _claims(
    world: World, headers: Mapping[str, str], audiences: tuple[str, ...], sub: Subscription | None
) -> Claims:
    kind, _, token = headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token:
        raise refusal("no-token")
    try:
        told = world.tokens.read(token)
    except jwt.InvalidTokenError as exc:
        raise refusal("bad-token") from exc
    claims = Claims(**{name: told[name] for name in Claims.model_fields})
    if claims.exp <= time.time():
        raise refusal("old-token", ended=_date(claims.exp), now=_date(time.time()))
    if not claims.aud.startswith(audiences):
        raise refusal("audience", got=claims.aud, allowed=", ".join(map(repr, audiences)))
    if sub and claims.rehearsed_subscription != sub.id:
        raise refusal("bad-token")
    return claims


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%m/%d/%Y %I:%M:%S %p")
