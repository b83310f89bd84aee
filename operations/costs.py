"""What targets cost, by the hour and month and under a load, and how they compare."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import Ambiguous, DoesNotFit, InvalidArgument, NextStep, OpsError
from core.records import Answer, Record, valid
from core.reply import note
from operations.forecast import (
    Bill,
    alike,
    bill,
    dollars,
    foreseen,
    grouped,
    guesses,
    load_words,
    spoken,
)
from operations.measurement import SIMULATED_RUN, Evidence, Measurement, measured, read_evidence
from operations.resolve import NOT_LOOKED, remembered
from operations.runtime import Runtime
from operations.targets import goes_to, limited_to, place_named, widened
from planner.advise import Comparison, Goal, Offer, Row, candidates, compare, consider, judged
from planner.boot import Span
from planner.catalog import short_name
from planner.places import FIGURES, Place, Size, place, places
from planner.price import HOURS_PER_MONTH, load_cost, price
from planner.speed import Band

_CROWD: Final = 32
"""Requests at once that a volume is worked off with, where nobody says how many users there are."""


class Hours(Record):
    """When and how much it is used."""

    hours_per_day: float | None = Field(default=None, gt=0, le=24)
    days_per_week: float | None = Field(default=None, gt=0, le=7)
    requests_per_day: int | None = Field(default=None, ge=1)
    tokens_per_day: int | None = Field(default=None, ge=1)

    @property
    def days(self) -> float:
        """Days of a month in which it is used."""
        return HOURS_PER_MONTH / 24 * (self.days_per_week or 7) / 7

    @property
    def a_month(self) -> float | None:
        """Hours of a month in which it is to run; None where nobody says."""
        if self.hours_per_day is None and self.days_per_week is None:
            return None
        return (self.hours_per_day or 24) * self.days


HOURS: Final = frozenset(Hours.model_fields)
"""Arguments that say when and how much it is used."""


class Volume(Record):
    """What a volume of requests takes and costs."""

    said: str
    """What was asked to be answered in a day."""
    requests_per_day: float
    million_tokens_per_month: float
    """Prompts and answers together."""
    replicas: int
    work_hours_per_month: float
    """Of one replica, if it were always full."""
    usd_per_month: float
    """Of all replicas in the hours that were said, or always."""
    usd_per_month_least: float | None
    """If it slept whenever nobody asks; None where it cannot sleep, or hours were said."""
    usd_per_million_tokens: float


class CostEstimate(Answer):
    """What a target costs, standing still and under a load."""

    target: str
    model: str | None
    chosen: str | None = None
    """Where target or model were not given: what they were taken from."""
    region: str | None = None
    """That was asked for, and the one that the price is of."""
    host: str | None
    """That the price is of, where the target has several."""
    larger_hosts: tuple[tuple[str, float], ...] = Field(exclude=True)
    """With the price of an hour, where no model chooses one."""
    hours_per_month: float
    duty: str
    """What the hours outside of these cost."""
    load: str
    bill: Bill
    """Costs under the load are foreseen, from the price of an hour and the speed of the planner."""
    volume: Volume | None
    measured: Measurement | None
    """The same as a run measured it, in its valid cell nearest to the load."""
    warned: tuple[str, ...] = Field(exclude=True)

    def summary(self) -> str:
        hour, month = self.bill.usd_per_hour, self.bill.usd_per_month
        if hour is None or month is None:
            return f"No price is known for {self.target}."
        if self.volume:
            return self._of_volume(self.volume)
        return (
            f"{self.target} costs {self._range(hour)} an hour, {self._range(month)} a month"
            f" {self._running()}{self._hosts()}{self._of_tokens()}."
        )

    def facts(self) -> Mapping[str, Any]:
        of, volume = self.bill, self.volume
        shown = {"replicas", "million_tokens_per_month", "work_hours_per_month"}
        tokens = {"usd_per_million_tokens", "usd_per_1000_requests", "usd_per_active_user_hour"}
        return {
            "target": self.target,
            "model": self.model,
            "chosen": self.chosen,
            "region": self.region,
            "usd_per_hour": of.usd_per_hour,
            "usd_per_month": volume.usd_per_month if volume else of.usd_per_month,
            **(volume.model_dump(include=shown) if volume else of.model_dump(include=tokens)),
            "load": self.load if self.model and not volume else None,
            "duty": self.duty,
            "sources": list(of.sources),
            "measured": self.measured and self.measured.run,
        }

    def warnings(self) -> tuple[str, ...]:
        shown = ", ".join(each.partition(" = ")[0] for each in self.bill.sources)
        disagree = f"Sources disagree on the price: {shown}."
        simulated = self.measured is not None and self.measured.simulated
        said = (
            *((disagree,) if self.bill.sources_disagree else ()),
            *self.warned,
            *((SIMULATED_RUN,) if simulated else ()),
        )
        return tuple(dict.fromkeys(said))

    def next_steps(self) -> tuple[NextStep, ...]:
        arguments = {"model": self.model} if self.model else {"quality": "medium"}
        return (NextStep("recommend_deployment", arguments),)

    def _range(self, amount: float) -> str:
        """Say an amount for every hour, as far as the sources of its price are apart."""
        lowest, highest = self.bill.usd_per_hour, self.bill.usd_per_hour_highest
        most = amount * highest / lowest if lowest and highest else amount
        to = f" to {dollars(most)}" if self.bill.sources_disagree and most > amount else ""
        return f"{dollars(amount)}{to}"

    def _running(self) -> str:
        if self.hours_per_month == HOURS_PER_MONTH:
            return "always on (730 hours)"
        return f"at {self.hours_per_month:.3g} hours"

    def _hosts(self) -> str:
        if self.host is None:
            return ""
        others = (f"{dollars(usd)} an hour with {host}" for host, usd in self.larger_hosts)
        return f" with {'; '.join((self.host, *(f'{one}, for larger models' for one in others)))}"

    def _of_volume(self, found: Volume) -> str:
        least = found.usd_per_month_least
        asleep = "" if least is None else f", from {dollars(least)} if it sleeps between requests"
        many = f"{found.replicas} replica{'s' if found.replicas > 1 else ''}"
        return (
            f"{found.said} a day on {self.target}: {self._range(found.usd_per_month)} a month with"
            f" {many} {self._running()}{asleep} ({dollars(found.usd_per_million_tokens)} per"
            " million tokens)."
        )

    def _of_tokens(self) -> str:
        of, seen = self.bill, self.measured
        predicted = ""
        if of.usd_per_million_tokens:
            user = of.usd_per_active_user_hour
            each = "" if user is None else f" and {self._range(user)} per active user and hour"
            predicted = (
                f"${of.usd_per_million_tokens} per million tokens,"
                f" ${of.usd_per_1000_requests} per 1,000 requests{each},"
                f" predicted with {self.load}"
            )
        if seen is None or seen.usd_per_million_tokens is None:
            return f"; {predicted}" if predicted else ""
        return (
            f"; ${seen.usd_per_million_tokens:g} per million tokens as {seen.how}"
            f"{',' if seen.elsewhere else ''} with {seen.load}"
            f"{f'; {predicted}' if predicted else ''}"
        )


def cost(
    runtime: Runtime,
    target: str | None,
    model: str | None,
    goal: dict[str, Any],
    asked_hours: Mapping[str, Any],
    region: str | None,
) -> CostEstimate:
    """Price a place, and a load on it where a model is named or known to be there.

    Raises:
        TargetNotFound: No place has that name.
        Ambiguous: No target was given, and several or none could be meant.
        DoesNotFit: The model cannot be served there.
        InvalidArgument: A region or hours cannot be read.
    """
    hours = valid(Hours, {name: one for name, one in asked_hours.items() if one is not None})
    runs = read_evidence(runtime)
    where, meant, chosen = _choose_subject(runtime, target, model)
    where = limited_to(where, region)
    wanted = _goal(goal, meant, where, hours)
    found = _find_offer(wanted, where, guessed=model is None)
    if found is None and (hours.requests_per_day or hours.tokens_per_day):
        raise InvalidArgument(
            "Which model? What a volume costs depends on it.", fix="Give `model`, such as 12b qat."
        )
    rate = found.price if found else price(where, duty=wanted.duty)
    size = found.size if found else next(iter(where.sizes), None)
    seen = measured(runs, found.model, where, wanted.load, rate.usd_per_hour) if found else None
    taken = there = None
    warned: tuple[str, ...] = ()
    if found:
        taken = _volume(found, where, wanted, hours, goal.get("users"))
        warned = (*found.doubts, *guesses((foreseen(found),)))
    if region:
        goes, todo = goes_to(runtime, where)
        named = {each.region for quote in rate.quotes[:1] for each in quote.rates if each.region}
        of = f"that of {', '.join(sorted(named))}" if named else "of no region in particular"
        there = f"{goes or 'here'}{f' ({todo})' if todo else ''}; the price is {of}"
    larger = () if found else where.sizes[1:]
    priced = ((_host(each), price(where, each).usd_per_hour) for each in larger)
    return CostEstimate(
        target=where.name,
        model=found.model if found else None,
        chosen=chosen,
        region=there,
        host=_host(size) if size and len(where.sizes) > 1 else None,
        larger_hosts=tuple((host, usd) for host, usd in priced if usd is not None),
        hours_per_month=wanted.hours_per_month,
        duty=_duty(where, wanted),
        load=load_words(wanted.load),
        bill=bill(rate, found.cost if found else None),
        volume=taken,
        measured=seen,
        warned=warned,
    )


def _goal(goal: dict[str, Any], model: str | None, where: Place, hours: Hours) -> Goal:
    """Return what is wanted, long enough for the load's prompt and answer."""
    said = {"model": model, **goal} if model else goal
    wanted = valid(Goal, {**said, "places": (where.name,)})
    tokens = wanted.load.prompt_tokens + wanted.load.output_tokens
    return wanted.model_copy(
        update={
            "max_model_len": max(wanted.max_model_len, tokens),
            "hours_per_month": hours.a_month or wanted.hours_per_month,
        }
    )


