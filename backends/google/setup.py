"""What a project needs once: looked at, asked for by preflights, and made."""

import shlex
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import stamina
from google.api_core import exceptions
from google.cloud.iam_admin_v1 import ServiceAccount
from google.cloud.resourcemanager_v3 import Project
from google.cloud.secretmanager_v1 import SecretVersion
from google.cloud.service_usage_v1 import State

from backends.common.preflight import Answer, Question
from backends.google import secrets
from backends.google.clients import HF_SECRET, MANAGED_BY, RUNTIME_ID, GoogleSite
from backends.google.errors import reading, strictly, translated, writing
from backends.google.iam import Api, Permissions, Role, binding
from backends.lifecycle import Resource
from core.errors import ApiDisabled, CloudError, CloudRefused, PermissionDenied
from core.records import Check
from core.waiting import wait_until

SET_UP: Final = "Call setup_target (make setup)."
LABELS: Final = {"managed-by": MANAGED_BY}
_OPERATION_SECONDS: Final = 25.0


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


async def _account_there(site: GoogleSite, account: str) -> bool:
    """Whether an account of the project exists and is not disabled."""
    client, project = await site.clients.iam(), site.clients.project
    name = f"projects/{project}/serviceAccounts/{account}"
    try:
        with translated(f"look for the account {account}"):
            return not (await client.get_service_account(name=name, **reading())).disabled
    except exceptions.NotFound:
        return False


async def token_kept(site: GoogleSite) -> bool:
    """Whether the project keeps a token of the Hub that is enabled; its value is not read."""
    client = await site.clients.secrets()
    name = f"{secrets.path_of(site, HF_SECRET)}/versions/latest"
    try:
        with translated(f"look for the secret {HF_SECRET}"):
            found = await client.get_secret_version(name=name, **reading())
    except exceptions.NotFound:
        return False
    return found.state == SecretVersion.State.ENABLED


async def check_caller(site: GoogleSite) -> Check | None:
    """Say what stands against asking at all; one row then says more than ten."""
    try:
        _project = site.clients.project
        await site.clients.credentials()
    except CloudError as exc:
        what = "Google knows who asks"
        return Check(what=what, outcome="fail", detail=exc.summary, fix=exc.fix)
    return None


def check_reachable(site: GoogleSite) -> Question:
    """Ask for the project."""
    project = site.clients.project
    fix = f"Correct GOOGLE_CLOUD_PROJECT, or ask for access: gcloud projects describe {project}."

    async def ask() -> Answer:
        client = await site.clients.projects()
        try:
            with translated(f"look at the project {project}"):
                found = await client.get_project(name=f"projects/{project}", **reading())
        except (exceptions.NotFound, PermissionDenied):
            return Answer(passed=False, detail="It does not exist, or not for you.", fix=fix)
        if found.state != Project.State.ACTIVE:
            return Answer(passed=False, detail=f"It is {found.state.name}.", fix=fix)
        return Answer(passed=True, detail=f"{found.name}.")

    return Question(f"The project {project} is there", ask)


def check_apis(site: GoogleSite, names: Sequence[str]) -> Question:
    """Ask for APIs."""

    async def ask() -> Answer:
        if off := await _apis_off(site, names):
            command = f"gcloud services enable {' '.join(off)} --project={site.clients.project}"
            detail = f"Not enabled: {', '.join(off)}."
            return Answer(passed=False, detail=detail, fix=f"{SET_UP} Or: {command}")
        return Answer(passed=True, detail=f"All {len(names)} that it needs.")

    return Question("Its APIs are enabled", ask)


def check_permissions(site: GoogleSite, wanted: Sequence[Permissions]) -> Question:
    """Ask for what whoever deploys must be allowed to do."""
    names = list(dict.fromkeys(name for one in wanted for name in one.names))

    async def ask() -> Answer:
        client = await site.clients.projects()
        with strictly("see which permissions you have"):
            answer = await client.test_iam_permissions(
                resource=f"projects/{site.clients.project}", permissions=names, **reading()
            )
        missing = [name for name in names if name not in answer.permissions]
        if not missing:
            return Answer(passed=True, detail=f"All {len(names)} permissions.")
        holding = dict.fromkeys(one.role for one in wanted if set(one.names) & set(missing))
        fix = f"Ask the project's owner for {', '.join(holding)}."
        return Answer(passed=False, detail=f"Missing: {', '.join(missing)}.", fix=fix)

    return Question("You may do what a deployment takes", ask)


