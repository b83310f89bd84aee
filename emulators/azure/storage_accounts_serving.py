"""How what is in storage accounts is served: by login and role, in XML, with faults."""

import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from emulators.azure import roles, tokens
from emulators.azure.faults import take_fault
from emulators.azure.refusing import Refused
from emulators.azure.state import Subscription, World
from emulators.azure.storage_accounts import account_named
from emulators.azure.storage_accounts_xml import error

AUDIENCE: Final = "https://storage.azure.com"
Kind = Literal["blob", "file"]
_MESSAGES: Final = {
    "NoAuthenticationInformation": "Server failed to authenticate the request. Please refer to the"
    " information in the www-authenticate header.",
    "AuthorizationPermissionMismatch": "This request is not authorized to perform this operation"
    " using this permission.",
    "MissingRequiredHeader": "An HTTP header that's mandatory for this request is not specified.",
    "ShareNotFound": "The specified share does not exist.",
    "ResourceNotFound": "The specified resource does not exist.",
    "ParentNotFound": "The specified parent path does not exist.",
    "ResourceAlreadyExists": "The specified resource already exists.",
    "ResourceTypeMismatch": "The specified resource type does not match the type of the existing"
    " resource.",
    "DirectoryNotEmpty": "The specified directory is not empty.",
    "InvalidResourceName": "The specified resource name contains invalid characters.",
    "InvalidHeaderValue": "The value for one of the HTTP headers is not in the correct format.",
    "InvalidQueryParameterValue": "Value for one of the query parameters specified in the request"
    " URI is invalid.",
    "InvalidRange": "The range specified is invalid for the current size of the resource.",
    "UnsupportedHttpVerb": "The resource doesn't support specified Http Verb.",
    "ContainerNotFound": "The specified container does not exist.",
    "ContainerAlreadyExists": "The specified container already exists.",
    "BlobNotFound": "The specified blob does not exist.",
    "BlobAlreadyExists": "The specified blob already exists.",
    "Md5Mismatch": "The MD5 value specified in the request did not match with the MD5 value"
    " calculated by the server.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request that was admitted."""

    world: World
    sub: Subscription
    account: str
    path: str
    """Below the account, without slashes around it."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    endpoint: str
    """Of the service, as answers tell it."""

    @property
    def top(self) -> str:
        """The share or container; empty where it is about all of them."""
        return self.path.partition("/")[0]

    @property
    def below(self) -> str:
        """What lies in it; empty where it is about the share or container itself."""
        return self.path.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One method of a service."""

    verb: str
    depth: int
    """0 is the account, 1 a share or container, 2 what lies in it."""
    answer: Callable[[Asked], Awaitable[Response]]
    action: str
    """What the caller's roles must allow."""
    name: str
    """What faults and the list of calls know it by, after the verb, such as `files`."""
    restype: str = ""
    comp: str = ""
    deeper: bool = False
    """Whether it is about what lies below that as well."""

    def fits(self, request: Request, depth: int) -> bool:
        """Whether a request is for it."""
        asked = request.query_params
        return (
            request.method == self.verb
            and (depth == self.depth or (self.deeper and depth > self.depth))
            and asked.get("restype", "") == self.restype
            and asked.get("comp", "") == self.comp
        )


def refused(status: int, code: str, **headers: str) -> Refused:
    """Refuse in the words of Azure Storage."""
    return Refused(status, code, _MESSAGES[code], headers=headers)


def served(world: World, kind: Kind, methods: Iterable[Method]) -> tuple[Route, Route]:
    """Serve the methods for every account."""
    known = tuple(methods)

    async def endpoint(request: Request) -> Response:
        world.touch()
        try:
            answer = await _answered(world, kind, known, request)
        except Refused as no:
            answer = Response(
                b"" if request.method == "HEAD" else error(no.code, no.message),
                status_code=no.status,
                headers={"x-ms-error-code": no.code, **no.headers},
                media_type="application/xml",
            )
        answer.headers["x-ms-request-id"] = str(uuid.uuid4())
        answer.headers["x-ms-version"] = request.headers.get("x-ms-version", "")
        return answer

    verbs = ["GET", "HEAD", "PUT", "DELETE", "POST"]
    base = f"/storage/{kind}/{{account}}"
    return (
        Route(base, endpoint, methods=verbs),
        Route(f"{base}/{{path:path}}", endpoint, methods=verbs),
    )


async def _answered(
    world: World, kind: Kind, known: tuple[Method, ...], request: Request
) -> Response:
    path = request.path_params.get("path", "").strip("/")
    sub, account = _account_of(world, kind, request.path_params["account"])
    caller = _caller(world, sub, request)
    depth = min(path.count("/") + 1, 2) if path else 0
    method = next((one for one in known if one.fits(request, depth)), None)
    if method is None:
        raise refused(405, "UnsupportedHttpVerb")
    name = f"{method.verb} {method.name}"
    sub.called(name)
    fault = take_fault(sub, name)
    if fault and fault.when in {"before", "hang"}:
        await fault.happen()
    _check_intent(kind, request)
    if not roles.may(sub, caller, method.action, account["id"]):
        raise refused(403, "AuthorizationPermissionMismatch")
    asked = Asked(
        world=world,
        sub=sub,
        account=account["name"],
        path=path,
        query=request.query_params,
        headers=request.headers,
        body=await request.body(),
        endpoint=f"{world.urls.storage}/{kind}/{account['name']}/",
    )
    answer = await method.answer(asked)
    if fault:
        await fault.happen()
    return answer


def _account_of(world: World, kind: Kind, name: str) -> tuple[Subscription, dict[str, Any]]:
    found = account_named(world, name)
    if found is None or kind not in found[1]["properties"]["primaryEndpoints"]:
        # The real one has no such host: nobody answers, which this status is the nearest to.
        raise Refused(503, "NoSuchHost", f"No address is known for {name}.{kind}.core.windows.net.")
    return found


def _caller(world: World, sub: Subscription, request: Request) -> str:
    try:
        claims = tokens.caller_of(world, request.headers, AUDIENCE)
    except Refused as no:
        raise _challenge(sub) from no
    if claims.subscription != sub.id:
        raise _challenge(sub)
    return claims.object_id


def _challenge(sub: Subscription) -> Refused:
    login = f"https://login.microsoftonline.com/{sub.tenant}/oauth2/authorize"
    challenge = f"Bearer authorization_uri={login} resource_id={AUDIENCE}"
    return refused(401, "NoAuthenticationInformation", **{"WWW-Authenticate": challenge})


def _check_intent(kind: Kind, request: Request) -> None:
    """Files are read by a login only if that is meant to go past their own permissions."""
    if kind == "file" and request.headers.get("x-ms-file-request-intent") != "backup":
        raise refused(400, "MissingRequiredHeader")


def http_date(at: float) -> str:
    """Write a moment (epoch seconds) as headers do."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at))
