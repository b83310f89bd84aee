"""Completion: what an argument of a prompt or of a resource's address may be."""

from collections.abc import Sequence
from typing import Final

from fastmcp.prompts import Prompt
from fastmcp.server.completions import MAX_COMPLETION_VALUES, CompletionReference
from mcp.types import Completion, CompletionArgument, CompletionContext, PromptReference

from operations.help import KINDS, choices, fitting
from operations.runtime import Runtime
from tools.prompts import PROFILES
from tools.resources import TEMPLATES

_VARIABLES: Final = {one.uri_template: set(one.parameters["properties"]) for one in TEMPLATES}


async def completed(
    rt: Runtime,
    prompts: Sequence[Prompt],
    ref: CompletionReference,
    argument: CompletionArgument,
    given: CompletionContext | None,
) -> Completion:
    """Give at most a hundred values; what is not known has none, and nothing is an error."""
    known: Sequence[str] = ()
    if argument.name in _arguments(ref, prompts):
        if argument.name in KINDS:
            known = await choices(rt, argument.name, (given and given.arguments) or {})
        elif argument.name == "profile":
            known = PROFILES
    found = fitting(argument.value, known)
    return Completion(
        values=found[:MAX_COMPLETION_VALUES],
        total=len(found),
        has_more=len(found) > MAX_COMPLETION_VALUES,
    )


def _arguments(ref: CompletionReference, prompts: Sequence[Prompt]) -> set[str]:
    if not isinstance(ref, PromptReference):
        return _VARIABLES.get(ref.uri, set())
    return {
        one.name for prompt in prompts if prompt.name == ref.name for one in prompt.arguments or ()
    }
