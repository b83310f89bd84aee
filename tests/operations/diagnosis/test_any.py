"""Whatever a platform answers, there is one verdict."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from core.errors import OpsError
from core.records import Deployment, Failure, Phase, State
from operations.case import LAYERS, MOST_EVIDENCE
from tests.event_loop import BACKEND
from tests.operations.diagnosis.made import (
    NOWHERE,
    Somewhere,
    Writes,
    deployment,
    diagnosed,
    just_now,
)

CODES: Final = (
    "ENGINE_EXITED", "KILLED", "UNHEALTHY", "ENDPOINT_UNREACHABLE", "UNAUTHORIZED",
    "QUOTA_EXCEEDED", "KV_CACHE_TOO_SMALL", "IMAGE_NOT_FOUND", "NOT_KNOWN_TO_ANYBODY", "",
)  # fmt: skip
LINES: Final = st.lists(st.text(max_size=60), max_size=20)
FAILURES: Final = st.builds(
    Failure, code=st.sampled_from(CODES), cause=st.text(max_size=40), fix=st.text(max_size=40),
    evidence=LINES.map(tuple),
)  # fmt: skip
PHASES: Final = st.builds(
    Phase, name=st.text(max_size=20), since=st.just(just_now()), detail=st.text(max_size=500),
    percent=st.none() | st.integers(0, 100),
)  # fmt: skip
DEPLOYMENTS: Final = st.builds(
    deployment,
    st.sampled_from(State),
    minutes=st.sampled_from((0, 3, 200, 10_000)),
    failure=st.none() | FAILURES,
    phase=st.none() | PHASES,
    url=st.sampled_from((None, NOWHERE)),
    expires_at=st.sampled_from((None, just_now())),
    usd_per_hour=st.sampled_from((None, 0.0, 2.7)),
)


class Broken(Writes):
    """It can be asked for nothing more."""

    async def access(self, name: str) -> None:  # type: ignore[override]  # it never gives any
        raise OpsError(f"{name} is not to be asked.", fix="Wait.")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    now=DEPLOYMENTS,
    log=LINES,
    kind=st.sampled_from((Somewhere, Writes, Broken)),
    backend=st.sampled_from(("local", "cloud_run", "aca", "tpu", "endpoint")),
)
def test_there_is_one_verdict_whatever_a_platform_says(
    now: Deployment, log: list[str], kind: type[Somewhere], backend: str
) -> None:
    """Nothing but errors of ours is raised; at most one layer failed, and it is the last row."""
    asked = kind(backend=backend)
    if isinstance(asked, Writes):
        asked = kind(NOWHERE, backend, log)  # type: ignore[call-arg]  # only these take a log
    with TemporaryDirectory() as folder:
        name, options = BACKEND
        run = partial(diagnosed, asked, now, Path(folder))
        seen = anyio.run(run, backend=name, backend_options=options)
    wrong = [row.layer for row in seen.looked_at if row.verdict == "failed"]
    assert wrong == ([] if seen.healthy else [seen.layer])
    assert seen.healthy or (seen.looked_at[-1].layer, bool(seen.fix is not None)) == (
        seen.layer,
        True,
    )
    assert not seen.healthy or now.state is not State.FAILED
    assert [row.layer for row in seen.looked_at] == list(LAYERS[: len(seen.looked_at)])
    assert len(seen.evidence) <= MOST_EVIDENCE
    assert seen.summary()


@pytest.mark.anyio
@pytest.mark.parametrize("state", State)
async def test_no_time_at_all_is_told_as_such(state: State, tmp_path: Path) -> None:
    """What was not looked at is said; nothing is called well for it that its platform does not."""
    seen = await diagnosed(Somewhere(), deployment(state), tmp_path, seconds=0)
    assert all(row.verdict in {"skipped", "failed"} for row in seen.looked_at)
    assert seen.healthy is (state not in {State.FAILED, State.UNKNOWN, State.EXPIRED})
