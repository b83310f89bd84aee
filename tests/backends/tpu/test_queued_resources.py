"""Queued resources: read as what they are, in every zone, and what became of one."""

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest
from google.cloud.tpu_v2.types import Node, QueuedResource

from backends.google.errors import error_in
from backends.tpu import queued_resources
from backends.tpu.site import Chip, ChipState, Place, vm_id
from core.settings import GooglePlane
from tests.backends.tpu.orders import ZONE, becomes, blueprint, foreign_node, goes, request
from tests.backends.tpu.sites import fault, opened
from tests.google_plane import Controls
from tests.soon import HANGS

PATH = "projects/p/locations/us-east5-b"
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def resource(state: str = "ACTIVE", **why: Any) -> QueuedResource:
    """A request for four chips, with a node called `one`."""
    spec = {"node_id": "one", "node": {"accelerator_type": "v6e-4"}}
    return QueuedResource(
        {
            "name": f"{PATH}/queuedResources/one",
            "create_time": NOW,
            "tpu": {"node_spec": [spec]},
            "state": {"state": state, **why},
        }
    )


def node(state: str = "READY", **said: Any) -> Node:
    """Its node."""
    named = {"name": f"{PATH}/nodes/one", "create_time": NOW, "accelerator_type": "v6e-4"}
    return Node({**named, "state": state, **said})


@pytest.mark.parametrize(
    ("owner", "is_mine"),
    [
        ("", True),
        (f"{PATH}/queuedResources/one", True),
        ("projects/123/locations/us-east5-b/queuedResources/one", True),
        (f"{PATH}/queuedResources/other", False),
    ],
)
def test_a_node_belongs_to_the_request_that_it_names(owner: str, *, is_mine: bool) -> None:
    """Google may name the project by its number."""
    found = queued_resources.own_node(resource(), node(queued_resource=owner))
    assert (found is not None) is is_mine


@pytest.mark.parametrize(
    ("said", "of_node", "state"),
    [
        # ACTIVE itself says only that there was a node once; without one it loses its chip.
        ("ACTIVE", "READY", ChipState.RUNNING),
        ("ACTIVE", "REPAIRING", ChipState.RUNNING),
        ("ACTIVE", "STARTING", ChipState.PROVISIONING),
        ("ACTIVE", "STOPPED", ChipState.STOPPED),
        ("ACTIVE", "PREEMPTED", ChipState.SUSPENDED),
        ("ACTIVE", "TERMINATED", ChipState.SUSPENDED),
        ("ACTIVE", "HIDDEN", ChipState.UNKNOWN),
        ("ACTIVE", "", ChipState.STOPPING),
        ("CREATING", "", ChipState.WAITING),
        ("ACCEPTED", "", ChipState.WAITING),
        ("WAITING_FOR_RESOURCES", "", ChipState.WAITING),
        ("PROVISIONING", "", ChipState.PROVISIONING),
        ("SUSPENDING", "", ChipState.STOPPING),
        ("SUSPENDED", "", ChipState.SUSPENDED),
        ("FAILED", "", ChipState.FAILED),
        ("DELETING", "", ChipState.DELETING),
        ("STATE_UNSPECIFIED", "", ChipState.UNKNOWN),
    ],
)
def test_a_request_is_what_it_and_its_node_say(said: str, of_node: str, state: ChipState) -> None:
    """One that has no node is never said to bill; why it failed is said in Google's words."""
    error = {"failed_data": {"error": {"code": 8, "message": "No luck."}}}
    asked = resource(said, **(error if said == "FAILED" else {}))
    chip = queued_resources.chip_of(asked, node(of_node) if of_node else None)
    assert (chip.state, chip.said, chip.node_said) == (state, said, of_node)
    assert (chip.taken_by == "service") == (of_node != "" and state.leftover)
    assert (chip.given_at is None) == (of_node == "")
    assert chip.why == "No luck." or said != "FAILED"


