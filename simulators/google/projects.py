"""A project itself: its accounts, its policy, the APIs that it has enabled, and its quotas."""

import uuid
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Final

import anyio
import grpc.aio
from google.cloud.cloudquotas_v1.types import (
    DimensionsInfo,
    QuotaConfig,
    QuotaDetails,
    QuotaInfo,
    QuotaPreference,
)
from google.cloud.location.locations_pb2 import (
    ListLocationsRequest,
    ListLocationsResponse,
    Location,
)
from google.cloud.resourcemanager_v3.types import Project as ProjectMessage
from google.cloud.service_usage_v1.types import (
    BatchEnableServicesResponse,
    BatchGetServicesResponse,
    OperationMetadata,
    Service,
    ServiceConfig,
    State,
)
from google.iam.v1.policy_pb2 import Policy
from google.longrunning.operations_pb2 import Operation

from core.records import Record
from simulators.google import chips, serving
from simulators.google.serving import ALWAYS_ENABLED, Method, add, page_of, refusal
from simulators.google.state import CATALOG, Project, World
from simulators.google.store import Kind, merged, serve

_ENABLING_SECONDS: Final = 0.2
"""In reality about ten."""
APIS: Final = frozenset(f"{name}.googleapis.com" for name in CATALOG["apis"])
"""What a prepared project has enabled."""
LEASE_APIS: Final = frozenset(f"{name}.googleapis.com" for name in CATALOG["lease_apis"])
"""What it has beside them where leases of the cloud are prepared; others do not exist here."""


def mount(server: grpc.aio.Server, world: World) -> None:
    """Serve them."""
    serve(server, world, "google.iam.admin.v1.IAM", "iam", _Accounts(), _Roles())
    manager = "google.cloud.resourcemanager.v3.Projects"
    serve(server, world, manager, "cloudresourcemanager", _Projects())
    serve(server, world, "google.api.serviceusage.v1.ServiceUsage", "serviceusage", _Apis())
    places = {"ListLocations": Method(ListLocationsRequest, _locations)}
    add(server, world, "google.cloud.location.Locations", places)
    service = "google.api.cloudquotas.v1.CloudQuotas"
    serve(server, world, service, "cloudquotas", _Infos(), _Preferences())


def regions_in(asked: int, token: str) -> tuple[list[str], str]:
    """Return a page of regions and the token of the next; Google's own size is not documented."""
    return page_of(CATALOG["regions"]["all"], asked, token, most=100, usual=8)


async def _locations(
    _world: World, _project: Project, request: ListLocationsRequest
) -> ListLocationsResponse:
    """Answer for every API alike, whose name is not in the request."""
    page, token = regions_in(request.page_size, request.page_token)
    rows = [Location(name=f"{request.name}/locations/{one}", location_id=one) for one in page]
    return ListLocationsResponse(locations=rows, next_page_token=token)


class _Accounts(Kind):
    """A service account, known by its address."""

    types = "google.cloud.iam_admin_v1.types"
    noun, parent, collection = "ServiceAccount", "projects/*", "serviceAccounts"
    permission = "iam.serviceAccounts"
    table = "accounts"
    identifier = r"[a-z](?:[-a-z0-9]{4,28}[a-z0-9])"
    policies = True

    def key(self, project: Project, name: str) -> str:
        named = name.rpartition("/")[2]
        return named if "@" in named else f"{named}@{project.id}.iam.gserviceaccount.com"

    async def begin(self, _world: World, project: Project, request: Any, made: Any) -> Any:
        made.email = self.key(project, request.account_id)
        made.name = f"projects/{project.id}/serviceAccounts/{made.email}"
        made.project_id = project.id
        project.accounts[made.email] = made
        return made


