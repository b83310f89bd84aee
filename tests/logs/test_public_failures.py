"""How well diagnosis knows failures that people posted: limits a little below what is reached."""

import pytest

from logs.failures import asked_words
from tests.measure_diagnosis import DATA, cases, measured

LIMITS = {  # recall, precision, decisive line shown, alarms
    ("open", 9): (0.935, 0.98, 0.9, 0),
    ("held", 1): (0.75, 0.94, 0.9, 0),  # of the six newest draws; nearly half of it is of TPUs
}


_IS_THERE = {part: (DATA / "public" / f"engine-{part}.toml").exists() for part, _ in LIMITS}


@pytest.mark.parametrize(("part", "step"), [one for one in LIMITS if _IS_THERE[one[0]]])
def test_diagnosis_knows_public_failures(part: str, step: int) -> None:
    """Most are told by their kind, hardly one as another, and few healthy logs raise an alarm."""
    least = LIMITS[part, step]
    found = measured(part, step=step)
    told = (found.recall, found.precision, found.evidence, -found.alarms)
    words = str(found)  # of what is held back numbers only are ever shown
    del found
    assert [one >= limit for one, limit in zip(told, least, strict=True)] == [True] * 4, words


def test_an_unknown_kind_is_seldom_told_as_another_and_its_line_is_shown() -> None:
    """Each failure is judged as if nobody had ever seen one of its kind."""
    found = measured("open", blind=True, step=13)
    assert found.wrong <= 0.15 * found.cases, str(found)
    assert found.evidence >= 0.9, str(found)


def test_a_cloud_that_is_asked_for_words_sends_a_line_of_each_public_failure() -> None:
    """However many failures are known, few words find them."""
    lack = [
        case.id
        for case in cases("open")
        if case.ours
        and not any(w in line.lower() for line in case.lines for w in asked_words(case.writer))
    ]
    assert lack == []