def _volume(
    offer: Offer, where: Place, goal: Goal, hours: Hours, users: int | None
) -> Volume | None:
    """Return what the volume takes; None where none was said, or no price is known.

    A replica answers as many requests at once as `users` say, else as it holds.
    """
    tokens, hourly = goal.load.prompt_tokens + goal.load.output_tokens, offer.price.usd_per_hour
    asked = hours.requests_per_day or (hours.tokens_per_day or 0) / tokens
    if not asked or hourly is None:
        return None
    (shape,) = candidates(goal)
    together = users or max(1, min(_CROWD, offer.full.concurrency))
    load, device = goal.load.model_copy(update={"concurrency": together}), where.device
    rate = load_cost(shape, device, offer.flags, load, 1.0).requests_per_second.middle
    work = asked / (rate * 3600)
    replicas = max(1, math.ceil(work / (hours.hours_per_day or 24)))
    month = (hours.a_month or goal.hours_per_month) * hourly * replicas
    sleeps = where.scale_to_zero and hours.a_month is None
    million = asked * tokens * hours.days / 1e6
    said = f"{hours.tokens_per_day or 0:,} tokens"
    return Volume(
        said=f"{hours.requests_per_day:,} requests" if hours.requests_per_day else said,
        requests_per_day=asked,
        million_tokens_per_month=million,
        replicas=replicas,
        work_hours_per_month=work * hours.days,
        usd_per_month=month,
        usd_per_month_least=work * hours.days * hourly if sleeps else None,
        usd_per_million_tokens=month / million,
    )


