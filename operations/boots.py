"""What the boots of a deployment took, phase by phase, as they were seen from here."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from statistics import median
from typing import Final

from pydantic import AwareDatetime

from backends.base import Backend, KnowsEngine
from core.errors import OpsError, WaitedTooLong
from core.journal import Journal, readable
from core.records import Deployment, Record, spent_words
from core.waiting import wait_until
from logs.boot_phases import HOST, PULL, SPLIT
from planner.boot import Span

_KIND: Final = "boot"
_LATE_SECONDS: Final = 900.0
_AGAIN_SECONDS: Final = 10.0
_SLACK: Final = timedelta(minutes=1)
"""Between our clock and a platform's."""
OWN: Final = "its own "
"""Begins the source of a span that boots of this very deployment gave."""
_DRAWN: Final = 5
_WIDTH: Final = 40
_LETTERS: Final = dict(zip(SPLIT, "hpsdlcmgw", strict=True))
LEGEND: Final = (
    "h host, p pull of the image, s start of the engine, d download, l load, c compile,"
    " m profile of memory, g capture of graphs, w warm-up"
)


class Booted(Record):
    """One boot that ended well."""

    target: str
    name: str
    model: str
    created_at: AwareDatetime
    """Of the deployment: a later one of the same name has boots of its own."""
    warm_at: AwareDatetime
    """When it began to warm up, which tells it from others."""
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        """Return the seconds of all phases."""
        return sum(self.seconds.values())


async def keep(
    journal: Journal,
    backend: Backend,
    now: Deployment,
    since: datetime,
    waited: Mapping[str, float],
) -> bool:
    """Keep what a boot took that was followed since then, if the engine's log tells it whole.

    `waited` are the seconds before there was an engine. False: the log may tell it later.
    """
    if not isinstance(backend, KnowsEngine):
        return True
    with suppress(OpsError):
        facts = await backend.engine_facts(now.name)
        if not facts.boot or facts.warm_at is None or facts.warm_at < since - _SLACK:
            return False  # of an earlier boot
        took = {**waited, **facts.boot}
        booted = Booted(
            target=now.target,
            name=now.name,
            model=now.model,
            created_at=now.created_at,
            warm_at=facts.warm_at,
            seconds={name: took[name] for name in SPLIT if took.get(name)},
        )
        key = f"{now.target}/{now.name}/{facts.warm_at:%F %T}"
        journal.keep_pair(_KIND, key, booted.model_dump_json())
        return True
    return False


def reading_of(target: str, name: str) -> str:
    """Name the work that waits for the log of a boot: until then an earlier one is the last."""
    return f"boot of {name} on {target}"


async def keep_late(journal: Journal, backend: Backend, now: Deployment, since: datetime) -> None:
    """Keep what a wake took, whose log may come minutes after it answered."""
    with suppress(WaitedTooLong):
        await wait_until(
            partial(keep, journal, backend, now, since, {}),
            bool,
            waiting_for="its log",
            every=_AGAIN_SECONDS,
            timeout=_LATE_SECONDS,
        )


def boots_of(journal: Journal, deployment: Deployment) -> tuple[Booted, ...]:
    """Give the boots of a deployment that were seen, the newest last."""
    now = deployment
    about = (now.target, now.name, now.model, now.created_at)
    return tuple(
        one
        for one in readable(journal.pairs(_KIND), Booted)
        if (one.target, one.name, one.model, one.created_at) == about
    )


def last_words(boots: Sequence[Booted]) -> str | None:
    """Say what the newest took."""
    if not boots:
        return None
    spent = spent_words(boots[-1].seconds)
    return f"its last boot took {boots[-1].total:,.0f} s" + (f": {spent}" if spent else "")


def span(boots: Sequence[Booted], *, inside: bool) -> Span | None:
    """Give what a next boot takes by the ones before it, which two suffice for.

    `inside` leaves out what is over before the engine is started.
    """
    left_out = {HOST, PULL} if inside else set()
    each = [
        sum(took for name, took in one.seconds.items() if name not in left_out) for one in boots
    ]
    if len(each) < 2:
        return None
    return Span(
        low=min(each),
        expected=median(each),
        high=max(each),
        source=f"{OWN}{len(each)} boots",
    )


def cold_and_warm(journal: Journal, target: str, model: str) -> dict[str, str]:
    """Say what first and later boots of a model took on a target, once two were seen there."""
    every = readable(journal.pairs(_KIND), Booted)
    here = [one for one in every if (one.target, one.model) == (target, model)]
    first = {(one.name, one.created_at): one for one in reversed(here)}
    sorts = {
        "boot_seconds": [one for one in here if one in first.values()],
        "boot_again_seconds": [one for one in here if one not in first.values()],
    }
    if len(here) < 2:
        return {}
    return {
        name: f"{median(took):,.0f} ({min(took):,.0f}-{max(took):,.0f}), as {len(took)} took here"
        for name, boots in sorts.items()
        if (took := [one.total for one in boots])
    }


def chart(boots: Sequence[Booted]) -> tuple[str, ...]:
    """Draw the newest boots as bars of one scale, a letter for each phase."""
    drawn = boots[-_DRAWN:]
    longest = max((one.total for one in drawn), default=0.0) or 1.0
    return tuple(
        f"{one.warm_at:%m-%d %H:%M} {one.total:6,.0f} s {_bar(one, longest)}"
        f" {spent_words(one.seconds)}"
        for one in drawn
    )


def _bar(one: Booted, longest: float) -> str:
    """Draw each phase to where it ends, so that no rounding makes the bar longer."""
    drawn, passed = "", 0.0
    for name, took in one.seconds.items():
        passed += took
        drawn += _LETTERS[name] * (round(_WIDTH * passed / longest) - len(drawn))
    return drawn.ljust(_WIDTH)
