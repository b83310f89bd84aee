"""Whether one of the places that would be asked may give a chip, as far as that can be seen."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import anyio

from backends.common.preflight import Answer, Question
from backends.tpu import prospects, quotas
from backends.tpu.blueprint import Blueprint
from backends.tpu.pools import NO_LIMIT
from backends.tpu.prospects import Prospect, without_address
from backends.tpu.site import Site
from core.plans import Check

_SECONDS: Final = 15.0
_WHOLE: Final = "Nothing that can be seen stands against one of the places"
_ELSEWHERE: Final = "Call get_zones_with_available_quota, and give zones."
_CAPACITY: Final = "Whether a chip is free is known only by asking for one."


class _Looked:
    """The places, looked at once for all questions."""

    def __init__(self, site: Site, made: Blueprint) -> None:
        self._site, self._made = site, made
        self._lock = anyio.Lock()
        self._seen: Sequence[Prospect] | None = None

    async def seen(self) -> Sequence[Prospect]:
        async with self._lock:
            if self._seen is None:
                name, places = self._made.spec.name, self._made.places
                counting = await quotas.counted(self._site, without=name)
                self._seen = await prospects.of(self._site, places, counting, _SECONDS)
            return self._seen


def questions(site: Site, made: Blueprint) -> Iterator[Question]:
    """Ask for hardware, way of giving and quota; all of them together come last."""
    looked = _Looked(site, made)
    yield Question(f"A place has {made.accelerator}", partial(_hardware, looked))
    yield Question(f"It gives chips {_way(made)}", partial(_accepted, looked))
    yield Question(f"The quota has room for {_chips(made)}", partial(_quota, site, looked))
    yield Question(_WHOLE, partial(_whole, looked))


def without_echo(rows: Sequence[Check]) -> Iterator[Check]:
    """Leave a refusal of the whole unknown where a part of it is known to be wrong."""
    parts = rows[-4:-1]
    for row in rows:
        if row.what == _WHOLE and row.outcome == "fail" and any(p.outcome == "fail" for p in parts):
            fix = "Put right what is wrong above first."
            yield Check(what=row.what, outcome="unknown", detail=row.detail, fix=fix)
        else:
            yield row


def _chips(made: Blueprint) -> str:
    return "one chip" if made.chips == 1 else f"{made.chips} chips"


def _way(made: Blueprint) -> str:
    return "on demand" if made.provisioning == "on-demand" else f"as {made.provisioning}"


async def _hardware(looked: _Looked) -> Answer:
    seen = await looked.seen()
    said = [_said(one.offer.detail, good=one.offer.hardware) for one in seen]
    return _answer([one.offer.hardware for one in seen], _grouped(seen, said), _ELSEWHERE)


async def _accepted(looked: _Looked) -> Answer:
    seen = await looked.seen()
    said = [_said(one.accepted.why, good=one.accepted.yes) for one in seen]
    return _answer([one.accepted.yes for one in seen], _grouped(seen, said), _ELSEWHERE)


async def _quota(site: Site, looked: _Looked) -> Answer:
    seen = await looked.seen()
    more = f"https://console.cloud.google.com/iam-admin/quotas?project={site.clients.project}"
    leftovers = "Delete leftovers, which hold quota (list_queued_resources)"
    said = [
        _room(one) if one.room.enough else _said(one.room.why, good=one.room.enough) for one in seen
    ]
    passed = [one.room.enough for one in seen]
    return _answer(passed, _grouped(seen, said), f"{leftovers}, or ask for more: {more}")


async def _whole(looked: _Looked) -> Answer:
    seen = await looked.seen()
    said = [_said("; ".join(one.against or one.unknown), good=one.good) for one in seen]
    answer = _answer([one.good for one in seen], _grouped(seen, said), _ELSEWHERE)
    return answer._replace(detail=f"{answer.detail} {_CAPACITY}") if answer.passed else answer


def _answer(seen: Sequence[bool | None], detail: str, fix: str) -> Answer:
    """One place is enough."""
    passed = True if True in seen else None if None in seen else False
    return Answer(passed=passed, detail=detail, fix="" if passed else fix)


def _said(why: str, *, good: bool | None) -> str:
    """Say it, and why where it is not as it should be."""
    if good:
        return "yes"
    return f"{'not known' if good is None else 'no'}, {why.rstrip('.') or 'no reason is given'}"


def _room(seen: Prospect) -> str:
    free = seen.room.free
    left = "without limit" if free == NO_LIMIT else f"{free:g} chips left"
    return ", ".join(part for part in (left, seen.room.why) if part)


def _grouped(seen: Sequence[Prospect], said: Sequence[str]) -> str:
    """Say once what is the same of several places."""
    groups: dict[str, list[str]] = {}
    for one, words in zip(seen, said, strict=True):
        groups.setdefault(without_address(words), []).append(str(one.place))
    return " ".join(
        f"{words[0].upper()}{words[1:]}: {', '.join(where)}." for words, where in groups.items()
    )