class _Roles(Kind):
    """A role of the project's own; a deleted one stays, and nobody can make another of its id.

    Google forgets it for good 37 days later, and lets it come back for the first 7 of them: here it
    always comes back. Source: docs.cloud.google.com/iam/docs/creating-custom-roles.
    """

    types = _Accounts.types
    noun, parent, collection = "Role", "projects/*", "roles"
    permission = "iam.roles"
    verbs = ("Create", "Get", "List", "Update", "Delete")
    table = "roles"
    identifier = r"[A-Za-z0-9_.]{3,64}"
    more: ClassVar = {"UndeleteRole": "undelete"}

    async def create(self, world: World, project: Project, request: Any) -> Any:
        kept = project.roles.get(f"projects/{project.id}/roles/{request.role_id}")
        if kept and kept.deleted:
            raise refusal("role-deleted", role=request.role_id)
        return await super().create(world, project, request)

    async def begin(self, _world: World, project: Project, _request: Any, made: Any) -> Any:
        return self._keep(project, made, deleted=False)

    def listed(self, project: Project, parent: str) -> Iterable[Any]:
        """Return those that are not deleted."""
        return (one for one in super().listed(project, parent) if not one.deleted)

    async def update(self, _world: World, project: Project, request: Any) -> Any:
        kept = self.find(project, request.name)
        self.check_etag(kept, request.role.etag)
        made = merged(kept, request.role, request.update_mask)
        made.name = kept.name
        return self._keep(project, made, deleted=kept.deleted)

    async def end(self, _world: World, project: Project, _request: Any, row: Any) -> Any:
        return self._keep(project, row, deleted=True)

    async def undelete(self, _world: World, project: Project, request: Any) -> Any:
        return self._keep(project, self.find(project, request.name), deleted=False)

    def _keep(self, project: Project, role: Any, *, deleted: bool) -> Any:
        role.etag, role.deleted = uuid.uuid4().bytes[:8], deleted
        project.roles[role.name] = role
        return role


class _Projects(Kind):
    """The project, by its id or its number."""

    types = "google.cloud.resourcemanager_v3.types"
    noun, parent, collection = "Project", "", "projects"
    permission = "resourcemanager.projects"
    verbs = ("Get",)
    policies = by_number = True

    def find(self, project: Project, name: str) -> Any:
        return ProjectMessage(
            name=self.full(project, name),
            project_id=project.id,
            display_name=project.id,
            state=ProjectMessage.State.ACTIVE,
        )

    def policy(self, project: Project, _name: str) -> Policy:
        found: Policy = project.policy
        return found

    def keep_policy(self, project: Project, _name: str, policy: Policy) -> None:
        project.policy = policy


class _Apis(Kind):
    """An API, which a project has enabled or not."""

    types = "google.cloud.service_usage_v1.types"
    noun, parent, collection = "Service", "projects/*", "services"
    permission = "serviceusage.services"
    verbs = ()
    by_number = True
    more: ClassVar = {"BatchEnableServices": "enable", "BatchGetServices": "get"}

    def find(self, project: Project, name: str) -> Service:
        api = self.full(project, name).rpartition("/")[2]
        _check_known([api])
        on = api in project.apis | ALWAYS_ENABLED
        return Service(
            name=f"projects/{project.number}/services/{api}",
            parent=f"projects/{project.number}",
            config=ServiceConfig(name=api),
            state=State.ENABLED if on else State.DISABLED,
        )

    async def enable(self, world: World, project: Project, request: Any) -> Operation:
        wanted = list(request.service_ids)
        _check_known(wanted)
        names = [f"projects/{project.number}/services/{one}" for one in wanted]

        name = f"operations/acf.{uuid.uuid4().hex}-{project.number}"
        operation = serving.opened(project, name, OperationMetadata(resource_names=names))

        async def work() -> None:
            if set(wanted) - project.apis:
                await anyio.sleep(_ENABLING_SECONDS)
            project.apis |= set(wanted)
            found = [self.find(project, one) for one in names]
            serving.finished(operation, BatchEnableServicesResponse(services=found))
            world.keep(project)

        world.tasks.start_soon(work)
        return operation

    async def get(self, _world: World, project: Project, request: Any) -> BatchGetServicesResponse:
        return BatchGetServicesResponse(services=[self.find(project, one) for one in request.names])


def _check_known(wanted: Collection[str]) -> None:
    unknown = ",".join(sorted(set(wanted) - APIS - LEASE_APIS))
    if unknown:
        raise refusal("unknown-api", unknown=unknown)


FIRST_GRANT: Final = 3
"""GPUs without zonal redundancy that a project's first deployment in a region is given. Source:
Google's page on GPUs of Cloud Run, as quoted in public notes of 2025 and 2026."""


class Quota(Record):
    """One quota, with a limit for each place that it is counted by."""

    service: str = "run"
    """Its API."""
    knob: str
    """Name in the project's `quotas`, or of TPUs in its `tpu_quotas`."""
    usual: int | None = None
    """In the knob's unit, of a place of which nothing else is said; None is nothing before the
    first deployment there."""
    factor: int = 1
    """Of the API's unit in one of the knob's."""
    places: str = ""
    """Which regions; none are those where TPUs are, or their zones."""
    where: str = "region"
    family: dict[str, str] = {}
    """Further dimensions of a row of its own."""


