"""Storage accounts and file shares as Azure Resource Manager sees them, and how data is served."""

import base64
import hmac
import re
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from xml.sax.saxutils import escape, quoteattr

from azure.mgmt.storage import models as M  # noqa: N812  as Microsoft writes it
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from simulators.azure import providers, roles, tokens
from simulators.azure.errors import Refused, conflict, invalid, not_found, take_fault
from simulators.azure.serving import (
    Call,
    arm,
    begin,
    check_tags,
    checked,
    lasting,
    location_header,
    looked_at,
    moment,
    page,
    region_of,
    system_data,
    worker,
)
from simulators.azure.state import Operation, Subscription, World

_ALL: Final = "storage"
_FILE: Final = "file"
_BLOB: Final = "blob"


def storage_folder(world: World) -> Path:
    """Give the folder that has one for each subscription."""
    return world.folder / _ALL


def account_folder(world: World, sub: Subscription, account: str) -> Path:
    """Give the folder of an account."""
    return storage_folder(world) / sub.id / account


def share_folder(world: World, sub: Subscription, account: str, share: str) -> Path:
    """Give the folder of a share, which looks as the share does."""
    return account_folder(world, sub, account) / _FILE / share


def container_folder(world: World, sub: Subscription, account: str, container: str = "") -> Path:
    """Give the folder of a container of blobs; without a name, that of all."""
    return account_folder(world, sub, account) / _BLOB / container


_HEAD = '<?xml version="1.0" encoding="utf-8"?>'


def error(code: str, message: str) -> bytes:
    """Write a refusal."""
    return f"{_HEAD}<Error>{tags({'Code': code, 'Message': message})}</Error>".encode()


def tags(values: Mapping[str, object]) -> str:
    """Write elements with a text each."""
    return "".join(f"<{name}>{escape(str(one))}</{name}>" for name, one in values.items())


def element(name: str, title: str, properties: Mapping[str, object]) -> str:
    """Write one row of a list."""
    inner = f"<Name>{escape(title)}</Name><Properties>{tags(properties)}</Properties>"
    return f"<{name}>{inner}</{name}>"


def enumeration(
    rows: Sequence[str],
    wrapper: str,
    *,
    attributes: Mapping[str, str],
    told: Mapping[str, object],
    following: str,
) -> bytes:
    """Write a page of a list; `told` is what was asked for, `following` the next page's marker."""
    said = " ".join(f"{name}={quoteattr(one)}" for name, one in attributes.items())
    shown = tags({name: one for name, one in told.items() if one})
    inner = (
        f"{shown}<{wrapper}>{''.join(rows)}</{wrapper}><NextMarker>{escape(following)}</NextMarker>"
    )
    return f"{_HEAD}<EnumerationResults {said}>{inner}</EnumerationResults>".encode()


def paged(
    names: Iterable[str], marker: str, size: int, key: Callable[[str], str] = str
) -> tuple[list[str], str]:
    """Give the names of one page, in order, from the marker on, and the marker of the next."""
    left = [one for one in sorted(names, key=key) if one >= marker]
    return left[:size], left[size] if len(left) > size else ""


ACCOUNT_TYPE: Final = "Microsoft.Storage/storageAccounts"
_ACCOUNT_NAME: Final = re.compile(r"^[a-z0-9]{3,24}$")
_RESULTS: Final = "asyncoperations"
_KEYS: Final = ("key1", "key2")
_FILES_ONLY: Final = "FileStorage"


def account_routes(world: World) -> Sequence[BaseRoute]:
    """Serve accounts; their shares are in shares_arm."""
    provider = "/subscriptions/{subscription}/providers/Microsoft.Storage"
    here = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/providers/{ACCOUNT_TYPE}"
    one = f"{here}/{{account}}"
    return (
        arm("PUT", one, _put_account, type=ACCOUNT_TYPE, world=world),
        arm("GET", one, _get_account, type=ACCOUNT_TYPE, world=world),
        arm("DELETE", one, _delete_account, type=ACCOUNT_TYPE, world=world),
        arm("GET", here, _list_account, type=ACCOUNT_TYPE, world=world),
        arm("GET", f"{provider}/storageAccounts", _list_account, type=ACCOUNT_TYPE, world=world),
        arm("POST", f"{one}/listKeys", _keys, type=ACCOUNT_TYPE, action="listKeys", world=world),
        arm(
            "POST",
            f"{provider}/checkNameAvailability",
            _check_name,
            type="Microsoft.Storage",
            action="checkNameAvailability",
            world=world,
        ),
        *looked_at(world, "Microsoft.Storage", _RESULTS),
    )


