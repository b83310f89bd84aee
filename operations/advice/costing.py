"""What a target costs: by the hour and month, and under a load by the request, token and user."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import (
    Ambiguous,
    DoesNotFit,
    InvalidArgument,
    NextStep,
    OpsError,
    TargetNotFound,
)
from core.records import valid
from core.reply import note
from operations.benchmarks.evidence import SIMULATED_RUN, Evidence, Measurement, kept, measured
from operations.plans.foreseeing import Bill, Foresight, bill, foreseen, guesses, load_words
from operations.plans.places import place_called, place_named
from operations.remembered import NOT_LOOKED, Remembered, remembered
from operations.runtime import Runtime
from planner.advise import consider
from planner.goal import Goal, candidates
from planner.offers import Offer
from planner.places import Place
from planner.price import HOURS_PER_MONTH, price


class _Meant(NamedTuple):
    """What a call is about."""

    where: Place
    model: str | None
    chosen: str | None = None
    """What they come from, if that is not the call."""
    known: Remembered | None = None
    """The deployment that was taken for it."""


class CostEstimate(Foresight):
    """What a target costs, standing still and under a load."""

    target: str
    model: str | None
    chosen: str | None = None
    """Where target or model were not given: what they were taken from."""
    hours_per_month: float
    duty: str
    """What the hours outside of these cost."""
    load: str
    bill: Bill
    """Costs under the load are foreseen, from the price of an hour and the speed of the planner."""
    measured: Measurement | None
    """The same as a run measured it, in its valid cell nearest to the load."""
    warned: tuple[str, ...] = Field(exclude=True)
    look: NextStep | None = Field(exclude=True)
    """At the deployment that it was taken from: nobody did."""

    def summary(self) -> str:
        """Say the price by the hour and the month, and of tokens as well as it is known."""
        hour, month = self.bill.usd_per_hour, self.bill.usd_per_month
        if hour is None or month is None:
            return f"No price is known for {self.target}."
        return (
            f"{self.target} costs ${hour:.2f} an hour, ${month:,.0f} a month at "
            f"{self.hours_per_month:g} hours{self._of_tokens()}."
        )

    def warnings(self) -> tuple[str, ...]:
        """Say where sources disagree, and which figures nobody measured."""
        disagree = ("Sources disagree on the price; all are shown.",)
        simulated = self.measured is not None and self.measured.simulated
        return (
            *(disagree if self.bill.sources_disagree else ()),
            *self.warned,
            *((SIMULATED_RUN,) if simulated else ()),
        )

    def next_steps(self) -> tuple[NextStep, ...]:
        """Look at what was only remembered; ask what else there is, or measure."""
        arguments = {"model": self.model} if self.model else {"quality": "medium"}
        ours = self.measured is not None and not self.measured.imported
        measure = () if ours or not self.model else (NextStep("run_benchmark"),)
        look = (self.look,) if self.look else ()
        return (*look, NextStep("recommend_deployment", arguments), *measure)

    def _of_tokens(self) -> str:
        foreseen_, seen = self.bill.usd_per_million_tokens, self.measured
        if seen and seen.usd_per_million_tokens is not None:
            return (
                f"; ${seen.usd_per_million_tokens:g} per million tokens as {seen.how}"
                f"{',' if seen.elsewhere else ''} with {seen.load}"
                + (f", ${foreseen_} foreseen with {self.load}" if foreseen_ else "")
            )
        return f"; ${foreseen_} per million tokens foreseen with {self.load}" if foreseen_ else ""


def cost(
    runtime: Runtime, target: str | None, model: str | None, goal: dict[str, Any]
) -> CostEstimate:
    """Price a place, and a load on it where a model is named or known to be there.

    Raises:
        TargetNotFound: No place has that name.
        Ambiguous: No target was given, and several or none could be meant.
        DoesNotFit: The model cannot be served there.
    """
    runs = kept(runtime)
    meant = _meant(runtime, target, model, runs)
    where = meant.where
    wanted = valid(Goal, _said({**goal, "model": meant.model, "places": (where.name,)}))
    wanted = wanted.model_copy(update={"max_model_len": _long_enough(wanted)})
    found = _found(wanted, where, guessed=model is None)
    rate = found.price if found else price(where, duty=wanted.duty)
    seen = measured(runs, found.model, where, wanted.load, rate.usd_per_hour) if found else None
    return CostEstimate(
        target=where.name,
        model=found.model if found else None,
        chosen=meant.chosen,
        hours_per_month=wanted.hours_per_month,
        duty=_duty(where, wanted),
        load=load_words(wanted.load),
        bill=bill(rate, found.cost if found else None),
        measured=seen,
        warned=tuple(_doubts(found)) if found else (),
        look=meant.known.look if meant.known else None,
    )


def _doubts(found: Offer) -> Iterator[str]:
    yield from found.doubts
    yield from guesses((foreseen(found),))


def _duty(where: Place, wanted: Goal) -> str:
    share = f"{100 * min(1.0, wanted.duty):.0f} % of a month's {HOURS_PER_MONTH:g} hours"
    if where.provider == "own":
        return f"{share}; your own machine is billed by nobody."
    if where.scale_to_zero:
        return (
            f"{share}; it sleeps for nothing outside of them with min_replicas 0. An hour counts"
            " from the beginning of a boot to the end of the idle time after the last request."
        )
    return (
        f"{share}, only if it is deleted outside of them: it bills while nobody asks."
        " destroy_vllm and deploy_vllm, or ttl_minutes, keep to the hours; every boot counts."
    )


def _meant(
    runtime: Runtime, target: str | None, model: str | None, runs: tuple[Evidence, ...]
) -> _Meant:
    """Give place and model, and where they come from if that is not the call."""
    named = target or runtime.settings.vllm_target
    if not named:
        return _only(runtime, model, runs)
    where = place_named(runtime, named)
    there = (one for one in remembered(runtime.stage.journal) if one.target == where.name)
    known = None if model else next(there, None)
    return _remembered(where, known) if known else _Meant(where, model)


def _only(runtime: Runtime, model: str | None, runs: tuple[Evidence, ...]) -> _Meant:
    """Do it where no target was named: the only one deployed to, else that of the newest run."""
    known = [one for one in remembered(runtime.stage.journal) if _is_place(one.target)]
    if len(known) > 1:
        raise Ambiguous(
            f"Which target? {', '.join(map(str, known))}: {NOT_LOOKED}.",
            fix="Give `target`.",
            next_steps=tuple(NextStep("estimate_cost", {"target": o.target}) for o in known[:3]),
        )
    if known:
        meant = _remembered(place_named(runtime, known[0].target), known[0])
        return meant._replace(model=model or meant.model)
    run = next((each for each in runs if each.place), None)
    if run and run.place:
        where = place_named(runtime, run.place.name)
        chosen = f"the run {run.run}: the journal has nothing deployed from here"
        return _Meant(where, model or run.model, chosen)
    raise Ambiguous(
        "Which target? The journal has nothing deployed from here, and no run was measured at a"
        " place that is known.",
        fix="Give `target`, such as cloud-run-l4, and `model`.",
        next_steps=(NextStep("list_targets"),),
    )


def _remembered(where: Place, known: Remembered) -> _Meant:
    return _Meant(where, known.model, f"{known}: {NOT_LOOKED}", known)


def _is_place(target: str) -> bool:
    try:
        return bool(place_called(target))
    except TargetNotFound:
        return False


def _said(goal: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in goal.items() if value is not None}


def _long_enough(wanted: Goal) -> int:
    """Give a length that holds the load's prompt and answer."""
    return max(wanted.max_model_len, wanted.load.prompt_tokens + wanted.load.output_tokens)


def _found(wanted: Goal, where: Place, *, guessed: bool) -> Offer | None:
    """Offer the model; one that nobody named and that cannot be reckoned with is told in a note."""
    if wanted.model is None:
        return None
    try:
        return _offered(wanted, where)
    except OpsError as exc:
        if not guessed:
            raise
        note(f"No cost of tokens: {exc.summary}")
        return None


def _offered(wanted: Goal, where: Place) -> Offer:
    (shape,) = candidates(wanted)
    offer = consider(shape, where, wanted, backends=BACKENDS)
    if isinstance(offer, Offer):
        return offer
    error = DoesNotFit if "memory" in offer.why else InvalidArgument
    raise error(
        f"{shape.model} cannot be served on {where.name}: {offer.reason}",
        fix="Call recommend_deployment for targets that can.",
        next_steps=(NextStep("recommend_deployment", {"model": shape.model}),),
    )
