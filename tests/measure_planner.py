"""The planner's budgets, measured on this machine: `.venv/bin/python -m tests.measure_planner`."""

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Final

import anyio

from core.processes import run
from core.settings import ROOT
from planner.accelerators import accelerator
from planner.advise import advise
from planner.flags import Flags
from planner.goal import Goal
from planner.memory import plan_memory
from planner.model import read_model

_PLAN_MS: Final = 5.0
_ADVISE_MS: Final = 100.0
_IMPORT_MS: Final = 50.0
_TIMES: Final = 31
_IMPORT: Final = """\
import time, pydantic, core.records
began = time.perf_counter()
import planner.memory, planner.model
print((time.perf_counter() - began) * 1000)
"""


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
    """Print every budget."""
    model, card = read_model("12b qat"), accelerator("l4")
    lengths = iter(range(1024, 10**6, 16))  # another plan each time: none is remembered
    told(
        "one plan",
        milliseconds(lambda: plan_memory(model, card, Flags(max_model_len=next(lengths)))),
        _PLAN_MS,
    )
    goal = Goal(model="26b qat", max_model_len=8192, users=4)
    told("advice over every place", milliseconds(lambda: advise(goal)), _ADVISE_MS)
    told("import of memory and models", anyio.run(import_milliseconds), _IMPORT_MS)


if __name__ == "__main__":
    main()
