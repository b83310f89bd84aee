"""What Container Apps says of a failure, among thousands of lines that say nothing."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tests.conversation import agent_of
from tests.logs.failures import Seen
from tests.stories.conftest import Azure
from tests.stories.noise import (
    LINES,
    Said,
    age_of,
    noise,
    platform_noise,
    remarked,
    seen_of,
    told,
)
from tests.stories.troubles import ONE, becomes, deploys, trouble

__all__ = ["trouble"]

pytestmark = pytest.mark.anyio

CAUSES: Final = seen_of("aca", "cause")
OTHERS: Final = seen_of("aca", "result", "warning")
EACH: Final = 6
"""Of the causes one of so many: `tests/logs` asks all of them. Ten seconds each."""
_EVENT: Final = re.compile(r"([A-Z]\w*[a-z]\w*): (.*)")


def says(azure: Azure, lines: Sequence[Said], **more: Any) -> None:
    azure.controls.say(azure.subscription, ONE["name"], lines, **more)


def event(azure: Azure, seen: Seen, at: float, *, without: str = "") -> str:
    """Let Azure say a line; gives the words beside its reason."""
    reason, text = match.groups() if (match := _EVENT.fullmatch(seen.line)) else ("", seen.line)
    says(azure, [(at, text)], table="system", reason=reason, without=without)
    return text


async def test_a_cause_that_azure_tells_is_recognized_in_a_noisy_log(trouble: Azure) -> None:
    """Its probe failed, and an event among all the lines says why."""
    trouble.set(rollout="probe-fails", probe_scale=0.0005)
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        failed = await becomes(agent, "failed")
        trouble.set(probe_scale=1.0)  # it starts again and again, from now on slowly
        lines, text = list(noise(lasts=age_of(failed))), ""
        assert len(lines) == LINES
        says(trouble, lines)
        for seen in CAUSES[::EACH]:
            text = event(trouble, seen, datetime.now(UTC).timestamp(), without=text)
            data = told(await agent.call("diagnose", **ONE))
            assert (data["code"], data["healthy"]) == (seen.code, False), (
                seen,
                data["cause"],
                data,
            )
            assert seen.words in data["cause"], (seen, data)
            assert text in data["evidence"][0]["text"], (seen, data)


async def test_what_azure_told_of_one_that_is_well_now_is_only_remarked(trouble: Azure) -> None:
    """Without such events nothing is remarked of all those lines; with them each is, once."""
    async with agent_of(trouble.settings) as agent:
        await deploys(agent)
        ready = await becomes(agent, "ready")
        lines = list(noise(lasts=age_of(ready)))
        says(trouble, lines)
        says(trouble, list(platform_noise("aca", 500, lasts=age_of(ready))), table="system")
        assert remarked(await agent.call("diagnose", **ONE)) == set()
        codes = list(dict.fromkeys(one.code for one in OTHERS))[:8]  # so many are remarked at most
        for seen in OTHERS:
            if seen.code in codes:
                event(trouble, seen, lines[LINES // 2][0])
        assert remarked(await agent.call("diagnose", **ONE)) == set(codes)
