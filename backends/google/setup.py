"""What a project of Google's needs once, and what a preflight asks of it: looked at and made."""

import re
import shlex
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

import anyio
import stamina
from google.auth.transport.requests import Request
from google.cloud.cloudquotas_v1 import QuotaInfo
from google.cloud.iam_admin_v1 import ServiceAccount
from google.cloud.resourcemanager_v3 import Project
from google.cloud.secretmanager_v1 import SecretVersion
from google.cloud.service_usage_v1 import State

from backends.common import models, registry
from backends.common.preflight import Answer, Question, ask_all, read_needs, unasked
from backends.common.registry import reference
from backends.google import secrets
from backends.google.clients import HF_SECRET, MANAGED_BY, RUNTIME_ID, GoogleSite, account_of
from backends.google.errors import find, reading, strictly, translated, why_unread, writing
from backends.google.iam import binding
from backends.lifecycle import Resource
from core import errors
from core.records import DeploymentSpec, Preflight, Record
from core.waiting import wait_until

SET_UP: Final = "Call setup_target (make setup)."
LABELS: Final = {"managed-by": MANAGED_BY}
DEADLINE: Final = 28.0
"""Seconds for all questions of a preflight together."""
_OPERATION_SECONDS: Final = 25.0


class Api(Record):
    """One API that is to be enabled."""

    name: str
    needed_by: str


class Role(Record):
    """One role of an account of ours."""

    name: str
    why: str


class Permissions(Record):
    """What whoever deploys must be allowed to do."""

    role: str
    """Which holds them all."""
    why: str
    needed_by: str
    names: tuple[str, ...]


class Needs(Record):
    """`needs.toml` of a backend."""

    title: str
    """Of the cloud."""
    also: tuple[str, ...]
    """What people call it."""
    apis: tuple[Api, ...]
    roles: tuple[Role, ...]
    """Of the runtime account, in the project."""
    permissions: tuple[Permissions, ...]
    builder_roles: tuple[Role, ...] = ()
    """Of the account that images are built as, in the project."""
    repository_roles: tuple[Role, ...] = ()
    """Of that account, on the repository."""


@cache
def needs(backend: str) -> Needs:
    """Read them, once; `backend` is its folder."""
    return Needs.model_validate(read_needs(backend))


async def preflight(site: GoogleSite, questions: Callable[[], Iterable[Question]]) -> Preflight:
    """Ask everything side by side; changes nothing.

    What cannot be told is unknown and says why; it is never taken for a pass.
    """
    try:
        _project = site.clients.project
        await site.clients.credentials()
    except errors.CloudError as exc:
        return unasked("Google", exc)
    return Preflight(checks=tuple(await ask_all(tuple(questions()), DEADLINE)))


def questions_of_every(
    site: GoogleSite, backend: str, needed_by: Collection[str], spec: DeploymentSpec
) -> Iterator[Question]:
    """Ask for what a deployment needs of its project and of the Hub, on either backend."""
    project, wanted = site.clients.project, needs(backend)
    apis = [api.name for api in wanted.apis if api.needed_by in needed_by]
    yield Question(f"The project {project} is there", partial(_reachable, site))
    yield Question("Its APIs are enabled", partial(_enabled, site, apis))
    permissions = [one for one in wanted.permissions if one.needed_by in needed_by]
    yield Question("You may do what a deployment takes", partial(_allowed, site, permissions))
    yield from check_account(site, RUNTIME_ID)
    if spec.engine == "vllm" and (spec.weights or "hub") == "hub":
        yield Question("Instances get the Hub's token if one is needed", partial(_token, site))
    yield from models.hub_questions(site.settings, spec)


def is_there(what: str, *resources: Resource, fix: str = SET_UP) -> Question:
    """Ask whether everything is there of what set-up makes."""

    async def ask() -> Answer | str:
        left = [one for one in resources if await one.get() is None]
        if not left:
            return "It is."
        detail = f"Missing: {'; '.join(one.title for one in left)}."
        return Answer(passed=False, detail=detail, fix=fix)

    return Question(what, ask)


