"""The two halves of every answer: a structured envelope and the same facts as Markdown."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar
from warnings import warn

from pydantic_core import to_jsonable_python

from core.errors import NextStep, OpsError
from core.records import Answer
from core.redaction import harmless, printable, redact

MAX_CHARACTERS: Final = 28_000
"""Of one half: about 7,000 tokens, so that no client cuts it (state of 2026-11)."""
MAX_WARNINGS: Final = 3
"""Of an answer that was not asked for in full; those about money and data come first."""
_TYPED: Final = frozenset(
    (
        *("command", "commands", "docker_run", "yaml", "manifest", "curl", "ask"),
        *("engine_line", "certificate"),
    )
)
"""Fields of several lines that a person types or saves as they stand: ours, word by word."""
MAX_ROW: Final = 240
"""Characters of a row that is written on one line."""
_URGENT: Final = re.compile(
    r"\$|\b(bill|cost|pa(y|id)|overdue|delet|remov|lo(s[est]|st)\b|key\b|public|unlabelled)"
    r"|^overrides\.toml",
    re.IGNORECASE,
)
"""What warnings about money and data speak of, and those about constants that somebody replaced."""

_notes: ContextVar[list[str] | None] = ContextVar("notes", default=None)
_full: ContextVar[bool] = ContextVar("full", default=False)

Json = dict[str, Any]


class Listed(Protocol):
    """What a profile says of a tool."""

    def __call__(self, tool: str, /) -> Sequence[str] | None:
        """Return the arguments that a listed tool needs; None for one that is not listed."""


T = TypeVar("T")


@contextmanager
def _during(variable: ContextVar[T], value: T) -> Iterator[T]:
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def in_full(*, full: bool) -> AbstractContextManager[bool]:
    """Let the answer that is made meanwhile be the whole record, as `detail="full"` asks."""
    return _during(_full, full)


@contextmanager
def collecting_notes() -> Iterator[list[str]]:
    """Gather what `note` is told while one tool runs, after what was noted before it began."""
    gathered = list(_notes.get() or ())
    with _during(_notes, gathered):
        yield gathered


def note(warning: str) -> None:
    """Add a warning to the answer that is being made; the same one only once."""
    gathered = _notes.get()
    if gathered is not None and warning not in gathered:
        gathered.append(warning)


def success(answer: Answer, notes: list[str], listed: Listed) -> Json:
    """Make the envelope of an answer; `listed` says which tools this profile has."""
    whole = answer.model_dump(mode="json", exclude_none=True)
    envelope = {
        "ok": True,
        "summary": answer.summary(),
        "data": whole,
        "warnings": [*dict.fromkeys((*notes, *answer.warnings()))],
        "next": _steps(answer.next_steps(), listed),
    }
    if _full.get():
        return envelope
    facts = to_jsonable_python(answer.facts(), exclude_none=True)
    more = {"detail": "full"} if facts != whole else {}
    return {**envelope, "data": _tidy(facts), **more}


def failure(exc: OpsError, notes: list[str], listed: Listed) -> Json:
    """Make the envelope of an error of ours."""
    data = {name: value for name, value in exc.data.items() if value is not None}
    return {
        "ok": False,
        "code": exc.code,
        "summary": exc.summary,
        "cause": exc.cause,
        "fix": exc.fix,
        "retryable": exc.retryable,
        "data": data if _full.get() else _tidy(to_jsonable_python(data)),
        "warnings": list(notes),
        "next": _steps(exc.next_steps, listed),
    }


def _steps(steps: tuple[NextStep, ...], listed: Listed) -> list[Json]:
    """Return the steps that can be called as they stand; one that lacks an argument is a bug."""
    found = []
    for step in steps:
        needed = listed(step.tool)
        if needed is None:
            continue
        lacking = [name for name in needed if name not in step.arguments]
        if lacking:
            warn(f"{step.tool} is offered without {', '.join(lacking)}.", stacklevel=2)
            continue
        found.append({"tool": step.tool, "arguments": dict(step.arguments)})
    return found


def few(said: Sequence[str]) -> list[str]:
    """Return the warnings that an answer has room for; in full all of them."""
    if _full.get() or len(said) <= MAX_WARNINGS:
        return list(said)
    urgent = sorted(said, key=lambda warning: not _URGENT.search(warning))[:MAX_WARNINGS]
    return [warning for warning in said if warning in urgent]


def _tidy(value: Any) -> Any:
    """Leave out what has no value, and round as people do."""
    if isinstance(value, float):
        return _rounded(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        tidy = {name: _tidy(item) for name, item in value.items()}
        return {name: item for name, item in tidy.items() if item not in (None, "", [], {})}
    if isinstance(value, list | tuple):
        return [_tidy(item) for item in value]
    return value


def _rounded(number: float) -> float | int:
    """Return three digits of a number, or its whole part where that has more.

    >>> [_rounded(one) for one in (31.03030303, 1.0465200000000001, 0.08043, 6353.7, 2.0)]
    [31.0, 1.05, 0.0804, 6354, 2.0]
    """
    if abs(number) >= 1000:
        return round(number)
    return float(f"{number:.3g}")


def outgoing(envelope: Json, secrets: Iterable[str]) -> Json:
    """Return the envelope as it may leave: nothing in it hides, betrays a secret or is too long."""
    return bounded(redact(harmless(envelope), secrets))


def bounded(envelope: Json) -> Json:
    """Cut the longest texts and lists until the whole fits; say so with `truncated`.

    Texts and lists keep their end: what is newest stands last. What fits in no way, such as
    thousands of names, is left out as a whole.
    """
    limit, cut = 8_000, envelope
    while len(repr(cut)) > MAX_CHARACTERS and limit > 60:
        data, warnings = (_cut(envelope[name], limit) for name in ("data", "warnings"))
        cut = {**envelope, "data": data, "warnings": warnings, "truncated": True}
        limit //= 2
    return cut if len(repr(cut)) <= MAX_CHARACTERS else _without_data(cut)


def _without_data(envelope: Json) -> Json:
    words = {name: _cut(word, 2_000) for name, word in envelope.items() if isinstance(word, str)}
    warnings = [_cut(str(warning), 400) for warning in envelope["warnings"][-10:]]
    data = {"left_out": "It is too long to be shown."}
    return {**envelope, **words, "data": data, "warnings": warnings, "next": []}


def _cut(value: Any, limit: int) -> Any:
    if isinstance(value, str) and len(value) > limit:
        return f"[… {len(value) - limit} characters left out] {value[-limit:]}"
    if isinstance(value, list):
        keep = max(limit // 40, 3)
        dropped = [f"[… {len(value) - keep} left out]"] if len(value) > keep else []
        return dropped + [_cut(item, limit) for item in value[-keep:]]
    if isinstance(value, dict):
        return {key: _cut(item, limit) for key, item in value.items()}
    return value


def markdown(envelope: Mapping[str, Any]) -> str:
    """Write the envelope for people: the same facts in the same order."""
    head = f"**{envelope['summary']}**" if envelope["ok"] else f"**{envelope['code']}**: "
    lines = [head if envelope["ok"] else head + str(envelope["summary"])]
    said = (name for name in ("cause", "fix") if envelope.get(name))
    lines += [f"{name.capitalize()}: {envelope[name]}" for name in said]
    if not envelope["ok"]:
        lines.append(f"Retryable: {_scalar(envelope['retryable'])}")
    if envelope.get("data"):
        lines += ["", *_block(envelope["data"], "")]
    if envelope["warnings"]:
        lines += ["", *(f"⚠ {warning}" for warning in envelope["warnings"])]
    if envelope["next"]:
        lines += ["", *(f"Next: `{NextStep(**step)}`" for step in envelope["next"])]
    if envelope.get("detail"):
        lines += ["", f"More: detail='{envelope['detail']}'"]
    if envelope.get("truncated"):
        lines += ["", "truncated: true"]
    return printable("\n".join(lines), keep="\n\t")


def _block(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, item in value.items():
        yield from _entry(f"{indent}- {name}:", item, indent, typed=name in _TYPED)


def _items(items: list[Any], indent: str) -> Iterator[str]:
    for item in items:
        if not isinstance(item, Mapping):
            yield from _entry(f"{indent}-", item, indent)
        elif row := _row(item):
            yield f"{indent}- {row}"
        else:
            first, *rest = list(_block(item, indent + "  ")) or [""]
            yield f"{indent}- {first.strip().removeprefix('- ')}"
            yield from rest


def _entry(head: str, item: Any, indent: str, *, typed: bool = False) -> Iterator[str]:
    inner: Iterator[str] | None = None
    if isinstance(item, Mapping) and item:
        inner = _block(item, indent + "  ")
    elif isinstance(item, list) and item:
        inner = _items(item, indent + "  ")
    elif isinstance(item, str) and "\n" in item:
        inner = iter([fenced(item.rstrip("\n"))]) if typed else _spoken(item)
    if inner is None:
        yield f"{head} {_scalar(item)}"
    else:
        yield head
        yield from inner


def _row(item: Mapping[str, Any]) -> str:
    """Return a short flat mapping as one line; an empty text for any other."""
    if any(isinstance(value, Mapping | list) and value for value in item.values()):
        return ""
    row = ", ".join(f"{name}: {_scalar(value)}" for name, value in item.items())
    return row if len(row) <= MAX_ROW and "\n" not in row else ""


def _spoken(text: str) -> Iterator[str]:
    """Mark each line, so that none passes for one of ours, whoever wrote it."""
    yield from (f"> {line}" for line in text.rstrip("\n").split("\n"))


def fenced(text: str, language: str = "") -> str:
    """Put a text between marks that it does not hold."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text}\n{fence}"


def _scalar(value: Any) -> str:
    if value is None:
        return "not known"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value in ([], {}) else str(value)
