"""What the rows of a preflight say, on whichever cloud."""

from core.records import Check, Preflight


def row(preflight: Preflight, words: str) -> Check:
    """Give the one row whose question holds these words."""
    (found,) = [one for one in preflight.checks if words in one.what]
    return found


def the_only_failure(preflight: Preflight) -> Check:
    """Give it; what is unknown says why, what fails says what to do."""
    assert all(one.detail for one in preflight.checks)
    (failed,) = preflight.failed
    assert failed.fix
    return failed
