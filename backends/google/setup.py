"""What a project needs once: looked at, asked for by preflights, and made."""

import shlex
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import anyio
import stamina
from google.api_core import exceptions
from google.cloud.iam_admin_v1 import ServiceAccount
from google.cloud.resourcemanager_v3 import Project
from google.cloud.secretmanager_v1 import SecretVersion
from google.cloud.service_usage_v1 import State

from backends.base import Setup, SetupStep
from backends.common.concurrency import side_by_side
from backends.common.preflight import Answer, Question, unfinished
from backends.google import secrets
from backends.google.clients import HF_SECRET, MANAGED_BY, RUNTIME_ID, GoogleSite, runtime_account
from backends.google.errors import reading, strictly, translated, writing
from backends.google.iam import VERSION, Api, Permissions, Role, grant, has_role
from core.errors import (
    ApiDisabled,
    CloudError,
    CloudRefused,
    CloudTimeout,
    ConcurrentChange,
    NotFound,
    OpsError,
    PermissionDenied,
)
from core.records import Check
from core.waiting import wait_until

ACCESSOR: Final = "roles/secretmanager.secretAccessor"


async def apis_off(site: GoogleSite, names: list[str]) -> list[str]:
    """Give those that are not enabled; at most 30 can be asked for."""
    client = await site.clients.usage()
    parent = f"projects/{site.clients.project}"
    request: dict[str, Any] = {
        "parent": parent,
        "names": [f"{parent}/services/{name}" for name in names],
    }
    with strictly("see which APIs are enabled"):
        answer = await client.batch_get_services(request=request, **reading())
    on = {one.name.rsplit("/", 1)[-1] for one in answer.services if one.state == State.ENABLED}
    return [name for name in names if name not in on]


async def account_there(site: GoogleSite, account: str) -> bool:
    """Whether an account of the project exists and is not disabled."""
    client, project = await site.clients.iam(), site.clients.project
    name = f"projects/{project}/serviceAccounts/{account}"
    try:
        with translated(f"look for the account {account}"):
            found = await client.get_service_account(name=name, **reading())
    except exceptions.NotFound:
        return False
    return not found.disabled


async def project_policy(site: GoogleSite) -> Any:
    """Read who has which role in the project; to be called inside `strictly`."""
    client = await site.clients.projects()
    request: dict[str, Any] = {
        "resource": f"projects/{site.clients.project}",
        "options": {"requested_policy_version": VERSION},
    }
    return await client.get_iam_policy(request=request, **reading())


async def has_roles(site: GoogleSite, account: str, roles: Iterable[Role]) -> bool:
    """Whether an account has every one of these roles in the project."""
    member = f"serviceAccount:{account}"
    with strictly("read who has which role in the project"):
        policy = await project_policy(site)
    return all(has_role(policy, role.name, member) for role in roles)


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


async def token_readable(site: GoogleSite) -> bool:
    """Whether the runtime account may read it."""
    client = await site.clients.secrets()
    request: dict[str, Any] = {
        "resource": secrets.path_of(site, HF_SECRET),
        "options": {"requested_policy_version": VERSION},
    }
    try:
        with translated(f"read who may read the secret {HF_SECRET}"):
            policy = await client.get_iam_policy(request=request, **reading())
    except exceptions.NotFound:
        return False
    member = f"serviceAccount:{runtime_account(site.clients.project)}"
    return has_role(policy, ACCESSOR, member)


SET_UP: Final = "Call setup_target (make setup)."
_CALLER: Final = "Google knows who asks"


async def check_caller(site: GoogleSite) -> Check | None:
    """Say what stands against asking at all; one row then says more than ten."""
    try:
        _project = site.clients.project
        await site.clients.credentials()
    except CloudError as exc:
        return Check(what=_CALLER, outcome="fail", detail=exc.summary, fix=exc.fix)
    return None


def check_reachable(site: GoogleSite) -> Question:
    """Ask for the project."""
    return Question(f"The project {site.clients.project} is there", partial(_reachable, site))


def check_apis(site: GoogleSite, names: Sequence[str]) -> Question:
    """Ask for APIs."""
    return Question("Its APIs are enabled", partial(_apis, site, names))


