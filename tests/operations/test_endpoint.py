"""An endpoint of the owner's own: VLLM_BASE_URL."""

from functools import partial
from pathlib import Path
from typing import Final

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from core.settings import Settings
from tests.conversation import agent_of
from tests.simulators.conftest import Simulate, simulate, tiny_model
from tests.tools.calls import CHANGING, EVERY, KEEPING, LOOKING
from tests.tools.world import agent_at, assert_envelope
from tests.webserver import listening

__all__ = ["simulate", "tiny_model"]

pytestmark = pytest.mark.anyio

ASKING: Final = ("query_gemma4", "get_metrics", "get_model_details")


async def page(_request: Request) -> Response:
    return HTMLResponse("<html>Welcome to nginx!</html>")


HTML: Final = Starlette(routes=[Route("/{path:path}", page, methods=["GET", "POST"])])


async def test_details_of_a_model_need_no_metrics(simulate: Simulate, state_dir: Path) -> None:
    """Of another engine, or behind a gateway, the call was refused with "404" and no more."""
    async with simulate() as engine:
        paths = [
            Route("/metrics", lambda _request: PlainTextResponse("no", 404)),
            Mount("/", engine.app),
        ]
        async with listening(Starlette(routes=paths)) as url, agent_at(url, state_dir) as agent:
            details = await agent.call("get_model_details")
    assert details.data["served_model_name"] == "tiny"
    assert any("no /metrics" in warning for warning in details.structured["warnings"])


async def test_it_is_the_default_of_looking_and_asking(simulate: Simulate, state_dir: Path) -> None:
    """Status, query, health, metrics and details mean it."""
    async with (
        simulate("--api-key", "right") as engine,
        engine.on_a_port() as url,
        agent_at(url, state_dir, "right") as agent,
    ):
        assert (await agent.call("status_vllm")).state == "ready"
        query = await agent.call("query_gemma4", prompt="Hello", max_tokens=4)
        assert query.data["target"] == "endpoint"
        assert (await agent.call("verify_model_health")).data["healthy"] is True
        assert (await agent.call("get_metrics")).data["metrics"]["requests_running"] == 0
        details = await agent.call("get_model_details")
        assert details.data["served_model_name"] == "tiny"
        assert ", weights not known, KV cache auto, " in details.structured["summary"]
        listed = await agent.call("list_deployments")
        assert listed.structured["summary"].endswith("and 1 whose price is not known.")
        assert "last asked from here" in (await agent.call("status_vllm")).structured["summary"]


async def test_one_of_several_models_is_asked_by_its_name(
    simulate: Simulate, state_dir: Path
) -> None:
    """An adapter or an alias; without a name the first is meant, and another is refused."""
    async with (
        simulate("--served-model-name", "base", "adapter") as engine,
        engine.on_a_port() as url,
        agent_at(url, state_dir) as agent,
    ):
        cold = '{"temperature": 0}'
        ask = partial(agent.call, "query_vllm", prompt="Hello", extra=cold, max_tokens=4)
        assert (await ask()).data["model"] == "base"
        assert (await ask(model="adapter")).data["model"] == "adapter"
        refused = await ask(model="nobody")
        assert refused.code == "MODEL_NOT_SERVED"
        assert 'such as "base", "adapter".' in refused.structured["fix"]
        assert "nobody" in refused.structured["cause"]


async def test_its_url_may_be_written_in_any_way(simulate: Simulate, state_dir: Path) -> None:
    """With or without a slash, with or without /v1, as people copy it from elsewhere."""
    async with simulate() as engine, engine.on_a_port() as url:
        for suffix in ("/", "/v1", "/v1/"):
            async with agent_at(url + suffix, state_dir) as agent:
                assert (await agent.call("status_vllm")).data["url"] == url


async def test_it_is_listed_as_a_target_of_its_own(state_dir: Path) -> None:
    """First, before the places where something could be made."""
    async with agent_at("http://127.0.0.1:9", state_dir) as agent:
        rows = (await agent.call("list_targets")).data["targets"]
    assert [row["name"] for row in rows][:2] == ["endpoint", "local"]


@pytest.mark.parametrize("tool", CHANGING)
async def test_it_is_never_changed_and_nobody_is_asked_to(tool: str, state_dir: Path) -> None:
    settings = Settings(
        vllm_base_url="http://127.0.0.1:9", vllm_devops_state_dir=state_dir, engine="simulated"
    )
    async with agent_of(settings, human=lambda _question: "accept") as agent:
        arguments = {**CHANGING[tool], "target": "endpoint"}
        reply = await agent.call(tool, **arguments)
        assert reply.code == "UNSUPPORTED"
        assert_envelope(reply)
        assert agent.asked == []


