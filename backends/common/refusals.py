"""What the refusals of a cloud's API mean: `refusals.toml` of its folder, as errors of ours."""

import re
from functools import cache
from pathlib import Path
from typing import Final

from core import errors
from core.environment import read_toml
from core.records import Record

_BACKENDS: Final = Path(__file__).parent.parent
_CLASSES: Final[list[type[errors.CloudError]]] = [
    errors.CloudError,
    *errors.CloudError.__subclasses__(),
]
_KINDS: Final = {one.code: one for one in _CLASSES}


class Refusal(Record):
    """One row of the table; the first that fits holds."""

    status: str = ""
    """A pattern over the cloud's own code, which its HTTP status follows, in whatever case."""
    words: str = ""
    """The same over its sentence."""
    code: str
    """Of our error."""
    summary: str = "{cloud} refused to {what} ({status})."
    """{name} is a group of `words`, here as in `fix`."""
    fix: str


class Table(Record):
    """`refusals.toml`."""

    cloud: str
    refusal: tuple[Refusal, ...]


@cache
def _table(folder: str) -> Table:
    return Table.model_validate(read_toml(_BACKENDS / folder / "refusals.toml"))


def refused(folder: str, status: str, words: str, what: str) -> errors.CloudError:
    """Return a refusal to do `what` as the error that it means; `words` are the cloud's own."""
    table, how = _table(folder), re.IGNORECASE | re.DOTALL
    for row in table.refusal:
        said = re.search(row.words, words, how)
        if said and re.search(row.status, status, how):
            known = {**said.groupdict(), "cloud": table.cloud, "what": what, "status": status}
            summary, fix = row.summary.format_map(known), row.fix.format_map(known)
            return _KINDS[row.code](summary, cause=words, fix=fix)
    raise AssertionError  # the last row takes everything