async def _reachable(site: GoogleSite) -> Answer | str:
    project, client = site.clients.project, await site.clients.projects()
    fix = f"Correct GOOGLE_CLOUD_PROJECT, or ask for access: gcloud projects describe {project}."
    try:
        looked = client.get_project(name=f"projects/{project}", **reading())
        found = await find(f"look at the project {project}", looked)
    except errors.PermissionDenied:
        found = None
    if found is None:
        return Answer(passed=False, detail="It does not exist, or not for you.", fix=fix)
    if found.state != Project.State.ACTIVE:
        return Answer(passed=False, detail=f"It is {found.state.name}.", fix=fix)
    return f"{found.name}."


async def _enabled(site: GoogleSite, names: Sequence[str]) -> Answer | str:
    if off := await _apis_off(site, names):
        command = f"gcloud services enable {' '.join(off)} --project={site.clients.project}"
        detail = f"Not enabled: {', '.join(off)}."
        return Answer(passed=False, detail=detail, fix=f"{SET_UP} Or: {command}")
    return f"All {len(names)} that it needs."


async def _allowed(site: GoogleSite, wanted: Sequence[Permissions]) -> Answer | str:
    names = list(dict.fromkeys(name for one in wanted for name in one.names))
    missing = await permissions_lacked(site, names)
    if not missing:
        return f"All {len(names)} permissions."
    holding = dict.fromkeys(one.role for one in wanted if set(one.names) & set(missing))
    fix = f"Ask the project's owner for {', '.join(holding)}."
    return Answer(passed=False, detail=f"Missing: {', '.join(missing)}.", fix=fix)


async def permissions_lacked(site: GoogleSite, names: Sequence[str]) -> list[str]:
    """Return those that whoever asks does not have in the project."""
    client, project = await site.clients.projects(), f"projects/{site.clients.project}"
    with strictly("see which permissions you have"):
        answer = await client.test_iam_permissions(
            resource=project, permissions=list(names), **reading()
        )
    return [name for name in names if name not in answer.permissions]


ACT_AS: Final = "iam.serviceAccounts.actAs"


async def may_act(site: GoogleSite, email: str) -> bool | None:
    """Whether whoever asks may act as an account; None where there is none."""
    client, path = await site.clients.iam(), _account_path(site, email)
    tested = client.test_iam_permissions(resource=path, permissions=[ACT_AS], **reading())
    answer = await find(f"see whether you may act as {email}", tested)
    return None if answer is None else ACT_AS in answer.permissions


def check_account(site: GoogleSite, account_id: str, what: str = "deploy") -> Iterator[Question]:
    """Ask for an account, and whether whoever asks may do `what` as it."""
    email = account_of(site.clients.project, account_id)

    async def ask_to_act() -> Answer | str:
        may = await may_act(site, email)
        if may is None:
            return Answer(passed=None, detail="There is no such account yet.", fix=SET_UP)
        if may:
            return ACT_AS
        return Answer(
            passed=False,
            detail=f"Missing: {ACT_AS}.",
            fix=f"Ask for it: gcloud iam service-accounts add-iam-policy-binding {email}"
            f" --project={site.clients.project} --member=user:YOU"
            " --role=roles/iam.serviceAccountUser",
        )

    yield is_there(f"The account {email} is there", account(site, account_id))
    yield Question(f"You may {what} as that account", ask_to_act)


async def _token(site: GoogleSite) -> Answer | str:
    """Ask for the secret with the Hub's token, never for its value."""
    if await token_kept(site):
        if await secrets.reader(site, HF_SECRET).get() is not None:
            return f"The secret {HF_SECRET} is kept, and they may read it."
        detail = f"The account of the instances may not read the secret {HF_SECRET}."
        return Answer(passed=False, detail=detail, fix="Call save_hf_token, which grants it.")
    if site.settings.hf_token:
        detail = f"HF_TOKEN is set here, but the project keeps no secret {HF_SECRET}."
        return Answer(passed=False, detail=detail, fix=f"{SET_UP} Or call save_hf_token.")
    return "None is kept: enough for a model that is not gated."