def _host(size: Size) -> str:
    return f"{size.vcpu} vCPU and {size.ram_gib} GiB"


def _duty(where: Place, wanted: Goal) -> str:
    share = f"{100 * min(1.0, wanted.duty):.0f} % of a month's {HOURS_PER_MONTH:g} hours"
    if where.provider == "own":
        return f"{share}; your own machine is billed by nobody."
    if where.scale_to_zero:
        return f"{share}; with min_replicas 0 it sleeps for nothing outside of them."
    return f"{share}, only if it is deleted outside of them: it bills while nobody asks."


def _choose_subject(
    runtime: Runtime, target: str | None, model: str | None
) -> tuple[Place, str | None, str | None]:
    """Return place, model and whence, if not all of the call: else of the only deployment."""
    there, named = remembered(runtime.stage.journal), target or runtime.settings.vllm_target
    if not named:
        there = tuple(one for one in there if one.target in places())
        if len(there) != 1:
            known = ", ".join(map(str, there)) or "nothing was deployed from here"
            steps = (NextStep("estimate_cost", {"target": one.target}) for one in there[:3])
            raise Ambiguous(
                f"Which target? {known}: {NOT_LOOKED}.",
                fix="Give `target`, such as cloud-run-l4, and `model`.",
                next_steps=tuple(steps) or (NextStep("list_targets"),),
            )
    where = place_named(runtime, named or there[0].target)
    meant = next((one for one in there if one.target == where.name), None)
    if meant is None or (named and model):
        return where, model, None
    return where, model or meant.model, f"{meant}: {NOT_LOOKED}"


def _find_offer(wanted: Goal, where: Place, *, guessed: bool) -> Offer | None:
    """Offer the model; one that nobody named and that cannot be reckoned with is told in a note.

    Raises:
        DoesNotFit, InvalidArgument: The named model cannot be served there.
    """
    if wanted.model is None:
        return None
    try:
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
    except OpsError as exc:
        if not guessed:
            raise
        note(f"No cost of tokens: {exc.summary}")
        return None


