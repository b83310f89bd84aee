"""What a target costs: by the hour and month, and under a load."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import Field

from backends.registry import BACKENDS
from core.errors import Ambiguous, DoesNotFit, InvalidArgument, NextStep, OpsError, TargetNotFound
from core.records import Record, valid
from core.reply import note
from operations.evidence import SIMULATED_RUN, Evidence, Measurement, kept, measured
from operations.forecast import Bill, Foresight, bill, dollars, foreseen, guesses, load_words
from operations.resolve import NOT_LOOKED, Remembered, remembered
from operations.runtime import Runtime
from operations.targets import goes_to, limited_to, place_called, place_named
from planner.advise import Goal, Offer, candidates, consider
from planner.places import Place, Size, accelerator
from planner.price import HOURS_PER_MONTH, load_cost, price

_DAYS_PER_WEEK: Final = 7
_CURRENCY: Final = re.compile(r"\s*([A-Za-z]{3})\s*[=:]?\s*([0-9]+(?:\.[0-9]+)?)\s*")
_CROWD: Final = 32
"""Requests at once that a volume is worked off with, where nobody says how many users there are."""


class Money(NamedTuple):
    """A currency, and how much of it a dollar is."""

    code: str = "USD"
    rate: float = 1.0

    def say(self, usd: float) -> str:
        """Write an amount of dollars in it."""
        words = dollars(usd * self.rate)
        return words if self.code == "USD" else f"{self.code} {words.removeprefix('$')}"


class Hours(Record):
    """When it is used."""

    hours_per_day: float | None = Field(default=None, gt=0, le=24)
    days_per_week: float | None = Field(default=None, gt=0, le=_DAYS_PER_WEEK)
    requests_per_day: int | None = Field(default=None, ge=1)
    tokens_per_day: int | None = Field(default=None, ge=1)

    @property
    def days(self) -> float:
        """Return the days of a month in which it is used."""
        share = (self.days_per_week or _DAYS_PER_WEEK) / _DAYS_PER_WEEK
        return HOURS_PER_MONTH / 24 * share

    @property
    def a_month(self) -> float | None:
        """Return the hours of a month in which it is to run; None where nobody says."""
        if self.hours_per_day is None and self.days_per_week is None:
            return None
        return (self.hours_per_day or 24) * self.days


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


class Hosted(Record):
    """The same from a hosted service, at the prices that were given."""

    usd_per_million_tokens: float
    """Of prompts and answers together, in the load's proportion."""
    usd_per_month: float | None
    """None where no volume was said."""
    break_even_tokens_per_day: float
    """Above that one's own is cheaper."""
    most_tokens_per_day: float
    """What as many replicas can answer."""


def currency(words: str | None) -> Money:
    """Read a currency with its rate, such as `EUR 0.92`.

    >>> currency("eur 0.92").say(100)
    'EUR 92'

    Raises:
        InvalidArgument: It has no rate.
    """
    if words is None:
        return Money()
    match = _CURRENCY.fullmatch(words)
    if match is None or not float(match.group(2)):
        raise InvalidArgument(
            f"No rate of '{words}' is known here.",
            fix="Give the currency with what a dollar is in it: currency='EUR 0.92'.",
        )
    return Money(match.group(1).upper(), float(match.group(2)))


def volume(
    offer: Offer, where: Place, goal: Goal, hours: Hours, *, per_hour: float
) -> Volume | None:
    """Return what a volume takes there; None where none was said, or no price is known.

    `per_hour` is how many requests one replica answers.
    """
    tokens = goal.load.prompt_tokens + goal.load.output_tokens
    asked = hours.requests_per_day or (hours.tokens_per_day or 0) / tokens
    hourly = offer.price.usd_per_hour
    if not asked or hourly is None:
        return None
    a_day = asked / per_hour
    window = hours.hours_per_day or 24
    replicas = max(1, math.ceil(a_day / window))
    running = hours.a_month or goal.hours_per_month
    month = running * hourly * replicas
    sleeps = where.scale_to_zero and hours.a_month is None
    monthly_tokens = asked * tokens * hours.days / 1e6
    said = f"{hours.requests_per_day or 0:,} requests"
    return Volume(
        said=said if hours.requests_per_day else f"{hours.tokens_per_day or 0:,} tokens",
        requests_per_day=asked,
        million_tokens_per_month=monthly_tokens,
        replicas=replicas,
        work_hours_per_month=a_day * hours.days,
        usd_per_month=month,
        usd_per_month_least=a_day * hours.days * hourly if sleeps else None,
        usd_per_million_tokens=month / monthly_tokens,
    )