async def test_the_owners_target_may_be_the_endpoint(state_dir: Path) -> None:
    """VLLM_TARGET=endpoint keeps a deployment from being made by mistake."""
    async with agent_at("http://127.0.0.1:9", state_dir, vllm_target="endpoint") as agent:
        for tool, arguments in CHANGING.items():
            assert (await agent.call(tool, **arguments)).code == "UNSUPPORTED", tool


@pytest.mark.parametrize("tool", ["get_logs", "get_vllm_deployment_config"])
async def test_what_it_cannot_tell_is_said_kindly(tool: str, state_dir: Path) -> None:
    async with agent_at("http://127.0.0.1:9", state_dir) as agent:
        assert (await agent.call(tool)).code == "UNSUPPORTED"


@pytest.mark.parametrize("key", ["wrong", None])
async def test_a_wrong_key_is_told_as_one(
    key: str | None, simulate: Simulate, state_dir: Path
) -> None:
    """The code is UNAUTHORIZED, the fix names the setting, and trying again is no use."""
    async with (
        simulate("--api-key", "right") as engine,
        engine.on_a_port() as url,
        agent_at(url, state_dir, key) as agent,
    ):
        for tool in ASKING:
            reply = await agent.call(tool, **LOOKING[tool])
            assert reply.code == "UNAUTHORIZED"
            assert reply.structured["retryable"] is False
            assert "VLLM_API_KEY" in reply.structured["fix"]
        status = await agent.call("status_vllm")
        assert (status.state, status.data["failure"]["code"]) == ("unknown", "UNAUTHORIZED")
        health = await agent.call("verify_model_health")
        assert (health.data["healthy"], health.data["layer"]) == (False, "model")


@pytest.mark.parametrize("tool", ASKING)
async def test_silence_is_told_as_such(tool: str, state_dir: Path) -> None:
    """Where nothing listens, every tool that asks says so."""
    async with agent_at("http://127.0.0.1:9", state_dir) as agent:
        reply = await agent.call(tool, **LOOKING[tool])
        assert reply.code == "ENDPOINT_UNREACHABLE"
        assert reply.structured["retryable"] is True
        assert (await agent.call("verify_model_health")).data["layer"] == "server"


@pytest.mark.parametrize("tool", ASKING)
async def test_a_server_that_is_no_engine_is_told_as_such(tool: str, state_dir: Path) -> None:
    async with listening(HTML) as url, agent_at(url, state_dir) as agent:
        assert (await agent.call(tool, **LOOKING[tool])).code == "BAD_REPLY"
        status = await agent.call("status_vllm")
        assert status.data["failure"]["code"] == "BAD_REPLY"
        assert (await agent.call("verify_model_health")).data["healthy"] is False


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://127.0.0.1:port", "nonsense", "ftp://127.0.0.1/", "http://", "://"],
)
async def test_an_address_that_is_none_is_a_coded_error(url: str, state_dir: Path) -> None:
    """Every tool answers; the ones that need the address say that it is none."""
    async with agent_at(url, state_dir) as agent:
        for tool in EVERY.keys() - KEEPING.keys():
            arguments = EVERY[tool]
            reply = await agent.call(
                tool, **{**arguments, **({"model": "-"} if tool == "deploy_vllm" else {})}
            )
            assert reply.code != "INTERNAL_ERROR", (tool, reply)
            assert_envelope(reply)
        status = await agent.call("status_vllm")
        assert status.data["failure"]["code"] == "ENDPOINT_UNREACHABLE"


@pytest.mark.parametrize(
    ("fail", "code"), [("bad-json", "BAD_REPLY"), ("broken-stream", "BROKEN_STREAM")]
)
async def test_an_engine_that_answers_no_json_or_half_of_it_is_told_as_such(
    fail: str, code: str, simulate: Simulate, state_dir: Path
) -> None:
    async with (
        simulate(fail=fail) as engine,
        engine.on_a_port() as url,
        agent_at(url, state_dir) as agent,
    ):
        status = await agent.call("status_vllm")
        assert status.data["failure"]["code"] == code
        assert "Nothing answers" not in status.text
        assert (await agent.call("query_gemma4", prompt="Hello")).code == code


async def test_an_endpoint_that_makes_embeddings_alone_is_ready(state_dir: Path) -> None:
    """vLLM has no route for completions then: the model has answered once it embeds."""
    async with listening(_engine(embeds=True)) as url, agent_at(url, state_dir) as agent:
        assert (await agent.call("status_vllm")).state == "ready"
        health = await agent.call("verify_model_health")
        assert (health.data["healthy"], health.data["answer"]) == (
            True,
            "an embedding of 2 numbers",
        )
        assert (await agent.call("diagnose")).data["healthy"] is True
        asked = await agent.call("query_gemma4", prompt="Hello")
        assert (asked.code, asked.structured["retryable"]) == ("REQUEST_REFUSED", False)


