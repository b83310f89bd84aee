"""Schedules of simulated clouds, as unix-cron has them."""

from datetime import datetime
from typing import Final

import pytest

from simulators.common.cron import due_next

NOW: Final = "2026-11-29T09:00:00+00:00"  # a Sunday
DUE: Final = {
    "0 9 29 11 *": "2027-11-29T09:00:00+00:00",
    "1 9 29 11 *": "2026-11-29T09:01:00+00:00",
    "59 23 31 12 *": "2026-12-31T23:59:00+00:00",
    "30 6 29 2 *": "2028-02-29T06:30:00+00:00",
    "*/20 * * * *": "2026-11-29T09:20:00+00:00",
    "5/20 * * * *": "2026-11-29T09:05:00+00:00",
    "0 8-10/2,12 * * *": "2026-11-29T10:00:00+00:00",
    "0 0 * JAN mon-fri": "2027-01-01T00:00:00+00:00",
    "0 0 * * 0": "2026-12-06T00:00:00+00:00",
    "0 0 * * 7": "2026-12-06T00:00:00+00:00",
    "0 0 1 * 1": "2026-11-30T00:00:00+00:00",
    "0 0 31 2 *": None,
}


@pytest.mark.parametrize("schedule", DUE)
def test_a_schedule_is_due_next_at_its_first_later_moment(schedule: str) -> None:
    """Days of the month and of the week are added where both are given."""
    found, due = due_next(schedule, datetime.fromisoformat(NOW).timestamp()), DUE[schedule]
    assert found == (due and datetime.fromisoformat(due).timestamp())


def test_a_schedule_is_read_in_its_time_zone() -> None:
    found = due_next("0 9 1 7 *", datetime.fromisoformat(NOW).timestamp(), "Europe/Berlin")
    assert found == datetime.fromisoformat("2027-07-01T07:00:00+00:00").timestamp()


def test_a_time_that_summer_time_skips_is_not_due() -> None:
    """Berlin has no 02:30 on 28 March 2027: the next one is a week later."""
    at = datetime.fromisoformat("2027-03-27T12:00:00+00:00").timestamp()
    found = due_next("30 2 * * 0", at, "Europe/Berlin")
    assert found == datetime.fromisoformat("2027-04-04T00:30:00+00:00").timestamp()


WRONG: Final = (
    *("", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8"),
    *("5-1 * * * *", "*/0 * * * *", "*/-1 * * * *", "x * * * *", "*/ * * * *", ", * * * *"),
)


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_schedule_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"five fields|not within|invalid literal"):
        due_next(wrong, 0)


def test_what_is_no_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="Europe/Nowhere"):
        due_next("* * * * *", 0, "Europe/Nowhere")
