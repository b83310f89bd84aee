"""Everything that a plan needs of Google, looked at before anything is made or paid."""

from collections.abc import Iterable
from typing import Final

from backends.cloud_run import calling, checks_plan, checks_project, checks_weights
from backends.cloud_run.site import Site
from backends.common import hub_question
from backends.common.looked import Question, answered
from backends.google import checks
from core.plans import Plan, Preflight

_DEADLINE: Final = 28.0


async def preflight(site: Site, plan: Plan) -> Preflight:
    """Ask everything side by side, half a minute at most; changes nothing.

    What cannot be told is unknown and says why; it is never taken for a pass.
    """
    unable = await checks.caller(site)
    if unable:
        return Preflight(checks=(unable,))
    rows = await answered(tuple(_questions(site, plan)), _DEADLINE)
    return Preflight(checks=tuple(checks_plan.without_echo(rows)))


def _questions(site: Site, plan: Plan) -> Iterable[Question]:
    yield from checks_project.questions(site, plan.spec)
    if plan.spec.access != "public":
        yield calling.question(site)
    yield from hub_question.questions(site.settings, plan.spec)
    yield from checks_weights.questions(site, plan.spec)
    yield from checks_plan.questions(site, plan)
