"""How many users one replica serves at a speed, and how many replicas serve all of them."""

import functools
import math
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from core.records import ModelShape
from planner.advise import Goal, Offer, Refusal, considering, refuse, served
from planner.places import Place, place

_MOST: Final = 512
"""Users of one replica, beyond which nobody asks."""
_REPLICAS: Final = {"aca": 1000, "tpu": 1, "local": 1}
"""Of one deployment, by backend; elsewhere only a quota limits them."""


class Sized(NamedTuple):
    """A model at a place, as often as the users need it."""

    offer: Offer
    replicas: int = 1
    misses: str = ""
    """What of the goal it does not meet."""

    @property
    def usd_per_hour(self) -> float | None:
        """Of all replicas."""
        hourly = self.offer.price.usd_per_hour
        return None if hourly is None else hourly * self.replicas

    @property
    def deployments(self) -> int:
        """How many it takes to have so many replicas."""
        most = _REPLICAS.get(place(self.offer.place).deployable_by, self.replicas)
        return math.ceil(self.replicas / most)

    @property
    def doubt(self) -> str | None:
        """Say what so many replicas need that one does not."""
        if self.replicas == 1:
            return None
        where = place(self.offer.place)
        many = f", in {self.deployments} deployments under names of their own"
        return (
            f"{self.replicas} replicas on {where.name} need a quota of"
            f" {self.replicas * where.count} accelerators{many if self.deployments > 1 else ''};"
            " new projects and subscriptions have a quota of few or none."
        )


def rank(sized: Sized) -> tuple[bool, bool, float, float]:
    """Order by what can be deployed to, then by price and speed."""
    offer, hourly = sized.offer, sized.usd_per_hour
    return (
        not offer.deployable,
        hourly == 0,  # Hardware of your own, if you have it.
        float("inf") if hourly is None else hourly,
        -offer.decode.tokens_per_second.middle,
    )


class Sizing:
    """A goal for some users; what is alike at several places is computed once."""

    def __init__(self, goal: Goal, users: int | None, backends: Collection[str]) -> None:
        self._goal, self._users, self._backends = goal, users, backends
        self._considering = functools.cache(self._consider)

    def at(self, model: ModelShape, where: Place) -> Sized | Refusal:
        """Offer it for all users; for as many as one replica has at the speed, if none are said."""
        users = self._users
        found = self._ask(model, where, users or 1, near=True)
        if users is None and self._goal.tokens_per_second_per_user and isinstance(found, Offer):
            found = self._ask(model, where, self._most(model, where, _MOST))
        if isinstance(found, Offer):
            return Sized(found)
        if users is None or users == 1 or found.why not in {"memory", "speed"}:
            return found
        if where.deployable_by == "local":
            return found  # There is one such machine.
        most = self._most(model, where, users - 1)
        fewer = self._ask(model, where, most) if most else found
        if isinstance(fewer, Refusal):
            return found
        return _within_budget(model, where, self._goal, Sized(fewer, math.ceil(users / most)))

    def _consider(
        self, users: int, *, near: bool
    ) -> Callable[[ModelShape, Place], Offer | Refusal]:
        goal = self._goal.model_copy(update={"users": users})
        return considering(goal, backends=self._backends, near=near)

    def _ask(
        self, model: ModelShape, where: Place, users: int, *, near: bool = False
    ) -> Offer | Refusal:
        found = served(model, where, self._considering(users, near=near)(model, where))
        goal = self._goal.model_copy(update={"users": users})
        return _fast_enough(model, where, goal, found)

    def _most(self, model: ModelShape, where: Place, limit: int) -> int:
        """Return the most users that are held at once and each fast enough, 0 if none."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            enough = isinstance(self._ask(model, where, middle), Offer)
            low, high = (middle, high) if enough else (low, middle - 1)
        return low


def _fast_enough(
    model: ModelShape, where: Place, goal: Goal, found: Offer | Refusal
) -> Offer | Refusal:
    """Refuse what is expected to be slower than was asked, though its best case may not be."""
    wanted = goal.tokens_per_second_per_user
    if isinstance(found, Refusal) or wanted is None:
        return found
    speed = found.decode.tokens_per_second_per_user
    if speed.middle >= wanted:
        return found
    whom = "one user" if goal.users == 1 else f"each of {goal.users} users"
    return refuse(
        model, where, "speed", f"{speed} tokens/s are predicted for {whom}, {wanted:g} are wanted."
    )


def _within_budget(model: ModelShape, where: Place, goal: Goal, found: Sized) -> Sized | Refusal:
    total = found.usd_per_hour
    limits = (
        (goal.usd_per_hour, 1.0, "an hour"),
        (goal.usd_per_month, goal.hours_per_month, "a month"),
    )
    for budget, hours, unit in limits:
        if budget and total is not None and total * hours > budget:
            return refuse(
                model,
                where,
                "price",
                f"{found.replicas} replicas cost ${total * hours:,.2f} {unit},"
                f" ${budget:,.2f} are allowed.",
            )
    return found
