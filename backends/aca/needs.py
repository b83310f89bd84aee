"""What whoever deploys must be allowed to do, from `needs.toml`."""

import re
from collections.abc import Iterable
from functools import cache
from typing import Literal, NamedTuple

from backends.common.preflight import read_needs
from core.record import Record

Who = Literal["every", "share", "ground", "register", "purge", "questions"]


class Permissions(Record):
    """What whoever deploys must be allowed to do."""

    role: str
    """Which holds them all."""
    why: str
    needed_by: Who
    names: tuple[str, ...]


class Needs(Record):
    """Everything that is needed."""

    title: str
    """Of the cloud."""
    also: tuple[str, ...]
    """What people call it."""
    permissions: tuple[Permissions, ...]


class Granted(NamedTuple):
    """What one role of somebody's allows, with `*` for any letters."""

    actions: tuple[str, ...]
    not_actions: tuple[str, ...]

    def allows(self, action: str) -> bool:
        """Say whether; Azure does not mind upper and lower case."""
        return _any(self.actions, action) and not _any(self.not_actions, action)


@cache
def needs() -> Needs:
    """Read them, once."""
    return Needs.model_validate(read_needs("aca"))


def missing(granted: Iterable[Granted], wanted: Iterable[str]) -> list[str]:
    """Give the actions that none of somebody's roles allows."""
    roles = tuple(granted)
    return [action for action in wanted if not any(role.allows(action) for role in roles)]


def _any(patterns: Iterable[str], action: str) -> bool:
    """Whether one of Azure's patterns stands for an action.

    >>> _any(("Microsoft.App/*/read",), "microsoft.app/containerApps/revisions/read")
    True
    """
    return any(
        re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), action, re.IGNORECASE)
        for pattern in patterns
    )
