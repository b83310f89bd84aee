"""Targets as people name several at once: a cloud, `tpu`, or one by one."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Final, TypeVar

from operations.plans.places import place_called
from planner.places import Place, places

T = TypeVar("T")
_CLOUDS: Final = {
    "aws": "aws", "amazon": "aws",
    "gcp": "google", "google": "google", "google cloud": "google",
    "azure": "azure", "microsoft": "azure",
}  # fmt: skip

_SILENT: Final = frozenset({"cloud", "google", "tpu", "gpu", "nvidia", "azure", "a", "the", "on"})
"""Words that do not tell one place from another."""


def widened(targets: Sequence[str]) -> tuple[str, ...]:
    """Give the names of places that these words mean, each once; none for none.

    Raises:
        TargetNotFound: No place has that name.
    """
    return tuple(dict.fromkeys(name for words in targets for name in _meant(words)))


def alike(rows: Sequence[T], what: Callable[[T], Hashable]) -> list[list[T]]:
    """Put rows together of which the same is to be said, in the order of the first of each."""
    groups: dict[Hashable, list[T]] = {}
    for row in rows:
        groups.setdefault(what(row), []).append(row)
    return list(groups.values())


def is_one(words: str) -> bool:
    """Whether these words name one place and not a whole cloud or kind."""
    return not tuple(_several(words))


def _meant(words: str) -> Iterator[str]:
    several = tuple(_several(words))
    yield from several or (_worded(words) or place_called(words).name,)


def _worded(words: str) -> str | None:
    """Give the place that has these words in its name, in whatever order: `L4 GPU cloud run`."""
    wanted = _telling(words)
    return next((name for name in places() if wanted and _telling(name) == wanted), None)


def _telling(words: str) -> frozenset[str]:
    return frozenset(words.lower().replace("-", " ").split()) - _SILENT


def _several(words: str) -> Iterator[str]:
    wanted = words.strip().lower()
    cloud = _CLOUDS.get(wanted)
    for name, where in places().items():
        tpu = wanted in {"tpu", "tpus", "cloud tpu"} and _is_tpu(where)
        if tpu or (cloud and where.provider == cloud):
            yield name


def _is_tpu(where: Place) -> bool:
    return where.deployable_by == "tpu"
