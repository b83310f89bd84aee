"""How a Key Vault's own data is served: challenged, by roles in effect, with faults."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from emulators.azure import roles, tokens
from emulators.azure.faults import take_fault
from emulators.azure.refusing import Refused, invalid
from emulators.azure.serving import json_of, refusal
from emulators.azure.state import Subscription, Vault, World
from emulators.azure.vaults_arm import vault_named

AUDIENCE: Final = "https://vault.azure.net"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request that was admitted."""

    vault: Vault
    vault_uri: str
    """Its address in the real world, with the slash."""
    days: int
    """For which what is deleted can be recovered."""
    purge_protected: bool
    name: str
    """Of the secret; empty where it is about all of them."""
    version: str
    """Empty is the newest."""
    query: Mapping[str, str]
    url: str
    """Where it was asked, without what follows the question mark."""
    body: dict[str, Any]


Answer = Callable[[Asked], Awaitable[dict[str, Any] | Response]]
"""Answers a request; raises Refused."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method of the vault's own API."""

    verb: str
    pattern: str
    """Below the vault."""
    answer: Answer
    action: str
    """What the caller's roles must allow."""

    @property
    def name(self) -> str:
        """What faults and the list of calls know it by, such as `PUT secrets`."""
        words = [word for word in self.pattern.split("/") if word and not word.startswith("{")]
        return f"{self.verb} {'/'.join(words)}"


def served(world: World, method: Method) -> Route:
    """Serve a method for every vault."""

    async def endpoint(request: Request) -> Response:
        world.touch()
        try:
            return await _answered(world, method, request)
        except Refused as refused:
            return refusal(refused)

    return Route(f"/vaults/{{vault}}{method.pattern}", endpoint, methods=[method.verb])


async def _answered(world: World, method: Method, request: Request) -> Response:
    sub, vault = _vault_of(world, request.path_params["vault"])
    caller = _caller(world, sub, request)
    sub.called(method.name)
    fault = take_fault(sub, method.name)
    if fault and fault.when in {"before", "hang"}:
        await fault.happen()
    _check_version(request)
    asked = Asked(
        vault=sub.vaults[vault["name"].lower()],
        vault_uri=vault["properties"]["vaultUri"],
        days=vault["properties"]["softDeleteRetentionInDays"],
        purge_protected=bool(vault["properties"].get("enablePurgeProtection")),
        name=request.path_params.get("name", ""),
        version=request.path_params.get("version", ""),
        query=request.query_params,
        url=f"{world.urls.arm}{request.url.path}",
        body=await json_of(request),
    )
    check_access(sub, vault, caller, method.action, asked.name)
    answer = await method.answer(asked)
    if method.verb != "GET":
        world.keep(sub)
    if fault:
        await fault.happen()
    return JSONResponse(answer) if isinstance(answer, dict) else answer


def check_access(
    sub: Subscription, vault: dict[str, Any], principal: str, action: str, name: str
) -> None:
    """Refuse whoever has no role, in effect, that allows this.

    Raises:
        Refused: In Microsoft's words.
    """
    if not vault["properties"]["enableRbacAuthorization"]:
        raise Refused(
            403,
            "Forbidden",
            f"The user, group or application 'oid={principal}' does not have secrets permission on"
            f" key vault '{vault['name']};location={vault['location']}'.",
            inner={"code": "AccessDenied"},
        )
    resource = f"{vault['id']}/secrets/{name}" if name else vault["id"]
    if roles.may(sub, principal, action, resource):
        return
    raise Refused(
        403,
        "Forbidden",
        "Caller is not authorized to perform action on resource.\r\nIf role assignments, deny"
        " assignments or role definitions were changed recently, please observe propagation"
        f" time.\r\nCaller: oid={principal};iss=https://sts.windows.net/{sub.tenant}/\r\n"
        f"Action: '{action}'\r\nResource: '{resource.lower()}'\r\nAssignment: (not found)\r\n"
        "DenyAssignmentId: null\r\nDecisionReason: null \r\n"
        f"Vault: {vault['name']};location={vault['location']}\r\n",
        inner={"code": "ForbiddenByRbac"},
    )


def _vault_of(world: World, name: str) -> tuple[Subscription, dict[str, Any]]:
    found = vault_named(world, name)
    if found is None:
        # The real one has no such host: nobody answers, which this status is the nearest to.
        raise Refused(503, "NoSuchHost", f"No address is known for {name}.vault.azure.net.")
    return found


def _caller(world: World, sub: Subscription, request: Request) -> str:
    try:
        claims = tokens.caller_of(world, request.headers, AUDIENCE)
    except Refused as refused:
        raise _challenge(sub, refused.message) from refused
    if claims.subscription != sub.id:
        raise _challenge(sub, "AKV10032: Invalid issuer.")
    return claims.object_id


def _challenge(sub: Subscription, why: str) -> Refused:
    login = f"https://login.microsoftonline.com/{sub.tenant}"
    challenge = f'Bearer authorization="{login}", resource="{AUDIENCE}"'
    return Refused(401, "Unauthorized", why, headers={"WWW-Authenticate": challenge})


def _check_version(request: Request) -> None:
    if "api-version" not in request.query_params:
        raise invalid("The api-version query parameter is missing.", "BadParameter")
