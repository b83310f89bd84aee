"""Queued resources that are refused, and calls that get no answer."""

from typing import Any

import pytest

from backends.google import errors
from backends.tpu.site import ChipState, vm_id
from core.errors import (
    ApiDisabled,
    CloudRefused,
    CloudTimeout,
    CloudUnavailable,
    QuotaExceeded,
    ZoneRefused,
)
from core.settings import GooglePlane
from tests.backends.tpu.orders import (
    ZONE,
    becomes,
    blueprint,
    failing,
    goes,
    request,
)
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls

pytestmark = pytest.mark.anyio

GEMMA = vm_id("gemma")
CREATE = "Tpu/CreateQueuedResource"


@pytest.mark.parametrize(
    ("knobs", "zone", "error"),
    [
        ({}, "mars-north1-a", ZoneRefused),
        ({}, "us-south1-a", ZoneRefused),
        ({"tpu_quotas": {"tpu": 0}}, ZONE, QuotaExceeded),
        ({"tpu_quotas": {f"tpu@{ZONE}": 0}}, ZONE, QuotaExceeded),
    ],
    ids=["no such zone", "no such hardware", "no quota", "none in this zone"],
)
async def test_a_zone_that_does_not_give_one_says_why_at_once(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    knobs: dict[str, Any],
    zone: str,
    error: type[Exception],
) -> None:
    """Google's status is the same for several of them; its words are not."""
    controls.set(project, **knobs)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        with pytest.raises(error) as caught:
            await queued.create(request(blueprint(site), zone))
        assert zone in str(caught.value)
        assert await queued.list([ZONE]) == []


async def test_flex_start_refused_by_a_zone_is_told_by_the_operation(
    plane: GooglePlane, project: str
) -> None:
    """The call itself succeeds; some seconds later the operation says why not."""
    async with opened(plane, project, "tpu-v6e-1-flex") as site:
        queued, zone = site.planes["queued"], "us-east1-d"
        try:
            operation = await queued.create(request(blueprint(site), zone))
        except ZoneRefused as exc:
            refused: Any = exc
        else:
            refused = (await failing(queued, operation, zone)).error
        assert isinstance(refused, ZoneRefused)
        assert "FLEX_START" in refused.cause


async def test_no_answer_is_no_failure_where_it_was_made(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Google made it and its answer was lost: it is found, and there is one."""
    controls.set(project, faults=[fault(CREATE, when="after")])
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        assert await queued.create(request(blueprint(site))) == ""
        assert [one.id for one in await queued.list([ZONE])] == [GEMMA]


async def test_no_answer_is_a_failure_where_nothing_was_made(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    controls.set(project, faults=[fault(CREATE)])
    async with opened(plane, project) as site:
        with pytest.raises(CloudUnavailable):
            await site.planes["queued"].create(request(blueprint(site)))
        assert await site.planes["queued"].list([ZONE]) == []


@pytest.mark.parametrize("target", ["tpu-v6e-1", "tpu-v6e-1-flex"])
async def test_a_call_that_hangs_ends_and_says_so(
    plane: GooglePlane,
    project: str,
    controls: Controls,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
) -> None:
    """With either way of asking."""
    monkeypatch.setattr(errors, "WRITE_SECONDS", 0.3)
    monkeypatch.setattr("backends.tpu.queued.WRITE_SECONDS", 0.3)
    controls.set(project, faults=[fault(CREATE, when="hang")])
    async with opened(plane, project, target) as site:
        with pytest.raises(CloudTimeout):
            await site.planes["queued"].create(request(blueprint(site)))


async def test_an_api_that_is_off_is_named(
    plane: GooglePlane, bare_project: str, controls: Controls
) -> None:
    """By gRPC and by REST alike."""
    for target in ("tpu-v6e-1", "tpu-v6e-1-flex"):
        async with opened(plane, bare_project, target) as site:
            with pytest.raises(ApiDisabled):
                await site.planes["queued"].create(request(blueprint(site)))


async def test_a_request_that_cannot_be_keeps_googles_words(
    plane: GooglePlane, project: str
) -> None:
    """What is no zone's fault is none of a zone's refusals."""
    async with opened(plane, project) as site:
        with pytest.raises(CloudRefused) as caught:
            await site.planes["queued"].create(request(blueprint(site, runtime_version="v1-none")))
        assert "v1-none" in caught.value.cause


async def test_a_delete_that_was_taken_without_an_answer_is_no_failure(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        await becomes(queued, ChipState.RUNNING)
        controls.set(project, faults=[fault("DeleteQueuedResource", when="after")])
        await queued.delete(ZONE, GEMMA)
        controls.set(project, tpu_clock=600)
        await goes(queued)


async def test_a_delete_that_was_not_taken_is_a_failure(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        controls.set(project, faults=[fault("DeleteQueuedResource")])
        with pytest.raises(CloudUnavailable):
            await queued.delete(ZONE, GEMMA)