def check_permissions(site: GoogleSite, wanted: Sequence[Permissions]) -> Question:
    """Ask for what whoever deploys must be allowed to do."""
    what = "You may do what a deployment takes"
    return Question(what, partial(_permissions, site, wanted))


def check_account(site: GoogleSite, email: str, what: str = "deploy") -> tuple[Question, Question]:
    """Ask for an account, and whether whoever asks may do `what` as it."""
    return (
        Question(f"The account {email} is there", partial(_account, site, email)),
        Question(f"You may {what} as that account", partial(_act_as, site, email)),
    )


def check_token(site: GoogleSite) -> Question:
    """Ask for the Hub's token."""
    return Question("Instances get the Hub's token if one is needed", partial(_token, site))


async def _reachable(site: GoogleSite) -> Answer:
    client, project = await site.clients.projects(), site.clients.project
    fix = f"Correct GOOGLE_CLOUD_PROJECT, or ask for access: gcloud projects describe {project}."
    try:
        with translated(f"look at the project {project}"):
            found = await client.get_project(name=f"projects/{project}", **reading())
    except (exceptions.NotFound, PermissionDenied):
        return Answer(passed=False, detail="It does not exist, or not for you.", fix=fix)
    if found.state != Project.State.ACTIVE:
        return Answer(passed=False, detail=f"It is {found.state.name}.", fix=fix)
    return Answer(passed=True, detail=f"{found.name}.")


async def _apis(site: GoogleSite, names: Sequence[str]) -> Answer:
    off = await apis_off(site, list(names))
    if off:
        command = f"gcloud services enable {' '.join(off)} --project={site.clients.project}"
        return Answer(
            passed=False, detail=f"Not enabled: {', '.join(off)}.", fix=f"{SET_UP} Or: {command}"
        )
    return Answer(passed=True, detail=f"All {len(names)} that it needs.")


async def _permissions(site: GoogleSite, wanted: Sequence[Permissions]) -> Answer:
    client = await site.clients.projects()
    names = list(dict.fromkeys(name for one in wanted for name in one.names))
    with strictly("see which permissions you have"):
        answer = await client.test_iam_permissions(
            resource=f"projects/{site.clients.project}", permissions=names, **reading()
        )
    missing = [name for name in names if name not in answer.permissions]
    if not missing:
        return Answer(passed=True, detail=f"All {len(names)} permissions.")
    roles = dict.fromkeys(one.role for one in wanted if set(one.names) & set(missing))
    return Answer(
        passed=False,
        detail=f"Missing: {', '.join(missing)}.",
        fix=f"Ask the project's owner for {', '.join(roles)}.",
    )


async def _account(site: GoogleSite, email: str) -> Answer:
    if await account_there(site, email):
        return Answer(passed=True, detail="It is there and not disabled.")
    return Answer(passed=False, detail="It is missing or disabled.", fix=SET_UP)


async def _act_as(site: GoogleSite, account: str) -> Answer:
    client, project = await site.clients.iam(), site.clients.project
    permission = "iam.serviceAccounts.actAs"
    try:
        with translated(f"see whether you may act as {account}"):
            answer = await client.test_iam_permissions(
                resource=f"projects/{project}/serviceAccounts/{account}",
                permissions=[permission],
                **reading(),
            )
    except exceptions.NotFound:
        return Answer(passed=None, detail="There is no such account yet.", fix=SET_UP)
    if permission in answer.permissions:
        return Answer(passed=True, detail=permission)
    return Answer(
        passed=False,
        detail=f"Missing: {permission}.",
        fix=f"Ask for it: gcloud iam service-accounts add-iam-policy-binding {account}"
        f" --project={project} --member=user:YOU --role=roles/iam.serviceAccountUser",
    )


async def _token(site: GoogleSite) -> Answer:
    """Look at the secret, never at its value."""
    if not await token_kept(site):
        if site.settings.hf_token:
            return Answer(
                passed=False,
                detail=f"HF_TOKEN is set here, but the project keeps no secret {HF_SECRET}.",
                fix=f"{SET_UP} Or call save_hf_token.",
            )
        return Answer(passed=True, detail="None is kept: enough for a model that is not gated.")
    if await token_readable(site):
        return Answer(passed=True, detail=f"The secret {HF_SECRET} is kept, and they may read it.")
    return Answer(
        passed=False,
        detail=f"The account of the instances may not read the secret {HF_SECRET}.",
        fix="Call save_hf_token, which grants it.",
    )


