"""The endpoint that claims are held against, and that false claims show."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from benchmark.samples import Outcome
from core.errors import CommandNotFound
from tests.benchmark.made import measured_of, some_samples
from tests.truth.build import built
from tests.truth.claims import Errors, compare
from tests.truth.recorded import Floats, Truth

pytestmark = pytest.mark.anyio


async def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    """Nothing is compiled, nothing is left."""
    with pytest.raises(CommandNotFound) as told:
        await built(tmp_path, compiler="no-such-compiler")
    assert "gcc" in told.value.fix
    assert [path async for path in anyio.Path(tmp_path).iterdir()] == []


def a_truth(requests: int = 200) -> Truth:
    """What an endpoint did that was asked every 10 ms, for four tokens each time."""
    begin: Floats = np.asarray(100 + 0.01 * np.arange(requests), dtype=np.float64)
    times = (begin[:, None] + 0.05 + 0.01 * np.arange(4)).ravel()
    sends = np.zeros(len(times), dtype=[("ns", "i8"), ("request", "u4"), ("events", "u4")])
    sends["ns"] = np.round(times * 1e9)
    sends["request"] = np.repeat(np.arange(requests), 4)
    sends["events"] = 1
    whole = np.zeros(requests, dtype=np.int64)
    return Truth(
        received=begin,
        first_token=begin + 0.05,
        last_token=begin + 0.08,
        prompt_tokens=whole + 1,
        tokens=whole + 4,
        events=whole + 4,
        head=tuple(body(number).removeprefix(b'{"prompt":') for number in range(requests)),
        sends=sends,
    )


def body(number: int) -> bytes:
    return b'{"prompt":[%d]}' % number


def told_by(**claimed: Any) -> Errors:
    """Hold a client's claims against that truth; honest ones, but for what is given."""
    honest = some_samples(200, ttft=0.05, gap=0.01, tokens=4, every=0.01)
    made = measured_of(replace(honest, **claimed), begin=100.2, end=101.8)
    return compare(made, a_truth(), body)


def test_honest_claims_are_within() -> None:
    """Nothing is wrong with them at all."""
    told = told_by()
    assert told.within(), told.words()
    assert len(told.ttft) == 160
    assert len(told.itl) == 480


LATE = np.asarray(100 + 0.01 * np.arange(200))
FEW = np.arange(200) % 50 == 0


@pytest.mark.parametrize(
    "flaw",
    [
        pytest.param({"first_token": LATE + 0.051}, id="stamped a millisecond late"),
        pytest.param({"first_token": LATE + 0.025}, id="a head taken for a token"),
        pytest.param({"first_token": LATE + 0.05 + 0.1 * FEW}, id="one in fifty late by 100 ms"),
        pytest.param({"last_token": LATE + 0.0805}, id="the end taken for the last token"),
        pytest.param({"intended": LATE + 0.001}, id="its own queue left out"),
        pytest.param({"gaps": np.full(600, 0.0105, np.float32)}, id="gaps too long"),
        pytest.param(
            {"gaps": np.full(800, 0.01, np.float32), "gap_counts": np.full(200, 4)},
            id="a role counted as a token",
        ),
        pytest.param({"output_tokens": np.full(200, 5)}, id="events counted, with the role"),
        pytest.param({"outcome": FEW * Outcome.RESET.value}, id="one answer in fifty lost"),
    ],
)
def test_a_false_claim_is_seen(flaw: dict[str, Any]) -> None:
    """Each flaw alone is beyond the bounds."""
    told = told_by(**flaw)
    assert not told.within(), told.words()


def test_a_cut_answer_is_not_lost() -> None:
    """The client ended it itself, and says so."""
    assert told_by(outcome=FEW * Outcome.RESET.value).lost == 4
    assert told_by(outcome=FEW * Outcome.CUT.value).lost == 0


def test_an_invented_request_is_no_ones() -> None:
    """A claim without a request of its own is an error in itself."""
    with pytest.raises(KeyError):
        told_by(request=1000 + np.arange(200))
