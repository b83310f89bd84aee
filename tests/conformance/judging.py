"""What the suite found, held against what is expected of it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

Checks = Mapping[str, Sequence[Mapping[str, Any]]]
"""Of each scenario that ran, its checks as the suite wrote them."""
_BAD: Final = ("FAILURE", "WARNING")
"""A warning is a SHOULD of the specification that is not followed."""


class Verdict(NamedTuple):
    """Of one run; keys are `scenario` or `scenario:check`."""

    passed: int
    total: int
    """Checks that could pass: those that were skipped or only inform are left out."""
    failed: tuple[str, ...]
    """The scenarios in which a check failed."""
    expected: dict[str, str]
    """What failed as expected, as it is listed, with the reason."""
    unexpected: dict[str, str]
    """What failed otherwise, with the suite's words."""
    stale: tuple[str, ...]
    """What was expected to fail and did not."""

    @property
    def is_good(self) -> bool:
        """Whether everything is as expected."""
        return not self.unexpected and not self.stale


def judge(wanted: Sequence[str], ran: Checks, reasons: Mapping[str, str]) -> Verdict:
    """Hold what ran against the scenarios that are wanted and the failures that have a reason."""
    counted = [
        check
        for scenario in wanted
        for check in ran.get(scenario, ())
        if check["status"] in (*_BAD, "SUCCESS")
    ]
    failed: dict[str, str] = {}
    for scenario in wanted:
        failed |= _failed(scenario, ran.get(scenario, ()))
    listed = {key: _listed(key, reasons) for key in failed}
    return Verdict(
        passed=sum(check["status"] == "SUCCESS" for check in counted),
        total=len(counted),
        failed=tuple(dict.fromkeys(key.partition(":")[0] for key in failed)),
        expected={entry: reasons[entry] for entry in listed.values() if entry},
        unexpected={key: said for key, said in failed.items() if not listed[key]},
        stale=tuple(entry for entry in reasons if entry not in listed.values()),
    )


def _failed(scenario: str, checks: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    if not checks:
        return {scenario: "It did not run."}
    return {
        f"{scenario}:{check['id']}": str(check.get("errorMessage") or check["status"])
        for check in checks
        if check["status"] in _BAD
    }


def _listed(key: str, reasons: Mapping[str, str]) -> str:
    """Give the entry that a failure is listed under, empty if there is none."""
    return next((entry for entry in (key, key.partition(":")[0]) if entry in reasons), "")
