"""The questions of a preflight, and the rows that their answers become."""

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

import anyio

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


async def answered(questions: Sequence[Question], seconds: float) -> list[Check]:
    """Ask all of them side by side, and wait so long for their answers."""
    found: dict[str, Check] = {}

    async def answer(question: Question) -> None:
        found[question.what] = await asked(question)

    with anyio.move_on_after(seconds):
        async with anyio.create_task_group() as group:
            for question in questions:
                group.start_soon(answer, question)
    return [found.get(one.what) or unanswered(one, seconds) for one in questions]


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
