"""What is heard of a boot: the events of the platform and what its container writes."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from backends.aca import conditions, queries, streams
from backends.aca.replicas import Held
from backends.aca.site import Site
from backends.aca.streams import Event
from backends.common.concurrency import or_note, side_by_side
from logs.lines import Line

if TYPE_CHECKING:
    from azure.mgmt.appcontainers.models import ContainerApp

_LONGEST = timedelta(hours=2)
"""A first boot is over by then: assignment, image and the longest startup that a probe allows."""


class Heard(NamedTuple):
    """Of one revision, newest last; what could not be read is empty and noted."""

    events: Sequence[Event] = ()
    lines: Sequence[Line] = ()
    """Of its newest replica."""


async def hear(site: Site, app: "ContainerApp", revision: Held) -> Heard:
    """Listen to the newest replica of a revision, or to what is left of it."""
    token = await or_note(lambda: streams.token_of(site, str(app.name)), None)
    if token is None:
        return Heard()
    replica = revision.newest

    async def events() -> Any:
        return await or_note(lambda: streams.events(site, app, token), ())

    async def lines() -> Any:
        if replica is None or not replica.started:
            return ()
        return await or_note(lambda: streams.console(site, app, revision.name, replica, token), ())

    told, written = await side_by_side([events, lines])
    return Heard(_recent(revision, conditions.events_of(revision, told)), written)


async def last_words(
    site: Site, app: "ContainerApp", revision: Held, heard: Heard, now: datetime
) -> Sequence[Line]:
    """Give what a container wrote that runs no more, as far as it was kept."""
    if heard.lines:
        return heard.lines
    begin = revision.created or now - _LONGEST
    wanted = queries.Wanted(begin, now, revision=revision.name)

    async def kept() -> Sequence[Line]:
        try:
            return await queries.console(site, app, wanted)
        except queries.NoTable:
            return ()

    return await or_note(kept, ())


async def first_words(site: Site, app: "ContainerApp", revision: Held) -> Sequence[Line]:
    """Give the lines of a revision's first boot: as kept, else what its replica still shows.

    Raises:
        CloudError: Neither can be read.
    """
    if revision.created:
        end = revision.created + _LONGEST
        wanted = queries.Wanted(revision.created, end, revision=revision.name, newest=False)
        nothing: Sequence[Line] = ()
        kept = await or_note(lambda: queries.console(site, app, wanted), nothing)
        if kept:
            return kept
    replica = revision.newest
    if replica is None:
        return ()
    token = await streams.token_of(site, str(app.name))
    return await streams.console(site, app, revision.name, replica, token)


def _recent(revision: Held, events: Sequence[Event]) -> Sequence[Event]:
    """Leave out what former replicas of the revision went through."""
    replica = revision.newest
    if replica is None or replica.created is None:
        return events
    second = timedelta(seconds=1)  # events have no fractions of it
    return [event for event in events if event.at >= replica.created - second]
