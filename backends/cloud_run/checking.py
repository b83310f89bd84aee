"""Everything that a plan needs of Google, looked at before anything is made or paid."""

from collections.abc import Iterable
from typing import Final

from backends.cloud_run import checks_plan, checks_project, checks_weights
from backends.cloud_run.site import Site
from backends.common import hub_question
from backends.common.looked import Question, answered
from core.cloud_errors import CloudError
from core.plans import Check, Plan, Preflight

_DEADLINE: Final = 28.0
_CALLER: Final = "Google knows who asks"


async def preflight(site: Site, plan: Plan) -> Preflight:
    """Ask everything side by side, half a minute at most; changes nothing.

    What cannot be told is unknown and says why; it is never taken for a pass.
    """
    unable = await _caller(site)
    if unable:
        return Preflight(checks=(unable,))
    rows = await answered(tuple(_questions(site, plan)), _DEADLINE)
    return Preflight(checks=tuple(checks_plan.without_echo(rows)))


async def _caller(site: Site) -> Check | None:
    """Say what stands against asking at all; one row then says more than ten."""
    try:
        _project = site.clients.project
        await site.clients.credentials()
    except CloudError as exc:
        return Check(what=_CALLER, outcome="fail", detail=exc.summary, fix=exc.fix)
    return None


def _questions(site: Site, plan: Plan) -> Iterable[Question]:
    yield from checks_project.questions(site, plan.spec)
    yield from hub_question.questions(site.settings, plan.spec)
    yield from checks_weights.questions(site, plan.spec)
    yield from checks_plan.questions(site, plan)
