"""What the client says of itself."""

from time import perf_counter

import anyio
import pytest

from benchmark.client.health import Pulse
from tests.benchmark.made import some_samples

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    return "asyncio", {"use_uvloop": True}


async def test_a_stall_counts_for_as_long_as_it_lasted() -> None:
    """Whatever came in that tenth of a second was late, not only what came at its beginning."""
    pulse = Pulse()
    pulse.look()
    begin = perf_counter()
    pulse.start(begin)
    while perf_counter() < begin + 0.1:
        pass
    await anyio.sleep(0.02)
    end = perf_counter()
    pulse.look()
    pulse.close()
    health = pulse.over(some_samples(1), begin=begin, end=end)
    assert health.loop_lag_p99_seconds > 0.09
    assert sum(late > 0.005 for _, late in pulse._rings) >= 9