async def token_kept(site: GoogleSite) -> bool:
    """Whether the project keeps a token of the Hub that is enabled; its value is not read."""
    client = await site.clients.secrets()
    name = f"{secrets.path_of(site, HF_SECRET)}/versions/latest"
    looked = client.get_secret_version(name=name, **reading())
    found = await find(f"look for the secret {HF_SECRET}", looked)
    return found is not None and found.state == SecretVersion.State.ENABLED


def apis(site: GoogleSite, wanted: Sequence[Api]) -> Resource:
    names, project = [api.name for api in wanted], site.clients.project

    async def get() -> bool | None:
        return None if await _apis_off(site, names) else True

    async def put() -> None:
        client = await site.clients.usage()
        request = {"parent": f"projects/{project}", "service_ids": await _apis_off(site, names)}
        with strictly("enable the APIs"):
            operation = await client.batch_enable_services(request=request, **writing())
            await wait_for_operation(operation, "the APIs")

    return Resource(
        name="apis",
        title=f"APIs: {', '.join(name.removesuffix('.googleapis.com') for name in names)}",
        get=get,
        put=put,
        scope="shared",
        command=shlex.join(["gcloud", "services", "enable", *names, f"--project={project}"]),
    )


async def _apis_off(site: GoogleSite, names: Sequence[str]) -> list[str]:
    """Return those that are not enabled; at most 30 can be asked for."""
    client, parent = await site.clients.usage(), f"projects/{site.clients.project}"
    request: dict[str, Any] = {
        "parent": parent,
        "names": [f"{parent}/services/{name}" for name in names],
    }
    with strictly("see which APIs are enabled"):
        answer = await client.batch_get_services(request=request, **reading())
    on = {one.name.rsplit("/", 1)[-1] for one in answer.services if one.state == State.ENABLED}
    return [name for name in names if name not in on]


def account(
    site: GoogleSite,
    account_id: str = RUNTIME_ID,
    shown: str = "vLLM deployments",
    what: str = "deployments run",
) -> Resource:
    """Return a service account, as which `what`: that of every deployment, if nobody says."""
    project, email = site.clients.project, account_of(site.clients.project, account_id)

    async def get() -> ServiceAccount | None:
        client = await site.clients.iam()
        looked = client.get_service_account(name=_account_path(site, email), **reading())
        found = await find(f"look for the account {email}", looked)
        return None if found is None or found.disabled else found

    async def put() -> None:
        client = await site.clients.iam()
        made = ServiceAccount(display_name=shown, description=f"Made by {MANAGED_BY}.")
        with strictly(f"make the account {account_id}"):
            await client.create_service_account(
                name=f"projects/{project}", account_id=account_id, service_account=made, **writing()
            )

    return Resource(
        name=account_id,
        title=f"the service account {email}, as which {what}",
        get=get,
        put=known_everywhere(put),
        scope="shared",
        command=f"gcloud iam service-accounts create {account_id} --project={project}"
        f' --display-name="{shown}"',
    )


def _account_path(site: GoogleSite, email: str) -> str:
    return f"projects/{site.clients.project}/serviceAccounts/{email}"


def roles(site: GoogleSite, account_id: str, wanted: Sequence[Role]) -> Resource:
    """Return an account's roles in the project, all of them together."""
    project, email = site.clients.project, account_of(site.clients.project, account_id)
    made = binding(
        site.clients.projects,
        f"projects/{project}",
        [role.name for role in wanted],
        email,
        what=f"grant {email} its roles in the project",
        name=f"roles of {account_id}",
        title=f"roles of {account_id} in the project: {' and '.join(role.why for role in wanted)}",
        scope="shared",
        after=(account_id,),
        command=" && ".join(
            f"gcloud projects add-iam-policy-binding {project}"
            f" --member=serviceAccount:{email} --role={role.name} --condition=None"
            for role in wanted
        ),
    )
    return replace(made, put=known_everywhere(made.put))


