"""The first line of the first call answers what was typed.

What is typed, and what the first line must say, stands in `front_door.toml` and `typed.toml`,
which were written before anybody looked at an answer. `make measure` prints what misses, and how
long answers are.
"""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import pytest

from tests.conversation import Reply
from tests.listing import listing
from tests.prompts import HELD_OUT, TYPED, Prompt, prompts
from tests.questions.figures import FIGURES, holds
from tests.questions.worlds import World, agent_on, worlds
from tests.ranking import Ranker, misses
from tests.stories.conftest import Azure, Cloud
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

ANSWERED: Final = 0.9
MEDIAN: Final = 350
LARGEST: Final = 900
"""Tokens of the text half of an answer that is not asked for in full."""
LONGEST: Final = 400
"""Characters of a first line that are read."""
SUGGESTED: Final = 0.4
"""Of the new words alone: nobody foresaw them, and the ranker knows no synonym."""
NEW, KNOWN = FILES = ("front_door.toml", "typed.toml")


class Question(NamedTuple):
    """One thing that is typed, and what its answer must say."""

    file: str
    words: str
    world: str
    tool: str
    others: tuple[str, ...]
    arguments: dict[str, Any]
    says: tuple[str, ...]
    never: tuple[str, ...]
    also: tuple[str, ...]
    last: bool

    @property
    def call(self) -> str:
        """The first call, as one would write it."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.tool}({given})"

    def lacks(self, line: str, text: str) -> list[str]:
        """Return what is missing from the line or the whole, and what should not be there."""
        return [
            *(each for each in self.says if not holds(each, line)),
            *(f"not {each}" for each in self.never if holds(each, line)),
            *(f"anywhere {each}" for each in self.also if not holds(each, text)),
        ]


class Answer(NamedTuple):
    """What was answered, and what of the right answer is not there."""

    question: Question
    line: str
    lacks: list[str]
    tokens: int
    """Of the text half, at four characters each."""

    def __str__(self) -> str:
        """Say it for whoever has to mend the answer."""
        asked = f"{self.question.words!r} ({self.question.world}): {self.question.call}"
        return f"{asked}\n    {self.line}\n    lacks {self.lacks}"


def _read(file: str) -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / file).read_text("utf-8"))


def questions() -> Iterator[Question]:
    """Yield every question of both files; what leaves something behind comes last."""
    for file in FILES:
        for row in _read(file)["question"]:
            yield Question(
                file=file,
                words=row["words"],
                world=row["world"],
                tool=row["tool"],
                others=tuple(row.get("others", ())),
                arguments=row.get("arguments", {}),
                says=tuple(row["says"]),
                never=tuple(row.get("never", ())),
                also=tuple(row.get("also", ())),
                last=row.get("last", False),
            )


def _judged(question: Question, reply: Reply) -> Answer:
    line = str(reply.structured.get("summary", reply.text)).partition("\n")[0]
    lacks = question.lacks(line[:LONGEST], reply.text)
    return Answer(question, line, lacks, -(-len(reply.text) // 4))


async def _answers(world: World, asked: Sequence[Question]) -> list[Answer]:
    """Call for each question, but only once where several have the same call."""
    replies: dict[str, Reply] = {}
    async with agent_on(world.settings) as agent:
        for one in asked:
            if one.call not in replies:
                replies[one.call] = await agent.brief(one.tool, **one.arguments)
    return [_judged(one, replies[one.call]) for one in asked]


async def test_the_first_line_answers(
    bare_cloud: Cloud, bare_azure: Azure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what people are known to type, and of what nobody had typed before."""
    todo = sorted(questions(), key=lambda one: one.last)
    answers: list[Answer] = []
    async for world in worlds(bare_cloud, bare_azure, monkeypatch):
        answers += await _answers(world, [one for one in todo if one.world == world.name])
    assert len(answers) == len(todo)
    missed = "\n".join(str(answer) for answer in answers if answer.lacks)
    shares = {file: _share(file, answers) for file in FILES}
    print(f"\nThe first line answers {shares}; not answered:\n{missed}")
    assert min(shares.values()) >= ANSWERED, f"{shares}\n{missed}"
    for file in FILES:
        sizes = {one.question.call: one.tokens for one in answers if one.question.file == file}
        largest = sorted(sizes, key=lambda call: -sizes[call])[:8]
        words = ", ".join(f"{call}: {sizes[call]}" for call in largest)
        print(f"{file}: median {median(sizes.values()):.0f} tokens of text; largest {words}")
        assert median(sizes.values()) <= MEDIAN, words
        short = [size for call, size in sizes.items() if "detail='full'" not in call]
        assert max(short) <= LARGEST, words


def _share(file: str, answers: Sequence[Answer]) -> float:
    of_it = [answer for answer in answers if answer.question.file == file]
    return sum(not answer.lacks for answer in of_it) / len(of_it)


async def test_the_listing_suggests_the_call() -> None:
    """A ranker that reads nothing but the listing finds the tool, or one that would do as well."""
    tools = await listing()
    names = {tool.name for tool in tools}
    asked = [
        Prompt(one.file, one.words, (one.tool, *one.others))
        for one in questions()
        if one.file == NEW and names & {one.tool, *one.others}
    ]
    missed = await misses(Ranker(tools).first, asked)
    share = 1 - len(missed) / len(asked)
    lines = "\n".join(f"{one.words!r}: {first}, not {one.tools}" for one, first in missed)
    print(f"\nThe listing suggests the call for {share:.2f} of the new questions.")
    assert share >= SUGGESTED, lines


@pytest.mark.parametrize(
    ("line", "right"),
    [
        ("It is 1.5 times as fast.", True),
        ("With 8 users, 1.52 TIMES as fast.", True),
        ("It is 11.5 times as fast.", False),
        ("It is 1.8 times as fast.", False),
        ("It is faster.", False),
    ],
)
def test_a_number_is_right_as_people_round_it(line: str, *, right: bool) -> None:
    """And no part of another number is taken for it."""
    assert holds("{run_factor} (times|x)", line) is right


def test_questions_are_well_formed() -> None:
    """Words are new or known, tools exist, and figures can be computed."""
    known = {prompt.words for file in (None, HELD_OUT) for prompt in _prompts(file)}
    figures = {name for file in FILES for name in _read(file)["figures"]}
    for question in questions():
        assert {question.tool, *question.others} <= set(TOOLS), question.words
        assert (question.words in known) == (question.file == KNOWN), question.words
    assert {one.words for one in questions() if one.file == KNOWN} == set(TYPED)
    assert sum(one.file == NEW for one in questions()) >= 60
    assert figures == set(FIGURES)
    assert [name for name, bounds in FIGURES.items() if not 0 < bounds()[0] <= bounds()[1]] == []


def _prompts(file: Path | None) -> tuple[Prompt, ...]:
    return prompts(file) if file else prompts()