_TITLES: Final = {"aws": "AWS", "google": "Google Cloud", "azure": "Azure"}
_ROWS: Final = 14
"""Of a comparison: more are longer than a person reads."""
_LINES: Final = 6
"""Rows that the summary names one by one."""
_SHORT: Final = {
    "model": "model", "target": "place", "not": "reason",
    "tokens/s each": "tokens_per_second_per_user", "users": "requests_held",
    "boot s": "boot_seconds", "$/h": "usd_per_hour", "$/M tokens": "usd_per_million_tokens",
    "measured": "measured",
}  # fmt: skip
"""Columns of the short form."""
_HIDDEN: Final = frozenset({"unserved", "refusal", "usd_per_1000_requests", "beyond"})


class TargetComparison(Answer):
    """Models and targets side by side."""

    load: str
    """That speeds and costs are of."""
    full_length: int
    """Tokens of the requests that `requests_held` counts."""
    basis: str
    """What of it was measured, and what is foreseen."""
    rows: tuple[dict[str, Any], ...]
    left_out: int
    """Rows that are not shown: of each model what does not fit, then what is dear."""
    cheapest: str | None
    best_value: str | None
    fastest: str | None
    own_best: str | None = Field(exclude=True)
    """By the token, of what this server deploys to."""
    said: str = Field(exclude=True)
    warned: tuple[str, ...] = Field(exclude=True)

    def summary(self) -> str:
        return f"{self.said} {self.basis}"

    def facts(self) -> Mapping[str, Any]:
        return {
            "load": self.load,
            "rows": [
                {name: row[key] for name, key in _SHORT.items() if key in row} for row in self.rows
            ],
        }

    def warnings(self) -> tuple[str, ...]:
        hidden = f"{self.left_out} rows are left out: name fewer models, or targets."
        return (*((hidden,) if self.left_out else ()), *self.warned)

    def next_steps(self) -> tuple[NextStep, ...]:
        best = self.own_best or self.best_value
        if best is None:
            return ()
        model, _, where = best.partition(" on ")
        return (NextStep("estimate_cost", {"target": where, "model": model}),)


def comparison(
    runtime: Runtime, models: Sequence[str], targets: Sequence[str], goal: dict[str, Any]
) -> TargetComparison:
    """Hold models and targets against each other for the same goal.

    Raises:
        InvalidArgument: A model is not known.
        TargetNotFound: A target is not known.
    """
    wanted = valid(Goal, {**goal, "model": models[0]})
    found = compare(models, widened(targets), wanted, backends=BACKENDS)
    rows = _shortened(found.rows, len(models))
    seen = _measurements(read_evidence(runtime), rows, wanted)
    # What was extrapolated is as good as measured where a run that is kept bears it out.
    real = {id(row) for row, each in zip(rows, seen, strict=True) if each and not each.simulated}
    known = [
        row.model_copy(update={"beyond": None}) if id(row) in real else row for row in found.rows
    ]
    found = judged(wanted, known)
    own = judged(wanted, [row for row in known if place(row.place).deployable(BACKENDS)])
    return TargetComparison(
        load=load_words(wanted.load),
        full_length=wanted.max_model_len,
        basis=_basis(rows, seen),
        rows=tuple(_row_facts(rows, seen)),
        left_out=len(found.rows) - len(rows),
        cheapest=found.cheapest,
        best_value=found.best_value,
        fastest=found.fastest,
        own_best=own.best_value,
        said=_summary(wanted, found, own),
        warned=tuple(_warnings(found.rows, rows, seen)),
    )


def _warnings(
    every: Sequence[Row], rows: Sequence[Row], seen: Sequence[Measurement | None]
) -> Iterator[str]:
    """Say what is not served, extrapolated, of a price in doubt, or simulated; alike ones once."""
    yield from dict.fromkeys(
        f"{row.place}: {row.unserved} {FIGURES}" for row in rows if row.unserved
    )
    if first := next((row for row in every if row.beyond), None):
        yield (
            "Speeds with a * end above all that was measured: they make nobody the best"
            f" ({first.place}: {first.beyond})."
        )
    doubts = []
    for name, ram_gib in dict.fromkeys((row.place, row.host_gib) for row in rows if row.fits):
        where = place(name)
        size = next((each for each in where.sizes if each.ram_gib == ram_gib), None)
        doubts.append((price(where, size).doubt, name))
    for doubt, names in grouped(doubts).items():
        if doubt:
            yield f"The price of {', '.join(names)} is in doubt: {doubt}."
    if any(each and each.simulated for each in seen):
        yield SIMULATED_RUN


