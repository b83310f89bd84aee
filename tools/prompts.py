"""Prompts: each is a skill, with what the user has said in front."""

from collections.abc import Iterator, Mapping, Sequence
from logging import DEBUG
from typing import Annotated, Any, Final, NamedTuple

from fastmcp.exceptions import ValidationError
from fastmcp.prompts import Prompt, PromptArgument
from fastmcp.server.providers import SkillsDirectoryProvider
from pydantic import Field, TypeAdapter
from pydantic import ValidationError as PydanticValidationError

from core.records import NAME_PATTERN
from core.redaction import one_line, redact
from tools.skills import Skill, skills
from tools.surface import TOOLS, runtime

PROFILES: Final[Sequence[str]] = TOOLS["run_benchmark"].parameters["profile"]["enum"]
_Words = Annotated[str, Field(min_length=1, max_length=500)]
_Whole = Annotated[int, Field(ge=1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Argument(NamedTuple):
    """What a prompt may be given; clients send all of it as text."""

    kind: Any
    about: str


ARGUMENTS: Final[Mapping[str, Argument]] = {
    "model": Argument(_Words, "Hub id such as google/gemma-4-E4B-it, folder, or `12b qat`."),
    "target": Argument(_Words, "Where it runs or shall run, as list_targets calls it."),
    "name": Argument(
        Annotated[str, Field(pattern=NAME_PATTERN)],
        "The deployment's name; needed where several could be meant.",
    ),
    "profile": Argument(
        Annotated[str, Field(pattern=f"^({'|'.join(PROFILES)})$")],
        f"How much is measured: {', '.join(PROFILES)}.",
    ),
    "symptom": Argument(_Words, "What was seen, in the user's own words."),
    "max_model_len": Argument(_Whole, "The longest request in tokens, prompt and answer."),
    "users": Argument(_Whole, "How many ask at once, as a whole number."),
    "hours_per_month": Argument(_Positive, "Hours in which it is used."),
    "usd_per_month": Argument(_Positive, "What it may cost at most, in dollars."),
}
"""By name; a skill's front matter says which of them it takes."""


class SkillPrompt(Prompt):
    """A skill that a person can start from a menu."""

    skill: Skill = Field(exclude=True)

    async def render(self, arguments: Mapping[str, Any] | None = None) -> str:
        """Give the procedure, and what was said before it.

        Raises:
            ValidationError: An argument is missing, unknown, or cannot be what it is.
        """
        secrets = runtime().secrets
        said = {name: text for name, text in (arguments or {}).items() if text not in {None, ""}}
        if wrong := "; ".join(_wrong(self.skill, said)):
            words = str(redact(f"{self.name} does not take these arguments: {wrong}.", secrets))
            raise ValidationError(words, log_level=DEBUG)
        return str(redact(f"{_front(self.skill, said)}\n\n{self.skill.body}\n", secrets))


def prompts(provider: SkillsDirectoryProvider, *, read_only: bool) -> Sequence[Prompt]:
    """Make a prompt of every skill that this server can follow."""
    return [
        SkillPrompt(
            name=skill.name,
            title=skill.title,
            description=skill.description,
            arguments=[
                PromptArgument(
                    name=name, description=ARGUMENTS[name].about, required=name in skill.required
                )
                for name in skill.arguments
            ],
            skill=skill,
        )
        for skill in skills(provider)
        if not (read_only and skill.writes)
    ]


def _wrong(skill: Skill, said: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{name} is missing" for name in sorted(skill.required - set(said)))
    for name, text in said.items():
        if name not in skill.arguments:
            yield f"{name[:60]} is none of {', '.join(skill.arguments)}"
            continue
        try:
            TypeAdapter(ARGUMENTS[name].kind).validate_python(text)
        except PydanticValidationError as exc:
            yield f"{name}: {exc.errors(include_url=False)[0]['msg']}"


def _front(skill: Skill, said: Mapping[str, str]) -> str:
    """Say what is known, in the words that stand in the calls."""
    given = [f"- {name.upper()} is {_line(text)}" for name, text in said.items()]
    open_ = [name.upper() for name in skill.arguments if name not in said]
    rest = (
        f"Not said: {', '.join(open_)}. Leave it out of the calls, take it from an answer, or ask."
    )
    known = ["The user said:", *given] if given else []
    head = "Follow this procedure with the tools of this server."
    return "\n".join([head, "", *known, *([rest] if open_ else [])])


def _line(text: str) -> str:
    """Keep what a person said on one line, so that it can never pass for a step."""
    return one_line(text, 2_000)
