"""The house stays within what it may weigh, and every module of it belongs to a room."""

from core.environment import ROOT
from tests.measure_house import LINES_NOW, ROOMS, files, sizes

_OTHERS = {".venv", ".vllm", ".azurite", "tests", ".agents"}


def test_the_house_grows_no_more() -> None:
    """The sum of all rooms never rises; a step that takes 1,000 lines away lowers the bound."""
    told = [
        f"{room.name}: {size} of {room.lines} in {count} files" for room, size, count in sizes()
    ]
    total = sum(size for _, size, _ in sizes())
    assert LINES_NOW - 1_000 <= total <= LINES_NOW, "\n".join([f"{total} lines", *told])


def test_every_module_belongs_to_one_room() -> None:
    """No file escapes the count."""
    counted = [path for room in ROOMS for path in files(room)]
    every = {path for path in ROOT.rglob("*.py") if not _OTHERS & set(path.relative_to(ROOT).parts)}
    assert sorted(counted) == sorted(every)
