"""Any tool with any arguments: the answer is in our words, within its bounds and in time."""

from collections.abc import Iterator
from typing import Any, Final

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from benchmark import report
from benchmark.folder import RunFolder
from core.records import State
from core.settings import Settings
from operations import measurement
from tests.conversation import Agent, Reply, agent_of
from tests.tools.calls import CLOUD, EVERY, MODEL, OLD
from tests.tools.recorded import Kept, every_cloud
from tests.tools.sentinels import OURS, leaked, talker
from tests.tools.world import assert_envelope, assert_same_facts, hurry, plant_runs
from tests.webserver import listening
from tools.gate import LONGEST_SECONDS
from tools.surface import TOOLS


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="module")
def cheap(portal: BlockingPortal, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A server of every cloud, on which nothing that is asked for costs or starts anything."""
    state_dir = tmp_path_factory.mktemp("cheap") / "state"
    with (
        pytest.MonkeyPatch.context() as patch,
        portal.wrap_async_context_manager(listening(talker())) as url,
    ):
        patch.setitem(Settings.model_config, "env_file", None)
        patch.setattr(report, "write_all", _write_nothing)
        patch.setattr(measurement, "_launch", _launch_nothing)
        hurry(patch)
        _fill(every_cloud(patch, url))
        plant_runs(state_dir, "rehearsal")
        settings = Settings(
            vllm_devops_state_dir=state_dir,
            rehearsal=True,  # so that the Hub is not asked about tokens
            toolsets=("all",),
            confirm="token",
            **OURS,
        )
        with portal.wrap_async_context_manager(agent_of(settings)) as agent:
            agent.betrayed = True
            yield agent


def _fill(kept: Kept) -> None:
    kept.put("local", State.READY)
    kept.put("cloud-run-l4", State.ASLEEP, "sleeper")
    kept.put("aca-a100", State.STOPPED, "azure")
    kept.put("tpu-v6e-1", State.FAILED, "chip")
    kept.leftover()


async def _launch_nothing(folder: RunFolder, *_rest: object) -> None:
    assert folder.path.is_dir()


def _write_nothing(folder: RunFolder) -> None:
    assert folder.path.is_dir()


JUNK: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=60),
    st.sampled_from(["one", "sleeper", "chip", "vllm-devops-leftover", "gone", MODEL, True, 1]),
    st.sampled_from(["local", "cloud-run-l4", "aca-a100", "tpu-v6e-1", "create", "delete"]),
    st.sampled_from(["one", "local", "../one", "/", "~", "-x", "\x00", "", " ", "0", "[]", "{}"]),
    st.lists(st.text(max_size=8), max_size=3),
    st.dictionaries(st.text(max_size=8), st.integers(), max_size=2),
)


RIGHT: Final = {**EVERY, **CLOUD, **OLD}


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Any tool, with any of its parameters said in any way, and sometimes one too many."""
    tool = draw(st.sampled_from(sorted(TOOLS)))
    known = TOOLS[tool].parameters
    said = {name: draw(JUNK) for name in known if draw(st.booleans())}
    right = {name: value for name, value in RIGHT[tool].items() if draw(st.booleans())}
    more = {draw(st.text(max_size=8)): draw(JUNK)} if draw(st.integers(0, 9)) == 0 else {}
    return tool, {**said, **right, **more}


@given(call=calls())
@example(call=("deploy_vllm", {"model": "--api-key=mine"}))
@example(call=("deploy_vllm", {"model": "a\x00b"}))
@example(call=("deploy_vllm", {"model": "a/b", "engine_args": ["\x00"]}))
@example(call=("deploy_vllm", {"model": "~nobody/x"}))
@example(call=("deploy_vllm", {"model": "/" + "x" * 300}))
@example(call=("deploy_vllm", {"model": "a/b", "max_model_len": None}))
@example(call=("get_help", {"topic": "\ud800"}))
@hypothesis_settings(max_examples=250, deadline=None, derandomize=True)
def test_any_arguments_get_an_answer_in_our_words(
    call: tuple[str, dict[str, Any]], portal: BlockingPortal, cheap: Agent
) -> None:
    """No traceback, no secret, no answer over the bound, none after the time, both halves the same.

    Some ten seconds: the only way to know is to try many.
    """
    tool, arguments = call

    async def asked() -> Reply:
        with anyio.fail_after(LONGEST_SECONDS + 1):
            return await cheap.call(tool, **arguments)

    reply: Reply = portal.call(asked)
    assert reply.code != "INTERNAL_ERROR", (call, reply)
    assert leaked(reply) == [], (call, reply)
    assert_envelope(reply)
    assert_same_facts(reply)