def test_a_node_that_is_not_well_says_so_and_why() -> None:
    """It is there and bills: its state alone calls it ready."""
    ill = node(health="UNHEALTHY_TENSORFLOW", health_description="It does not answer.")
    chip = queued_resources.chip_of(resource(), ill)
    assert (chip.health, chip.why) == ("UNHEALTHY_TENSORFLOW", "It does not answer.")


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
    chip = queued_resources.bare(Node({"name": f"{PATH}/nodes/x", "create_time": NOW, **said}))
    assert (chip.accelerator, chip.chips) == (accelerator, chips)


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
    refused = error_in(httpx2.Response(status, text=body))
    assert refused.message == kind
    assert refused.code == status


pytestmark = pytest.mark.anyio
GEMMA = vm_id("gemma")
WEST = "europe-west4-a"


async def test_every_tpu_of_every_zone_is_listed_ours_and_others(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Requests with their nodes, and nodes that nobody queued for, each once."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued, made = site.planes["queued"], blueprint(site, "other")
        await queued.create(request(blueprint(site)))
        await queued.create(request(made, WEST)._replace(labels={"team": "search"}))
        await foreign_node(site, "hers")
        await becomes(queued, ChipState.RUNNING)
        await becomes(queued, ChipState.RUNNING, made.id, WEST)
        found = {(one.place.zone, one.id): one for one in await queued.list()}
        assert set(found) == {(ZONE, GEMMA), (WEST, made.id), (ZONE, "hers")}
        assert found[ZONE, GEMMA].ours
        assert found[WEST, made.id].labels == {"team": "search"}
        assert (found[WEST, made.id].ours, found[WEST, made.id].deployment) == (False, "")
        hers = found[ZONE, "hers"]
        assert (hers.ours, hers.said, hers.accelerator) == (False, "READY", "v6e-1")
        assert {one.state for one in found.values()} == {ChipState.RUNNING}


async def test_our_own_flex_start_is_known_by_its_target(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Also while v2alpha1 does not answer."""
    silent = ("GetQueuedResource", "ListQueuedResources")
    controls.set(project, faults=[fault(f"v2alpha1.Tpu/{one}", times=-1) for one in silent])
    async with opened(plane, project, "tpu-v6e-1-flex") as site:
        await site.planes["queued"].create(request(blueprint(site)))
        [chip] = await site.planes["queued"].list()
        assert chip.provisioning == "flex-start"


async def test_a_node_that_somebody_deleted_is_told(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The request is suspended then, by the user."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        await becomes(queued, ChipState.RUNNING)
        client = await site.clients.tpu()
        node = f"projects/{project}/locations/{ZONE}/nodes/{GEMMA}"
        await client.delete_node(name=node, timeout=HANGS)
        chip = await becomes(queued, ChipState.SUSPENDED)
        assert (chip.taken_by, chip.external_ip) == ("user", "")
        ended = await queued.ended(ZONE, GEMMA, since=chip.created_at)
        assert ended
        assert ended.code == "DELETED_ELSEWHERE"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (
            {"state": ChipState.SUSPENDED, "taken_by": "service", "provisioning": "spot"},
            "PREEMPTED",
        ),
        ({"state": ChipState.STOPPING, "taken_by": "service", "provisioning": "spot"}, "PREEMPTED"),
        ({"state": ChipState.SUSPENDED, "taken_by": "user"}, "DELETED_ELSEWHERE"),
        ({"state": ChipState.SUSPENDED, "taken_by": ""}, "NOT_KNOWN"),
        ({"state": ChipState.FAILED, "why": "No luck."}, "NOT_KNOWN"),
        ({"state": ChipState.STOPPED}, None),
        ({"state": ChipState.WAITING}, None),
    ],
)
def test_the_states_of_a_request_say_why_its_vm_is_gone(said: Any, code: str | None) -> None:
    chip = Chip(
        place=Place(ZONE, "queued"),
        id=GEMMA,
        said="SAID",
        accelerator="v6e-1",
        chips=1,
        created_at=NOW,
        **{"provisioning": "on-demand", **said},
    )
    ended = queued_resources.why_ended(chip)
    assert (ended.code if ended else None) == code


async def test_a_node_that_is_made_between_the_two_lists_is_told_once(
    plane: GooglePlane, project: str, controls: Controls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told as a second VM of ours, it would be deleted as one too many."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await queued.create(request(blueprint(site)))
        await becomes(queued, ChipState.RUNNING)
        monkeypatch.setattr(queued_resources, "said_of", lambda _resource: "WAITING_FOR_RESOURCES")
        (chip,) = await queued.list()
        assert (chip.id, chip.state, chip.node_said) == (GEMMA, ChipState.WAITING, "")


async def test_a_node_of_ours_that_has_lost_its_request_is_seen_and_goes(
    plane: GooglePlane, project: str
) -> None:
    """It would bill on for ever; a node of others under the same id stays."""
    ours = {"managed-by": "vllm-devops-agent", "vllm-devops-deployment": "gemma"}
    async with opened(plane, project) as site:
        queue = site.planes["queued"]
        await foreign_node(site, "vllm-devops-gemma", **ours)
        await foreign_node(site, "vllm-devops-theirs")
        seen = await queue.get(ZONE, "vllm-devops-gemma")
        assert seen is not None
        assert (seen.deployment, seen.said) == ("gemma", "READY")
        assert await queue.get(ZONE, "vllm-devops-theirs") is None
        for each in ("vllm-devops-gemma", "vllm-devops-theirs"):
            await queue.delete(ZONE, each)
        await goes(queue)
        (theirs,) = await queue.list()
        assert theirs.id == "vllm-devops-theirs"


async def test_a_node_of_somebody_elses_with_that_id_is_never_shown_as_ours(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """The request's id was free, its node's was not: it fails, and the node stays theirs."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued = site.planes["queued"]
        await foreign_node(site, GEMMA)
        await queued.create(request(blueprint(site)))
        chip = await becomes(queued, ChipState.FAILED)
        assert (chip.node_said, chip.external_ip, chip.given_at) == ("", "", None)
        shown = await queued.list()
        assert {one.ours for one in shown if one.id == GEMMA} == {True, False}
        await queued.delete(ZONE, GEMMA)
        await goes(queued)
        [left] = await queued.list()
        assert (left.ours, left.node) == (False, GEMMA)


async def test_a_node_that_another_request_has_made_is_not_shown_as_ours(
    plane: GooglePlane, project: str, controls: Controls
) -> None:
    """Ours lost its node, whose id was given anew: its address is not told for ours."""
    controls.set(project, tpu_clock=600)
    async with opened(plane, project) as site:
        queued, client = site.planes["queued"], await site.clients.tpu()
        await queued.create(request(blueprint(site)))
        await becomes(queued, ChipState.RUNNING)
        parent = f"projects/{project}/locations/{ZONE}"
        await client.delete_node(name=f"{parent}/nodes/{GEMMA}", timeout=HANGS)
        await becomes(queued, ChipState.SUSPENDED)
        asked = {"accelerator_type": "v6e-1", "runtime_version": "v2-alpha-tpuv6e"}
        spec = {"parent": parent, "node_id": GEMMA, "node": asked}
        theirs = QueuedResource({"tpu": {"node_spec": [spec]}})
        await client.create_queued_resource(
            parent=parent, queued_resource_id="theirs", queued_resource=theirs, timeout=HANGS
        )
        await becomes(queued, ChipState.RUNNING, "theirs")
        ours = await queued.get(ZONE, GEMMA)
        assert ours
        assert (ours.state, ours.node_said) == (ChipState.SUSPENDED, "")
        shown = {one.id: one.node_said for one in await queued.list()}
        assert shown == {GEMMA: "", "theirs": "READY"}
