"""One question of a preflight, and the row that its answer becomes."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from core.errors import OpsError
from core.plans import Check


class Answer(NamedTuple):
    """What was seen; without a fix, nothing has to be done."""

    passed: bool | None
    """None cannot be told."""
    detail: str
    fix: str = ""


class Question(NamedTuple):
    """Something that must be so for a deployment to work."""

    what: str
    ask: Callable[[], Awaitable[Answer]]


async def asked(question: Question) -> Check:
    """Ask; whoever cannot answer leaves it unknown, with the reason."""
    try:
        answer = await question.ask()
    except OpsError as exc:
        why = f"{exc.summary} {exc.cause}".strip()
        answer = Answer(None, f"It could not be looked at. {why}", exc.fix)
    outcomes = {True: "pass", False: "fail", None: "unknown"}
    return Check.model_validate(
        {
            "what": question.what,
            "outcome": outcomes[answer.passed],
            "detail": answer.detail,
            "fix": answer.fix,
        }
    )


def unanswered(question: Question, seconds: float) -> Check:
    """Say that an answer did not come."""
    return Check(
        what=question.what,
        outcome="unknown",
        detail=f"No answer came within {seconds:.0f} s.",
        fix="Call the same tool again.",
    )
