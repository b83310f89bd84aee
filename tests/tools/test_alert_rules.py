"""Alert rules as an agent gets them, and as a shell saves them."""

import io
import sys
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
import yaml

from server import main
from tests.conversation import Agent

_ANYIO = pytest.mark.anyio


@_ANYIO
async def test_rules_can_be_had_before_anything_runs(agent: Agent) -> None:
    """They are for every deployment that the job scrapes; how to check them is said."""
    reply = await agent.call("get_alert_rules")
    assert not reply.failed, reply
    assert reply.data["selector"] == 'job="vllm"'
    assert "promtool check rules" in reply.structured["summary"]
    assert any("keeps a GPU awake" in one for one in reply.structured["warnings"])
    assert len(yaml.safe_load(reply.data["rules"])["groups"][0]["rules"]) == 9


@_ANYIO
async def test_rules_of_one_deployment_name_it_and_scrape_its_own_page(served: Agent) -> None:
    """What the scrape configuration says is where vLLM's metrics are; no key is in it."""
    reply = await served.call("get_alert_rules", name="one")
    assert reply.data["selector"] == 'job="vllm",target="local",deployment="one"'
    for rule in yaml.safe_load(reply.data["rules"])["groups"][0]["rules"]:
        assert "Call diagnose with target=local name=one" in rule["annotations"]["runbook"]
        assert 'deployment="one"' in rule["expr"]
    (scrape,) = yaml.safe_load(reply.data["scrape_config"])["scrape_configs"]
    (static,) = scrape["static_configs"]
    assert static["labels"] == {"target": "local", "deployment": "one"}
    url = f"{scrape['scheme']}://{static['targets'][0]}{scrape['metrics_path']}"
    async with httpx2.AsyncClient(trust_env=False) as http:
        assert "vllm:kv_cache_usage_perc" in (await http.get(url)).text
    where = urlsplit(url)
    assert where.hostname == "127.0.0.1"
    command = reply.data["steps"][0]["command"]
    kept = anyio.Path(command.partition("cat ")[2].partition(" >")[0])
    key = (await kept.read_text(encoding="utf-8")).strip()
    assert key
    assert key not in str(reply.structured) + reply.text
    assert command.endswith(f"> {scrape['authorization']['credentials_file']}")


@_ANYIO
@pytest.mark.parametrize("seconds", [0, -1, 2560, "soon"])
async def test_a_threshold_that_no_histogram_reaches_is_refused(
    agent: Agent, seconds: object
) -> None:
    reply = await agent.call("get_alert_rules", ttft_seconds=seconds)
    assert reply.failed
    assert "ttft_seconds" in reply.text


@pytest.fixture
def _a_shell(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", str(state_dir))
    monkeypatch.setattr(sys, "stdin", io.StringIO())


@pytest.mark.usefixtures("_a_shell")
def test_a_shell_can_save_the_rules_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["call", "get_alert_rules", "--field=rules", "ttft_seconds=9"]) == 0
    (group,) = yaml.safe_load(capsys.readouterr().out)["groups"]
    assert group["rules"][-1]["expr"].endswith("> 9")


@pytest.mark.usefixtures("_a_shell")
@pytest.mark.parametrize("words", [["--field=nothing"], ["--field=rules", "name=nobody"]])
def test_without_the_field_nothing_is_saved_as_if_it_were_one(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """What there is instead is said on standard error, and the exit status is not 0."""
    assert main(["call", "get_alert_rules", *words]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err