def _summary(goal: Goal, found: Comparison, own: Comparison) -> str:
    """Say each row where they are few, else the cheapest of each cloud; then the best of all."""
    by_name = {f"{row.model} on {row.place}": row for row in found.rows}
    lines = [_line(row) for row in found.rows] if len(found.rows) <= _LINES else []
    for provider, title in _TITLES.items() if not lines else ():
        if mine := [row for row in found.rows if place(row.place).provider == provider]:
            cheapest = judged(goal, mine).cheapest
            best = _line(by_name[cheapest]) if cheapest else "nothing serves it"
            lines.append(f"{title}: {best}")
    best = found.summary()
    if own.summary() != best:
        best = f"Of the targets that this server deploys to: {own.summary()} Of all: {best}"
    words = f"{'; '.join(lines)}. {best}" if lines else best
    for model in sorted({row.model for row in found.rows}, key=len, reverse=True):
        words = words.replace(model, short_name(model))
    return words


def _line(row: Row) -> str:
    """Say how fast and dear a row is, or that it is none."""
    if row.unserved or not row.fits or row.tokens_per_second_per_user is None:
        why = "is not served by published vLLM" if row.unserved else "does not fit"
        return f"{row.model} on {row.place} {why}"
    costs = "" if row.usd_per_hour is None else f", {dollars(row.usd_per_hour)} an hour"
    speed = spoken(row.tokens_per_second_per_user)
    return f"{row.model} on {row.place}: {speed} tokens/s{costs}"


def _measurements(
    runs: Sequence[Evidence], rows: Sequence[Row], wanted: Goal
) -> tuple[Measurement | None, ...]:
    known = {run.model for run in runs}
    return tuple(
        measured(runs, row.model, place(row.place), wanted.load, row.usd_per_hour)
        if row.model in known
        else None
        for row in rows
    )


def _basis(rows: Sequence[Row], seen: Sequence[Measurement | None]) -> str:
    known = [(row, each) for row, each in zip(rows, seen, strict=True) if each]
    if not known:
        return "Nothing of this was measured here: all figures are predicted by the planner."
    kinds = grouped(
        (
            "imported, not measured here" if each.imported else "measured here",
            f"{row.model} on {row.place}{f' (run on {each.elsewhere})' if each.elsewhere else ''}",
        )
        for row, each in known
    )
    said = "; ".join(f"{kind}: {', '.join(kinds[kind][:6])}" for kind in sorted(kinds)[::-1])
    rest = len(rows) - len(known)
    others = f"; the other {rest} {'row is' if rest == 1 else 'rows are'} only predicted"
    return f"{said[0].upper()}{said[1:]}{others if rest else ''}."


def _refused(rows: Sequence[Row]) -> list[list[Row]]:
    """Return what does not fit, together where the reason is the same."""
    return alike([row for row in rows if not row.fits], lambda row: (row.model, row.reason))


def _shortened(rows: Sequence[Row], models: int) -> list[Row]:
    """Leave out, where there are too many, what does not fit and then what is dear."""
    if sum(row.fits for row in rows) + len(_refused(rows)) <= _ROWS:
        return list(rows)

    def worth(row: Row) -> tuple[bool, float]:
        hourly = row.usd_per_hour
        return not row.fits, float("inf") if hourly is None else hourly

    each = len(rows) // models
    asked = [rows[first : first + each] for first in range(0, len(rows), each)]
    return [row for group in asked for row in sorted(group, key=worth)[: _ROWS // models]]


def _row_facts(rows: Sequence[Row], seen: Sequence[Measurement | None]) -> Iterator[dict[str, Any]]:
    """Yield what fits each by itself; what does not and for the same reason, together."""
    together = {id(group[0]): group for group in _refused(rows)}
    for row, each in zip(rows, seen, strict=True):
        if row.fits:
            yield _row(row, each)
        elif group := together.get(id(row)):
            yield {**_row(row, each), "place": ", ".join(one.place for one in group)}


def _row(row: Row, seen: Measurement | None) -> dict[str, Any]:
    """Return a row's figures as a person reads them, without what others say already."""
    hidden = _HIDDEN | ({"reason"} if row.fits else {"files_gib"})
    figures: dict[str, Any] = {}
    for name, value in row:
        if value is None or name in hidden or (name == "host_needs_gib" and not value):
            continue
        if isinstance(value, Band | Span):
            figures[name] = str(value)
        else:
            digits = 4 if name == "usd_per_hour" else 2
            figures[name] = round(value, digits) if isinstance(value, float) else value
    if row.beyond:
        figures["tokens_per_second_per_user"] += " *"
    if row.unserved:
        figures["served"] = "only by an image of your own: see the warning"
    return figures | ({"measured": str(seen)} if seen else {})
