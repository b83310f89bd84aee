"""Google's async SDK clients, opened when first needed, and the project that they ask."""

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import google.auth
import grpc.aio
import httpx2
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials, Credentials
from google.auth.exceptions import DefaultCredentialsError
from google.auth.transport import requests
from google.cloud.cloudquotas_v1 import CloudQuotasAsyncClient
from google.cloud.iam_admin_v1 import IAMAsyncClient
from google.cloud.logging_v2.services.logging_service_v2 import LoggingServiceV2AsyncClient
from google.cloud.monitoring_v3 import MetricServiceAsyncClient
from google.cloud.resourcemanager_v3 import ProjectsAsyncClient
from google.cloud.secretmanager_v1 import SecretManagerServiceAsyncClient
from google.cloud.service_usage_v1 import ServiceUsageAsyncClient
from google.cloud.storage import Client as StorageClient
from google.oauth2.credentials import Credentials as Person
from google.protobuf.json_format import MessageToDict

from backends.base import World
from backends.google.errors import LOGIN, error_in, not_configured, reading, unknown_caller, writing
from core.endpoint import trusted
from core.records import Target
from core.settings import GooglePlane, Settings

if TYPE_CHECKING:
    from google.cloud.scheduler_v1 import CloudSchedulerAsyncClient

MANAGED_BY: Final = "vllm-devops-agent"
"""The value of the label `managed-by` on everything that is made here."""
TARGET_LABEL: Final = "vllm-devops-target"
SPEC_LABEL: Final = "vllm-devops-spec"
"""Its value is the spec's fingerprint."""
DEPLOYMENT_LABEL: Final = "vllm-devops-deployment"
"""Of what was made for one deployment alone."""
RUNTIME_ID: Final = "vllm-devops-runtime"
"""Of the account that every deployment runs as."""
BUILDER_ID: Final = "vllm-devops-builder"
"""Of the account that images are built as."""
REPOSITORY: Final = "vllm-devops"
"""Of images, in each region."""
IMAGE_GB_USD: Final = 0.10
"""Each month, beyond the first half GB; the usual price, not looked up [R] (2026-11-21)."""
HF_SECRET: Final = "hf-token"  # noqa: S105  the secret's name
NO_PROJECT: Final = "PROJECT_ID"
"""Said in texts while no project is set."""


def account_of(project: str, account_id: str) -> str:
    return f"{account_id}@{project}.iam.gserviceaccount.com"


def runtime_account(project: str) -> str:
    return account_of(project, RUNTIME_ID)


def key_secret(name: str) -> str:
    return f"vllm-devops-{name}-api-key"


def pairs(labels: Mapping[str, str] | None = None) -> str:
    """Return our label and others as gcloud takes them."""
    every = {"managed-by": MANAGED_BY, **(labels or {})}
    return ",".join(f"{name}={said}" for name, said in every.items())


def when(stamp: Any) -> datetime:
    """Give a point in time as ours; the SDK's stubs call it a Timestamp, what comes is a datetime.

    >>> when(datetime(2026, 11, 21, 12, tzinfo=UTC))
    datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.timezone.utc)
    """
    return datetime.fromtimestamp(stamp.timestamp(), UTC)


def as_sent(message: Any) -> dict[str, Any]:
    """Give a message as JSON, without what is unset."""
    pb = type(message).pb(message) if hasattr(type(message), "pb") else message
    sent: dict[str, Any] = MessageToDict(pb)
    return sent


def written(file: str, body: Mapping[str, Any]) -> str:
    return f"cat > {file} <<'END_OF_REQUEST'\n{json.dumps(body, indent=2)}\nEND_OF_REQUEST"


def rest_command(
    url: str,
    body: Mapping[str, Any] | None = None,
    *,
    file: str = "request.json",
    method: str = "POST",
) -> str:
    """Return how a person sends a body; without one, its file is there already."""
    write = f"{written(file, body)}\n" if body else ""
    return (
        f"{write}token=$(gcloud auth print-access-token) && curl --fail-with-body -X {method}"
        " -H @<(printf 'Authorization: Bearer %s' \"$token\")"
        f" -H 'Content-Type: application/json' --data @{file} '{url}'"
    )


C = TypeVar("C")


class Zonal(NamedTuple):
    """What there is in all zones."""

    found: list[Mapping[str, Any]]
    unread: list[str]
    """Zones that Compute Engine itself could not read."""


COMPUTE: Final = "https://compute.googleapis.com/compute/v1"
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"
_REHEARSED_PROJECT: Final = "rehearsal"