LABELS: Final = {"managed-by": MANAGED_BY}
_OPERATION_SECONDS: Final = 25.0


class Step(NamedTuple):
    """One thing that is needed once."""

    what: str
    command: str
    """As a person would type it."""
    look: Callable[[], Awaitable[bool]]
    make: Callable[[], Awaitable[object]]
    """Harmless when it is done already."""
    usd_per_month: float = 0.0


def apis_step(site: GoogleSite, apis: Sequence[Api]) -> Step:
    """Have these APIs switched on."""
    names = [api.name for api in apis]
    return Step(
        f"APIs: {', '.join(name.removesuffix('.googleapis.com') for name in names)}",
        shlex.join(["gcloud", "services", "enable", *names, f"--project={site.clients.project}"]),
        partial(_apis_on, site, names),
        partial(_turn_on, site, names),
    )


def account_step(site: GoogleSite, account_id: str, shown: str, what: str) -> Step:
    """Have a service account, as which `what`."""
    project = site.clients.project
    email = f"{account_id}@{project}.iam.gserviceaccount.com"
    return Step(
        f"The service account {email}, as which {what}",
        f"gcloud iam service-accounts create {account_id} --project={project}"
        f' --display-name="{shown}"',
        partial(account_there, site, email),
        partial(_make_account, site, account_id, shown),
    )


def runtime_account_step(site: GoogleSite) -> Step:
    """Have the account that every deployment runs as."""
    return account_step(site, RUNTIME_ID, "vLLM deployments", "deployments run")


def roles_step(site: GoogleSite, account_id: str, wanted: Sequence[Role]) -> Step:
    """Have an account's roles in the project."""
    email = f"{account_id}@{site.clients.project}.iam.gserviceaccount.com"
    return Step(
        f"Roles of {account_id} in the project: {' and '.join(role.why for role in wanted)}",
        " && ".join(
            f"gcloud projects add-iam-policy-binding {site.clients.project}"
            f" --member=serviceAccount:{email} --role={role.name} --condition=None"
            for role in wanted
        ),
        partial(has_roles, site, email, wanted),
        partial(_grant_roles, site, email, wanted),
    )


def token_step(site: GoogleSite) -> Iterator[Step]:
    """Have the Hub's token kept, where one is set."""
    held, project = site.settings.hf_token, site.clients.project
    if held:
        yield Step(
            f"The secret {HF_SECRET} with your HF_TOKEN, readable by {RUNTIME_ID}",
            f'printf %s "$HF_TOKEN" | gcloud secrets create {HF_SECRET} --data-file=-'
            f" --replication-policy=automatic --project={project} --labels={labels()}"
            f" && gcloud secrets add-iam-policy-binding {HF_SECRET} --project={project}"
            f" --member=serviceAccount:{runtime_account(project)} --role={ACCESSOR}",
            partial(_has_token, site, held.get_secret_value()),
            partial(secrets.keep, site, HF_SECRET, held),
            secrets.SECRET_USD,
        )


def labels() -> str:
    """Write our labels as gcloud takes them."""
    return ",".join(f"{name}={value}" for name, value in LABELS.items())


async def wait_for_operation(operation: Any, what: str) -> None:
    """Wait for an operation of Google's.

    Raises:
        WaitedTooLong: It is not over.
    """
    await wait_until(
        operation.done,
        bool,
        waiting_for=f"{what} to be there",
        every=0.2,
        timeout=_OPERATION_SECONDS,
    )
    await operation.result(timeout=1)


async def _apis_on(site: GoogleSite, names: Sequence[str]) -> bool:
    return not await apis_off(site, list(names))


