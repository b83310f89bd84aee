"""Waits that end."""

import pytest

from core.errors import WaitedTooLong
from core.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_what_is_done_at_once_is_not_waited_for() -> None:
    """One look, and no time."""

    async def look() -> str:
        return "done"

    seen = await wait_until(look, bool, waiting_for="it", every=1000, timeout=0)
    assert seen == "done"


async def test_what_was_seen_last_is_given_back() -> None:
    """It is looked at until it is done."""
    states = iter(["no", "not yet", "yes", "later"])

    async def look() -> str:
        return next(states)

    done = await wait_until(look, lambda s: s == "yes", waiting_for="it", every=0.001, timeout=9)
    assert (done, next(states)) == ("yes", "later")


async def test_a_wait_that_is_over_says_what_it_saw_last() -> None:
    """And that it may yet come; it does not sleep beyond its end."""
    looks = []

    async def look() -> int:
        looks.append(1)
        return len(looks)

    with pytest.raises(WaitedTooLong) as caught:
        await wait_until(look, lambda _: False, waiting_for="a thing", every=0.01, timeout=0.035)
    assert caught.value.summary == f"Waited 0 s for a thing; last seen: {len(looks)}."
    assert caught.value.retryable
    assert 1 <= len(looks) <= 4
