"""One target on Azure: names, errors, clients, and how its resources are looked at and made."""

import base64
import hashlib
import json
import logging
import re
import shlex
import ssl
import time
from collections import defaultdict
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

import aiohttp
import anyio
import httpx2
import stamina
from azure.core.credentials import AccessToken
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.core.pipeline import PipelineRequest
from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.core.pipeline.transport import AioHttpTransport
from azure.identity.aio import DefaultAzureCredential
from azure.keyvault.secrets.aio import SecretClient
from azure.mgmt.appcontainers.aio import ContainerAppsAPIClient
from azure.monitor.query.aio import LogsQueryClient
from azure.monitor.querymetrics.aio import MetricsClient
from azure.storage.fileshare.aio import ShareServiceClient
from pydantic import ValidationError

from backends.base import World
from backends.common.refusals import refused
from backends.lifecycle import Pending, PendingStore, Resource, Status
from core.environment import read_toml
from core.errors import (
    ApiDisabled,
    CloudError,
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    ConcurrentChange,
    NotAuthenticated,
    NotConfigured,
    OpsError,
)
from core.records import Record, Target
from core.settings import AzurePlane, Settings

T = TypeVar("T")
MANAGED_BY: Final = "vllm-devops-agent"
"""The value of the tag `managed-by` on everything that is made here."""
MANAGED_TAG: Final = "managed-by"
OURS: Final = {MANAGED_TAG: MANAGED_BY}
TARGET_TAG: Final = "vllm-devops-target"
SPEC_TAG: Final = "vllm-devops-spec"
"""Its value is the spec's fingerprint."""
JSON_TAG: Final = "vllm-devops-json"
"""The spec itself, cut to what a tag holds: `-0`, `-1` and so on follow."""
DEPLOYMENT_TAG: Final = "vllm-devops-deployment"
"""Of what was made for one deployment alone."""
GROUP_TAG: Final = "vllm-devops-group"
"""A vault may serve several groups: a deployment of the same name elsewhere has another key."""
OWN: Final = "vllm-devops"
"""What is made once is called so, with the region where there is one in each."""
CONTAINER: Final = "vllm"
KEY: Final = "api-key"
"""The app's name for the engine's key; it refers to the vault."""
HF_SECRET: Final = "hf-token"  # noqa: S105  the secret's name, in the vault and in apps
REGISTRY_SECRET: Final = "registry-password"  # noqa: S105  likewise
SHARE: Final = "weights"
"""The file share with weights, and the environment's link to it."""
CONSUMPTION: Final = "Consumption"
NO_SUBSCRIPTION: Final = "SUBSCRIPTION_ID"
"""Said in texts while no subscription is set."""
REHEARSED_SUBSCRIPTION: Final = "00000000-0000-4000-8000-000000000000"
DEFAULT_REGION: Final = "swedencentral"

REGISTERING: Final = "registering providers"
ENVIRONMENT: Final = "creating the environment"
EFFECT: Final = "waiting for access to take effect"
LEASING: Final = "letting Azure end it at its time"
PREPARING: Final = "preparing"
"""Group, workspace, identity, secrets and storage: each takes seconds."""
PHASES: Final = frozenset({REGISTERING, ENVIRONMENT, EFFECT, LEASING, PREPARING})
"""Everything that a deployment may wait for before it has an app."""


