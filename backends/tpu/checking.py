"""Everything that a plan needs of Google, looked at before anything is made or paid."""

from collections.abc import Iterable
from typing import Final

from backends.common import models
from backends.common.preflight import Question, ask_all
from backends.google import setup
from backends.tpu import checks_ground, checks_names, checks_places
from backends.tpu.blueprint import Blueprint
from backends.tpu.drawing import blueprint
from backends.tpu.site import Site
from core.plans import Plan, Preflight

_DEADLINE: Final = 26.0


async def preflight(site: Site, plan: Plan) -> Preflight:
    """Ask everything side by side, half a minute at most; changes nothing.

    What cannot be told is unknown and says why; it is never taken for a pass. Of several places
    one that nothing stands against is enough.
    """
    unable = await setup.check_caller(site)
    if unable:
        return Preflight(checks=(unable,))
    made = blueprint(site, plan.spec, plan.model)
    rows = await ask_all(tuple(_questions(site, made)), _DEADLINE)
    return Preflight(checks=tuple(checks_places.without_echo(rows)))


def _questions(site: Site, made: Blueprint) -> Iterable[Question]:
    yield from checks_ground.questions(site, made)
    yield from models.hub_questions(site.settings, made.spec)
    yield from checks_names.questions(site, made)
    yield from checks_places.questions(site, made)