def client_of(kind: type[C]) -> "Callable[[GoogleClients], Awaitable[C]]":
    """Return the method that gives the one client of its kind, opened when first asked for."""

    async def opened(clients: "GoogleClients") -> C:
        return await clients.client(kind)

    return opened


class GoogleClients:
    """One project and region; opened without any I/O."""

    secrets = client_of(SecretManagerServiceAsyncClient)
    logging = client_of(LoggingServiceV2AsyncClient)
    monitoring = client_of(MetricServiceAsyncClient)
    quotas = client_of(CloudQuotasAsyncClient)
    usage = client_of(ServiceUsageAsyncClient)
    iam = client_of(IAMAsyncClient)
    projects = client_of(ProjectsAsyncClient)

    async def scheduler(self) -> "CloudSchedulerAsyncClient":
        from google.cloud.scheduler_v1 import CloudSchedulerAsyncClient

        return await self.client(CloudSchedulerAsyncClient)

    def __init__(self, target: Target, world: World) -> None:
        self._world = world
        self._open: dict[str, Any] = {}
        self._plane: GooglePlane | None = None
        self._credentials: Credentials | None = None
        self.region: Final = self._region(target)

    def _region(self, target: Target) -> str:
        return self.settings.google_cloud_location or target.region or "us-central1"

    @property
    def settings(self) -> Settings:
        return self._world.settings

    @property
    def configured(self) -> bool:
        """Whether it is known whose cloud is meant."""
        return bool(self._world.google or self.settings.google_cloud_project)

    @property
    def project(self) -> str:
        """Its id.

        Raises:
            NotConfigured: No setting names it.
        """
        named = self.settings.google_cloud_project
        if named:
            return named
        if self._world.google:
            return _REHEARSED_PROJECT
        raise not_configured()

    @property
    def project_id(self) -> str:
        """The project in texts: `NO_PROJECT` where no setting names one."""
        return self.project if self.configured else NO_PROJECT

    @property
    def parent(self) -> str:
        """What services of the region are created in."""
        return f"projects/{self.project}/locations/{self.region}"

    async def plane(self) -> GooglePlane | None:
        """Give the simulated cloud, None in the real world."""
        if self._plane is None and self._world.google:
            self._plane = await self._world.google()
        return self._plane

    async def credentials(self) -> Credentials:
        """Give whoever asks; what a person asks is billed to the project.

        Raises:
            NotAuthenticated: Nobody is logged in.
        """
        if self._credentials is None:
            plane = await self.plane()
            if plane:
                found = await _rehearsed_login(plane, self.project)
            else:
                found = await anyio.to_thread.run_sync(
                    _default_credentials,
                    abandon_on_cancel=True,  # it may wait for a metadata server that is not there
                )
            self._credentials = _billing(found, self.project) if self.configured else found
        return self._credentials

    async def storage(self) -> StorageClient:
        """Cloud Storage; its client is not async, so call it in a thread."""
        plane, credentials = await self.plane(), await self.credentials()

        def make() -> StorageClient:
            options = {"api_endpoint": plane.storage} if plane else None
            return StorageClient(self.project, credentials=credentials, client_options=options)

        if "storage" not in self._open:
            self._open["storage"] = await anyio.to_thread.run_sync(make)
        return cast("StorageClient", self._open["storage"])

    async def ask(self, verb: str, url: str, **more: Any) -> Mapping[str, Any]:
        """Ask Compute Engine, and what no SDK here has a method for, by REST; again if it is GET.

        Raises:
            google.api_core.exceptions.GoogleAPICallError: Google refused.
        """
        plane, headers = await self.plane(), dict[str, str]()
        who, how = await self.credentials(), reading() if verb == "GET" else writing()
        say_who: Any = partial(who.before_request, requests.Request(), verb, url, headers)
        await anyio.to_thread.run_sync(say_who, abandon_on_cancel=True)
        where = f"{plane.http}{urlsplit(url).path}" if plane else url

        async def once() -> Mapping[str, Any]:
            async with httpx2.AsyncClient(trust_env=plane is None, verify=trusted()) as client:
                reply = await client.request(
                    verb, where, headers=headers, timeout=how["timeout"], **more
                )
            if not reply.is_success:
                raise error_in(reply)
            answer: Mapping[str, Any] = reply.json()
            return answer

        return await (how["retry"](once)() if how["retry"] else once())

    async def pages(self, url: str, **params: str) -> AsyncIterator[Mapping[str, Any]]:
        """Return every page of a list, by REST. Raises what `ask` does."""
        while True:
            page = await self.ask("GET", url, params=params)
            yield page
            if not (token := page.get("nextPageToken")):
                return
            params = {**params, "pageToken": token}

    async def in_all_zones(self, kind: str, **params: str) -> Zonal:
        """Return what Compute Engine has of a kind, such as "disks". Raises what `ask` does."""
        found, unread = list[Mapping[str, Any]](), list[str]()
        url = f"{COMPUTE}/projects/{self.project}/aggregated/{kind}"
        async for page in self.pages(url, **params):
            unread += page.get("unreachables", ())
            for scope, row in page.get("items", {}).items():
                found += row.get(kind, ())
                # Most zones are merely empty.
                if row.get("warning", {}).get("code", "") not in {"", "NO_RESULTS_ON_PAGE"}:
                    unread.append(scope)
        return Zonal(found, [place.rpartition("/")[2] for place in unread])

    async def aclose(self) -> None:
        for name, client in self._open.items():
            closed = client.close() if name == "storage" else client.transport.close()
            if inspect.isawaitable(closed):
                await closed
        self._open.clear()

    async def client(self, kind: type[C], options: ClientOptions | None = None) -> C:
        """Return the one client of its kind, opened when first asked for."""
        found: C | None = self._open.get(kind.__name__)
        if found is None:
            _named = self.project  # without one a login is of no use
            plane, credentials = await self.plane(), await self.credentials()
            make: Any = kind
            found = (
                _rehearsed(make, plane, credentials)
                if plane
                else make(credentials=credentials, client_options=options)
            )
            _let_timeouts_end(found)
            self._open[kind.__name__] = found
        return found


