"""The house stays within what it may weigh, and every module of it belongs to a room."""

from collections import defaultdict
from typing import Final

import pytest

from core.environment import ROOT
from tests.measure_house import (
    CREATES,
    LINES_NOW,
    MOST_FRAMES,
    MOST_NAMING,
    NAMED,
    ROOMS,
    circles,
    files,
    frames,
    imports,
    named_in,
    sizes,
)

_CONTRACTS: Final = {
    "advice": "what to do next, each with the measure that it rests on",
    "boot": "the phases of an engine's boot: foreseen by the planner, read from a log",
    "clients": "who speaks to a service: Google's clients, and the users' MCP clients",
    "endpoint": "an OpenAI-compatible address: a client of it, and the backend that is only one",
    "errors": "a library's exceptions as ours",
    "journal": "what was called, and how it ended: kept by the core, told by a tool",
    "leftovers": "what nobody needs any more: of one project, and of every account",
    "models": "which models there are, and where their weights lie",
    "plan": "what a deployment would be, before anything is done",
    "records": "the closed records of a room",
    "schedule": "when a deployment is warm: as it is written, and as a cloud keeps it",
}
"""By name that modules of several rooms have: what they all hold."""


def test_the_house_grows_no_more() -> None:
    """The sum of all rooms never rises."""
    told = [
        f"{room.name}: {size} of {room.lines} in {count} files" for room, size, count in sizes()
    ]
    total = sum(size for _, size, _ in sizes())
    assert total <= LINES_NOW, "\n".join([f"{total} lines", *told])


def test_every_module_belongs_to_one_room() -> None:
    """No file escapes the count."""
    counted = [path for room in ROOMS for path in files(room)]
    tops = [top for top in ROOT.iterdir() if top.name != "tests" and not top.name.startswith(".")]
    every = [*ROOT.glob("*.py"), *(path for top in tops for path in top.rglob("*.py"))]
    assert sorted(counted) == sorted(every)


def test_what_a_cloud_stands_on_is_named_in_few_files() -> None:
    """Whoever changes a vault, a role, a secret or a firewall rule reads three files at most."""
    found = {what: named_in(folder, pattern) for what, (folder, pattern) in NAMED.items()}
    assert all(found.values())
    assert {what: names for what, names in found.items() if len(names) > MOST_NAMING} == {}


def test_no_module_imports_itself_through_others() -> None:
    """Whoever reads one of a circle must read all of it."""
    assert circles({"a": "b", "b": "c", "c": "b"}) == [["b", "c"]]
    assert circles(imports()) == []


def test_modules_of_one_name_hold_the_same_thing() -> None:
    """A tool and its work share a name, the clouds their departments, a simulator what it plays."""
    rooms: dict[str, set[str]] = defaultdict(set)
    for module in imports():
        room, *_, name = module.split(".") if "." in module else ("", module)
        if room not in {"", "simulators"} and not name.startswith("__"):
            rooms[name].add("operations" if room == "tools" else room)
    assert {name for name, found in rooms.items() if len(found) > 1} == set(_CONTRACTS)


def test_no_module_is_named_by_a_participle() -> None:
    """`read` is what somebody does, `kept` is nobody's name: a module is a noun."""
    names = {module.rpartition(".")[2] for module in imports()}
    assert {name for name in names if name.endswith("ed") and name != "speed"} == set()
    assert names.isdisjoint(
        {"kept", "told", "said", "seen", "heard", "shown", "given", "held", "made"}
    )


@pytest.mark.anyio
@pytest.mark.life
@pytest.mark.parametrize("target", CREATES)
async def test_few_functions_stand_between_a_tool_and_the_call_that_creates(target: str) -> None:
    """Whoever follows a deployment to its cloud reads nine of ours at most."""
    found = await frames(target)
    assert 0 < len(found) <= MOST_FRAMES, "\n".join(found)
