"""What stories of chips share: what may not be left of one, and everything that was told."""

import re
from collections.abc import Sequence
from typing import Any, Final

import anyio

from backends.tpu.site import ChipState, PlaneKind, Request
from tests.backends.tpu.planned import drawn
from tests.backends.tpu.planted import rule_of_others
from tests.backends.tpu.sites import opened
from tests.conversation import SETTLED, Reply
from tests.soon import HANGS, soon
from tests.stories.conftest import Cloud
from tests.stories.life import Life

HERE: Final = "us-east5-b"
KINDS: Final[tuple[PlaneKind, ...]] = ("queued", "compute")
_READS: Final = re.compile(r"(?i)(get|batchget|list|aggregatedlist|test|access|query|search)[a-z]*")
"""Such methods of Google's change nothing."""


def left(cloud: Cloud) -> list[str]:
    """Name what is there of TPUs, whoever made it."""
    seen = cloud.controls.get(cloud.project)
    kinds = ("tpus", "nodes", "vms", "firewalls", "secrets", "queued_resources")
    return [f"{kind}: {what}" for kind in kinds for what in seen[kind]]


def calls(cloud: Cloud, *, since: int = 0) -> list[str]:
    """Name the methods that were called, but for so many of the first."""
    called: list[str] = cloud.controls.get(cloud.project)["calls"]
    return called[since:]


def changes(called: Sequence[str]) -> list[str]:
    """Give those of some methods that change something."""
    return [one for one in called if not _READS.fullmatch(re.split(r"[./]", one)[-1])]


async def watched(life: Life) -> tuple[Reply, list[str]]:
    """Watch it until its state stays; with everything that was said on the way."""
    told: list[str] = []
    with anyio.fail_after(HANGS):
        while True:
            reply = await life.call("status_vllm", wait_s=2)
            told += [reply.structured["summary"], *reply.structured["warnings"], *_words(reply)]
            if reply.state in SETTLED:
                return reply, told


def _words(reply: Reply) -> list[str]:
    data: dict[str, Any] = reply.data
    return [str(data.get("phase")), str(data.get("resources"))]


async def planted_by_others(cloud: Cloud, *, look: bool = False) -> Sequence[str]:
    """Let somebody else have a chip by either control plane, and a rule; give how they stand."""
    async with opened(cloud.controls.plane, cloud.project) as site:
        if not look:
            for kind in KINDS:
                made = drawn(site, zones=(HERE,), control_plane=kind)
                made = made.model_copy(update={"id": f"theirs-{kind}"})
                await site.planes[kind].create(Request(made, HERE, "", {"team": "theirs"}))
            await rule_of_others(site, targetTags=["theirs"])

        async def stand() -> Sequence[str]:
            found = [chip for kind in KINDS for chip in await site.planes[kind].list()]
            theirs = [chip.model_dump_json() for chip in found if not chip.ours]
            running = [chip for chip in found if chip.state is ChipState.RUNNING and not chip.ours]
            rules = [
                one for one in cloud.controls.get(cloud.project)["firewalls"] if "theirs" in one
            ]
            return (*theirs, *rules) if len(running) == len(KINDS) else ()

        return await soon(stand, waiting_for="chips of others")
