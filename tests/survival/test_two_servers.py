"""Two servers on one state folder. Each test starts two of them: two seconds."""

from functools import partial
from pathlib import Path

import anyio
import pytest

from tests.conversation import Reply
from tests.processes import lives
from tests.survival.servers import MODEL, Server, server
from tests.survival.world import assert_nothing_left, engines, facts, journal

pytestmark = pytest.mark.anyio


async def test_two_servers_at_once_never_make_two_engines(state_dir: Path) -> None:
    """Deploying and destroying one name from both, again and again, ends in one engine or none."""
    replies: list[Reply] = []

    async def ask(one: Server, tool: str, **more: object) -> None:
        replies.append(await one.about(tool, "one", **more))

    async with server(state_dir) as first, server(state_dir) as second:
        model = {"model": MODEL}
        for length in (None, 1024):  # the second round replaces what the first one made
            async with anyio.create_task_group() as tasks:
                for each, wanted in ((first, length), (second, 2048), (second, length)):
                    flags = {"max_model_len": wanted} if wanted else {}
                    tasks.start_soon(partial(ask, each, "deploy_vllm", **model, **flags))
            assert len(engines(state_dir)) == 2, "one watcher and one engine"
            assert lives(facts(state_dir, "one")["engine"])
        seen_by = [await each.call("list_deployments", detail="full") for each in (first, second)]
        assert [one["name"] for one in seen_by[0].data["deployments"]] == ["one"]
        told = [
            {key: one[key] for key in ("name", "instance", "revision", "url")}
            for reply in seen_by
            for one in reply.data["deployments"]
        ]
        assert told[0] == told[1]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, first, "destroy_vllm")
            tasks.start_soon(ask, second, "destroy_vllm")
    assert [reply.text for reply in replies if reply.failed] == []
    assert_nothing_left(state_dir)
    assert {result for _, result in journal(state_dir)} == {"ok"}
