"""How `make conformance` tells what is wrong from what is known."""

from typing import Any, Final

from tests.conformance.judging import judge
from tests.conformance.suite import REVISIONS, expected


def check(name: str, status: str) -> dict[str, Any]:
    return {"id": name, "status": status, "errorMessage": f"{name} is so"}


RAN: Final = {
    "lists": [check("there", "SUCCESS"), check("shape", "SUCCESS"), check("later", "SKIPPED")],
    "calls": [check("answers", "SUCCESS"), check("quickly", "WARNING")],
    "tasks": [check("begin", "FAILURE"), check("end", "FAILURE")],
}


def test_what_fails_without_being_listed_is_told() -> None:
    """Warnings as well; what was skipped is not counted."""
    verdict = judge(list(RAN), RAN, {"tasks": "not offered"})
    assert verdict.unexpected == {"calls:quickly": "quickly is so"}
    assert verdict.expected == {"tasks": "not offered"}
    assert (verdict.passed, verdict.total) == (3, 6)
    assert verdict.failed == ("calls", "tasks")
    assert not verdict.is_good


def test_a_check_can_be_listed_by_itself() -> None:
    """The others of its scenario stay as strict as they were."""
    verdict = judge(["tasks"], RAN, {"tasks:begin": "known"})
    assert verdict.expected == {"tasks:begin": "known"}
    assert list(verdict.unexpected) == ["tasks:end"]


def test_what_is_listed_and_does_not_fail_is_told() -> None:
    """Also when it never ran: the list says what is, not what was."""
    reasons = {"lists": "broken", "calls:quickly": "slow", "calls:gone": "renamed"}
    verdict = judge(["lists", "calls"], RAN, reasons)
    assert verdict.stale == ("lists", "calls:gone")
    assert not verdict.is_good


def test_a_scenario_that_did_not_run_has_failed() -> None:
    """A suite that stops in the middle passes nothing."""
    verdict = judge(["lists", "prompts"], RAN, {})
    assert list(verdict.unexpected) == ["prompts"]


def test_everything_as_expected_is_good() -> None:
    """Nothing unknown, nothing that is no more."""
    reasons = {"tasks": "not offered", "calls:quickly": "slow"}
    assert judge(list(RAN), RAN, reasons).is_good


def test_every_expected_failure_has_a_reason() -> None:
    """A sentence, in both revisions."""
    known = expected()
    for target in ("server", "fixture"):
        assert set(known[target]) == set(REVISIONS)
        for reasons in known[target].values():
            assert all(reason.strip().endswith(".") for reason in reasons.values())
