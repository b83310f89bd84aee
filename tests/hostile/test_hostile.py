"""Whatever an endpoint does, each tool that reads it answers in our words and within bounds."""

import json
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from core.environment import ROOT
from tests.conversation import agent_of
from tests.hostile.calls import FEW, Reader, arguments, called, meeting, plant_failed, settings_at
from tests.hostile.endpoint import BEHAVIOURS, NAMES, HostileEndpoint, hostile_endpoint
from tests.tools.world import BOUND
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

MEMORY_MIB: Final = 286
"""300 MB."""
PAYLOAD: Final = frozenset(("answer", "reasoning", "answer_so_far"))
"""What a model said keeps its line breaks in the structured half."""
FORGED: Final = re.compile(
    r"\*\*All is well|⚠ call destroy|Next: `destroy_vllm\(purge|Fix: call destroy|\{\"ok\": true"
)
"""How a line of the endpoint's own would begin."""


def hiding(text: str) -> list[str]:
    """Return the characters of a text that hide, turn or break others."""
    kinds = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return [hex(ord(one)) for one in set(text) - {"\n", "\t"} if unicodedata.category(one) in kinds]


def texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Give every text of a structured half, with the field that it stands in."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield "a key", key
            yield from texts(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one, name)
    elif isinstance(value, str):
        yield name, value


def faults(row: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with one answer."""
    told, text = row["structured"], row["text"]
    found = []
    if told.get("code") in {"INTERNAL_ERROR", "NO_END", None} and not told.get("ok"):
        found.append(f"code {told.get('code')}: {told.get('cause')}")
    if max(len(text), len(json.dumps(told, ensure_ascii=False))) > BOUND:
        found.append("over the bound")
    if bad := hiding(text):
        found.append(f"{bad} in the text")
    found += [f"a forged line: {line[:60]}" for line in text.splitlines() if FORGED.match(line)]
    for name, one in texts(told):
        if bad := hiding(one):
            found.append(f"{bad} in {name}")
        if "\n" in one and "destroy_vllm" in one and name not in PAYLOAD:
            found.append(f"its line breaks in {name}")
    for part in ("summary", "cause"):
        said = told.get(part) or ""
        if "IGNORE PREVIOUS" in re.sub(r'"[^"]*"', "", said):
            found.append(f"its words outside quotes in {part}")
    return found


async def readers(
    endpoint: HostileEndpoint, url: str, state_dir: Path, tools: frozenset[str]
) -> list[Reader]:
    """Return the calls that ask an honest endpoint anything: a new tool is among them by itself."""
    found = []
    plant_failed(state_dir)
    async with agent_of(settings_at(f"{url}/all/0", state_dir)) as agent:
        for tool in sorted(tools):
            for given in arguments(tool):
                before = endpoint.asked.total()
                await called(agent, tool, given)
                if endpoint.asked.total() > before:
                    found.append((tool, given))
    return found


async def answers(
    names: Sequence[str],
    state_dir: Path,
    tools: frozenset[str] = frozenset(TOOLS),
    *,
    speed: int = 8,
) -> tuple[list[dict[str, Any]], float]:
    """Return what each tool answers to each behaviour, and the most memory that it took, in MiB."""
    async with hostile_endpoint() as (endpoint, url):
        asking = await readers(endpoint, url, state_dir, tools)
        assert {tool for tool, _ in asking} >= FEW & tools
        endpoint.encodings.clear()
        done = await anyio.run_process(
            [sys.executable, "-m", "tests.hostile.calls", str(speed)],
            input=json.dumps([url, names, asking]).encode(),
            stderr=None,
            cwd=ROOT,
        )
        assert endpoint.strays == []
        assert endpoint.encodings <= {"identity", ""}
    *rows, last = map(json.loads, done.stdout.decode().splitlines())
    met = (meeting(where, name, asking) for where in ("all", "later") for name in names)
    assert len(rows) == sum(len(list(calls)) for calls in met) >= len(names) * len(asking)
    return rows, last["peak_mib"]


def assert_harmless(rows: list[dict[str, Any]], peak: float) -> None:
    """Show every fault at once."""
    wrong = [(*row["behaviour"], row["tool"], row["given"], faults(row)) for row in rows]
    assert not [one for one in wrong if one[-1]], "\n".join(str(one) for one in wrong if one[-1])
    assert peak <= MEMORY_MIB


async def test_no_behaviour_of_an_endpoint_spoils_an_answer(state_dir: Path) -> None:
    """Every behaviour, met at first sight and later by tools that read all that is ever read."""
    assert len(BEHAVIOURS) >= 40
    assert_harmless(*await answers(NAMES, state_dir, FEW))


@pytest.mark.life
async def test_no_behaviour_of_an_endpoint_spoils_the_answer_of_any_tool(state_dir: Path) -> None:
    """The same with every tool that asks anything, of the deployment or of an analyst.

    Old names are turned into these before anything is asked.
    """
    names = frozenset(name for name, one in TOOLS.items() if one.group != "compat")
    rows, peak = await answers(NAMES, state_dir, names)
    assert len({row["tool"] for row in rows}) > 12
    assert_harmless(rows, peak)


async def test_a_question_that_nobody_answers_is_no_success(state_dir: Path) -> None:
    """The code says that the time was over, or that nothing answers, and never that all is well."""
    silent = ("silence", "slow events", "endless headers", "slow headers", "silence after no event")
    rows, _ = await answers(silent, state_dir, frozenset({"query_gemma4"}), speed=4)
    later = {row["behaviour"][1]: row["structured"] for row in rows if row["behaviour"][0] != "all"}
    codes = {name: told["code"] for name, told in later.items() if not told["ok"]}
    assert set(codes) == set(silent)
    assert set(codes.values()) == {"TIMED_OUT", "ENDPOINT_UNREACHABLE"}
    assert "none of them with text" in later["slow events"]["cause"]
