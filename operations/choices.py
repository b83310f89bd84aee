"""What a person may mean who has typed the beginning: targets, names, models, runs, failures."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from re import fullmatch
from typing import Final

import anyio

from core.errors import OpsError
from core.records import NAME_PATTERN
from core.redaction import redact
from logs.failures import WRITERS, catalogue
from operations.benchmarks.kept import folders
from operations.remembered import subject_of
from operations.runtime import Runtime
from planner.catalog import entries

PATIENCE_SECONDS: Final = 0.7
"""For what this machine serves: who types does not wait. No cloud is asked: each takes longer."""
_REMEMBERED: Final = 500
"""Mutating calls that are looked through for names."""
_GONE: Final = "destroy_vllm"
_NOTHING: Final = frozenset({"DEPLOYMENT_NOT_FOUND", "TARGET_NOT_FOUND", "INVALID_ARGUMENT"})
"""Results of calls that were about nothing that exists."""

Given = Mapping[str, str]
"""What was said before, by the names of the arguments."""


async def choices(runtime: Runtime, what: str, given: Given) -> list[str]:
    """Give what `what` may be, likeliest first; what cannot be known quickly is left out."""
    known: list[str] = []
    try:
        known.extend(_KINDS[what](runtime, given))
        if what == "name":
            known.extend(await _here(runtime, given))
    except (OpsError, OSError):  # a journal that is damaged, a folder that is gone
        pass
    return [word for word in dict.fromkeys(known) if redact(word, runtime.secrets) == word]


def fitting(typed: str, known: Iterable[str]) -> list[str]:
    """Keep what begins as was typed, then what holds it elsewhere; case does not matter.

    >>> fitting("E4", ["google/gemma-4-E4B-it", "e4b", "tpu"])
    ['e4b', 'google/gemma-4-E4B-it']
    """
    wanted = typed.lower()
    holding = [word for word in known if wanted in word.lower()]
    return sorted(holding, key=lambda word: not word.lower().startswith(wanted))


def _targets(runtime: Runtime, _given: Given) -> Iterator[str]:
    yield from runtime.stage.usable
    yield from runtime.stage.targets


async def _here(runtime: Runtime, given: Given) -> list[str]:
    """Give the names of what is on this machine, as far as it says so in time."""
    found: list[str] = []
    with anyio.move_on_after(PATIENCE_SECONDS):
        for target in runtime.stage.targets.values():
            if target.backend == "local" and _meant(target.name, given):
                seen = await runtime.stage.backend(target.name).list()
                found.extend(one.name for one in seen)
    return found


def _remembered(runtime: Runtime, given: Given) -> list[str]:
    """Give the names of the journal, newest first, without those that were deleted last."""
    journal = runtime.stage.journal
    if not journal.exists:
        return []
    stands: dict[tuple[str, str], bool] = {}
    for done in reversed(journal.operations(limit=_REMEMBERED)):
        target, name = subject_of(done)
        if fullmatch(NAME_PATTERN, name) and done.result not in _NOTHING:
            stands.setdefault((target, name), done.tool != _GONE or done.result != "ok")
    return [name for (target, name), so in stands.items() if so and _meant(target, given)]


def _meant(target: str, given: Given) -> bool:
    """Whether a target is the one that was said before, if one was; `""` was not written down."""
    return given.get("target") in {None, "", target} or not target


def _models(runtime: Runtime, _given: Given) -> Iterator[str]:
    if runtime.settings.model_name:
        yield runtime.settings.model_name
    yield from (entry.model for entry in entries())


def _runs(runtime: Runtime, _given: Given) -> Iterator[str]:
    yield from (folder.path.name for folder in folders(runtime))


def _writers(_runtime: Runtime, _given: Given) -> Iterator[str]:
    yield from WRITERS


def _codes(_runtime: Runtime, given: Given) -> Iterator[str]:
    for writer in WRITERS:
        if given.get("writer") in {None, "", writer}:
            yield from (entry.code for entry in catalogue(writer))


_KINDS: Final[Mapping[str, Callable[[Runtime, Given], Iterable[str]]]] = {
    "target": _targets,
    "name": _remembered,
    "model": _models,
    "run": _runs,
    "writer": _writers,
    "code": _codes,
}
KINDS: Final = frozenset(_KINDS)
"""What can be chosen: the arguments of prompts and of addresses that are not free text."""