def account_named(world: World, name: str) -> tuple[Subscription, dict[str, Any]] | None:
    """Give a storage account and whose it is, wherever it is."""
    for sub in world:
        for body in sub.of_type(ACCOUNT_TYPE):
            if body["name"] == name:
                return sub, body
    return None


def key_of(world: World, sub: Subscription, account: str, key: str = "key1") -> str:
    """Give an account's key, key1 or key2."""
    told = f"{sub.id}/{account}/{key}".encode()
    return base64.b64encode(hmac.digest(world.key, told, "sha512")).decode("ascii")


def opens(world: World, sub: Subscription, account: str, key: str) -> bool:
    """Whether a key opens an account of the subscription, as one does that a link has."""
    found = next((one for one in sub.of_type(ACCOUNT_TYPE) if one["name"] == account), None)
    if found is None or found["properties"].get("allowSharedKeyAccess") is False:
        return False
    return key in {key_of(world, sub, account, name) for name in _KEYS}


def account_made(
    sub: Subscription, group: str, name: str, body: dict[str, Any], *, state: str = "Succeeded"
) -> dict[str, Any]:
    """Make an account, or write over one."""
    path = f"/subscriptions/{sub.id}/resourceGroups/{group}/providers/{ACCOUNT_TYPE}/{name}"
    there = sub.get(path)
    sku = body["sku"]["name"]
    account = {
        "id": path,
        "name": name,
        "type": ACCOUNT_TYPE,
        "location": body["location"],
        "tags": body.get("tags", {}),
        "kind": body["kind"],
        "sku": {"name": sku, "tier": "Premium" if sku.startswith("Premium") else "Standard"},
        "systemData": system_data(sub, there),
        "properties": {
            "supportsHttpsTrafficOnly": True,
            "minimumTlsVersion": "TLS1_0",
            "allowBlobPublicAccess": False,
            "accessTier": "Hot",
            **body.get("properties", {}),
            "creationTime": there["properties"]["creationTime"] if there else moment(),
            "primaryLocation": body["location"],
            "statusOfPrimary": "available",
            "primaryEndpoints": _endpoints(name, body["kind"]),
            "provisioningState": state,
        },
    }
    sub.resources[path.lower()] = account
    return account


def resume(world: World) -> None:
    """Remove the data of accounts whose subscription was forgotten."""
    for folder in storage_folder(world).glob("*"):
        if folder.name not in world.subscriptions:
            shutil.rmtree(folder, ignore_errors=True)


def _endpoints(name: str, kind: str) -> dict[str, str]:
    served = ("file",) if kind == _FILES_ONLY else ("blob", "file", "queue", "table", "dfs")
    return {one: f"https://{name}.{one}.core.windows.net/" for one in served}


async def _put_account(call: Call) -> Response:
    name, there = call.params["account"], call.sub.get(call.id)
    body = checked(M.StorageAccountCreateParameters, call.body)
    _check_letters(name)
    providers.refuse(call.sub, call.type, name, body)
    body["location"] = region_of(call.body, there)
    check_tags(body.get("tags"))
    _check_kind(body, there)
    if there:
        return JSONResponse(account_made(call.sub, call.params["group"], name, body))
    _check_free(call, name)
    # One of that name may have been deleted with its whole group.
    shutil.rmtree(account_folder(call.world, call.sub, name), ignore_errors=True)
    account_made(call.sub, call.params["group"], name, body, state="Creating")
    operation = begin(call, "storage-make", body["location"], _RESULTS)
    return Response(status_code=202, headers=location_header(call.world, operation))


@worker("storage-make")
async def _make(_world: World, sub: Subscription, operation: Operation) -> dict[str, Any]:
    await lasting(operation, sub.knobs.operation_seconds)
    found = sub.resources[operation.resource]
    found["properties"]["provisioningState"] = "Succeeded"
    return found


def _check_letters(name: str) -> None:
    if not _ACCOUNT_NAME.match(name):
        raise invalid(
            f"{name} is not a valid storage account name. Storage account name must be between 3"
            " and 24 characters in length and use numbers and lower-case letters only.",
            "AccountNameInvalid",
        )


