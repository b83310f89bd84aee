"""When a deployment was last used, as far as its counters tell."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest

from core.metrics import CacheConfig, EngineMetrics
from core.settings import Settings
from operations.resolve import asked, counted, last_use
from operations.runtime import Runtime
from tests.operations.diagnosis.made import deployment

STARTED: Final = datetime.now(UTC) - timedelta(minutes=5)


def engine(finished: int) -> EngineMetrics:
    return EngineMetrics(
        requests_finished={"stop": finished},
        latencies={},
        started_at=STARTED,
        cache=CacheConfig(),
    )


@pytest.mark.parametrize(
    ("ours", "finished", "words"),
    [
        (0, 1, "not used since "),
        (2, 3, "last used "),
        (2, 4, "last used between "),
        (0, 2, "last used between "),
    ],
)
def test_who_asked_is_told_by_what_was_counted(
    tmp_path: Path, ours: int, finished: int, words: str
) -> None:
    """One question made it ready; what is beyond that and ours, somebody else has asked."""
    rt = Runtime(Settings(vllm_devops_state_dir=tmp_path), frozenset())
    one = deployment()
    for _ in range(ours):
        asked(rt, one)
    said = counted(rt, one, engine(finished))
    assert said == last_use(rt, one)
    assert said.startswith(words)
    assert ("between" in said) is ("between" in words)