async def _turn_on(site: GoogleSite, names: Sequence[str]) -> None:
    missing = await apis_off(site, list(names))
    if not missing:
        return
    client = await site.clients.usage()
    request = {"parent": f"projects/{site.clients.project}", "service_ids": missing}
    with strictly("enable the APIs"):
        await wait_for_operation(
            await client.batch_enable_services(request=request, **writing()), "the APIs"
        )


async def _make_account(site: GoogleSite, account_id: str, shown: str) -> None:

    client = await site.clients.iam()
    with strictly(f"make the account {account_id}"):
        await client.create_service_account(
            name=f"projects/{site.clients.project}",
            account_id=account_id,
            service_account=ServiceAccount(
                display_name=shown, description=f"Made by {MANAGED_BY}."
            ),
            **writing(),
        )


async def _grant_roles(site: GoogleSite, email: str, wanted: Sequence[Role]) -> None:
    client = await site.clients.projects()
    resource = f"projects/{site.clients.project}"

    async def write(policy: Any) -> object:
        request = {"resource": resource, "policy": policy}
        return await client.set_iam_policy(request=request, **writing())

    await grant(
        partial(project_policy, site),
        write,
        [role.name for role in wanted],
        f"serviceAccount:{email}",
        f"grant {email} its roles in the project",
    )


async def _has_token(site: GoogleSite, text: str) -> bool:
    try:
        kept = await secrets.read(site, HF_SECRET)
    except NotFound:
        return False
    same = kept.get_secret_value() == "".join(text.split())
    return same and await token_readable(site)


_MAKING_SECONDS: Final = 32.0
_LOOKING_SECONDS: Final = 12.0


async def read_setup(wanted: Sequence[Step]) -> Setup:
    """Say of each step whether it was seen to be done; changes nothing.

    Raises:
        CloudError: Google does not tell.
    """
    try:
        with anyio.fail_after(_LOOKING_SECONDS):
            done = await side_by_side([partial(_seen, step) for step in wanted])
    except TimeoutError as exc:
        raise CloudTimeout(
            f"Google did not say within {_LOOKING_SECONDS:.0f} s what is set up.",
            fix="Call the same tool again.",
        ) from exc
    return Setup(
        steps=tuple(
            SetupStep(
                what=step.what,
                done=there,
                command=step.command,
                usd_per_month=step.usd_per_month,
            )
            for step, there in zip(wanted, done, strict=True)
        )
    )


async def make_setup(wanted: Sequence[Step]) -> Setup:
    """Do what is not done, in order; what comes back was read back.

    Raises:
        CloudError: A step failed; the error tells which are done and which are not.
    """
    done = list[str]()
    try:
        with anyio.fail_after(_MAKING_SECONDS):
            for step in wanted:
                # In a task of its own: grpc.aio forgets that it was anyio that cancelled it.
                await side_by_side([partial(_there, step)])
                done.append(step.what)
    except TimeoutError as exc:
        raise _unfinished(_slow(), wanted, done) from exc
    except OpsError as exc:
        raise _unfinished(exc, wanted, done) from exc
    return await read_setup(wanted)


async def _seen(step: Step) -> bool:
    try:
        return await step.look()
    except ApiDisabled:
        return False  # what cannot be asked for yet is not there


async def _there(step: Step) -> None:
    if not await _seen(step):
        await _made(step)


async def _made(step: Step) -> None:

    # An API that was enabled and an account that was made are not known everywhere at once.
    attempts = stamina.retry_context(
        on=_not_known_yet, attempts=8, timeout=25, wait_initial=0.5, wait_max=4
    )
    async for attempt in attempts:
        with attempt:
            try:
                await step.make()
            except ConcurrentChange:
                if not await _seen(step):
                    raise


def _not_known_yet(exc: Exception) -> bool:
    unknown = isinstance(exc, CloudRefused) and "does not exist" in exc.cause
    return unknown or isinstance(exc, ApiDisabled)


def _slow() -> CloudTimeout:
    return CloudTimeout(
        f"It takes longer than {_MAKING_SECONDS:.0f} s.", fix="Call setup_target again: it goes on."
    )


def _unfinished(exc: OpsError, wanted: Sequence[Step], done: Sequence[str]) -> OpsError:
    left = [step.what for step in wanted if step.what not in done]
    return unfinished(exc, done, left)
