"""The XML of Azure Storage: errors and lists, with the marker of the next page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from xml.sax.saxutils import escape, quoteattr

_HEAD = '<?xml version="1.0" encoding="utf-8"?>'


def error(code: str, message: str) -> bytes:
    """Write a refusal."""
    return f"{_HEAD}<Error>{tags({'Code': code, 'Message': message})}</Error>".encode()


def tags(values: Mapping[str, object]) -> str:
    """Write elements with a text each."""
    return "".join(f"<{name}>{escape(str(one))}</{name}>" for name, one in values.items())


def element(name: str, title: str, properties: Mapping[str, object]) -> str:
    """Write one row of a list."""
    inner = f"<Name>{escape(title)}</Name><Properties>{tags(properties)}</Properties>"
    return f"<{name}>{inner}</{name}>"


def enumeration(
    rows: Sequence[str],
    wrapper: str,
    *,
    attributes: Mapping[str, str],
    told: Mapping[str, object],
    following: str,
) -> bytes:
    """Write a page of a list; `told` is what was asked for, `following` the next page's marker."""
    said = " ".join(f"{name}={quoteattr(one)}" for name, one in attributes.items())
    shown = tags({name: one for name, one in told.items() if one})
    inner = (
        f"{shown}<{wrapper}>{''.join(rows)}</{wrapper}><NextMarker>{escape(following)}</NextMarker>"
    )
    return f"{_HEAD}<EnumerationResults {said}>{inner}</EnumerationResults>".encode()


def paged(
    names: Iterable[str], marker: str, size: int, key: Callable[[str], str] = str
) -> tuple[list[str], str]:
    """Give the names of one page, in order, from the marker on, and the marker of the next."""
    left = [one for one in sorted(names, key=key) if one >= marker]
    return left[:size], left[size] if len(left) > size else ""
