"""Agents that are asked questions on the rehearsal stage: clouds to deploy on, and words to ask."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from core.settings import Settings
from tests.conversation import Reply, agent_of
from tests.questions.typed import Asking
from tests.stories.conftest import Cloud, bare_azure, bare_cloud, cloud, ready_azure

__all__ = ["bare_azure", "bare_cloud", "cloud", "ready_azure"]

Ask = Callable[[str], Asking]
Change = Callable[[str], Awaitable[Reply]]


@pytest.fixture
def asked(settings: Settings) -> Callable[..., AbstractAsyncContextManager[Ask]]:
    """Open an agent; each of the words that it is asked must be answered by a right tool."""

    @asynccontextmanager
    async def opened(own: Settings | None = None) -> AsyncIterator[Ask]:
        questions: list[Asking] = []
        async with agent_of(own or settings.model_copy(update={"rehearsal": True})) as agent:

            def ask(words: str) -> Asking:
                questions.append(Asking(agent, words))
                return questions[-1]

            yield ask
        assert questions
        asking = [one for one in questions if one.called]
        assert all(one.is_well_chosen() for one in asking), [one.called for one in asking]

    return opened


@pytest.fixture
def changing(
    asked: Callable[..., AbstractAsyncContextManager[Ask]], cloud: Cloud
) -> Callable[[], AbstractAsyncContextManager[Change]]:
    """Run 12B on an L4, and ask what single changes of it would do."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Change]:
        async with asked(cloud.settings) as ask:
            agent = ask("what do these changes do").agent
            wish = {"model": "12b qat", "max_model_len": 16384, "name": "one"}
            deployed = await agent.call("deploy_vllm", target="cloud-run-l4", **wish)
            assert not deployed.failed, deployed
            await agent.settled("one", target="cloud-run-l4")

            async def change(flag: str) -> Reply:
                return await ask("what do these changes do").call(
                    "explain_deployment", flags=[flag]
                )

            yield change

    return opened