@pytest.mark.parametrize(
    ("status", "code"), [(404, "REQUEST_REFUSED"), (501, "REQUEST_REFUSED"), (500, "NOT_READY")]
)
async def test_what_refuses_to_answer_is_not_waited_for_and_has_no_log_here(
    status: int, code: str, state_dir: Path
) -> None:
    """Each call that an answer offers can be made; a refusal is no matter of time."""
    async with listening(_engine(status)) as url, agent_at(url, state_dir) as agent:
        for tool in ("verify_model_health", "diagnose", "get_system_status", "status_vllm"):
            told = await agent.call(tool)
            assert not told.failed, told
            for step in told.structured["next"]:
                assert not (await agent.call(step["tool"], **step["arguments"])).failed, step
            assert "get_logs" not in told.text.replace("(get_logs, if it was", ""), told
        asked = await agent.call("query_gemma4", prompt="Hello")
        assert (asked.code, asked.structured["retryable"]) == (code, status == 500)


async def test_to_stop_all_never_means_an_endpoint_of_ones_own(
    simulate: Simulate, state_dir: Path
) -> None:
    """Nobody is asked to stop it, and no call is offered that would remove it."""
    async with (
        simulate() as engine,
        engine.on_a_port() as url,
        agent_at(url, state_dir, confirm="never") as agent,
    ):
        stopped = await agent.call("stop_vllm", all=True)
        assert not stopped.failed
        assert stopped.data["deployments"] == []
        assert [step["tool"] for step in stopped.structured["next"]] == ["list_deployments"]


def _engine(refuses: int = 404, *, embeds: bool = False) -> Starlette:
    """Completes nothing, and says why with a status; it may make embeddings."""

    async def refused(_request: Request) -> Response:
        return JSONResponse({"detail": "Not Found"}, status_code=refuses)

    async def models(_request: Request) -> Response:
        return JSONResponse({"data": [{"id": "tiny"}]})

    async def embedding(request: Request) -> Response:
        made = {"data": [{"embedding": [0.1, 0.2]}]}
        return JSONResponse(made) if embeds else await refused(request)

    async def healthy(_request: Request) -> Response:
        return PlainTextResponse("")

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/health", healthy),
            Route("/v1/embeddings", embedding, methods=["POST"]),
            Route("/{path:path}", refused, methods=["GET", "POST"]),
        ]
    )


async def test_a_stream_that_breaks_keeps_what_had_come(
    simulate: Simulate, state_dir: Path
) -> None:
    """The error carries the half of an answer, and asking again may help."""
    async with simulate(fail="broken-stream", reply="Gemma is a gem") as engine:
        front = _healthy_once(engine.app)
        async with listening(front) as url, agent_at(url, state_dir) as agent:
            assert (await agent.call("status_vllm")).state == "ready"
            reply = await agent.call("query_gemma4", prompt="Hello")
    assert reply.code == "BROKEN_STREAM"
    assert reply.structured["retryable"] is True
    assert reply.data["answer_so_far"]
    assert "Gemma is a gem".startswith(reply.data["answer_so_far"])
    assert_envelope(reply)


def _healthy_once(app: ASGIApp) -> Starlette:
    """Lists the model and says one token by itself; all else is the engine's."""

    async def models(_request: Request) -> Response:
        return PlainTextResponse('{"data": [{"id": "tiny"}]}', media_type="application/json")

    async def one_token(_request: Request) -> Response:
        return PlainTextResponse('{"choices": [{"text": "!"}]}', media_type="application/json")

    async def version(_request: Request) -> Response:
        return PlainTextResponse('{"version": "0.32.0"}', media_type="application/json")

    return Starlette(
        routes=[
            Route("/v1/models", models),
            Route("/version", version),
            Route("/v1/completions", one_token, methods=["POST"]),
            Mount("/", app),
        ]
    )


async def test_its_key_is_in_no_answer(simulate: Simulate, state_dir: Path) -> None:
    """Not even in the curl line, which reads it from the caller's own environment."""
    sentinel = "sentinel-key-of-the-owner"
    async with (
        simulate("--api-key", sentinel) as engine,
        engine.on_a_port() as url,
        agent_at(url, state_dir, sentinel) as agent,
    ):
        for tool, arguments in LOOKING.items():
            reply = await agent.call(tool, **arguments)
            assert sentinel not in reply.text + str(reply.structured), tool
        curl = (await agent.call("get_endpoint")).data["curl"]
    assert "$VLLM_API_KEY" in curl
