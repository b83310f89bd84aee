"""What a cloud can say of a deletion before it is made; having the method is the flag."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from core.record import Record
from core.records import Remainder


class Leaving(Record):
    """What a deletion is about, by name and as far as it is there: nobody was asked."""

    deletes: tuple[str, ...]
    purged: tuple[str, ...] = ()
    """Only by a purge."""
    stays: tuple[str, ...] = ()


@runtime_checkable
class Leaves(Protocol):
    """Knows what a deletion would take away, before it does."""

    def leaving(self, name: str) -> Leaving:
        """Name it for a person who has to agree; looks at nothing."""


@runtime_checkable
class KeepsPaid(Protocol):
    """Keeps something that bills by the month, whether anything is deployed or not."""

    async def paid_leftovers(self) -> Sequence[Remainder]:
        """Return what is there now and bills; only looks.

        Raises:
            CloudError: It cannot be looked at.
        """
