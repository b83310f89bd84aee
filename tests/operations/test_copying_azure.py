"""Commands that copy models to Azure's file share: found by target or place, and ready to paste."""

from pathlib import Path
from typing import Any

import pytest

from core.errors import InvalidArgument, Unsupported
from core.settings import Settings
from operations.models import CopyInstructions, from_the_hub
from operations.runtime import Runtime
from tests.operations.shells import assert_shell

MODEL = "google/gemma-4-12B-it-qat-w4a16-ct"
FOLDER = "gemma-4-12B-it-qat-w4a16-ct"


def runtime(tmp_path: Path, **settings: Any) -> Runtime:
    made = {"vllm_devops_state_dir": tmp_path, "azure_subscription_id": "s", **settings}
    return Runtime(Settings(**made), frozenset())


@pytest.fixture
def rt(tmp_path: Path) -> Runtime:
    return runtime(tmp_path)


def words(found: CopyInstructions) -> str:
    return "\n".join(step.command for step in found.steps)


@pytest.mark.parametrize("model", ["12b qat", "someone/unknown"])
def test_every_command_is_one_that_a_shell_reads(rt: Runtime, model: str) -> None:
    """And nothing in them is to be filled in by hand."""
    for step in from_the_hub(rt, model, None, "aca-a100").steps:
        assert_shell(step.command)
        assert "<" not in step.command


def test_a_model_is_downloaded_checked_and_copied_to_the_share(rt: Runtime) -> None:
    """From the folder that it was downloaded to, into one of its own."""
    found = from_the_hub(rt, "12b qat", None, "aca-t4")
    order = ["hf download", "hf cache verify", "share-rm show", "azcopy copy", "storage file list"]
    seen = [next(i for i, s in enumerate(found.steps) if each in s.command) for each in order]
    assert seen == sorted(seen)
    assert f"--local-dir ./{FOLDER}" in words(found)
    assert f"'./{FOLDER}/*'" in words(found)
    assert found.destination == f"files://weights/{FOLDER}"


def test_it_is_looked_for_and_served_afterwards(rt: Runtime) -> None:
    """With all that the two tools want."""
    looked, served = from_the_hub(rt, "12b qat", None, "aca-a100").next_steps()
    assert looked.tool == "list_bucket_models"
    assert looked.arguments == {"target": "aca-a100", "bucket": "files://weights"}
    assert served.tool == "deploy_vllm"
    assert served.arguments == {
        "target": "aca-a100",
        "model": MODEL,
        "weights": f"files://weights/{FOLDER}",
    }


def test_a_share_says_that_azure_is_meant(tmp_path: Path) -> None:
    """Also where a bucket of Cloud Storage is set, and the target can be told."""
    rt = runtime(tmp_path, bucket_name="google", vllm_target="aca-t4")
    found = from_the_hub(rt, "12b qat", "files://others/it")
    assert found.destination == "files://others/it"
    assert found.target == "aca-t4"


def test_the_usual_target_says_that_azure_is_meant(tmp_path: Path) -> None:
    rt = runtime(tmp_path, vllm_target="aca-a100")
    assert from_the_hub(rt, "12b qat", None).destination.startswith("files://weights/")


def test_a_bucket_of_cloud_storage_stays_one(tmp_path: Path) -> None:
    """Whatever the usual target is."""
    rt = runtime(tmp_path, vllm_target="aca-a100")
    assert from_the_hub(rt, "12b qat", "gs://weights").destination == f"gs://weights/{FOLDER}"


def test_a_target_that_reads_no_share_is_refused_one(rt: Runtime) -> None:
    with pytest.raises(Unsupported, match="cloud-run-l4 cannot read a share"):
        from_the_hub(rt, "12b qat", "files://weights", "cloud-run-l4")


def test_a_bucket_is_no_share(rt: Runtime) -> None:
    with pytest.raises(InvalidArgument, match="no place that Azure keeps weights in"):
        from_the_hub(rt, "12b qat", "gs://weights", "aca-a100")