def _let_timeouts_end(client: Any) -> None:
    """Make its calls end when a timeout around them does.

    grpc.aio answers a cancellation with another one of its own making, which anyio does not know
    for its own (grpcio 1.85): the timeout would go on as a cancellation of the whole task.
    """
    methods = client.transport._wrapped_methods  # noqa: SLF001  where every call goes through
    for bare, method in tuple(methods.items()):
        methods[bare] = _ending(method)


def _ending(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return await method(*args, **kwargs)
        except anyio.get_cancelled_exc_class():
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise

    return call


def _rehearsed(kind: Callable[..., Any], plane: GooglePlane, credentials: Credentials) -> Any:

    billed: Any = getattr(credentials, "quota_project_id", None)

    class Billing(grpc.aio.UnaryUnaryClientInterceptor):
        """Sends what google-auth adds to a call; it does so on secure channels alone."""

        async def intercept_unary_unary(self, go_on: Any, details: Any, request: Any) -> Any:
            details.metadata.add("x-goog-user-project", billed)
            return await go_on(details, request)

    transport: Any = kind.get_transport_class("grpc_asyncio")  # type: ignore[attr-defined]  # a client's class
    channel = grpc.aio.insecure_channel(plane.grpc, interceptors=[Billing()] if billed else None)
    return kind(transport=transport(channel=channel))


async def _rehearsed_login(plane: GooglePlane, project: str) -> Credentials:
    """Read what a login left on the simulated machine; a machine's own account is anonymous."""
    try:
        async with httpx2.AsyncClient(trust_env=False, verify=trusted()) as client:
            reply = await client.get(f"{plane.http}/rehearsal/projects/{project}/login")
        login = reply.json() if reply.is_success else {}
    except httpx2.HTTPError:
        login = {}
    if not login:
        return AnonymousCredentials()
    person: Credentials = Person.from_authorized_user_info(login)
    return person


def _default_credentials() -> Credentials:

    try:
        found, _project = google.auth.default(scopes=[SCOPE])
    except DefaultCredentialsError as exc:
        raise unknown_caller(str(exc), LOGIN) from exc
    return found


def is_person(credentials: Credentials) -> bool:
    return isinstance(credentials, Person)


def _billing(found: Credentials, project: str) -> Credentials:
    """Let the project stand for a person's calls.

    A person's login carries the quota project of the day it was made, or none; many APIs then
    answer for that project, or not at all. Source:
    docs.cloud.google.com/docs/authentication/adc-troubleshooting/user-creds (2026-11).
    """
    if not is_person(found):
        return found
    person: Any = found
    billed: Credentials = person.with_quota_project(project)
    return billed


@dataclass(frozen=True, slots=True, kw_only=True)
class GoogleSite:
    """One target, opened."""

    target: Target
    settings: Settings
    clients: GoogleClients

    @property
    def rehearsed(self) -> bool:
        return self.settings.rehearsal

    @property
    def home(self) -> str:
        """Name where a deployment is: one of the same name elsewhere has another key."""
        return self.clients.region

    def key_secret(self, name: str) -> str:
        return key_secret(name)