def _check_kind(body: dict[str, Any], there: dict[str, Any] | None) -> None:
    kind, sku = body["kind"], body["sku"]["name"]
    if kind == _FILES_ONLY and sku.startswith("Standard_"):
        raise invalid(
            f"Values for request parameters are invalid: sku. The sku {sku} is not for {kind}.",
            "InvalidValuesForRequestParameters",
        )
    if there and there["kind"] != kind:
        raise conflict(
            "AccountPropertyCannotBeUpdated",
            "The property 'kind' was specified in the input, but it cannot be updated.",
        )


def _check_free(call: Call, name: str) -> None:
    found = account_named(call.world, name)
    if found and found[0] is call.sub:
        raise conflict(
            "StorageAccountInAnotherResourceGroup",
            f"The account {name} is already in another resource group in this subscription.",
        )
    if found:
        raise conflict(
            "StorageAccountAlreadyTaken", f"The storage account named {name} is already taken."
        )


async def _get_account(call: Call) -> dict[str, Any]:
    return call.found()


async def _list_account(call: Call) -> dict[str, Any]:
    group = call.params.get("group")
    return page(call, call.sub.under(call.path) if group else call.sub.of_type(ACCOUNT_TYPE))


async def _delete_account(call: Call) -> Response:
    """Delete it with everything that is in it."""
    found = call.sub.resources.pop(call.id, None)
    if found is None:
        return Response(status_code=204)
    for name in [one for one in call.sub.resources if one.startswith(f"{call.id}/")]:
        del call.sub.resources[name]
    roles.dropped(call.sub, call.path)
    shutil.rmtree(account_folder(call.world, call.sub, found["name"]), ignore_errors=True)
    return Response(status_code=200)


async def _keys(call: Call) -> dict[str, Any]:
    name = call.found()["name"]
    return {
        "keys": [
            {
                "keyName": key,
                "value": key_of(call.world, call.sub, name, key),
                "permissions": "FULL",
                "creationTime": call.found()["properties"]["creationTime"],
            }
            for key in _KEYS
        ]
    }


async def _check_name(call: Call) -> dict[str, Any]:
    name = checked(M.StorageAccountCheckNameAvailabilityParameters, call.body)["name"]
    if not _ACCOUNT_NAME.match(name):
        said = f"{name} is not a valid storage account name."
        return {"nameAvailable": False, "reason": "AccountNameInvalid", "message": said}
    if account_named(call.world, name):
        said = f"The storage account named {name} is already taken."
        return {"nameAvailable": False, "reason": "AlreadyExists", "message": said}
    return {"nameAvailable": True}


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


_RANGE: Final = re.compile(r"^bytes=(\d+)-(\d*)$")


def range_of(headers: Mapping[str, str]) -> tuple[int, int | None] | None:
    """Give first and last byte that are asked for; None is all of them, or up to the end.

    Raises:
        Refused: It is none that can be read.
    """
    named = headers.get("x-ms-range") or headers.get("range")
    if not named:
        return None
    found = _RANGE.match(named)
    if not found:
        raise refused(400, "InvalidHeaderValue")
    return int(found.group(1)), int(found.group(2)) if found.group(2) else None


def downloaded(file: Path, headers: Mapping[str, str], told: Mapping[str, str]) -> Response:
    """Give what is asked for of a file; `told` are more headers.

    Raises:
        Refused: The range begins beyond the end.
    """
    asked, size = range_of(headers), file.stat().st_size
    own = {**described(file), **told}
    if asked is None:
        return Response(file.read_bytes(), headers=own, media_type="application/octet-stream")
    first, last = asked
    if first >= size:
        raise refused(416, "InvalidRange")
    last = min(size - 1 if last is None else last, size - 1)
    with file.open("rb") as stream:
        stream.seek(first)
        content = stream.read(last - first + 1)
    own["Content-Range"] = f"bytes {first}-{last}/{size}"
    return Response(content, 206, headers=own, media_type="application/octet-stream")


def described(path: Path) -> dict[str, str]:
    """Give the headers that tell when something was changed."""
    seen = path.stat()
    return {
        "ETag": f'"0x{seen.st_mtime_ns:X}"',
        "Last-Modified": http_date(seen.st_mtime),
        "Accept-Ranges": "bytes",
    }


SHARE_TYPE: Final = "Microsoft.Storage/storageAccounts/fileServices/shares"
_SERVICE: Final = "Microsoft.Storage/storageAccounts/fileServices"
_ACCOUNTS: Final = "providers/Microsoft.Storage/storageAccounts"
_SHARE_NAME: Final = re.compile(r"^(?=.{3,63}$)[a-z0-9]+(-[a-z0-9]+)*$")
_LARGEST_GIB: Final = 102_400
_SMALLEST_PREMIUM_GIB: Final = 100
_USUAL_STANDARD_GIB: Final = 5120