RUN_QUOTAS: Final = {name: Quota(**said) for name, said in CATALOG["run_quotas"].items()}
_TPU_QUOTAS: Final = {name: Quota(**said) for name, said in CATALOG["tpu_quotas"].items()}


def limit(project: Project, quota_id: str, region: str) -> int | None:
    """Return a limit of Cloud Run in the API's unit; None before the first deployment there."""
    known = RUN_QUOTAS[quota_id]
    granted = FIRST_GRANT if (quota_id, region) in project.granted_quotas else known.usual
    value = project.knobs.quotas.get(known.knob, granted)
    return None if value is None else value * known.factor


class _Infos(Kind):
    """A quota, with a limit for each place that it is counted by."""

    types = "google.cloud.cloudquotas_v1.types"
    noun, parent, collection = "QuotaInfo", "projects/*/locations/global/services/*", "quotaInfos"
    permission = "cloudquotas.quotas"
    verbs = ("Get",)
    by_number = True

    def may(self, verb: str) -> str:  # noqa: ARG002  one for all
        return "cloudquotas.quotas.get"

    def rows(self, project: Project) -> dict[str, Any]:
        run = [_of_run(project, *each) for each in RUN_QUOTAS.items()]
        told = [*run, *(_of_tpus(project, *each) for each in _TPU_QUOTAS.items())]
        return {one.name: one for one in told if one}


class _Preferences(Kind):
    """What was once asked for: whatever the rehearsal has set."""

    types = _Infos.types
    noun, parent, collection = "QuotaPreference", "projects/*/locations/global", "quotaPreferences"
    permission = _Infos.permission
    verbs = ("List",)
    pages = (50, 500)
    may = _Infos.may

    def listed(self, project: Project, parent: str) -> Iterable[Any]:
        for quota_id, known in RUN_QUOTAS.items():
            if known.knob in project.knobs.quotas:
                value = project.knobs.quotas[known.knob] * known.factor
                yield QuotaPreference(
                    name=f"{parent}/quotaPreferences/{known.knob}",
                    service=f"{known.service}.googleapis.com",
                    quota_id=quota_id,
                    quota_config=QuotaConfig(preferred_value=value, granted_value=value),
                )


def _of_tpus(project: Project, quota_id: str, known: Quota) -> QuotaInfo:
    zones = sorted(chips.zones_of(project))
    if known.where == "zone":
        limits = {zone: chips.limit_of(project, known.knob, zone) for zone in zones}
    else:  # a limit is asked by a zone: here by none
        regions = dict.fromkeys(zone.rpartition("-")[0] for zone in zones)
        limits = {one: chips.limit_of(project, known.knob, f"{one}-") for one in regions}
    usual = known.usual or 0
    return _info(project, quota_id, known, {**limits, "global": usual}, usual)


def _of_run(project: Project, quota_id: str, known: Quota) -> QuotaInfo | None:
    unused = project.knobs.unused_quota
    regions = CATALOG["regions"][known.places]
    values = {region: limit(project, quota_id, region) for region in regions}
    shown = {
        region: value or 0
        for region, value in values.items()
        if value is not None or unused == "zero"
    }
    if not shown and unused == "absent":
        return None
    return _info(project, quota_id, known, shown, next(iter(shown.values()), 0))


def _info(
    project: Project, quota_id: str, known: Quota, limits: Mapping[str, int], usual: int
) -> QuotaInfo:
    """Return a quota, in which each place with another limit than usual has a row of its own."""
    rows = [
        ({known.where: place, **known.family}, [place], value)
        for place, value in limits.items()
        if value != usual
    ]
    rest = [place for place, value in limits.items() if value == usual]
    api = f"{known.service}.googleapis.com"
    parent = f"projects/{project.number}/locations/global/services/{api}"
    return QuotaInfo(
        name=f"{parent}/quotaInfos/{quota_id}",
        quota_id=quota_id,
        service=api,
        container_type=QuotaInfo.ContainerType.PROJECT,
        dimensions=[known.where, *known.family],
        dimensions_infos=[
            DimensionsInfo(
                dimensions=said, details=QuotaDetails(value=value), applicable_locations=places
            )
            for said, places, value in [*rows, *([({}, rest, usual)] if rest else [])]
        ],
    )
