"""Words that a person typed, answered by an agent that may call two tools for them."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from tests.conversation import Agent, Reply
from tests.prompts import TYPED
from tests.tools.world import assert_envelope, assert_same_facts

MOST_CALLS: Final = 2
ANSWERED: Final[set[str]] = set()
"""The words that some test types."""


def typed(*words: str) -> Callable[[Callable[..., Any]], Any]:
    """Mark a test, which gets each of these words as `words`, as the one that answers them."""
    for each in words:
        assert each in TYPED, f"{each!r} is no line of tests/prompts.md"
    ANSWERED.update(words)
    return pytest.mark.parametrize("words", words)


class Asking:
    """An agent that was asked something: it calls at most two tools, a right one among them."""

    def __init__(self, agent: Agent, words: str) -> None:
        self.agent = agent
        self.words = words
        self.called: list[str] = []

    async def call(self, tool: str, **arguments: Any) -> Reply:
        """Call a tool for it and see that the answer is whole."""
        self.called.append(tool)
        assert len(self.called) <= MOST_CALLS, (self.words, self.called)
        reply = await self.agent.call(tool, **arguments)
        assert_envelope(reply)
        assert_same_facts(reply)
        return reply

    def is_well_chosen(self) -> bool:
        """Whether one of the tools that were called is among those of the line."""
        return bool(set(self.called) & set(TYPED[self.words].tools))
