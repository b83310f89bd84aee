"""Everything that a plan needs of Azure, looked at before anything is made or paid."""

from collections.abc import Iterable
from typing import Final

from backends.aca import (
    checks_ground,
    checks_plan,
    checks_region,
    checks_subscription,
    checks_weights,
)
from backends.aca.site import Site
from backends.common import models
from backends.common.concurrency import in_time
from backends.common.preflight import Question, ask_all
from core.cloud_errors import CloudTimeout, CloudUnavailable
from core.errors import OpsError
from core.plans import Check, Plan, Preflight

_LOGIN_SECONDS: Final = 10.0
_ANSWERS_SECONDS: Final = 18.0
_CALLER: Final = "Azure knows who asks"


async def preflight(site: Site, plan: Plan) -> Preflight:
    """Ask everything side by side, half a minute at most; changes nothing.

    What cannot be told is unknown and says why; it is never taken for a pass.
    """
    unable = await _caller(site)
    if unable:
        return Preflight(checks=(unable,))
    rows = await ask_all(tuple(_questions(site, plan)), _ANSWERS_SECONDS)
    return Preflight(checks=tuple(rows))


async def _caller(site: Site) -> Check | None:
    """Say what stands against asking at all; one row then says more than ten."""
    try:
        _named = site.clients.subscription
        with in_time("Your login", "get a token", _LOGIN_SECONDS, fix="Call the same tool again."):
            await site.clients.caller()
    except (CloudUnavailable, CloudTimeout) as exc:
        return _row(exc, known=False)
    except OpsError as exc:
        return _row(exc, known=True)
    return None


def _row(exc: OpsError, *, known: bool) -> Check:
    detail = f"{exc.summary} {exc.cause}".strip()
    return Check(what=_CALLER, outcome="fail" if known else "unknown", detail=detail, fix=exc.fix)


def _questions(site: Site, plan: Plan) -> Iterable[Question]:
    yield from checks_subscription.questions(site, plan)
    yield from checks_region.questions(site, plan)
    yield from checks_ground.questions(site, plan)
    yield from models.hub_questions(site.settings, plan.spec)
    yield from checks_weights.questions(site, plan.spec)
    yield from checks_plan.questions(site, plan)
