"""What every deployment needs of its project: APIs, permissions, account, and the Hub's token."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from backends.common.looked import Answer, Question
from backends.google.failing import translated
from backends.google.names import HF_SECRET
from backends.google.needs import Permissions
from backends.google.seen import account_there, apis_off, token_kept, token_readable
from backends.google.site import GoogleSite
from backends.google.waiting import reading, strictly
from core.cloud_errors import CloudError, PermissionDenied
from core.plans import Check

SET_UP: Final = "Call setup_target (make setup)."
_CALLER: Final = "Google knows who asks"


async def caller(site: GoogleSite) -> Check | None:
    """Say what stands against asking at all; one row then says more than ten."""
    try:
        _project = site.clients.project
        await site.clients.credentials()
    except CloudError as exc:
        return Check(what=_CALLER, outcome="fail", detail=exc.summary, fix=exc.fix)
    return None


def reachable(site: GoogleSite) -> Question:
    """Ask for the project."""
    return Question(f"The project {site.clients.project} is there", partial(_reachable, site))


def apis(site: GoogleSite, names: Sequence[str]) -> Question:
    """Ask for APIs."""
    return Question("Its APIs are enabled", partial(_apis, site, names))


def permissions(site: GoogleSite, wanted: Sequence[Permissions]) -> Question:
    """Ask for what whoever deploys must be allowed to do."""
    what = "You may do what a deployment takes"
    return Question(what, partial(_permissions, site, wanted))


def account(site: GoogleSite, email: str, what: str = "deploy") -> tuple[Question, Question]:
    """Ask for an account, and whether whoever asks may do `what` as it."""
    return (
        Question(f"The account {email} is there", partial(_account, site, email)),
        Question(f"You may {what} as that account", partial(_act_as, site, email)),
    )


def token(site: GoogleSite) -> Question:
    """Ask for the Hub's token."""
    return Question("Instances get the Hub's token if one is needed", partial(_token, site))


async def _reachable(site: GoogleSite) -> Answer:
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
