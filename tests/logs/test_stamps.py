"""The times that vLLM writes into its lines."""

from datetime import UTC, datetime, timedelta

import pytest

from logs.read import Stamps

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)


def local(*said: int) -> datetime:
    return datetime(*said).astimezone()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line",
    [
        "INFO 11-22 01:50:17 [core.py:58] Initializing",
        "(EngineCore_DP0 pid=71) WARNING 11-22 01:50:17 [core.py:58] Initializing",
        "\x1b[0;36m(EngineCore pid=71)\x1b[0;0m ERROR 11-22 01:50:17 [core.py:58] Initializing",
        "(APIServer pid=1) (Worker pid=2) DEBUG 11-22 01:50:17 x",
    ],
)
def test_a_line_tells_when_it_was_written(line: str) -> None:
    """Behind the name of its process, in colours or not, by this machine's clock."""
    assert Stamps(NOW).of(line) == local(2026, 11, 22, 1, 50, 17)


@pytest.mark.parametrize(
    "line",
    [
        "INFO:     127.0.0.1:4711 - POST /v1/completions",
        "Traceback (most recent call last):",
        'prompt: "tell me INFO 01-01 00:00:00 please"',
        "INFO 13-22 01:50:17 [core.py:58] no such month",
        "INFO 11-22 25:50:17 [core.py:58] no such hour",
        "",
    ],
)
def test_what_is_no_stamp_tells_nothing(line: str) -> None:
    """What stands within a line may be anybody's words."""
    assert Stamps(NOW).of(line) is None


def test_the_year_is_that_in_which_it_is_past() -> None:
    """December is last year's in January; a clock may be a day ahead."""
    january = datetime(2026, 1, 1, 12, tzinfo=UTC)
    stamps = Stamps(january)
    assert stamps.of("INFO 12-31 23:00:00 x") == local(2025, 12, 31, 23, 0, 0)
    assert stamps.of("INFO 01-02 01:00:00 x") == local(2026, 1, 2, 1, 0, 0)
    assert Stamps(january - timedelta(days=1)).of("INFO 01-01 01:00:00 x") == local(
        2026, 1, 1, 1, 0, 0
    )
    assert Stamps(NOW).of("INFO 02-29 01:00:00 x") is None


def test_any_number_of_stamps_can_be_read() -> None:
    """What was read is remembered, but not for ever."""
    stamps = Stamps(NOW)
    for minute in range(60 * 100):
        day, rest = divmod(minute, 24 * 60)
        line = f"INFO 11-{day + 1:02} {rest // 60:02}:{rest % 60:02}:00 x"
        assert stamps.of(line) == local(2026, 11, day + 1, rest // 60, rest % 60, 0)
