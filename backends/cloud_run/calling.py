"""Whether whoever deploys a private service can also call it, proven by one ID token."""

from functools import partial
from typing import Final

from backends.cloud_run.identity import ANYWHERE
from backends.cloud_run.site import Site
from backends.common.looked import Answer, Question
from core.cloud_errors import ApiDisabled, NotAuthenticated, PermissionDenied
from core.errors import OpsError
from core.records import DeploymentSpec
from core.reply import note

_ONE_PERSON: Final = (
    "Run `gcloud auth login` and `gcloud auth application-default login` as one person."
)


def question(site: Site) -> Question:
    """Ask for a token that a private service would take."""
    return Question("You can call what you deploy", partial(_answer, site))


async def refuse_uncallable(site: Site, spec: DeploymentSpec) -> None:
    """Refuse a private service that this login could only pay for.

    Raises:
        NotAuthenticated, PermissionDenied, ApiDisabled: No ID token can be minted.
        CloudUnavailable, CloudTimeout: Google does not answer.
    """
    if spec.access == "public":
        return
    try:
        minted = await site.identity.minted(ANYWHERE)
    except OpsError as exc:
        exc.summary = f"{exc.summary} Nothing was made."
        raise
    if other := await site.identity.unlike(minted.email):
        note(_two_people(other, minted.email))


async def advise(site: Site) -> None:
    """Say how a person without gcloud gets an account that may call what they deploy."""
    try:
        how = await site.identity.how_to_call()
    except OpsError:
        return  # the preflight tells it
    if how:
        note(f"Your login cannot call private services of Cloud Run. To let it: {how}")


async def _answer(site: Site) -> Answer:
    try:
        minted = await site.identity.minted(ANYWHERE)
    except (NotAuthenticated, PermissionDenied, ApiDisabled) as exc:
        return Answer(passed=False, detail=exc.summary, fix=exc.fix)
    if other := await site.identity.unlike(minted.email):
        return Answer(passed=None, detail=_two_people(other, minted.email), fix=_ONE_PERSON)
    return Answer(passed=True, detail=f"An ID token was minted for {minted.email}.")


def _two_people(deploys: str, calls: str) -> str:
    return (
        f"{deploys} deploys and gcloud's {calls} would call: that one needs roles/run.invoker too."
    )