def known_everywhere(
    put: Callable[[], Awaitable[object]] | None,
) -> Callable[[], Awaitable[object]]:
    """Put again where Google does not know an enabled API or a new account everywhere yet."""
    assert put is not None

    def not_known_yet(exc: Exception) -> bool:
        unknown = isinstance(exc, errors.CloudRefused) and "does not exist" in exc.cause
        return unknown or isinstance(exc, errors.ApiDisabled)

    return stamina.retry(on=not_known_yet, attempts=8, timeout=25, wait_initial=0.5, wait_max=4)(
        put
    )


def tokens(site: GoogleSite) -> tuple[Resource, ...]:
    """Return the Hub's token, kept, where one is set."""
    held = site.settings.hf_token
    return (secrets.token(site, held),) if held else ()


async def wait_for_operation(operation: Any, what: str) -> None:
    """Wait for an operation of Google's.

    Raises:
        WaitedTooLong: It is not over.
    """
    waiting_for = f"{what} to be there"
    await wait_until(
        operation.done, bool, waiting_for=waiting_for, every=0.2, timeout=_OPERATION_SECONDS
    )
    await operation.result(timeout=1)


async def read_quota(site: GoogleSite, service: str, quota: str) -> QuotaInfo | str | None:
    """Return a quota; why it cannot be read; None where the project has no such quota.

    Raises:
        NotAuthenticated: Nobody is logged in, which is no answer to be kept for a while.
    """
    parent = f"projects/{site.clients.project}/locations/global/services/{service}"
    client = await site.clients.quotas()
    looked = client.get_quota_info(name=f"{parent}/quotaInfos/{quota}", **reading())
    try:
        return await find(f"read the quota {quota}", looked)
    except errors.CloudError as exc:
        return why_unread(exc)


def limit_in(
    info: QuotaInfo, where: str, *, per: str = "region", said: Mapping[str, str] | None = None
) -> int | None:
    """Return what a quota allows in a place: by its own entry, else by one that applies to it.

    `said` is what an entry must say of other dimensions. None: there is no such entry.
    """
    fitting = [
        entry
        for entry in info.dimensions_infos
        if all(entry.dimensions.get(name) == one for name, one in (said or {}).items())
    ]
    own = [one for one in fitting if one.dimensions.get(per) == where]
    applied = [one for one in fitting if where in one.applicable_locations]
    applied.sort(key=lambda one: per in one.dimensions)  # one of a group of places goes last
    return next((int(one.details.value) for one in (*own, *applied)), None)


_GOOGLE: Final = re.compile(r"(^|\.)(pkg\.dev|gcr\.io)$")
_MIRROR: Final = "mirror.gcr.io"
"""Google's, of Docker Hub; it serves everybody."""


async def pinned(site: GoogleSite, image: str) -> str | None:
    """Give the image as NAME@sha256:…; None where its registry cannot be asked.

    Raises:
        CloudRefused: The registry has no such image, or shows it to nobody.
        NotAuthenticated: It is one of Google's, and nobody is logged in.
    """
    plane, host = await site.clients.plane(), reference(image).registry
    of_google = bool(_GOOGLE.search(host))
    return await registry.pinned(
        image,
        plane.http if plane else None,
        refusals={404} if of_google else {401, 403, 404},
        fix="Correct the name or tag; what is public can be pulled from Docker Hub, and from"
        " Artifact Registry what the project may read.",
        token=partial(_own_token, site) if not plane and of_google and host != _MIRROR else None,
    )


async def image_there(site: GoogleSite, image: str) -> str:
    """Return the image by its digest. Raises what `pinned` does, and CloudUnavailable for None."""
    found = await pinned(site, image)
    if found is None:
        raise errors.CloudUnavailable(f"The registry of {image} cannot be asked from here.", fix="")
    return found


async def _own_token(site: GoogleSite) -> str | None:
    """Give the caller's access token, which Google's own registries know."""
    credentials = await site.clients.credentials()

    def fresh() -> str | None:
        if not credentials.valid:
            credentials.refresh(Request())
        return credentials.token

    with translated("give an access token"):
        return await anyio.to_thread.run_sync(fresh, abandon_on_cancel=True)