def share_routes(world: World) -> Sequence[BaseRoute]:
    """Serve them."""
    account = f"/subscriptions/{{subscription}}/resourceGroups/{{group}}/{_ACCOUNTS}/{{account}}"
    service = f"{account}/fileServices/default"
    one = f"{service}/shares/{{share}}"
    return (
        arm("GET", service, _service, type=_SERVICE, world=world),
        arm("GET", f"{service}/shares", _list_share, type=SHARE_TYPE, world=world),
        arm("PUT", one, _put_share, type=SHARE_TYPE, world=world),
        arm("GET", one, _get_share, type=SHARE_TYPE, world=world),
        arm("DELETE", one, _delete_share, type=SHARE_TYPE, world=world),
    )


def share_made(
    world: World, sub: Subscription, account: dict[str, Any], name: str, properties: dict[str, Any]
) -> dict[str, Any]:
    """Make a share, or write over one; what is in it stays."""
    path = f"{account['id']}/fileServices/default/shares/{name}"
    body = {
        "id": path,
        "name": name,
        "type": SHARE_TYPE,
        "etag": '"0x8DD0A1"',
        "properties": {
            "shareQuota": _usual_quota(account),
            "enabledProtocols": "SMB",
            "accessTier": "Premium" if _premium(account) else "TransactionOptimized",
            "metadata": {},
            **properties,
            "lastModifiedTime": moment(),
            "leaseStatus": "unlocked",
            "leaseState": "available",
        },
    }
    folder = share_folder(world, sub, account["name"], name)
    if not sub.get(path):  # its account may have been deleted with the whole group
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    sub.resources[path.lower()] = body
    return body


async def _service(call: Call) -> dict[str, Any]:
    account = _account(call)
    return {
        "id": call.path,
        "name": "default",
        "type": _SERVICE,
        "sku": account["sku"],
        "properties": {"shareDeleteRetentionPolicy": {"enabled": True, "days": 7}},
    }


async def _put_share(call: Call) -> Response:
    account, name = _account(call), call.params["share"]
    properties = checked(M.FileShare, call.body).get("properties", {})
    if not _SHARE_NAME.match(name):
        raise invalid(
            f"The share name '{name}' is not valid: 3 to 63 lower-case letters, digits and single"
            " hyphens.",
            "InvalidResourceName",
        )
    _check_size(account, properties.get("shareQuota", _usual_quota(account)))
    there = call.sub.get(call.id)
    kept = share_made(call.world, call.sub, account, name, properties)
    return JSONResponse(kept, status_code=200 if there else 201)


async def _get_share(call: Call) -> dict[str, Any]:
    _account(call)
    found = call.sub.get(call.id)
    if found is None:
        raise Refused(404, "ShareNotFound", "The specified share does not exist.")
    return found


async def _list_share(call: Call) -> dict[str, Any]:
    _account(call)
    return page(call, call.sub.under(call.path))


async def _delete_share(call: Call) -> Response:
    account = _account(call)
    found = call.sub.resources.pop(call.id, None)
    if found is None:
        return Response(status_code=204)
    folder = share_folder(call.world, call.sub, account["name"], found["name"])
    shutil.rmtree(folder, ignore_errors=True)
    return Response(status_code=200)


def _account(call: Call) -> dict[str, Any]:
    path = call.path[: call.id.index("/fileservices/")]
    account = call.sub.get(path)
    if account is None:
        raise not_found(path)
    if account["kind"] != "FileStorage" and _premium(account):
        raise invalid("File is not supported for the account.", "FeatureNotSupportedForAccount")
    return account


def _premium(account: dict[str, Any]) -> bool:
    return bool(account["sku"]["name"].startswith("Premium"))


def _usual_quota(account: dict[str, Any]) -> int:
    return _SMALLEST_PREMIUM_GIB if _premium(account) else _USUAL_STANDARD_GIB


def _check_size(account: dict[str, Any], quota: int) -> None:
    first = account["sku"]["name"] in {"Premium_LRS", "Premium_ZRS"}
    smallest = _SMALLEST_PREMIUM_GIB if first else 1
    if not smallest <= quota <= _LARGEST_GIB:
        raise invalid(
            "The value for one of the properties is not in the correct format: shareQuota must be"
            f" from {smallest} to {_LARGEST_GIB}.",
            "InvalidXmlNodeValue",
        )
