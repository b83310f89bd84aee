"""Tokens in memory: as strict as those of the journal."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from core.journal import TOKEN_MINUTES, HeldTokens
from tests.core.test_journal import Hands


def test_a_held_token_says_yes_once_and_to_one_thing_only() -> None:
    """For something else it is refused, and stays good for what it was made for."""
    held = HeldTokens()
    token = held.mint("destroy one")
    assert not held.redeem(token, "destroy two")
    assert not held.redeem("another", "destroy one")
    assert held.redeem(token, "destroy one")
    assert not held.redeem(token, "destroy one")


@pytest.mark.parametrize(
    ("seconds", "good"), [(TOKEN_MINUTES * 60, True), (TOKEN_MINUTES * 60 + 1, False), (-1, False)]
)
def test_a_held_token_has_its_time(seconds: int, *, good: bool) -> None:
    """Ten minutes; a clock that is set back makes none live longer."""
    clock = Hands()
    held = HeldTokens(clock)
    token = held.mint("x")
    clock.now += timedelta(seconds=seconds)
    assert held.redeem(token, "x") is good


def test_old_held_tokens_are_swept_away() -> None:
    """What nobody used does not pile up, and none is kept as it is said."""
    clock = Hands()
    held = HeldTokens(clock)
    old = held.mint("x")
    clock.now += timedelta(hours=1)
    new = held.mint("y")
    kept = f"{vars(held)}"
    assert "'y'" in kept
    assert "'x'" not in kept
    assert old not in kept
    assert new not in kept


def test_of_many_who_use_one_held_token_at_once_one_wins() -> None:
    """There is no moment between looking and taking."""
    held = HeldTokens()
    token = held.mint("x")
    ready = threading.Barrier(8)

    def use(_number: int) -> bool:
        ready.wait(5)
        return held.redeem(token, "x")

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(use, range(8))) == [False] * 7 + [True]
