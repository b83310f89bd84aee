"""`make conformance`: the official suite in both revisions and the inspector, in one table."""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import product
from pathlib import Path
from typing import NamedTuple

import anyio

from tests.conformance.inspector import complaints
from tests.conformance.judging import Checks, Verdict, judge
from tests.conformance.node import tools
from tests.conformance.suite import COMMANDS, REVISIONS, Scenarios, checks, expected, scenarios
from tests.conformance.suite import serving as served


class Run(NamedTuple):
    """One revision of the suite against one server."""

    target: str
    revision: str
    scenarios: Scenarios
    ran: Checks
    verdict: Verdict

    def row(self) -> str:
        """Give its line of the table."""
        required = self.scenarios.required
        clean = sum(name not in self.verdict.failed for name in required)
        beside = self.scenarios.beside
        other = sum(name not in self.verdict.failed for name in beside)
        return (
            f"{self.target:9} {self.revision:10} {f'{clean}/{len(required)}':>9} "
            f"{f'{other}/{len(beside)}':>7} {f'{self.verdict.passed}/{self.verdict.total}':>8}"
        )


class Bench:
    """The suite, with the servers that it is run against."""

    def __init__(self, conformance: Sequence[str], urls: Mapping[str, str]) -> None:
        self._conformance, self._urls = conformance, urls
        self._expected = expected()

    async def run(self, target: str, revision: str) -> Run:
        """Run a revision, every scenario of it."""
        url, reasons = self._urls[target], self._expected[target][revision]
        wanted = self._wanted(target, revision)
        names = (*wanted.required, *wanted.beside)
        ran = await checks(self._conformance, url, "--requirements", revision)
        return Run(target, revision, wanted, ran, judge(names, ran, reasons))

    def _wanted(self, target: str, revision: str) -> Scenarios:
        """Name what a target is held to: without the fixture, what needs none."""
        every = scenarios(self._conformance, revision)
        if target == "fixture":
            return every
        bare = self._expected["without_fixture"][revision]
        return Scenarios(*(tuple(name for name in part if name in bare) for part in every))


async def _all(conformance: Sequence[str], home: Path) -> list[Run]:
    """Run both revisions against both servers, one by one: none waits for another's work."""
    async with AsyncExitStack() as servers:
        urls = {
            target: await servers.enter_async_context(served(command, home / target))
            for target, command in COMMANDS.items()
        }
        bench = Bench(conformance, urls)

        return [await bench.run(*each) for each in product(sorted(COMMANDS), REVISIONS)]


def _say(runs: list[Run], told: Mapping[str, str]) -> int:
    print(f"{'against':9} {'revision':10} {'required':>9} {'beside':>7} {'checks':>8}")
    for run in runs:
        print(run.row())
    print("\nFailed as expected:")
    for run in runs:
        for reason, entries in _by_reason(run.verdict.expected).items():
            print(f"  {run.target} {run.revision}: {', '.join(entries)}\n    {reason}")
    wrong = [*_wrong(runs), *(f"inspector: {name}: {said}" for name, said in told.items())]
    print("\nNot as expected:" if wrong else "\nEverything is as expected.")
    for line in wrong:
        print(f"  {line}")
    return 1 if wrong else 0


def _wrong(runs: list[Run]) -> list[str]:
    return [
        f"{run.target} {run.revision}: {line}"
        for run in runs
        for line in (
            *(f"{key} failed: {said}" for key, said in run.verdict.unexpected.items()),
            *(f"{entry} did not fail: take it out of the list" for entry in run.verdict.stale),
        )
    ]


def _by_reason(listed: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry, reason in listed.items():
        found.setdefault(reason, []).append(entry)
    return found


async def _main() -> int:
    found = await tools()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        runs = await _all(found.conformance, home)
        return _say(runs, await complaints(found.inspector, home / "inspector"))


if __name__ == "__main__":
    sys.exit(anyio.run(_main))
