"""Tools around models, quotas and setting up, on a simulated Google Cloud."""

import json
import uuid
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from core.settings import AzurePlane, GooglePlane, Settings
from operations.runtime import Stage
from tests.conversation import Agent, agent_of
from tests.google_plane import Controls
from tests.tools.world import assert_envelope, assert_same_facts

pytestmark = pytest.mark.anyio

TARGET: Final = "cloud-run-l4"
TOKEN: Final = "hf_" + "t" * 34


@pytest.fixture
def controls(plane: GooglePlane, monkeypatch: pytest.MonkeyPatch) -> Controls:
    """Of the one cloud that every test goes to, each with a project of its own."""

    async def google(_self: Stage) -> GooglePlane:
        return plane

    monkeypatch.setattr(Stage, "google", google)
    return Controls(plane)


@pytest.fixture
def simulated_azure(azure: AzurePlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one Azure likewise, for what asks every cloud."""

    async def found(_self: Stage) -> AzurePlane:
        return azure

    monkeypatch.setattr(Stage, "azure", found)


@pytest.fixture
def bare(controls: Controls, tmp_path: Path) -> Settings:
    """A project in which nothing was ever made."""
    return Settings(
        rehearsal=True,
        google_cloud_project=f"p-{uuid.uuid4().hex[:12]}",
        vllm_devops_state_dir=tmp_path / "state",
        toolsets=("all",),
    )


@pytest.fixture
def prepared(controls: Controls, bare: Settings) -> Settings:
    """A project that was set up."""
    controls.set(project_of(bare), prepared=True)
    return bare


@pytest.fixture
async def agent(prepared: Settings) -> AsyncIterator[Agent]:
    async with agent_of(prepared) as agent:
        yield agent


def project_of(settings: Settings) -> str:
    assert settings.google_cloud_project
    return settings.google_cloud_project


async def test_a_target_is_set_up_once_and_after_a_yes(bare: Settings, controls: Controls) -> None:
    """The human sees what would be made; a second call finds all of it and asks nobody."""
    async with agent_of(bare, human=lambda _question: "accept") as agent:
        first = await agent.call("setup_target", target=TARGET)
        assert not first.failed, first
        assert_envelope(first)
        assert first.data["made"]
        assert first.data.get("missing", []) == []
        assert all(what in agent.asked[0] for what in first.data["made"])
        second = await agent.call("setup_target", target=TARGET)
        assert "nothing was changed" in second.structured["summary"]
        assert len(agent.asked) == 1
    assert "Create" in str(controls.get(project_of(bare))["calls"])


async def test_a_token_is_kept_and_never_told(
    agent: Agent, prepared: Settings, tmp_path: Path
) -> None:
    """In a rehearsal the Hub is not asked, and that is said; the same token is kept once."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    first = await agent.call("save_hf_token", file=str(file), target=TARGET)
    assert not first.failed, first
    assert_same_facts(first)
    assert first.data["secret"] == "hf-token"
    assert first.data["validated"] is False
    assert "rehearsal" in first.data["why_not_validated"]
    assert first.data["readable_by"]
    again = await agent.call("save_hf_token", file=str(file), target=TARGET)
    assert again.data["version"] == first.data["version"]
    assert TOKEN not in f"{first.text}{first.structured}{again.text}{again.structured}"


async def test_a_token_in_the_call_is_in_no_file_of_the_server(
    agent: Agent, prepared: Settings
) -> None:
    """Not in the journal either; the answer says that it need not have been there."""
    reply = await agent.call("save_hf_token", token=TOKEN, target=TARGET)
    assert any("env" in warning for warning in reply.structured["warnings"]), reply
    assert TOKEN not in f"{reply.text}{reply.structured}"
    assert prepared.vllm_devops_state_dir
    written = b"".join(
        path.read_bytes() for path in prepared.vllm_devops_state_dir.rglob("*") if path.is_file()
    )
    assert b"save_hf_token" in written
    assert TOKEN.encode() not in written


async def test_what_is_wrongly_given_as_a_token_is_in_no_file_either(
    agent: Agent, prepared: Settings
) -> None:
    """It may be a secret of another kind, of no shape that redaction knows."""
    other = "another-secret-of-mine"
    reply = await agent.call("save_hf_token", token=other, target=TARGET)
    assert reply.code == "INVALID_ARGUMENT"
    assert prepared.vllm_devops_state_dir
    for path in prepared.vllm_devops_state_dir.rglob("*"):
        assert not path.is_file() or other.encode() not in path.read_bytes(), path


async def test_a_project_that_was_not_set_up_is_told_so(bare: Settings) -> None:
    async with agent_of(bare) as agent:
        reply = await agent.call("save_hf_token", token=TOKEN, target=TARGET)
    assert reply.failed
    assert "setup_target" in reply.structured["fix"], reply


@pytest.mark.usefixtures("simulated_azure")
async def test_quotas_of_all_targets_are_read_at_once(
    agent: Agent, prepared: Settings, controls: Controls
) -> None:
    controls.set(project_of(prepared), quotas={"l4": 2, "rtx-pro-6000": 0})
    reply = await agent.call("check_gpu_quotas")
    assert not reply.failed, reply
    assert_same_facts(reply)
    counting = {row["target"]: row for row in reply.data["quotas"] if row["counts"]}
    assert counting[TARGET]["replicas"] == 2
    assert counting["cloud-run-rtx-pro-6000"]["replicas"] == 0
    assert "ask for 1" in counting["cloud-run-rtx-pro-6000"]["fix"]


CAPACITY: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("check_gpu_quotas", {}),
    ("check_gpu_quotas", {"target": "tpu-v6e-1"}),
    ("get_zones_with_available_quota", {}),
    ("list_queued_resources", {}),
    ("setup_target", {"target": TARGET}),
)