class Ground(Record):
    """What every deployment of a target stands on; made once, by the set-up."""

    subscription: str
    resource_group: str
    region: str
    environment: str
    workspace: str
    identity: str
    """The user-assigned identity that apps run as."""
    vault: str
    storage_account: str

    @property
    def group_id(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"

    def id_of(self, kind: str, name: str) -> str:
        return f"{self.group_id}/providers/{kind}/{name}"

    @property
    def workspace_id(self) -> str:
        return self.id_of("Microsoft.OperationalInsights/workspaces", self.workspace)

    @property
    def environment_id(self) -> str:
        return self.id_of("Microsoft.App/managedEnvironments", self.environment)

    @property
    def identity_id(self) -> str:
        return self.id_of("Microsoft.ManagedIdentity/userAssignedIdentities", self.identity)

    @property
    def vault_id(self) -> str:
        return self.id_of("Microsoft.KeyVault/vaults", self.vault)

    @property
    def storage_id(self) -> str:
        return self.id_of("Microsoft.Storage/storageAccounts", self.storage_account)

    @property
    def owner(self) -> str:
        """Whose secrets are meant in a vault of several groups."""
        return f"{self.subscription}/{self.resource_group}"

    def app_id(self, name: str) -> str:
        return self.id_of("Microsoft.App/containerApps", name)


def ground_of(target: Target, settings: Settings, subscription: str) -> Ground:
    """Name everything; what Azure wants to be unique in the world is derived from whose it is."""
    group = settings.azure_resource_group or OWN
    region = (settings.azure_location or target.region or DEFAULT_REGION).lower().replace(" ", "")
    unique = hashlib.sha256(f"{subscription}/{group}".lower().encode()).hexdigest()[:12]
    return Ground(
        subscription=subscription,
        resource_group=group,
        region=region,
        environment=settings.azure_containerapps_environment or f"{OWN}-{region}",
        workspace=f"{OWN}-{region}",
        identity=OWN,
        vault=settings.azure_keyvault_name or f"vllm-{unique}",
        storage_account=settings.azure_storage_account or f"vllm{unique}",
    )


def key_secret(name: str) -> str:
    return f"vllm-devops-{name}-api-key"


_LOGIN: Final = "Run `az login`, or set AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET."
_AGAIN: Final = "Call the same tool again in a minute."
_LOOK: Final = "Look with status_vllm, then call again."
SETUP: Final = "Call setup_target (make setup), which makes what the target needs."
NEW_ENVIRONMENT: Final = (
    "Set AZURE_CONTAINERAPPS_ENVIRONMENT to a new name, and an environment is made for it"
)
_LIBRARY: Final[tuple[tuple[type[AzureError], type[CloudError], str, str], ...]] = (
    (ClientAuthenticationError, NotAuthenticated, "Azure does not know who asks", _LOGIN),
    (ServiceRequestError, CloudUnavailable, "Azure is not to be reached", _AGAIN),
    (ServiceResponseError, CloudTimeout, "Azure did not answer in time", _LOOK),
    (AzureError, CloudError, "Azure's library failed", "Read the cause."),
)
"""What its library raises beside answers."""
_BY_AZ: Final = re.compile(r"AzureCliCredential: [^\n]+")
"""Of the dozen ways in that DefaultAzureCredential has tried, a person's (2026-11)."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn what Azure raises while we do `what` into a coded error.

    ResourceNotFoundError goes on as it is: only the caller knows what it means.
    """
    try:
        yield
    except ResourceNotFoundError:
        raise
    except AzureError as exc:
        if isinstance(exc, HttpResponseError) and not isinstance(exc, ClientAuthenticationError):
            words = str(getattr(exc.error, "message", None) or exc.message)
            raise classed(code_of(exc), words, what, status=exc.status_code or 0) from exc
        _, kind, said, fix = next(row for row in _LIBRARY if isinstance(exc, row[0]))
        way = _BY_AZ.search(exc.message)
        raise kind(f"{said}: {what}.", cause=way[0] if way else exc.message, fix=fix) from exc


@contextmanager
def strictly(what: str) -> Iterator[None]:
    """Translate what Azure raises where nothing that is named may be missing."""
    try:
        with translated(what):
            yield
    except ResourceNotFoundError as exc:
        said = f"Azure does not find what it takes to {what}."
        raise CloudRefused(said, cause=exc.message, fix=SETUP) from exc


def patience(seconds: float, every: float) -> dict[str, Any]:
    """Return how long, and how often, something is tried again."""
    more = {"wait_initial": every, "wait_max": every, "wait_jitter": 0}
    return {"attempts": None, "timeout": seconds, **more}


async def patiently(work: Callable[[], Awaitable[T]], seconds: float, every: float) -> T:
    """Try for so many seconds, as long as something else is being changed."""
    return await stamina.AsyncRetryingCaller(**patience(seconds, every))(ConcurrentChange, work)


def code_of(exc: HttpResponseError) -> str:
    """Return Azure's own code, empty where the body has none."""
    return str(getattr(exc.error, "code", None) or "")


def classed(code: str, words: str, what: str, *, status: int = 0) -> OpsError:
    """Class what Azure says; `code` is its own, `words` its sentence."""
    said = f"{code} {status or ''}".strip() or "no code"
    return refused("aca", said, words, what)


def is_policy(exc: OpsError) -> bool:
    return isinstance(exc, CloudRefused) and "RequestDisallowedByPolicy" in exc.summary


def not_configured() -> NotConfigured:
    return NotConfigured(
        "Which Azure subscription?",
        fix="Set AZURE_SUBSCRIPTION_ID (and AZURE_LOCATION for the region), or REHEARSAL=1 to try"
        " everything on simulated clouds.",
    )


READ_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 15.0


READING: Final[dict[str, Any]] = {
    "connection_timeout": READ_SECONDS,
    "read_timeout": READ_SECONDS,
    "retry_total": 2,
    "retry_backoff_max": 2,
    "timeout": READ_SECONDS,
}
"""The limits of a call that only looks: it may be made again, for a few seconds."""
WRITING: Final[dict[str, Any]] = {
    "connection_timeout": WRITE_SECONDS,
    "read_timeout": WRITE_SECONDS,
    "retry_total": 0,
}
"""The limits of a call that changes something: it is made once."""


def object_id(token: str) -> str:
    """Read who a token was given to; it is not verified, for it is shown to Azure alone.

    Raises:
        OpsError: It is none of Azure's.
    """
    try:
        _head, claims, _signature = token.split(".")
        padded = claims + "=" * (-len(claims) % 4)
        return str(json.loads(base64.urlsafe_b64decode(padded))["oid"])
    except (ValueError, TypeError, KeyError) as exc:
        raise OpsError(
            "Azure's token does not say who asks.", fix="Log in with `az login`."
        ) from exc


class _Credential:
    """What the SDK wants of a credential beside its tokens."""

    async def close(self) -> None:
        """Let go of connections."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()


_SPARE_SECONDS: Final = 300.0
"""A token that ends sooner is fetched anew, as the SDK's own policy does."""


class RememberedCredential(_Credential):
    """Asks another credential once for each scope; a dozen clients each would ask by themselves."""

    def __init__(self, asked: AsyncTokenCredential) -> None:
        self._asked = asked
        self._tokens: dict[tuple[object, ...], AccessToken] = {}
        self._locks: dict[tuple[object, ...], anyio.Lock] = defaultdict(anyio.Lock)

    async def get_token(self, *scopes: str, **more: Any) -> AccessToken:
        key = (*scopes, *sorted((name, str(said)) for name, said in more.items()))
        async with self._locks[key]:
            kept = self._tokens.get(key)
            if more.get("claims") or kept is None or kept.expires_on - time.time() < _SPARE_SECONDS:
                kept = self._tokens[key] = await self._asked.get_token(*scopes, **more)
            return kept

    async def close(self) -> None:
        await self._asked.close()


_TOKEN_SECONDS: Final = 30.0
"""For a token: the simulated cloud shares this machine with the engines that it simulates."""


class RehearsedCredential(_Credential):
    """Fetches a token for each call; the SDK keeps it until shortly before it runs out."""

    def __init__(self, plane: AzurePlane, subscription: str) -> None:
        self._url = f"{plane.http}/rehearsal/subscriptions/{subscription}/token"
        self._client = httpx2.AsyncClient(timeout=_TOKEN_SECONDS, trust_env=False, verify=False)

    async def get_token(self, *scopes: str, **_more: Any) -> AccessToken:
        try:
            reply = await self._client.post(self._url, json={"scopes": scopes})
        except httpx2.HTTPError as exc:
            raise ServiceRequestError(f"The simulated login cannot be reached: {exc!r}") from exc
        told = reply.json()
        if not reply.is_success:
            raise ClientAuthenticationError(told["error_description"])
        return AccessToken(told["access_token"], told["expires_on"])

    async def close(self) -> None:
        await self._client.aclose()


_UNASKED: Final = "/register?api-version=2016-02-01"
"""How the SDK's own registration ends; ours is asked for with a newer version."""
logging.getLogger("azure.mgmt.core.policies").setLevel(logging.ERROR)  # it announces registrations


class NoRegistration(SansIOHTTPPolicy[Any, Any]):
    """Refuses the call by which the SDK answers Azure's "not registered", before it is sent.

    It would change a subscription that is only looked at, and then wait without an end.
    """

    def on_request(self, request: PipelineRequest[Any]) -> None:
        """Let everything pass but that.

        Raises:
            ApiDisabled: It was about to be registered.
        """
        url = request.http_request.url
        if request.http_request.method == "POST" and url.endswith(_UNASKED):
            provider = url.removesuffix(_UNASKED).rsplit("/", 1)[-1]
            raise ApiDisabled(f"The subscription has not registered {provider}.", fix=SETUP)


C = TypeVar("C")
SCOPE: Final = "https://management.azure.com/.default"
_TRY_AGAIN_SECONDS: Final = 0.2
_STORAGE: Final[Any] = {"initial_backoff": 0.2, "increment_base": 0, "random_jitter_range": 0}
"""The same for storage, whose clients would else wait 15 s."""


class Clients:
    """One subscription, resource group and region; opened without any I/O."""

    def __init__(self, target: Target, world: World) -> None:
        self._target = target
        self._world = world
        self._open: dict[object, Any] = {}
        self._plane: AzurePlane | None = None
        self._credential: AsyncTokenCredential | None = None
        self._connections: aiohttp.ClientSession | None = None

    @property
    def configured(self) -> bool:
        return bool(self._world.azure or self._world.settings.azure_subscription_id)

    @property
    def subscription(self) -> str:
        """Its id.

        Raises:
            NotConfigured: No subscription is named.
        """
        named = self._world.settings.azure_subscription_id
        if not named and not self._world.azure:
            raise not_configured()
        return named or REHEARSED_SUBSCRIPTION

    @property
    def ground(self) -> Ground:
        whose = self.subscription if self.configured else NO_SUBSCRIPTION
        return ground_of(self._target, self._world.settings, whose)

    async def plane(self) -> AzurePlane | None:
        if self._plane is None and self._world.azure:
            self._plane = await self._world.azure()
        return self._plane

    async def credential(self) -> AsyncTokenCredential:
        """Return whoever asks; who that is, is only known when a token is fetched."""
        plane = await self.plane()  # before: of two who ask at once, each would make its own
        if self._credential is None:
            if plane:
                self._credential = RehearsedCredential(plane, self.subscription)
            else:
                self._credential = RememberedCredential(DefaultAzureCredential())
        return self._credential

    async def caller(self) -> str:
        """Return the object id of whoever asks, as their token says it.

        Raises:
            NotAuthenticated: Nobody is logged in.
        """
        credential = await self.credential()
        with translated("log in"):
            token = (await credential.get_token(SCOPE)).token
        return object_id(token)

    async def at(self, target: Target, settings: Settings) -> Self:
        """Return the same connections for what another target, or other settings, name."""
        await self._options()
        other = copy(self)
        vars(other).update(_target=target, _world=self._world._replace(settings=settings))
        return other

    async def apps(self) -> ContainerAppsAPIClient:
        return await self.arm(ContainerAppsAPIClient)

    async def arm(self, kind: Callable[..., C]) -> C:
        more = await self._options()
        more |= {"per_retry_policies": [NoRegistration()], "polling_interval": 3.0}
        if self._plane:
            more |= {"base_url": self._plane.arm, "credential_scopes": [SCOPE]}
            more["polling_interval"] = 0.1
        return self._cached(kind, lambda: kind(subscription_id=self.subscription, **more))

    async def secrets_url(self) -> str:
        plane, name = await self.plane(), self.ground.vault
        return f"{plane.vaults}/{name}" if plane else f"https://{name}.vault.azure.net"

    async def secrets(self) -> SecretClient:
        url, more = await self.secrets_url(), await self._options()
        if self._plane:
            more["verify_challenge_resource"] = False
        return self._cached((SecretClient, url), lambda: SecretClient(url, **more))

    async def queries(self) -> LogsQueryClient:
        more = await self._options()
        if self._plane:
            more["endpoint"] = self._plane.logs
        return self._cached(LogsQueryClient, lambda: LogsQueryClient(**more))

    async def metrics(self) -> MetricsClient:
        more, region = await self._options(), self.ground.region
        url = self._plane.arm if self._plane else f"https://{region}.metrics.monitor.azure.com"
        return self._cached(MetricsClient, lambda: MetricsClient(url, **more))

    async def files(self, key: str | None = None) -> ShareServiceClient:
        """The file shares of the target's account, by its login; by a key it is another client."""
        plane, account = await self.plane(), self.ground.storage_account
        url = f"https://{account}.file.core.windows.net"
        if plane:
            url = f"{plane.storage}/file/{account}"
        more = {**await self._options(), **_STORAGE, "token_intent": "backup"}
        if key is not None:
            more["credential"] = {"account_name": account, "account_key": key}
            return ShareServiceClient(url, **more)
        return self._cached((ShareServiceClient, url), lambda: ShareServiceClient(url, **more))

    async def aclose(self) -> None:
        for client in self._open.values():
            await client.close()
        for one in (self._credential, self._connections):
            if one is not None:
                await one.close()
        self._open, self._credential, self._connections = {}, None, None

    async def _options(self) -> dict[str, Any]:
        credential, plane = await self.credential(), await self.plane()
        more: dict[str, Any] = {
            "credential": credential, "retry_backoff_factor": _TRY_AGAIN_SECONDS
        }  # fmt: skip
        if plane is None:
            return more
        if self._connections is None:  # else the SDK would load the certificate for each call
            trust = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=plane.ca))
            self._connections = aiohttp.ClientSession(
                connector=trust, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            )
        transport = AioHttpTransport(session=self._connections, session_owner=False)
        return {**more, "transport": transport}

    def _cached(self, kind: object, make: Callable[[], C]) -> C:
        found: C = self._open.get(kind) or make()
        self._open[kind] = found
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One target, opened."""

    target: Target
    settings: Settings
    clients: Clients
    folder: Path
    """Where changes under way are written down."""
    pending: PendingStore[Pending]
    """Deployments that are on their way."""
    answered: set[str] = field(default_factory=set)
    """Names of revisions whose model has answered: they need not be asked, and so kept awake."""
    woken: dict[str, datetime] = field(default_factory=dict)
    """When a deployment last answered us: its replica stays for the cooldown after that."""
    unleased: dict[str, str] = field(default_factory=dict)
    """Why Azure will not end a deployment, as it was refused here."""

    @classmethod
    def open(cls, target: Target, world: World) -> Self:
        clients, folder = Clients(target, world), world.folder / "aca" / target.name
        pending = PendingStore(Pending, folder, where=clients.ground.environment_id)
        settings = world.settings
        return cls(
            target=target, settings=settings, clients=clients, folder=folder, pending=pending
        )

    async def at(self, target: Target | None = None, **settings: str) -> Self:
        """Return another place of the subscription: that of a target, or of other settings."""
        target, other = target or self.target, self.settings.model_copy(update=settings)
        clients = await self.clients.at(target, other)
        pending = PendingStore(Pending, self.folder, where=clients.ground.environment_id)
        return replace(self, target=target, settings=other, clients=clients, pending=pending)

    def waiting(self) -> Sequence[Pending]:
        """Return every deployment that is on its way from this machine, whatever its target."""
        found = list[Pending]()
        for path in self.folder.parent.glob("*/*.json"):
            with suppress(FileNotFoundError, ValidationError):
                found.append(Pending.model_validate_json(path.read_bytes()))
        return found

    @property
    def rehearsed(self) -> bool:
        return self.settings.rehearsal

    @property
    def ground(self) -> Ground:
        return self.clients.ground


def tags_in(tags: Mapping[str, str] | None) -> dict[str, str]:
    """Return tags by their names in lower case: Azure keeps the case, and does not mind it."""
    return {name.lower(): value for name, value in (tags or {}).items()}


def is_ours(found: Any) -> bool:
    return tags_in(found.tags).get(MANAGED_TAG) == MANAGED_BY


def as_sent(model: Any) -> dict[str, Any]:
    """Return a typed body as it goes over the wire, without what is unset."""
    # The older of Azure's packages have models of another kind.
    older = hasattr(model, "serialize")
    sent: dict[str, Any] = model.serialize() if older else model.as_dict(exclude_readonly=True)
    return sent


async def or_none(what: str, asked: Awaitable[T]) -> T | None:
    try:
        with translated(what):
            return await asked
    except ResourceNotFoundError:
        return None


def provisioned(found: Any) -> Status:
    """Read the provisioning state of a resource."""
    state = (found.properties.provisioning_state if found.properties else None) or "succeeded"
    if state.lower() == "succeeded":
        return Status.READY
    return Status.FAILED if state.lower() in {"failed", "canceled"} else Status.PENDING


def is_going(found: Any) -> bool:
    """Whether a resource is being deleted already."""
    inside = getattr(found, "properties", None)
    state = getattr(inside, "provisioning_state", None) or ""
    return state.lower() in {"deleting", "scheduledfordelete"}


def presence(found: Any) -> Status:
    """Return how a deletion sees a resource: as there, or as going."""
    return Status.DELETING if is_going(found) else Status.READY


def parts(*places: int) -> Callable[[str], tuple[str, ...]]:
    """Return what reads these parts of an id: the fourth is its group, the eighth its name."""
    return lambda id_: tuple(id_.split("/")[place] for place in places)


async def every(what: str, pages: AsyncIterable[T]) -> list[T]:
    """Return all that is listed; nothing where what holds it is not there."""
    try:
        with translated(what):
            return [one async for one in pages]
    except ResourceNotFoundError:
        return []


class Kind(NamedTuple):
    """One kind of resource, and the SDK's words for what can be done with it."""

    title: str
    client: Callable[..., Any]
    operations: str
    get: str = "get"
    put: str = "begin_create_or_update"
    delete: str = "begin_delete"
    every: str = "list_by_subscription"
    """The method that lists all of a subscription."""
    names: Callable[[str], tuple[str, ...]] = parts(4, 8)
    """Returns what of its id the SDK names it by."""
    is_ours: Callable[[Any], bool] = is_ours

    async def call(self, site: Site, method: str) -> Callable[..., Any]:
        client = await site.clients.arm(self.client)
        found: Callable[..., Any] = getattr(getattr(client, self.operations), method)
        return found

    async def find(self, site: Site, id_: str, **more: Any) -> Any:
        """Return the one of an id; None if there is none."""
        get = await self.call(site, self.get)
        what = f"look for the {self.title} {id_.rpartition('/')[2]}"
        return await or_none(what, get(*self.names(id_), **more, **READING))

    async def send(self, site: Site, method: str, what: str, id_: str, *body: Any) -> None:
        """Call a method that changes something; `what` it does is said where it is refused."""
        change = await self.call(site, method)
        with strictly(what):
            await change(*self.names(id_), *body, **WRITING)


