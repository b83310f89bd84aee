"""A queued resource and its node, put together as what they are."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from google.cloud.tpu_v2.types import Node, QueuedResource

from backends.tpu import queued
from backends.tpu.planes import ChipState
from backends.tpu.queued import Flex

ZONE = "projects/p/locations/us-east5-b"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def resource(state: str = "ACTIVE", **why: Any) -> QueuedResource:
    """A request for four chips, with a node called `one`."""
    spec = {"node_id": "one", "node": {"accelerator_type": "v6e-4"}}
    return QueuedResource(
        {
            "name": f"{ZONE}/queuedResources/one",
            "create_time": NOW,
            "tpu": {"node_spec": [spec]},
            "state": {"state": state, **why},
        }
    )


def node(state: str = "READY", **said: Any) -> Node:
    """Its node."""
    named = {"name": f"{ZONE}/nodes/one", "create_time": NOW, "accelerator_type": "v6e-4"}
    return Node({**named, "state": state, **said})


@pytest.mark.parametrize(
    "owner",
    [
        "",
        f"{ZONE}/queuedResources/one",
        "projects/123/locations/us-east5-b/queuedResources/one",
    ],
)
def test_a_node_belongs_to_the_request_that_it_names(owner: str) -> None:
    """Google may name the project by its number."""
    assert queued.belongs(node(queued_resource=owner), resource())


def test_a_node_of_another_request_does_not() -> None:
    other = node(queued_resource=f"{ZONE}/queuedResources/other")
    assert not queued.belongs(other, resource())


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("READY", ChipState.RUNNING),
        ("REPAIRING", ChipState.RUNNING),
        ("STARTING", ChipState.PROVISIONING),
        ("STOPPED", ChipState.STOPPED),
        ("PREEMPTED", ChipState.SUSPENDED),
        ("TERMINATED", ChipState.SUSPENDED),
        ("HIDDEN", ChipState.UNKNOWN),
    ],
)
def test_an_active_request_is_what_its_node_is(said: str, state: ChipState) -> None:
    """ACTIVE itself says only that there was a node once."""
    chip = queued.chip_of(resource(), node(said), None)
    assert (chip.state, chip.said, chip.node_said) == (state, "ACTIVE", said)
    assert (chip.taken_by == "service") == state.leftover


def test_an_active_request_without_a_node_is_losing_its_chip() -> None:
    """It is never said to run, and never to bill."""
    chip = queued.chip_of(resource(), None, None)
    assert (chip.state, chip.given_at) == (ChipState.STOPPING, None)


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ("CREATING", ChipState.WAITING),
        ("ACCEPTED", ChipState.WAITING),
        ("WAITING_FOR_RESOURCES", ChipState.WAITING),
        ("PROVISIONING", ChipState.PROVISIONING),
        ("SUSPENDING", ChipState.STOPPING),
        ("SUSPENDED", ChipState.SUSPENDED),
        ("FAILED", ChipState.FAILED),
        ("DELETING", ChipState.DELETING),
        ("STATE_UNSPECIFIED", ChipState.UNKNOWN),
    ],
)
def test_every_state_of_a_request_has_a_word(said: str, state: ChipState) -> None:
    assert queued.chip_of(resource(said), None, None).state == state


def test_why_it_failed_is_said_in_googles_words() -> None:
    error = {"code": 8, "message": "No luck."}
    failed = resource("FAILED", failed_data={"error": error})
    assert queued.chip_of(failed, None, None).why == "No luck."


def test_flex_start_ends_when_google_says_or_else_after_its_time() -> None:
    """Without a node nothing has begun; nothing else on the queue has an end."""
    run = Flex("FLEX_START", NOW - NOW.replace(hour=10), None)
    assert run.run
    told = queued.chip_of(resource(), node(), run)
    assert (told.provisioning, told.ends_at) == ("flex-start", NOW + run.run)
    planned = run._replace(ends_at=NOW)
    assert queued.chip_of(resource(), node(), planned).ends_at == NOW
    assert queued.chip_of(resource(), None, run).ends_at is None
    assert queued.chip_of(resource(), node(), run._replace(model="STANDARD")).ends_at is None


@pytest.mark.parametrize(
    ("said", "accelerator", "chips"),
    [
        ({"accelerator_type": "v6e-8"}, "v6e-8", 8),
        ({"accelerator_config": {"type_": "V6E", "topology": "2x4"}}, "V6E 2x4", 8),
        ({}, "", 0),
    ],
)
def test_what_others_asked_for_in_another_way_is_counted(
    said: Any, accelerator: str, chips: int
) -> None:
    chip = queued.bare(Node({"name": f"{ZONE}/nodes/x", "create_time": NOW, **said}))
    assert (chip.accelerator, chip.chips) == (accelerator, chips)


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