@pytest.mark.usefixtures("simulated_azure")
@pytest.mark.parametrize("is_set_up", [False, True])
async def test_capacity_is_answered_in_few_lines(
    bare: Settings, controls: Controls, *, is_set_up: bool
) -> None:
    """Each cause is told once, for all targets that it concerns, and the next step works."""
    controls.set(project_of(bare), prepared=is_set_up)
    async with agent_of(bare.model_copy(update={"confirm": "never"})) as agent:
        for tool, said in CAPACITY:
            reply = await agent.brief(tool, **said)
            assert len(reply.text) < 4 * 450, (tool, reply)
            assert reply.text.count("cloudquotas.googleapis.com is not enabled") <= 2, reply
            assert reply.structured["next"] or tool == "list_queued_resources", reply
            for step in reply.structured["next"][:1]:
                assert not (await agent.brief(step["tool"], **step["arguments"])).failed, step


async def test_a_quota_that_may_not_be_read_is_not_0(
    agent: Agent, prepared: Settings, controls: Controls
) -> None:
    method = "google.api.cloudquotas.v1.CloudQuotas/GetQuotaInfo"
    fault = {"method": method, "status": "PERMISSION_DENIED", "times": 9, "when": "before"}
    controls.set(project_of(prepared), faults=[fault])
    reply = await agent.call("check_gpu_quotas", target=TARGET)
    assert "not known" in reply.structured["summary"], reply
    assert "limit" not in reply.data["quotas"][0]


async def test_models_of_the_registry_are_listed(
    agent: Agent, prepared: Settings, controls: Controls
) -> None:
    """With where their files are; the next step copies one."""
    empty = await agent.call("list_vertex_models", target=TARGET)
    assert "no model" in empty.structured["summary"], empty
    shown = {"display_name": "gemma", "artifact_uri": "gs://files/gemma"}
    controls.set(project_of(prepared), vertex_models=[shown])
    reply = await agent.call("list_vertex_models", target=TARGET)
    assert reply.data["models"][0]["artifact"] == "gs://files/gemma", reply
    (step,) = reply.structured["next"]
    assert step["tool"] == "get_vertex_ai_model_copy_instructions"
    assert not (await agent.call(step["tool"], **step["arguments"], bucket="weights")).failed


def _safetensors(size: int) -> bytes:
    header = json.dumps({"a": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    return len(header).to_bytes(8, "little") + header.encode() + bytes(size)


def _fill(plane: GooglePlane, bucket: str, files: dict[str, bytes]) -> None:
    where = {"api_endpoint": plane.storage}
    with closing(
        Client("project", credentials=AnonymousCredentials(), client_options=where)
    ) as client:
        made = client.create_bucket(bucket)
        for name, content in files.items():
            made.blob(name).upload_from_string(content)


async def test_models_of_a_bucket_are_listed(agent: Agent, plane: GooglePlane) -> None:
    """Which can be served, how, and what the others lack."""
    bucket = f"b-{uuid.uuid4().hex[:12]}"
    config = json.dumps({"_name_or_path": "google/gemma-4-E2B-it"}).encode()
    whole = {"config.json": config, "tokenizer.json": b"{}", "model.safetensors": _safetensors(64)}
    half = {"config.json": config, "tokenizer.json": b"{}"}
    files = {f"whole/{name}": content for name, content in whole.items()}
    files |= {f"half/{name}": content for name, content in half.items()}
    _fill(plane, bucket, files)
    reply = await agent.call("list_bucket_models", bucket=f"gs://{bucket}/", target=TARGET)
    assert not reply.failed, reply
    assert_same_facts(reply)
    found = {row["location"]: row["complete"] for row in reply.data["models"]}
    assert found == {f"gs://{bucket}/whole": True, f"gs://{bucket}/half": False}
    (step,) = reply.structured["next"]
    assert step["arguments"]["weights"] == f"gs://{bucket}/whole"


async def test_a_bucket_that_is_not_there_is_an_error(agent: Agent) -> None:
    reply = await agent.call("list_bucket_models", bucket=f"b-{uuid.uuid4().hex}", target=TARGET)
    assert reply.failed, reply
    assert_envelope(reply)


@pytest.mark.parametrize(
    "tool", ["save_hf_token", "list_bucket_models", "list_vertex_models", "setup_target"]
)
async def test_a_target_that_cannot_is_told_which_can(agent: Agent, tool: str) -> None:
    other = await agent.call(tool, target="local")
    assert (other.code, TARGET in other.structured["fix"]) == ("UNSUPPORTED", True)
    assert (await agent.call(tool, target="nowhere")).code == "TARGET_NOT_FOUND"


async def test_a_model_that_the_hub_has_not_is_not_deployed_from_it(
    agent: Agent, plane: GooglePlane
) -> None:
    """Known not to be there: nothing is made, and the error names what is."""
    for tool, more in (
        ("deploy_vllm", {"max_num_seqs": 4}),
        ("plan_deployment", {"max_num_seqs": 4, "weights": "hub"}),
    ):
        wish = {"model": "26b qat", "target": TARGET, "max_model_len": 8192, **more}
        reply = await agent.call(tool, **wish)
        assert reply.code == "MODEL_NOT_FOUND", reply
        assert "weights=gs://BUCKET/FOLDER" in reply.structured["fix"]
    assert (await agent.call("list_deployments", target=TARGET)).data["deployments"] == []
