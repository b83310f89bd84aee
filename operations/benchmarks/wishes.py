"""What a call wants measured, and what a person is asked to agree to."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import anyio

from benchmark.folder import RunFolder
from benchmark.records import RunPlan
from core.errors import InvalidArgument
from operations.asking import require_ready
from operations.benchmarks.kept import file_of, folder_of, require_idle
from operations.benchmarks.provenance import usd_per_hour
from operations.benchmarks.spending import most_minutes, spent_minutes, with_end
from operations.lives.agreement import Preview, preview
from operations.resolve import Found, find
from operations.runtime import Runtime

_LIMITS: Final = ("ttft", "tpot", "e2el")
_BUDGET: Final = ("max_cost_usd", "max_minutes")
_NOT_SAID: Final = {"profile": "quick", "arrivals": "poisson"}
"""What a call says that says nothing."""


class Wish(NamedTuple):
    """What is to be measured, and how."""

    found: Found
    plan: RunPlan
    folder: RunFolder | None = None
    """The run to go on with."""


async def wish(
    runtime: Runtime,
    said: Mapping[str, Any],
    *,
    target: str | None = None,
    name: str | None = None,
) -> Wish:
    """Read what a call wants measured.

    Raises:
        InvalidArgument: It cannot be measured so.
        NotReady: The deployment does not answer.
        Busy: It is being measured already.
    """
    found = await find(runtime.stage, target, name)
    plan = await anyio.to_thread.run_sync(plan_of, said)
    _require_measurable(runtime, found)
    return Wish(found, with_end(plan, found.deployment))


async def wish_to_resume(runtime: Runtime, run: str, said: Mapping[str, Any]) -> Wish:
    """Read how a run that was interrupted or stopped is to go on.

    Raises:
        NotFound: There is no such run.
        InvalidArgument: Its plan would be another one, or its budget is used up.
        NotReady: The deployment does not answer.
        Busy: It is being measured already.
    """
    folder = folder_of(runtime, run)
    manifest = folder.manifest()
    budget = {name: said[name] for name in _BUDGET if name in said}
    others = [name for name in said if name not in _BUDGET and said[name] != _NOT_SAID.get(name)]
    if others or manifest.provenance.deployment is None:
        raise InvalidArgument(
            f"{run} goes on as it was begun." if others else f"{run} was not measured from here.",
            fix=f"With resume, leave out {', '.join(others)}." if others else "Begin a new one.",
        )
    known = manifest.provenance
    found = await find(runtime.stage, known.target, known.deployment)
    _require_measurable(runtime, found)
    plan = with_end(manifest.plan.model_copy(update=budget), found.deployment)
    spent_minutes(folder, plan)  # or its budget is used up
    return Wish(found, plan, folder)


def plan_of(said: Mapping[str, Any]) -> RunPlan:
    """Make a plan of what a call says; limits come in milliseconds.

    Raises:
        InvalidArgument: It cannot be measured so.
    """
    from benchmark import profiles

    limits = {
        f"{name}_seconds": said[f"{name}_ms"] / 1000 for name in _LIMITS if f"{name}_ms" in said
    }
    rest = {key: value for key, value in said.items() if not key.endswith("_ms")}
    if "dataset" in rest:
        rest["dataset"] = str(file_of(rest["dataset"]))
    return profiles.plan_of(**rest, limits=limits)


def to_measure(wanted: Wish) -> Preview | None:
    """Ask where the time of measuring is paid for, or nobody knows whether it is."""
    one, plan, price = wanted.found.deployment, wanted.plan, usd_per_hour(wanted.found.deployment)
    if price == 0:
        return None
    spent = spent_minutes(wanted.folder, plan) if wanted.folder else 0.0
    minutes = most_minutes(plan, price) - spent
    cost = "price not known" if price is None else f"${price * minutes / 60:.2f} at most"
    run = wanted.folder.path.name if wanted.folder else ""
    what = f"Measure {one.name} on {one.target} for up to {minutes:.0f} minutes ({cost})"
    what += f", going on with {run}" if run else f", profile {plan.profile}"
    asked = f"{run}\n{plan.model_dump_json()}"
    return preview("run_benchmark", one.target, one.name, what, price, one, asked)


def _require_measurable(runtime: Runtime, found: Found) -> None:
    require_ready(found)
    require_idle(runtime, found)
