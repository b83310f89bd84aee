"""What a deployment needs of the project: APIs, permissions, account, and the Hub's token."""

from collections.abc import Iterator
from functools import partial
from typing import Final

from backends.cloud_run.failing import translated
from backends.cloud_run.names import HF_SECRET, builder_account, runtime_account
from backends.cloud_run.needs import needed, needs
from backends.cloud_run.seen import (
    account_there,
    apis_off,
    has_roles,
    may_push,
    token_kept,
    token_readable,
)
from backends.cloud_run.site import Site
from backends.cloud_run.waiting import reading, strictly
from backends.common.looked import Answer, Question
from core.cloud_errors import PermissionDenied
from core.records import DeploymentSpec

_SET_UP: Final = "Call setup_target (make setup)."


def questions(site: Site, spec: DeploymentSpec) -> Iterator[Question]:
    """Ask for what every deployment needs, and for the token where weights come from the Hub."""
    project, account = site.clients.project, runtime_account(site.clients.project)
    yield Question(f"The project {project} is there", partial(_reachable, site))
    yield Question("Its APIs are enabled", partial(_apis, site, spec))
    yield Question("You may do what a deployment takes", partial(_permissions, site, spec))
    yield Question(f"The account {account} is there", partial(_account, site, account))
    yield Question("You may deploy as that account", partial(_act_as, site, account))
    if spec.engine == "ollama" and not spec.image:
        yield from _of_a_build(site)
    if spec.engine == "vllm" and (spec.weights or "hub") == "hub":
        yield Question("Instances get the Hub's token if one is needed", partial(_token, site))


def _of_a_build(site: Site) -> Iterator[Question]:
    account = builder_account(site.clients.project)
    yield Question(f"The account {account} is there", partial(_account, site, account))
    yield Question("You may build as that account", partial(_act_as, site, account))
    yield Question(
        "It may push what it builds and write its log", partial(_builder_roles, site, account)
    )


async def _reachable(site: Site) -> Answer:
    from google.api_core.exceptions import NotFound
    from google.cloud.resourcemanager_v3 import Project

    client, project = await site.clients.projects(), site.clients.project
    fix = f"Correct GOOGLE_CLOUD_PROJECT, or ask for access: gcloud projects describe {project}."
    try:
        with translated(f"look at the project {project}"):
            found = await client.get_project(name=f"projects/{project}", **reading())
    except (NotFound, PermissionDenied):
        return Answer(passed=False, detail="It does not exist, or not for you.", fix=fix)
    if found.state != Project.State.ACTIVE:
        return Answer(passed=False, detail=f"It is {found.state.name}.", fix=fix)
    return Answer(passed=True, detail=f"{found.name}.")


async def _apis(site: Site, spec: DeploymentSpec) -> Answer:
    wanted = [api.name for api in needs().apis if api.needed_by in needed(spec)]
    off = await apis_off(site, wanted)
    if off:
        command = f"gcloud services enable {' '.join(off)} --project={site.clients.project}"
        return Answer(
            passed=False, detail=f"Not enabled: {', '.join(off)}.", fix=f"{_SET_UP} Or: {command}"
        )
    return Answer(passed=True, detail=f"All {len(wanted)} that it needs.")


async def _permissions(site: Site, spec: DeploymentSpec) -> Answer:
    client = await site.clients.projects()
    wanted = [one for one in needs().permissions if one.needed_by in needed(spec)]
    names = [name for one in wanted for name in one.names]
    with strictly("see which permissions you have"):
        answer = await client.test_iam_permissions(
            resource=f"projects/{site.clients.project}", permissions=names, **reading()
        )
    missing = [name for name in names if name not in answer.permissions]
    if not missing:
        return Answer(passed=True, detail=f"All {len(names)} permissions.")
    roles = (one.role for one in wanted if set(one.names) & set(missing))
    return Answer(
        passed=False,
        detail=f"Missing: {', '.join(missing)}.",
        fix=f"Ask the project's owner for {', '.join(roles)}.",
    )


async def _account(site: Site, account: str) -> Answer:
    if await account_there(site, account):
        return Answer(passed=True, detail="It is there and not disabled.")
    return Answer(passed=False, detail="It is missing or disabled.", fix=_SET_UP)


async def _builder_roles(site: Site, account: str) -> Answer:
    wanted = needs()
    found = {
        wanted.repository_roles: await may_push(site),
        wanted.builder_roles: await has_roles(site, account, wanted.builder_roles),
    }
    missing = [role.name for roles, there in found.items() if not there for role in roles]
    if missing:
        return Answer(passed=False, detail=f"Missing: {', '.join(missing)}.", fix=_SET_UP)
    return Answer(passed=True, detail="It has its roles, the one to push on the repository alone.")


async def _act_as(site: Site, account: str) -> Answer:
    from google.api_core.exceptions import NotFound

    client, project = await site.clients.iam(), site.clients.project
    permission = "iam.serviceAccounts.actAs"
    try:
        with translated(f"see whether you may act as {account}"):
            answer = await client.test_iam_permissions(
                resource=f"projects/{project}/serviceAccounts/{account}",
                permissions=[permission],
                **reading(),
            )
    except NotFound:
        return Answer(passed=None, detail="There is no such account yet.", fix=_SET_UP)
    if permission in answer.permissions:
        return Answer(passed=True, detail=permission)
    return Answer(
        passed=False,
        detail=f"Missing: {permission}.",
        fix=f"Ask for it: gcloud iam service-accounts add-iam-policy-binding {account}"
        f" --project={project} --member=user:YOU --role=roles/iam.serviceAccountUser",
    )


async def _token(site: Site) -> Answer:
    """Look at the secret, never at its value."""
    if not await token_kept(site):
        if site.settings.hf_token:
            return Answer(
                passed=False,
                detail=f"HF_TOKEN is set here, but the project keeps no secret {HF_SECRET}.",
                fix=f"{_SET_UP} Or call save_hf_token.",
            )
        return Answer(passed=True, detail="None is kept: enough for a model that is not gated.")
    if await token_readable(site):
        return Answer(passed=True, detail=f"The secret {HF_SECRET} is kept, and they may read it.")
    return Answer(
        passed=False,
        detail=f"The account of the instances may not read the secret {HF_SECRET}.",
        fix="Call save_hf_token, which grants it.",
    )
