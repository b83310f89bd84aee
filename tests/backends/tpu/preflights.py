"""Preflights of one deployment on a TPU, and what their rows say."""

from typing import Any

from backends.tpu import plan
from backends.tpu.site import Site
from core.records import Check, Preflight
from tests.backends.tpu.planned import planned

WHOLE = "Nothing that can be seen stands against one of the places"


async def checked(site: Site, **said: Any) -> Preflight:
    """Check a plan of a deployment named gemma."""
    return await plan.preflight(site, planned(site, **said))


def row(preflight: Preflight, words: str) -> Check:
    """Give the one row whose question holds these words."""
    (found,) = [one for one in preflight.checks if words in one.what]
    return found


def the_only_failure(preflight: Preflight) -> Check:
    """Give it; what is unknown says why, what fails says what to do."""
    assert all(one.detail for one in preflight.checks)
    (failed,) = preflight.failed
    assert failed.fix
    return failed
