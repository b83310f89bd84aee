"""The reducer beside drain3 and `sort | uniq -c`: `.venv/bin/python -m tests.measure_logs [LINES]`

Each is a process of its own on one core, all of them in turn, three rounds; medians count, from
a process's start to its end. drain3 0.9.11 is put into an environment of its own, because its
pins cannot stand beside our requirements; it runs as it comes, and with masks for
numbers and ids. It becomes slower with every template it has, so ours and both of its forms
read the beginning of the file for the comparison, and ours and `sort | uniq -c` all of it. What
`sort | uniq -c` says is no reduction of such a log: numbers and ids make nearly every line its
own; the number of what each gives is in the table.
"""

import itertools
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import anyio

from core.environment import ROOT
from core.processes import run
from logs.read import Line
from logs.reduce import Reducer
from tests.log_lines import BEGAN, lines
from tests.watched import Usage, cores, run_watched

ROUNDS: Final = 3
LINES: Final = 1_000_000
HEAD: Final = 50_000
PAGE: Final = 5_000
RATIO: Final = 1
"""Slower than the library that it replaces it must not be."""
MEMORY_MIB: Final = 300
_PINS: Final = ("drain3==0.9.11", "cachetools==4.2.1", "jsonpickle==1.5.1")
_PEER: Final = r"""
import sys
from drain3 import TemplateMiner
from drain3.masking import MaskingInstruction
from drain3.template_miner_config import TemplateMinerConfig

config = TemplateMinerConfig()
if sys.argv[2] == "masked":
    config.masking_instructions = [
        MaskingInstruction("[0-9a-f]{8,}", "ID"),
        MaskingInstruction("[0-9]+(?:[.:][0-9]+)*", "NUMBER"),
    ]
miner = TemplateMiner(config=config)
with open(sys.argv[1], errors="replace") as log:
    for line in log:
        miner.add_log_message(line.rstrip("\n"))
with open(sys.argv[3], "w") as said:
    said.write(str(len(miner.drain.clusters)))
"""


class Case(NamedTuple):
    """One way of reducing one file."""

    name: str
    argv: tuple[str, ...]
    lines: int
    said: Path
    """Where it writes how many templates, or kinds of lines, there are."""


class Figures(NamedTuple):
    """One run."""

    seconds: float
    cpu_seconds: float
    memory_mib: float


def reduce(log: Path, said: Path) -> None:
    """Reduce a file, as a process of its own."""
    reducer = Reducer(newest_first=False)
    with log.open(errors="replace") as file:
        while page := [Line(BEGAN, text.rstrip("\n")) for text in itertools.islice(file, PAGE)]:
            reducer.feed(page)
    reduced = reducer.reduced()
    said.write_text(str(len(reduced.templates) + reduced.templates_left_out))


async def peer(folder: Path) -> Path:
    """Make an environment that has drain3, and nothing of ours."""
    python = folder / "peer/bin/python"
    await run((sys.executable, "-m", "venv", str(folder / "peer")), timeout=120)
    output = await run(
        (str(python), "-m", "pip", "install", "--quiet", "--no-deps", *_PINS), timeout=300
    )
    if output.returncode:
        raise SystemExit(f"drain3 cannot be installed, so nothing is compared: {output.stderr}")
    return python


def cases(folder: Path, python: Path, count: int) -> list[Case]:
    """Give every case; the first two files are a head and the whole."""
    head, whole, script = folder / "head.log", folder / "whole.log", folder / "peer.py"
    script.write_text(_PEER)
    ours = (sys.executable, "-m", "tests.measure_logs", "--reduce")
    sort = ("sh", "-c", 'LC_ALL=C sort "$1" | uniq -c | wc -l > "$2"', "sh")
    begun = min(HEAD, count)
    rows = (
        ("ours, head", (*ours, str(head)), begun),
        ("drain3 as it comes, head", (str(python), str(script), str(head), "plain"), begun),
        ("drain3 with masks, head", (str(python), str(script), str(head), "masked"), begun),
        ("ours", (*ours, str(whole)), count),
        ("sort | uniq -c", (*sort, str(whole)), count),
    )
    said = (folder / f"said-{number}" for number in itertools.count())
    return [
        Case(name, (*argv, str(to)), n, to) for (name, argv, n), to in zip(rows, said, strict=False)
    ]


def write(folder: Path, count: int) -> float:
    """Write the file and its beginning; give its size in MB."""
    with (folder / "whole.log").open("w") as whole, (folder / "head.log").open("w") as head:
        for number, line in enumerate(lines(count)):
            whole.write(line + "\n")
            if number < HEAD:
                head.write(line + "\n")
    return (folder / "whole.log").stat().st_size / 1e6


def figures(usage: Usage) -> Figures:
    """Take what a run took."""
    seconds = float(usage.times[-1] - usage.times[0])
    return Figures(seconds, float(usage.cpu_seconds[-1]), usage.memory_mib)


def table(every: Sequence[Case], runs: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Give the medians, one row a case."""
    yield f"{'':26}{'lines':>10}{'lines/s':>12}{'lines/CPU s':>13}{'RSS MiB':>9}{'kinds':>9}"
    for case in every:
        one = runs[case.name]
        rate, cpu = (case.lines / median(run[i] for run in one) for i in (0, 1))
        memory = max(run.memory_mib for run in one)
        kinds = int(case.said.read_text())
        yield f"{case.name:26}{case.lines:10}{rate:12,.0f}{cpu:13,.0f}{memory:9.0f}{kinds:9}"


def verdicts(every: Sequence[Case], runs: Mapping[str, Sequence[Figures]]) -> Iterator[str]:
    """Say what must hold and whether it does."""
    rates = [case.lines / median(run.seconds for run in runs[case.name]) for case in every]
    for number in (1, 2):
        ratio = rates[0] / rates[number]
        yield f"{_word(ratio >= RATIO)} ours / {every[number].name}: {ratio:.1f} ({RATIO} wanted)"
    yield f"     ours / sort | uniq -c: {rates[3] / rates[4]:.2f} (nothing wanted)"
    memory = max(run.memory_mib for run in runs[every[3].name])
    yield f"{_word(memory <= MEMORY_MIB)} memory: {memory:.0f} MiB ({MEMORY_MIB} allowed)"


def _word(holds: bool) -> str:  # noqa: FBT001 - a word for a truth
    return "PASS" if holds else "FAIL"


async def main(folder: Path, count: int) -> None:
    """Print everything."""
    print(f"{count:,} lines, {write(folder, count):.0f} MB")
    every = cases(folder, await peer(folder), count)
    runs: dict[str, list[Figures]] = defaultdict(list)
    for _ in range(ROUNDS):
        for case in every:
            core = cores()[0]
            usage = await run_watched(case.argv, {"PYTHONPATH": str(ROOT)}, core=core)
            runs[case.name].append(figures(usage))
    print("\n".join([*table(every, runs), *verdicts(every, runs)]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--reduce"]:
        reduce(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        wanted = int(sys.argv[1]) if len(sys.argv) > 1 else LINES
        with tempfile.TemporaryDirectory(prefix="vllm-devops-measure-") as name:
            anyio.run(main, Path(name), wanted)
