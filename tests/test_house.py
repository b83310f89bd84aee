"""The house stays within what it may weigh, and every module of it belongs to a room."""

from core.environment import ROOT
from tests.measure_house import LINES_NOW, ROOMS, files, sizes


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
