"""What a plan needs of Google: set-up, permissions, names, places and quota."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Final

import anyio
from google.api_core.exceptions import NotFound

from backends.common import models
from backends.common.preflight import Answer, Question, ask_all, read_needs
from backends.google import images, setup
from backends.google.clients import MANAGED_BY, RUNTIME_ID
from backends.google.errors import translated
from backends.google.iam import Api, Permissions, Role
from backends.google.setup import has_roles
from backends.lifecycle import Resource
from backends.tpu import chips, firewall, quotas, zones
from backends.tpu.compute import read_call
from backends.tpu.quotas import NO_LIMIT
from backends.tpu.site import Blueprint, Site
from backends.tpu.vm import blueprint
from backends.tpu.zones import Prospect, without_address
from core.errors import CloudRefused, CloudUnavailable, InvalidArgument, NotOurs
from core.records import Check, Plan, Preflight, Record


class Needs(Record):
    """Everything that is needed."""

    title: str
    """Of the cloud."""
    also: tuple[str, ...]
    """What people call it."""
    apis: tuple[Api, ...]
    roles: tuple[Role, ...]
    """Of the runtime account, in the project."""
    permissions: tuple[Permissions, ...]


@cache
def needs() -> Needs:
    """Read them, once."""
    return Needs.model_validate(read_needs("tpu"))


def needed(made: Blueprint) -> set[str]:
    """Give which needs a deployment has: every, queued, compute, external, opened."""
    planes = {place.plane for place in made.places}
    external = {"external"} if made.external_ip and "compute" in planes else set()
    return {"every", *planes, *external, *({"opened"} if made.opened else set())}


def shared(site: Site) -> tuple[Resource, ...]:
    """Return what a project needs once, in the order in which it can be made.

    Raises:
        NotConfigured: No project is named.
    """
    wanted = needs()
    return (
        setup.apis(site, wanted.apis),
        setup.account(site),
        setup.roles(site, RUNTIME_ID, wanted.roles),
        *setup.tokens(site),
    )


def ground_questions(site: Site, made: Blueprint) -> Iterator[Question]:
    """Ask for what every VM needs, and for the callers where only they are let in."""
    wanted, of_it = needs(), needed(made)
    yield setup.check_reachable(site)
    yield setup.check_apis(site, [api.name for api in wanted.apis if api.needed_by in of_it])
    yield setup.check_permissions(
        site, [one for one in wanted.permissions if one.needed_by in of_it]
    )
    yield from setup.check_account(site, made.service_account)
    yield Question("That account has its roles", partial(_roles, site))
    if (made.spec.weights or "hub") == "hub":
        yield setup.check_token(site)
    yield Question(f"The network {made.network} is there", partial(_network, site, made))
    if not made.external_ip:
        yield Question("The VM reaches the internet", partial(_outside, made))
    if made.opened and not made.anybody:
        yield Question("It is known who may call", partial(_callers, site))


async def _roles(site: Site) -> Answer:
    wanted = needs().roles
    if await has_roles(site, RUNTIME_ID, wanted):
        return Answer(passed=True, detail=f"It may {' and '.join(one.why for one in wanted)}.")
    names = ", ".join(one.name for one in wanted)
    detail = f"It has not all of {names}: docker would not start a container that cannot log."
    return Answer(passed=False, detail=detail, fix=setup.SET_UP)


async def _network(site: Site, made: Blueprint) -> Answer:

    client, what = await site.clients.networks(), f"look at the network {made.network}"
    named = {"project": site.clients.project, "network": made.network}
    try:
        with translated(what):
            await read_call(what, client.get, request=named)
    except NotFound:
        fix = "Give network=NETWORK/SUBNETWORK, or make the default one:"
        command = f"gcloud compute networks create default --project={site.clients.project}"
        return Answer(passed=False, detail="There is none of that name.", fix=f"{fix} {command}")
    if made.subnetwork:
        detail = f"It is; its subnetwork {made.subnetwork} must be in each zone's region."
        return Answer(passed=True, detail=detail)
    return Answer(passed=True, detail="It is.")


async def _outside(made: Blueprint) -> Answer:
    return Answer(
        passed=None,
        detail="It has no external IP: whether the network has Cloud NAT is not looked at.",
        fix=f"Without it neither image nor model can be fetched: give {made.network} Cloud NAT.",
    )


async def _callers(site: Site) -> Answer:
    try:
        known = await firewall.callers(site)
    except (InvalidArgument, CloudUnavailable) as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    return Answer(passed=True, detail=f"{', '.join(known)}; nobody else is let in.")


_OTHER: Final = "Choose another name: what is there is left alone."


def name_questions(site: Site, made: Blueprint) -> Iterator[Question]:
    """Ask for the image, and for the id that request, VM, tag and firewall rule share."""
    yield Question("The container image is there", partial(_image, site, made))
    yield Question(f"The id {made.id} is free or yours", partial(_id, site, made))
    if made.opened:
        yield Question(f"The firewall rule {made.id} is free or yours", partial(_rule, site, made))


async def _image(site: Site, made: Blueprint) -> Answer:
    image = made.container.image
    try:
        pinned = await images.pinned(site, image)
    except CloudRefused as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}", fix=exc.fix)
    if pinned is None:
        return Answer(passed=None, detail=f"The registry of {image} cannot be asked from here.")
    return Answer(passed=True, detail=pinned)


async def _id(site: Site, made: Blueprint) -> Answer:
    name = made.spec.name
    there = await chips.find_named(site, name)
    try:
        chips.refuse_foreign(site, name, there)
    except NotOurs as exc:
        return Answer(passed=False, detail=f"{exc.summary} {exc.cause}".strip(), fix=exc.fix)
    if there:
        where = ", ".join(f"{one.place} {one.said}" for one in there)
        return Answer(passed=True, detail=f"It is this deployment's: {where}.")
    return Answer(passed=True, detail="Nothing of that id is there.")


async def _rule(site: Site, made: Blueprint) -> Answer:

    client, what = await site.clients.firewalls(), f"look at the firewall rule {made.id}"
    asked = {"project": site.clients.project, "firewall": made.id}
    try:
        with translated(what):
            found = await read_call(what, client.get, request=asked)
    except NotFound:
        return Answer(passed=True, detail="None of that name is there.")
    if not found.description.startswith(f"managed-by={MANAGED_BY} deployment={made.spec.name} "):
        detail = "One of that name is there that was not made here."
        return Answer(passed=False, detail=detail, fix=_OTHER)
    return Answer(passed=True, detail="It is this deployment's, which would be changed.")


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
                counting = await quotas.count_chips(self._site, without=name)
                self._seen = await zones.prospects_of(self._site, places, counting, _SECONDS)
            return self._seen


def place_questions(site: Site, made: Blueprint) -> Iterator[Question]:
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
    return Preflight(checks=tuple(without_echo(rows)))


def _questions(site: Site, made: Blueprint) -> Iterable[Question]:
    yield from ground_questions(site, made)
    yield from models.hub_questions(site.settings, made.spec)
    yield from name_questions(site, made)
    yield from place_questions(site, made)