def hosted(
    prices: Sequence[float] | None,
    offer: Offer,
    goal: Goal,
    hours: Hours,
    taken: Volume | None,
    *,
    per_hour: float,
) -> Hosted | None:
    """Hold a month's bill against a hosted service's prices for a million tokens in and out.

    Raises:
        InvalidArgument: It is not two prices.
    """
    month = taken.usd_per_month if taken else offer.price.usd_per_month
    if prices is None or month is None:
        return None
    amounts = goal.load.prompt_tokens, goal.load.output_tokens
    if len(prices) != len(amounts) or min(prices) < 0 or not any(prices):
        raise InvalidArgument(
            "A hosted service has two prices.",
            fix="Give dollars for a million tokens in and out: hosted_price=[0.1, 0.4].",
        )
    blend = sum(n * price for n, price in zip(amounts, prices, strict=True)) / sum(amounts)
    a_day = per_hour * (hours.hours_per_day or 24) * sum(amounts)
    return Hosted(
        usd_per_million_tokens=blend,
        usd_per_month=blend * taken.million_tokens_per_month if taken else None,
        break_even_tokens_per_day=month / blend * 1e6 / hours.days,
        most_tokens_per_day=a_day * (taken.replicas if taken else 1),
    )


def _per_hour(offer: Offer, where: Place, goal: Goal, users: int | None) -> float:
    """Return the requests that one replica answers in an hour, with as many at once as it holds."""
    (shape,) = candidates(goal)
    together = users or max(1, min(_CROWD, offer.full.concurrency))
    load = goal.load.model_copy(update={"concurrency": together})
    device = accelerator(where.accelerator)
    return load_cost(shape, device, offer.flags, load, 1.0).requests_per_second.middle * 3600