def check_account(site: GoogleSite, email: str, what: str = "deploy") -> tuple[Question, Question]:
    """Ask for an account, and whether whoever asks may do `what` as it."""
    project, permission = site.clients.project, "iam.serviceAccounts.actAs"

    async def ask() -> Answer:
        if await _account_there(site, email):
            return Answer(passed=True, detail="It is there and not disabled.")
        return Answer(passed=False, detail="It is missing or disabled.", fix=SET_UP)

    async def ask_to_act() -> Answer:
        client, resource = await site.clients.iam(), f"projects/{project}/serviceAccounts/{email}"
        try:
            with translated(f"see whether you may act as {email}"):
                answer = await client.test_iam_permissions(
                    resource=resource, permissions=[permission], **reading()
                )
        except exceptions.NotFound:
            return Answer(passed=None, detail="There is no such account yet.", fix=SET_UP)
        if permission in answer.permissions:
            return Answer(passed=True, detail=permission)
        return Answer(
            passed=False,
            detail=f"Missing: {permission}.",
            fix=f"Ask for it: gcloud iam service-accounts add-iam-policy-binding {email}"
            f" --project={project} --member=user:YOU --role=roles/iam.serviceAccountUser",
        )

    return (
        Question(f"The account {email} is there", ask),
        Question(f"You may {what} as that account", ask_to_act),
    )


def check_token(site: GoogleSite) -> Question:
    """Ask for the Hub's token: for the secret, never for its value."""

    async def ask() -> Answer:
        if await token_kept(site):
            if await secrets.reader(site, HF_SECRET).get() is not None:
                detail = f"The secret {HF_SECRET} is kept, and they may read it."
                return Answer(passed=True, detail=detail)
            detail = f"The account of the instances may not read the secret {HF_SECRET}."
            return Answer(passed=False, detail=detail, fix="Call save_hf_token, which grants it.")
        if site.settings.hf_token:
            detail = f"HF_TOKEN is set here, but the project keeps no secret {HF_SECRET}."
            return Answer(passed=False, detail=detail, fix=f"{SET_UP} Or call save_hf_token.")
        return Answer(passed=True, detail="None is kept: enough for a model that is not gated.")

    return Question("Instances get the Hub's token if one is needed", ask)


def apis(site: GoogleSite, wanted: Sequence[Api]) -> Resource:
    """Return these APIs, switched on."""
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


def account(
    site: GoogleSite,
    account_id: str = RUNTIME_ID,
    shown: str = "vLLM deployments",
    what: str = "deployments run",
) -> Resource:
    """Return a service account, as which `what`: that of every deployment, if nobody says."""
    project, email = site.clients.project, _email(site, account_id)

    async def get() -> bool | None:
        return await _account_there(site, email) or None

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


def _email(site: GoogleSite, account_id: str) -> str:
    return f"{account_id}@{site.clients.project}.iam.gserviceaccount.com"


def roles(site: GoogleSite, account_id: str, wanted: Sequence[Role]) -> Resource:
    """Return an account's roles in the project, all of them together."""
    project, email = site.clients.project, _email(site, account_id)
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


def known_everywhere(put: Callable[[], Awaitable[object]] | None) -> Callable[[], Awaitable[None]]:
    """Put again where Google does not know an enabled API or a new account everywhere yet."""
    assert put is not None

    def not_known_yet(exc: Exception) -> bool:
        unknown = isinstance(exc, CloudRefused) and "does not exist" in exc.cause
        return unknown or isinstance(exc, ApiDisabled)

    async def patiently() -> None:
        attempts = stamina.retry_context(
            on=not_known_yet, attempts=8, timeout=25, wait_initial=0.5, wait_max=4
        )
        async for attempt in attempts:
            with attempt:
                await put()

    return patiently


def tokens(site: GoogleSite) -> tuple[Resource, ...]:
    """Return the Hub's token, kept, where one is set."""
    held = site.settings.hf_token
    return (secrets.token(site, held),) if held else ()


def labels() -> str:
    """Return our labels as gcloud takes them."""
    return ",".join(f"{name}={value}" for name, value in LABELS.items())


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
