"""The parsers that a model's answers need, as far as a version of vLLM has them: `parsers.toml`."""

import functools
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from core.records import Record, valid
from planner.versions import numbers

_FILE: Final = Path(__file__).with_name("parsers.toml")
Kind = Literal["tools", "reasoning"]
_NAMES: Final[dict[Kind, frozenset[str]]] = {
    "tools": frozenset(
        ("--tool-call-parser", "--enable-auto-tool-choice", "--no-enable-auto-tool-choice")
    ),
    "reasoning": frozenset(("--reasoning-parser",)),
}
"""Flags by which somebody chooses another parser, or none."""
_GIVES: Final[dict[Kind, str]] = {
    "tools": "calls of tools are not read from its answers",
    "reasoning": "thoughts stay in `content`",
}
"""What is missing without one."""


class Family(Record):
    """Models whose answers are read by the same parsers."""

    model_types: str
    """What their types begin with."""
    since: str
    """The first version that has them."""
    tools: tuple[str, ...]
    reasoning: tuple[str, ...]


class Trouble(Record):
    """Versions in which a parser does harm."""

    of: Kind
    since: str
    until: str
    """The first without it."""
    left_out: bool
    """Whether the harm is worse than doing without the parser."""
    says: str
    sources: tuple[str, ...]


class Parsers(NamedTuple):
    """The flags to add, and what is to be known of them."""

    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@functools.cache
def _rows() -> tuple[Family, tuple[Trouble, ...]]:
    rows = tomllib.loads(_FILE.read_text("utf-8"))
    return valid(Family, rows["gemma4"]), tuple(valid(Trouble, one) for one in rows["trouble"])


def parsers_for(model_type: str | None, version: str | None, engine_args: Sequence[str]) -> Parsers:
    """Return what is added to a command line whose engine_args choose no parser of that kind.

    Nothing is added to a vLLM of which nobody knows the version: an unknown flag ends its boot.
    """
    family, troubles = _rows()
    if not (model_type or "").startswith(family.model_types):
        return Parsers()
    given = {word.partition("=")[0].replace("_", "-") for word in engine_args}
    wanted: list[Kind] = [kind for kind, names in _NAMES.items() if not names & given]
    if not wanted:
        return Parsers()
    if version is None:
        words = " ".join(word for kind in wanted for word in getattr(family, kind))
        return Parsers(notes=(_not_added(wanted, "nobody knows which vLLM its image has", words),))
    if numbers(version) < numbers(family.since):
        why = f"vLLM {version} has none for it before {family.since}"
        return Parsers(notes=(_not_added(wanted, why),))
    flags, notes = list[str](), list[str]()
    for kind in wanted:
        found = next(_met(troubles, kind, version), None)
        if found and found.left_out:
            why = f"in vLLM {version} {found.says} ({found.sources[-1]})"
            notes.append(_not_added([kind], why))
            continue
        flags += getattr(family, kind)
        if found:
            notes.append(f"vLLM {version}: {found.says} ({found.sources[-1]}).")
    return Parsers(tuple(flags), tuple(notes))


@functools.cache
def defaults() -> frozenset[str]:
    """Return the flags that are added by default, as `explain` writes them."""
    family, _ = _rows()
    return frozenset(word.replace("=", " ") for word in (*family.tools, *family.reasoning))


def without(words: Sequence[str]) -> tuple[str, ...]:
    """Return engine_args without the flags that were added by default."""
    family, _ = _rows()
    left = tuple(words)
    for added in (family.tools, family.reasoning, family.tools):
        if left[: len(added)] == added:
            left = left[len(added) :]
    return left


def added_in(words: Sequence[str]) -> tuple[str, ...]:
    """Return those flags of engine_args that `without` leaves out."""
    return tuple(words)[: len(words) - len(without(words))]


def _met(troubles: Sequence[Trouble], kind: Kind, version: str) -> Iterator[Trouble]:
    for one in troubles:
        if one.of == kind and numbers(one.since) <= numbers(version) < numbers(one.until):
            yield one


def _not_added(kinds: Sequence[Kind], why: str, words: str = "") -> str:
    which = " and ".join(f"--{'tool-call' if kind == 'tools' else kind}-parser" for kind in kinds)
    missing = ", and ".join(_GIVES[kind] for kind in kinds)
    choose = f" Give them in engine_args if it has them: {words}." if words else ""
    return f"Without {which}: {why}; {missing}.{choose}"
