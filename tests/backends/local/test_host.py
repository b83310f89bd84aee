"""This machine."""

from pathlib import Path
from typing import Self

import psutil
import pytest

from backends.local import devices
from backends.local.identity import Seen
from backends.local.process import claim
from core.address import free_port
from core.errors import PortInUse

pytestmark = pytest.mark.anyio


def test_a_machine_names_its_accelerators_or_its_processor(tmp_path: Path) -> None:
    """As the driver lists them, and how much of everything it has."""
    seen = devices.hardware(tmp_path)
    assert seen.accelerator.startswith("none; ")
    assert seen.vcpu == psutil.cpu_count()
    assert seen.ram_gib
    assert seen.disk
    assert seen.network
    for number in ("0", "1"):
        (tmp_path / number).mkdir()
        (tmp_path / number / "information").write_text("Model: \t NVIDIA L4\nIRQ: 7\n")
    assert devices.hardware(tmp_path).accelerator == "NVIDIA L4; NVIDIA L4"


async def test_a_machine_says_how_it_is(tmp_path: Path) -> None:
    """Of the disk that the state lies on, whether that folder was made yet or not."""
    seen = await devices.state(tmp_path / "not" / "made" / "yet")
    assert 0 <= seen.cpu_percent <= 100
    assert 0 < seen.memory_available_gib <= seen.memory_total_gib
    assert seen.disk_free_gib > 0


@pytest.mark.parametrize(
    ("low", "health"),
    [
        (None, "ok"),
        ("_LOW_MEMORY_GIB", "short of memory"),
        ("_LOW_DISK_GIB", "short of disk"),
    ],
)
async def test_what_runs_short_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, low: str | None, health: str
) -> None:
    """Before an engine dies of it."""
    for name in ("_LOW_MEMORY_GIB", "_LOW_DISK_GIB"):
        monkeypatch.setattr(devices, name, 1e9 if name == low else 0.0)
    assert (await devices.state(tmp_path)).health == health
    assert devices.check_disk(tmp_path).outcome == ("fail" if health == "short of disk" else "pass")


@pytest.mark.parametrize(
    ("weight_bytes", "outcome"), [(0, "unknown"), (1, "pass"), (2**60, "fail")]
)
def test_weights_that_do_not_fit_are_told(weight_bytes: int, outcome: str) -> None:
    """What is not known is not guessed."""
    check = devices.check_memory(weight_bytes)
    assert check.outcome == outcome
    assert bool(check.fix) is (outcome == "fail")


async def test_what_has_just_ended_takes_nothing(tmp_path: Path) -> None:
    """Between finding a process and measuring it, it may go."""
    gone = Seen(2**22 + 1, 1, 1, "x")
    seen = await devices.usage([gone], tmp_path / "no.log")
    assert seen is not None
    assert (seen.resident_memory_bytes, seen.cpu_percent, seen.log_bytes) == (0, 0.0, 0)
    assert await devices.usage([], tmp_path) is None


def test_a_free_port_can_be_claimed() -> None:
    """It is free when it was given, and stays so: systems give no connection one below 32,768."""
    first, second = free_port(), free_port()
    claim(first)
    assert first != second
    assert max(first, second) < 32_768


def test_a_port_that_needs_more_rights_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As below 1024 for anybody but root."""

    class Refusing:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_exc: object) -> None:
            return

        def setsockopt(self, *_options: object) -> None:
            return

        def bind(self, _address: object) -> None:
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("backends.local.process.socket.socket", Refusing)
    with pytest.raises(PortInUse) as caught:
        claim(80)
    assert "1023" in caught.value.fix
