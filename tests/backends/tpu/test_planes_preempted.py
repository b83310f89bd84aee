"""A chip that Google takes back, on both control planes; and calls that lead nowhere."""

from datetime import UTC, datetime

import httpx2
import pytest

from backends.tpu import queued
from backends.tpu.site import ChipState, PlaneKind, vm_id
from core.settings import GooglePlane
from core.waiting import wait_until
from tests.backends.tpu.orders import ZONE, becomes, blueprint, failing, request
from tests.backends.tpu.sites import opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

GEMMA = vm_id("gemma")


@pytest.mark.parametrize("kind", ["queued", "compute"])
async def test_a_preempted_one_is_told_as_such(
    plane: GooglePlane, project: str, controls: Controls, kind: PlaneKind
) -> None:
    """On the queue a leftover is left that says so; of an instance only an operation tells."""
    async with opened(plane, project, "tpu-v6e-1-spot") as site:
        chosen = site.planes[kind]
        await chosen.create(request(blueprint(site)))
        chip = await becomes(chosen, ChipState.RUNNING)
        controls.preempt(project, kind, ZONE, GEMMA)
        ended = await wait_until(
            lambda: chosen.ended(ZONE, GEMMA, since=chip.created_at),
            lambda seen: seen is not None,
            waiting_for="the end to be told",
            every=0.05,
            timeout=20,
        )
        assert ended
        assert ended.code == "PREEMPTED"
        if kind == "queued":
            leftover = await becomes(chosen, ChipState.SUSPENDED)
            assert (leftover.taken_by, leftover.external_ip) == ("service", "")
        else:
            assert ended.at
            assert ended.at >= chip.created_at


@pytest.mark.parametrize("kind", ["queued", "compute"])
async def test_an_operation_that_google_has_forgotten_says_nothing(
    plane: GooglePlane, project: str, kind: PlaneKind
) -> None:
    """It is over, and is no reason against anything."""
    async with opened(plane, project) as site:
        chosen = site.planes[kind]
        name = "operation-1-2-3-4"
        full = (
            name if kind == "compute" else f"projects/{project}/locations/{ZONE}/operations/{name}"
        )
        assert await chosen.refusal(ZONE, full) is None
        assert await chosen.refusal(ZONE, "") is None
        assert (await failing(chosen, full)).error is None


def test_the_words_of_v2alpha1_are_read() -> None:
    """Durations as seconds, times in UTC; what is not said is not known."""
    said = {
        "provisioningModel": "FLEX_START",
        "runDuration": {
            "maxRunDuration": "14400s",
            "terminationTime": "2026-11-21T12:00:00.5Z",
        },
    }
    read = queued.parse_flex(said)
    assert read.run
    assert read.run.total_seconds() == 14400
    assert read.ends_at == datetime(2026, 11, 21, 12, 0, 0, 500000, tzinfo=UTC)
    assert queued.parse_flex({}) == queued.Flex("", None, None)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, '{"error":{"code":400,"status":"FAILED_PRECONDITION","message":"No."}}', "No."),
        (404, '{"error":{"code":404,"status":"NOT_FOUND","message":"Gone."}}', "Gone."),
        (502, "<html>Bad gateway</html>", "<html>Bad gateway</html>"),
        (500, '{"error":"odd"}', '{"error":"odd"}'),
        (500, "[]", "[]"),
    ],
)
def test_a_refusal_of_v2alpha1_is_raised_as_the_sdk_would(
    status: int, body: str, kind: str
) -> None:
    """Also where a proxy answers in Google's place."""
    refused = queued.flex_error(httpx2.Response(status, text=body))
    assert refused.message == kind
    assert refused.code == status
