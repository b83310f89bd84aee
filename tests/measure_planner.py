"""The planner's budgets, and its plans beside boots that others published.

`.venv/bin/python -m tests.measure_planner`; with `--rows` each row of the open part.
"""

import functools
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, Final, Literal, NamedTuple

import anyio

from core.environment import ROOT
from core.processes import run
from core.records import MemoryPlan, ModelShape
from planner import catalog
from planner.advise import Goal, considering
from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import catalog_shape, read_model, shape_of
from planner.places import accelerator, places

_PLAN_MS: Final = 5.0
_ADVISE_MS: Final = 100.0
_IMPORT_MS: Final = 50.0
_TIMES: Final = 31
_PUBLIC: Final = ROOT / "tests" / "data" / "public"
_CATALOGUED: Final = {"gemma-4-26b": "26b"}
_TOO_MUCH: Final = 0.02
"""Of a cache's bytes: a plan that promises so much more than vLLM then had is too optimistic."""
_IMPORT: Final = """\
import time, pydantic, core.records
began = time.perf_counter()
import planner.memory, planner.model
print((time.perf_counter() - began) * 1000)
"""


class PublicRow(NamedTuple):
    """One boot that somebody measured and published, and the plan for it."""

    id: str
    said: dict[str, Any]
    plan: MemoryPlan
    given: MemoryPlan | None
    """The plan for the bytes that vLLM said it had."""

    @property
    def bytes_error(self) -> float | None:
        """Of the cache's bytes, as a share: positive is too optimistic."""
        real = self.said.get("kv_gib")
        return self.plan.kv_cache_gib.expected / real - 1 if real else None

    @property
    def tokens_error(self) -> float | None:
        """Of the tokens that vLLM's own bytes give."""
        real = self.said.get("tokens")
        return self.given.kv_expected.kv_tokens / real - 1 if real and self.given else None

    @property
    def fits_wrong(self) -> bool:
        """Whether it was said to fit and did not start, or the other way round."""
        return self.plan.fits is ("fails" in self.said)


class Figures(NamedTuple):
    """How far plans are from what was measured."""

    rows: int
    bytes_median: float
    bytes_worst: float
    tokens_median: float
    tokens_worst: float
    too_optimistic: int
    of: int
    fits_wrong: int


@functools.cache
def _configs() -> dict[str, Any]:
    return tomllib.loads((_PUBLIC / "shapes.toml").read_text("utf-8"))


@functools.cache
def shape(name: str) -> ModelShape:
    """Return a model of the rows, by the rows' name for it."""
    if name not in _CATALOGUED:
        return shape_of(name, _configs()[name])
    entry = catalog.find(_CATALOGUED[name])
    assert entry
    return catalog_shape(entry.model)


def public_rows(part: Literal["open", "held"]) -> Iterator[PublicRow]:
    """Plan every row of a part."""
    data = tomllib.loads((_PUBLIC / f"plans-{part}.toml").read_text("utf-8"))
    for row in data["row"]:
        card = accelerator(row["card"]).model_copy(update={"memory_gib": row["visible_gib"]})
        model, flags = shape(row["model"]), Flags(**row["flags"])
        size = int(row["kv_gib"] * 2**30) if "kv_gib" in row else None
        with_bytes = flags.model_copy(update={"kv_cache_memory_bytes": size})
        yield PublicRow(
            row["id"],
            row,
            plan_memory(model, card, flags),
            plan_memory(model, card, with_bytes) if size else None,
        )


def figures(rows: Sequence[PublicRow]) -> Figures:
    """Return the errors of plans over rows."""
    sizes = [row.bytes_error for row in rows if row.bytes_error is not None]
    tokens = [abs(row.tokens_error) for row in rows if row.tokens_error is not None]
    return Figures(
        rows=len(rows),
        bytes_median=median(map(abs, sizes)),
        bytes_worst=max(sizes, key=abs),
        tokens_median=median(tokens),
        tokens_worst=max(tokens),
        too_optimistic=sum(size > _TOO_MUCH for size in sizes),
        of=len(sizes),
        fits_wrong=sum(row.fits_wrong for row in rows),
    )


def told_rows(part: Literal["open", "held"]) -> None:
    """Print the figures of a part; of what is held back nothing else."""
    rows = list(public_rows(part))
    found = figures(rows)
    print(
        f"plans beside published boots, {part}: {found.rows} rows; cache bytes off by"
        f" {found.bytes_median:.1%} (median), {found.bytes_worst:+.1%} (worst); tokens for vLLM's"
        f" own bytes by {found.tokens_median:.2%}, {found.tokens_worst:.2%}; more than"
        f" {_TOO_MUCH:.0%} too optimistic {found.too_optimistic} of {found.of};"
        f" fits right {found.rows - found.fits_wrong}, wrong {found.fits_wrong}"
    )
    if part == "open" and "--rows" in sys.argv:
        for row in rows:
            weights = row.said.get("weights_gib")
            print(
                f"  {row.id}: bytes {_share(row.bytes_error)}, tokens {_share(row.tokens_error)},"
                f" weights {_share(row.plan.weights_gib / weights - 1 if weights else None)},"
                f" fits {row.plan.fits}{' WRONG' if row.fits_wrong else ''}"
            )


def _share(error: float | None) -> str:
    return "?" if error is None else f"{error:+.2%}"


def milliseconds(work: Callable[[], object]) -> float:
    """The median of many calls after a first one."""
    work()
    taken = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        work()
        taken.append((time.perf_counter() - began) * 1000)
    return median(taken)


async def import_milliseconds() -> float:
    """The median of several fresh processes, beyond pydantic and the records."""
    taken = []
    for _ in range(9):
        done = await run((sys.executable, "-c", _IMPORT), cwd=ROOT)
        taken.append(float(done.stdout))
    return median(taken)


def told(what: str, taken: float, budget: float) -> None:
    verdict = "within" if taken <= budget else "OVER"
    print(f"{what}: {taken:.2f} ms ({verdict} {budget:g})")


def main() -> None:
    """Print every budget and every error."""
    model, card = read_model("12b qat"), accelerator("l4")
    lengths = iter(range(1024, 10**6, 16))  # another plan each time: none is remembered
    told(
        "one plan",
        milliseconds(lambda: plan_memory(model, card, Flags(max_model_len=next(lengths)))),
        _PLAN_MS,
    )
    goal = Goal(model="26b qat", max_model_len=8192, users=4)

    def everywhere() -> None:
        look = considering(goal)
        for where in places().values():
            look(read_model("26b qat"), where)

    told("advice over every place", milliseconds(everywhere), _ADVISE_MS)
    told_rows("open")
    told_rows("held")
    told("import of memory and models", anyio.run(import_milliseconds), _IMPORT_MS)


if __name__ == "__main__":
    main()
