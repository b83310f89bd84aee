"""What is listed: filtered, in order, page by page."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from emulators.google.compute.filters import matcher
from emulators.google.compute.refusing import Denied, wrong
from emulators.google.compute.serving import Call

_MOST: Final = 500
"""Also what is given where nothing is asked for."""
_ORDERS: Final = ("", "name", "creationTimestamp desc")

Row = dict[str, Any]


def listed(call: Call, rows: Sequence[Row], kind: str) -> dict[str, Any]:
    """Give one page of a collection, such as compute#instanceList.

    Raises:
        Denied: The filter, the order, the size or the token cannot be.
    """
    page, token = page_of(call, rows)
    answer: dict[str, Any] = {"kind": kind, "id": call.parent, "items": page}
    if token:
        answer["nextPageToken"] = token
    return answer


def page_of(call: Call, rows: Sequence[Row]) -> tuple[list[Row], str]:
    """Give the rows of a page as the query asks, and the token of the next; empty after the last.

    Raises:
        Denied: The filter, the order, the size or the token cannot be.
    """
    matches = matcher(call.query.get("filter", ""))
    found = sorted((row for row in rows if matches(row)), key=_order(call))
    if call.query.get("orderBy") == "creationTimestamp desc":
        found.reverse()
    begin = _number(call, "pageToken", 0, _bad_token)
    end = begin + min(_number(call, "maxResults", _MOST, _bad_size) or _MOST, _MOST)
    return found[begin:end], str(end) if end < len(found) else ""


def _order(call: Call) -> Callable[[Row], str]:
    order = call.query.get("orderBy", "")
    if order not in _ORDERS:
        raise wrong("orderBy", order, "Invalid order by expression.")
    by = "name" if order in {"", "name"} else "creationTimestamp"
    return lambda row: str(row.get(by) or row.get("insertTime") or "")


def _number(call: Call, key: str, usual: int, refusal: Callable[[str], Denied]) -> int:
    said = call.query.get(key, "")
    if said and not said.isdecimal():
        raise refusal(said)
    return int(said) if said else usual


def _bad_token(said: str) -> Denied:
    return wrong("pageToken", said, "Invalid page token.")


def _bad_size(said: str) -> Denied:
    return wrong("maxResults", said, "Must be between 0 and 500.")