def resource(site: Site, kind: Kind, title: str, id_: str, wanted: Any, **said: Any) -> Resource:
    """Return a shared resource; `wanted` is its typed body, `said` more of it, or in its place."""
    given: dict[str, Any] = {
        "title": title,
        "body": {"id": id_, **as_sent(wanted)},
        "get": partial(kind.find, site, id_),
        "put": partial(kind.send, site, kind.put, f"make {title}", id_, wanted),
        "delete": partial(kind.send, site, kind.delete, f"delete {title}", id_),
        "scope": "shared",
    }
    return Resource(**{**given, **said})


_COMMANDS: Final = Path(__file__).with_name("commands.toml")


def command(site: Site, which: str, /, **more: object) -> str:
    """Return how a person makes something there by az, as `commands.toml` says it."""
    said, row = {**site.ground.model_dump(), **more}, read_toml(_COMMANDS)[which]
    known = {field: shlex.quote(str(one)) for field, one in said.items()}
    known["ours"] = f"--tags {MANAGED_TAG}={MANAGED_BY}"
    here = "--resource-group {resource_group} --subscription {subscription}"
    known["here"] = here.format_map(known)
    shown, made = (row.get(one, "").format_map(known) for one in ("show", "make"))
    return f"{shown} --output none 2>/dev/null || {made}" if shown else str(made)