HOURS: Final = frozenset(Hours.model_fields)
"""Arguments that say when and how much it is used."""


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
    hosted: Hosted | None
    measured: Measurement | None
    """The same as a run measured it, in its valid cell nearest to the load."""
    currency: str
    """Of the summary and the short facts, with what a dollar is in it."""
    money: Money = Field(exclude=True)
    warned: tuple[str, ...] = Field(exclude=True)
    look: NextStep | None = Field(exclude=True)
    """At the deployment that it was taken from: nobody did."""

    def summary(self) -> str:
        """Say the price by the hour and the month, and of tokens as well as it is known."""
        hour, month = self.bill.usd_per_hour, self.bill.usd_per_month
        if hour is None or month is None:
            return f"No price is known for {self.target}."
        if self.volume:
            return f"{self._of_volume(self.volume)}{self._against_hosted()}"
        return (
            f"{self.target} costs {self._range(hour)} an hour, {self._range(month)} a month"
            f" {self._running()}{self._hosts()}{self._of_tokens()}.{self._against_hosted()}"
        )

    def facts(self) -> Mapping[str, Any]:
        """Return the bill in one currency, and what it rests on."""
        code, rate, bill = self.money.code.lower(), self.money.rate, self.bill
        volume = self.volume
        money = {
            "per_hour": bill.usd_per_hour,
            "per_month": volume.usd_per_month if volume else bill.usd_per_month,
            "per_active_user_hour": None if volume else bill.usd_per_active_user_hour,
        }
        tokens = {
            "usd_per_million_tokens": bill.usd_per_million_tokens,
            "usd_per_1000_requests": bill.usd_per_1000_requests,
            "load": self.load if self.model else None,
        }
        return {
            "target": self.target,
            "model": self.model,
            "chosen": self.chosen,
            "region": self.region,
            **{f"{code}_{name}": each * rate for name, each in money.items() if each is not None},
            **(tokens if rate == 1 and volume is None else {}),
            "duty": self.duty,
            "replicas": volume and volume.replicas,
            "million_tokens_per_month": volume and volume.million_tokens_per_month,
            "work_hours_per_month": volume and volume.work_hours_per_month,
            "sources": list(bill.sources),
            "measured": self.measured and self.measured.run,
        }

    def warnings(self) -> tuple[str, ...]:
        """Say where sources disagree, and which figures nobody measured."""
        shown = ", ".join(each.partition(" = ")[0] for each in self.bill.sources)
        disagree = (f"Sources disagree on the price: {shown}.",)
        simulated = self.measured is not None and self.measured.simulated
        said = (
            *(disagree if self.bill.sources_disagree else ()),
            *self.warned,
            *((SIMULATED_RUN,) if simulated else ()),
        )
        return tuple(dict.fromkeys(said))

    def next_steps(self) -> tuple[NextStep, ...]:
        """Look at what was only remembered; ask what else there is."""
        arguments = {"model": self.model} if self.model else {"quality": "medium"}
        look = (self.look,) if self.look else ()
        return (*look, NextStep("recommend_deployment", arguments))

    def _range(self, amount: float) -> str:
        """Say an amount for every hour, as far as the sources of its price are apart."""
        lowest, highest = self.bill.usd_per_hour, self.bill.usd_per_hour_highest
        most = amount * highest / lowest if lowest and highest else amount
        to = f" to {self.money.say(most)}" if self.bill.sources_disagree and most > amount else ""
        return f"{self.money.say(amount)}{to}"

    def _hosts(self) -> str:
        """Say the host that this is the price of, and of others where no model chooses one."""
        if self.host is None:
            return ""
        others = (f"{self.money.say(usd)} an hour with {host}" for host, usd in self.larger_hosts)
        larger = "".join(f"; {each}, for larger models" for each in others)
        return f" with {self.host}{larger}"

    def _of_volume(self, found: Volume) -> str:
        say, many = self.money.say, found.replicas
        least = found.usd_per_month_least
        asleep = (
            f", from {say(least)} if the requests come together and it sleeps between them"
            if least is not None
            else ""
        )
        return (
            f"{found.said} a day on {self.target}:"
            f" {self._range(found.usd_per_month)} a month with {many}"
            f" replica{'s' if many > 1 else ''}"
            f" {self._running()}{asleep} ({say(found.usd_per_million_tokens)} per million tokens)."
        )

    def _against_hosted(self) -> str:
        other, say = self.hosted, self.money.say
        if other is None:
            return ""
        even, most = other.break_even_tokens_per_day, other.most_tokens_per_day
        price = say(other.usd_per_million_tokens)
        words = f" Break-even with {price} per million is at {even / 1e6:,.3g} million tokens a day"
        if even > most:
            words += f", more than the {most / 1e6:,.3g} million that this answers at most"
        if other.usd_per_month is None or self.volume is None:
            return f"{words}; below that the hosted service is cheaper."
        cheaper = "cheaper" if other.usd_per_month < self.volume.usd_per_month else "dearer"
        return f" Hosted it is {say(other.usd_per_month)} a month, {cheaper}.{words}."

    def _running(self) -> str:
        if self.hours_per_month == HOURS_PER_MONTH:
            return "always on (730 hours)"
        return f"at {self.hours_per_month:.3g} hours"

    def _of_tokens(self) -> str:
        foreseen_, seen = self.bill.usd_per_million_tokens, self.measured
        if self.money.rate != 1:
            return ""
        bill = self.bill
        each = (
            f", ${bill.usd_per_1000_requests} per 1,000 requests and"
            f" {self._range(bill.usd_per_active_user_hour)} per active user and hour,"
            if bill.usd_per_active_user_hour is not None
            else ""
        )
        if seen and seen.usd_per_million_tokens is not None:
            return (
                f"; ${seen.usd_per_million_tokens:g} per million tokens as {seen.how}"
                f"{',' if seen.elsewhere else ''} with {seen.load}"
                + (f", ${foreseen_}{each} predicted with {self.load}" if foreseen_ else "")
            )
        if not foreseen_:
            return ""
        return f"; ${foreseen_} per million tokens{each} predicted with {self.load}"


