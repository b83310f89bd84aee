"""What a benchmark may cost: nothing that is paid for goes on without an end."""

from typing import Final

from benchmark.folder import RunFolder
from benchmark.records import RunPlan
from core.errors import InvalidArgument
from core.records import Deployment
from operations.benchmarks.provenance import usd_per_hour

_SEARCHED_CELLS: Final = 24
"""Of one search for a capacity: a dozen doublings, and halvings as many."""


def with_end(plan: RunPlan, deployment: Deployment) -> RunPlan:
    """Give a plan that ends: where it may cost something, at the latest when it was foreseen to.

    Raises:
        InvalidArgument: It must stop at a cost, and nobody knows the price.
    """
    price = usd_per_hour(deployment)
    if plan.max_cost_usd is not None and price is None:
        raise InvalidArgument(
            "A run cannot stop at a cost where no price is known.", fix="Give max_minutes instead."
        )
    if price == 0 or plan.max_minutes is not None or plan.max_cost_usd is not None:
        return plan
    return plan.model_copy(update={"max_minutes": _longest_minutes(plan)})


def spent_minutes(folder: RunFolder, plan: RunPlan) -> float:
    """Give the minutes that a run has taken so far.

    Raises:
        InvalidArgument: That was its whole budget.
    """
    from benchmark.run import Accounts

    manifest = folder.manifest().model_copy(update={"plan": plan})
    accounts = Accounts(manifest, folder.cells())
    if said := accounts.over_budget():
        raise InvalidArgument(
            said, fix="Give a greater max_minutes or max_cost_usd together with resume."
        )
    return accounts.elapsed_seconds / 60


def most_minutes(plan: RunPlan, price: float | None) -> float:
    """Give the minutes after which a plan that has an end ends."""
    by_cost = 60 * plan.max_cost_usd / price if plan.max_cost_usd and price else float("inf")
    return min(by_cost, plan.max_minutes or float("inf"))


def _longest_minutes(plan: RunPlan) -> float:
    cells = len(plan.contexts) * len(plan.loads)
    if plan.profile == "find-capacity":
        cells = len(plan.contexts) * _SEARCHED_CELLS
    seconds = cells * (plan.stop.warmup_max_seconds + 2 * plan.stop.max_seconds)
    return float(-(-seconds // 60))
