"""Tools ranked for what somebody typed, by their listing alone.

There are two rankers, and neither knows a synonym. FastMCP's own, BM25 over whole words, is what
its search offers agents. Ours is BM25 as well (Robertson and Zaragoza, 2009): endings are cut, so
that "logs" finds "log", the commonest words of English are left out, and a word of a tool's name
counts for more than one of its description, which counts for more than one of a parameter.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from fastmcp import Client, FastMCP
from fastmcp.server.transforms.search.bm25 import BM25SearchTransform
from mcp.types import Tool

from tests.prompts import Prompt
from tools.surface import TOOLS

FIRST: Final = 3
"""How far down a list a model is thought to look."""
_SATURATION: Final = 1.2
_LENGTH: Final = 0.5
_NAME: Final = 3.0
_DESCRIPTION: Final = 2.0
_PARAMETER: Final = 0.5
_LITTLE_WORDS: Final = """
    a about after am an and any are as at be been before but by can could did do does done for from
    had has have he her him his how i if in into is it its just let me my no nor not now of on once
    only or our out over own please pls she should so some such than that the their them then there
    these they thing this those to too us very was we were what whats when where which while who
    why will with would yet you your
"""
_COMMON: Final = frozenset(_LITTLE_WORDS.split())
_LONGEST_FIRST: Final = (
    "izations ization ations ation ions ion ments ment ings ing ies est ed es er s e y"
)
_ENDINGS: Final = tuple(_LONGEST_FIRST.split())

Rank = Callable[[str], Awaitable[Sequence[str]]]
"""Gives the first tools for some words, best first."""


def words(text: str) -> list[str]:
    """Give the words that carry meaning, without their endings.

    >>> words("Which logs of my deployments are stopped?")
    ['log', 'deploy', 'stop']
    """
    found = re.findall(r"[a-z0-9]+", text.casefold().replace("'", ""))
    return [stem(word) for word in found if word not in _COMMON and len(word) > 1]


def stem(word: str) -> str:
    """Cut one ending where three letters stay, and the second of two equal letters before it."""
    if not word.isalpha():
        return word
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


class Ranker:
    """BM25 over the weighted words of names, descriptions and parameters."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._weights = {tool.name: weighted(tool) for tool in tools}
        lengths = {name: sum(each.values()) for name, each in self._weights.items()}
        mean = sum(lengths.values()) / len(lengths)
        self._norms = {
            name: _SATURATION * (1 - _LENGTH + _LENGTH * length / mean)
            for name, length in lengths.items()
        }
        self._holders = Counter(word for each in self._weights.values() for word in each)

    async def first(self, text: str) -> list[str]:
        """Give the tools that share words with the text, best first."""
        wanted = words(text)
        scores = {name: self._score(name, wanted) for name in self._weights}
        ranked = sorted(scores, key=lambda name: -scores[name])
        return [name for name in ranked[:FIRST] if scores[name] > 0]

    def _score(self, name: str, wanted: Iterable[str]) -> float:
        weights, norm = self._weights[name], self._norms[name]
        return sum(
            self._rarity(word) * weights[word] * (_SATURATION + 1) / (weights[word] + norm)
            for word in wanted
            if word in weights
        )

    def _rarity(self, word: str) -> float:
        with_it = self._holders[word]
        return math.log(1 + (len(self._weights) - with_it + 0.5) / (with_it + 0.5))


def weighted(tool: Tool) -> dict[str, float]:
    """Give the words of a listed tool with what each counts for."""
    fields = [(_NAME, tool.name), (_DESCRIPTION, tool.description or "")]
    for name, row in tool.input_schema.get("properties", {}).items():
        fields.append((_PARAMETER, f"{name} {row.get('description', '')}"))
    found: defaultdict[str, float] = defaultdict(float)
    for weight, text in fields:
        for word in words(text):
            found[word] += weight
    return dict(found)


@asynccontextmanager
async def plain(tools: Iterable[Tool]) -> AsyncIterator[Rank]:
    """Give FastMCP's own search over the same tools."""
    server: FastMCP[None] = FastMCP(
        "search",
        tools=[TOOLS[tool.name].tool for tool in tools],
        transforms=[BM25SearchTransform(max_results=FIRST)],
    )
    async with Client(server) as client:

        async def first(text: str) -> list[str]:
            reply = await client.call_tool("search_tools", {"query": text})
            assert reply.structured_content
            return [str(row["name"]) for row in reply.structured_content["result"]]

        yield first


async def misses(rank: Rank, prompts: Iterable[Prompt]) -> list[tuple[Prompt, Sequence[str]]]:
    """Give the prompts for which no right tool is among the first, with what was."""
    found = [(prompt, await rank(prompt.words)) for prompt in prompts]
    return [(prompt, first) for prompt, first in found if not set(first) & set(prompt.tools)]
