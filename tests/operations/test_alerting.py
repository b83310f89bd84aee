"""Alert rules: that Prometheus can read them, and that vLLM exports what they look at."""

import re
import shutil
import tomllib
from pathlib import Path
from typing import Any, Final

import anyio
import promql_parser
import pytest
import yaml
from pydantic import SecretStr

from core.address import IDENTITY_HEADER, KEY_HEADER
from core.environment import ROOT
from core.errors import InvalidArgument
from core.records import Access
from core.settings import Settings
from operations import manifests
from operations.manifests import AlertRules
from operations.runtime import Runtime
from tools import profile  # noqa: F401  registers the tools
from tools.surface import TOOLS

pytestmark = pytest.mark.anyio

PROMTOOL: Final = tuple(filter(None, (shutil.which("promtool"),)))
SERIES: Final = ROOT / "tests" / "data" / "alert_rules_test.yml"
EXPORTED: Final = {
    row["name"]: {*row["labels"], *(("le",) if row["kind"] == "histogram" else ())}
    for row in tomllib.loads((ROOT / "simulators/engine/metrics.toml").read_text())["families"]
}
"""Families with their labels, which are compared with a real vLLM's in another test."""


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    """Of a server that has deployed nothing."""
    return Runtime(Settings(vllm_devops_state_dir=tmp_path), frozenset())


async def made(runtime: Runtime, **asked: Any) -> AlertRules:
    return await manifests.alert_rules(runtime, None, None, **asked)


async def rows(runtime: Runtime, **asked: Any) -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((await made(runtime, **asked)).rules)["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


@pytest.mark.parametrize("selector", [None, 'job="vllm"', 'job=~"a|b", instance!="x:1"'])
async def test_every_expression_is_one(runtime: Runtime, selector: str | None) -> None:
    """A parser of Prometheus' language reads them, whatever series they are for."""
    for row in await rows(runtime, selector=selector):
        assert isinstance(promql_parser.parse(row["expr"]), promql_parser.Expr)
        assert "SELECTOR" not in row["expr"]
        assert "TTFT_SECONDS" not in str(row)


async def test_vllm_exports_every_metric_and_label_that_a_rule_names(runtime: Runtime) -> None:
    """One that it does not export would never fire; all but Prometheus' own `up` are vLLM's."""
    seen = set()
    for row in await rows(runtime):
        for name, matchers in re.findall(r"([a-z_:]+)\{([^}]*)\}", row["expr"]):
            family = re.sub("_(total|bucket)$", "", name)
            seen.add(family)
            own = set(re.findall(r"(\w+)=", matchers)) - {"job"}
            assert own <= EXPORTED.get(family, set()), (family, own)
        for names in re.findall(r"without \(([^)]*)\)", row["expr"]):
            labels = EXPORTED[re.sub("_(total|bucket)$", "", _metric(row["expr"]))]
            assert set(names.split(", ")) <= labels
    assert seen - set(EXPORTED) == {"up"}


def _metric(expr: str) -> str:
    found = re.search(r"(?:vllm:|http_)\w+", expr)
    assert found
    return found.group()


async def test_every_rule_names_tools_that_there_are(runtime: Runtime) -> None:
    """Of a tool that is not there nobody would learn anything at night."""
    for row in await rows(runtime):
        named = set(re.findall(r"[a-z]+(?:_[a-z]+)+|diagnose", row["annotations"]["runbook"]))
        assert "diagnose" in named
        assert named <= set(TOOLS)


async def test_the_threshold_of_the_first_token_is_what_was_asked_for(runtime: Runtime) -> None:
    row = (await rows(runtime, ttft_seconds=0.75))[-1]
    assert row["expr"].endswith("> 0.75")
    assert "0.75 s" in row["annotations"]["description"]


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ('{job="a"}', 'job="a"'),
        (' job = "a" , pod=~"gpu-.*" ', 'job="a",pod=~"gpu-.*"'),
        (r'job="a \"quoted\" \\ one"', r'job="a \"quoted\" \\ one"'),
        ('job="} or vector(1)"', 'job="} or vector(1)"'),
    ],
)
async def test_a_selector_is_what_prometheus_calls_one(
    runtime: Runtime, given: str, used: str
) -> None:
    found = await made(runtime, selector=given)
    assert found.selector == used
    for row in await rows(runtime, selector=given):
        assert used in row["expr"]
        promql_parser.parse(row["expr"])


@pytest.mark.parametrize(
    "given",
    [
        "vllm",
        'job="a"} or vector(1) or up{job="a"',
        'job="a" or job="b"',
        'job="a",',
        "job='a'",
        'job="a\nb"',
        'job="a\\"',
        '1="a"',
        'job="a" pod="b"',
        'job=~"("',
    ],
)
async def test_what_is_no_selector_is_refused(runtime: Runtime, given: str) -> None:
    """Nothing else gets into an expression, nor what Prometheus would not read."""
    with pytest.raises(InvalidArgument) as refused:
        await made(runtime, selector=given)
    assert "job=" in refused.value.fix


def test_a_scrape_shows_what_the_platform_wants_to_see_and_holds_no_secret() -> None:
    """A platform's token comes before the engine's key, which metrics do not need."""
    access = Access(
        base_url="https://one.example/base",
        api_key=SecretStr("the-key"),
        identity_token=SecretStr("the-token"),
        certificate="PEM",
        certificate_command="print-certificate",
        header_commands={KEY_HEADER: "print-key", IDENTITY_HEADER: "print-token"},
        protection="both",
    )
    config = manifests._scrape(access, {"job": "vllm", "deployment": "one"})
    assert config["scheme"] == "https"
    assert config["metrics_path"] == "/base/metrics"
    assert config["static_configs"] == [
        {"targets": ["one.example"], "labels": {"deployment": "one"}}
    ]
    steps = manifests._credential(access)
    assert steps[0].command == f"print-token > {config['authorization']['credentials_file']}"
    assert steps[1].command == f"print-certificate > {config['tls_config']['ca_file']}"
    assert "the-" not in str((config, steps))


def test_an_endpoint_without_a_key_is_scraped_without_one() -> None:
    access = Access(base_url="http://127.0.0.1:8000", protection="none")
    config = manifests._scrape(access, {"job": "vllm"})
    assert "authorization" not in config
    assert "tls_config" not in config
    assert config["static_configs"] == [{"targets": ["127.0.0.1:8000"]}]
    assert manifests._credential(access) == ()


async def test_each_alert_fires_when_it_must_as_prometheus_own_tool_says(
    runtime: Runtime, tmp_path: Path
) -> None:
    """Each has series for which it fires, as promtool sees where it is installed."""
    written = await made(runtime)
    (tmp_path / manifests.RULES).write_text(written.rules)
    shutil.copy(SERIES, tmp_path)
    assert set(re.findall(r'alertname="(\w+)"', SERIES.read_text())) == set(written.alerts)
    for promtool in PROMTOOL:
        for words in (["check", "rules", manifests.RULES], ["test", "rules", SERIES.name]):
            done = await anyio.run_process([promtool, *words], cwd=tmp_path, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