class Question(NamedTuple):
    """What a call says beside target, model and load."""

    hours: Mapping[str, Any]
    hosted_price: Sequence[float] | None = None
    currency: str | None = None
    region: str | None = None


def cost(
    runtime: Runtime,
    target: str | None,
    model: str | None,
    goal: dict[str, Any],
    asked: Question,
) -> CostEstimate:
    """Price a place, and a load on it where a model is named or known to be there.

    Raises:
        TargetNotFound: No place has that name.
        Ambiguous: No target was given, and several or none could be meant.
        DoesNotFit: The model cannot be served there.
        InvalidArgument: A price, a currency, a region or hours cannot be read.
    """
    money, hours = currency(asked.currency), valid(Hours, _said(dict(asked.hours)))
    runs = kept(runtime)
    meant = _meant(runtime, target, model, runs)
    where = limited_to(meant.where, asked.region)
    wanted = valid(Goal, _said({**goal, "model": meant.model, "places": (where.name,)}))
    wanted = wanted.model_copy(
        update={
            # It holds the load's prompt and answer.
            "max_model_len": max(
                wanted.max_model_len, wanted.load.prompt_tokens + wanted.load.output_tokens
            ),
            "hours_per_month": hours.a_month or wanted.hours_per_month,
        }
    )
    found = _found(wanted, where, guessed=model is None)
    if found is None and (hours.requests_per_day or hours.tokens_per_day or asked.hosted_price):
        raise InvalidArgument(
            "Which model? What a volume costs depends on it.", fix="Give `model`, such as 12b qat."
        )
    rate = found.price if found else price(where, duty=wanted.duty)
    size = found.size if found else next(iter(where.sizes), None)
    seen = measured(runs, found.model, where, wanted.load, rate.usd_per_hour) if found else None
    taken = against = region = None
    warned: tuple[str, ...] = ()
    if found:
        per_hour = _per_hour(found, where, wanted, goal.get("users"))
        taken = volume(found, where, wanted, hours, per_hour=per_hour)
        against = hosted(asked.hosted_price, found, wanted, hours, taken, per_hour=per_hour)
        warned = (*found.doubts, *guesses((foreseen(found),)))
    if asked.region:
        there, todo = goes_to(runtime, where)
        named = {each.region for quote in rate.quotes[:1] for each in quote.rates if each.region}
        of = f"that of {', '.join(sorted(named))}" if named else "of no region in particular"
        region = f"{there or 'here'}{f' ({todo})' if todo else ''}; the price is {of}"
    larger = () if found else where.sizes[1:]
    priced = ((_host(each), price(where, each).usd_per_hour) for each in larger)
    return CostEstimate(
        target=where.name,
        model=found.model if found else None,
        chosen=meant.chosen,
        region=region,
        host=_host(size) if size and len(where.sizes) > 1 else None,
        larger_hosts=tuple((host, usd) for host, usd in priced if usd is not None),
        hours_per_month=wanted.hours_per_month,
        duty=_duty(where, wanted),
        load=load_words(wanted.load),
        bill=bill(rate, found.cost if found else None),
        volume=taken,
        hosted=against,
        measured=seen,
        currency=f"{money.code} {money.rate:g}",
        money=money,
        warned=warned,
        look=meant.known.look if meant.known else None,
    )


def _host(size: Size) -> str:
    return f"{size.vcpu} vCPU and {size.ram_gib} GiB"


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
