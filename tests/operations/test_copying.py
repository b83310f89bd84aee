"""Commands that copy models: what a person pastes works."""

import json
import shlex
import subprocess  # noqa: TID251  `hf` says itself which flags it has
import sys
from pathlib import Path
from typing import Any, Final

import pytest
from huggingface_hub import constants

from core.errors import InvalidArgument, ModelNotFound, Unsupported
from core.settings import Settings
from operations.models import CopyInstructions, download_path, from_the_hub, from_vertex, hub_id
from operations.runtime import Runtime
from tests.operations.shells import assert_shell

MODEL: Final = "google/gemma-4-12B-it-qat-w4a16-ct"
FOLDER: Final = "gemma-4-12B-it-qat-w4a16-ct"
REGISTERED: Final = "projects/123/locations/us-east5/models/77@2"


def runtime(tmp_path: Path, **settings: Any) -> Runtime:
    return Runtime(Settings(vllm_devops_state_dir=tmp_path, **settings), frozenset())


@pytest.fixture
def rt(tmp_path: Path) -> Runtime:
    return runtime(tmp_path, bucket_name="weights", google_cloud_project="project")


@pytest.fixture
def azure(tmp_path: Path) -> Runtime:
    return runtime(tmp_path, azure_subscription_id="s")


def commands(found: CopyInstructions) -> str:
    return "\n".join(step.command for step in found.steps)


@pytest.mark.parametrize("model", ["12b qat", "someone/unknown"])
def test_every_command_from_the_hub_is_one_that_a_shell_reads(
    rt: Runtime, azure: Runtime, model: str
) -> None:
    """To a bucket and to a share; nothing in them is to be filled in by hand."""
    share = from_the_hub(azure, model, None, "aca-a100")
    for step in (*from_the_hub(rt, model, None).steps, *share.steps):
        assert_shell(step.command)
        assert "<" not in step.command


@pytest.mark.parametrize("model", ["77", REGISTERED, "My 'model' $(x) `y`"])
def test_every_command_from_vertex_is_one_that_a_shell_reads(rt: Runtime, model: str) -> None:
    for step in from_vertex(rt, model, None).steps:
        assert_shell(step.command)


def _asked_for(model: str, rt: Runtime) -> list[list[str]]:
    steps = (*from_the_hub(rt, model, None).steps, *download_path(model).steps)
    words = [shlex.split(step.command) for step in steps]
    return [line for line in words if line[0] == "hf"]


def test_hf_takes_every_flag_that_is_used(rt: Runtime) -> None:
    """By its own help: `hf download` and `hf cache verify`."""
    lines = _asked_for("someone/unknown", rt)
    assert {tuple(line[1:2]) for line in lines} == {("download",), ("cache",)}
    hf = Path(sys.executable).with_name("hf")
    helps: dict[tuple[str, ...], str] = {}
    for line in lines:
        verb = tuple(line[1 : 3 if line[1] == "cache" else 2])
        if verb not in helps:
            said = subprocess.run([hf, *verb, "--help"], capture_output=True, text=True, check=True)
            helps[verb] = said.stdout
        for flag in (word for word in line if word.startswith("--")):
            assert flag in helps[verb], (verb, flag)


def test_the_size_is_told_where_the_catalog_knows_it(rt: Runtime) -> None:
    """So that a person knows how much disk it takes; else `hf` is asked first."""
    known, unknown = from_the_hub(rt, "12b qat", None), from_the_hub(rt, "someone/unknown", None)
    assert known.model == MODEL
    assert known.gib == pytest.approx(9.56, abs=0.01)
    assert "9.6 GiB" in known.steps[0].what
    assert unknown.gib is None
    assert unknown.steps[0].command == "hf download someone/unknown --dry-run"


def test_what_is_copied_is_what_a_deployment_reads(rt: Runtime) -> None:
    """One folder for each model, without what the download keeps for itself."""
    found = from_the_hub(rt, "12b qat", None)
    assert found.destination == "gs://weights/gemma-4-12B-it-qat-w4a16-ct"
    copied = next(step.command for step in found.steps if "rsync" in step.command)
    assert shlex.split(copied)[-1] == r"--exclude=^\.cache/.*"
    assert found.destination in copied
    assert found.next_steps()[0].arguments == {"bucket": "weights"}


def test_a_bucket_is_only_made_where_none_is(rt: Runtime) -> None:
    made = next(
        step.command for step in from_the_hub(rt, "12b qat", None).steps if "||" in step.command
    )
    assert made.index("describe") < made.index("||") < made.index("create")
    assert "--location=us-east4" in made
    assert "--project=project" in made


def test_the_region_of_the_settings_comes_first(tmp_path: Path) -> None:
    asked = (
        ({"google_cloud_location": "europe-west4"}, "europe-west4"),
        ({"vllm_target": "cloud-run-rtx-pro-6000"}, "us-central1"),
    )
    for settings, region in asked:
        rt = runtime(tmp_path, bucket_name="weights", **settings)
        assert f"--location={region}" in commands(from_the_hub(rt, "12b qat", None))


def test_a_folder_of_the_bucket_may_be_named(rt: Runtime) -> None:
    found = from_the_hub(rt, "12b qat", "gs://others/models/it/")
    assert found.destination == "gs://others/models/it"


@pytest.mark.parametrize("bucket", ["Not A Bucket", "x", "gs://", "weights/a b"])
def test_what_is_no_bucket_is_refused(rt: Runtime, bucket: str) -> None:
    with pytest.raises(InvalidArgument, match="no bucket"):
        from_the_hub(rt, "12b qat", bucket)


def test_without_a_bucket_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        from_the_hub(runtime(tmp_path), "12b qat", None)
    assert "BUCKET_NAME" in caught.value.fix


def test_what_the_hub_is_known_not_to_have_is_not_copied_from_there() -> None:
    """Its commands would end in a 404 after they had made a bucket."""
    with pytest.raises(ModelNotFound, match="404"):
        hub_id("26b qat")


@pytest.mark.parametrize(
    "model", ["/a/folder", "12b nonsense", "a//b", "a/b/c", "--x/y", "a/../b", "gpt2"]
)
def test_what_is_no_hub_id_is_refused(model: str) -> None:
    with pytest.raises(InvalidArgument, match="no model of the Hugging Face Hub"):
        hub_id(model)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("77", "describe 77 --region=us-east4 --project=project"),
        (REGISTERED, "describe 77@2 --region=us-east5 --project=123"),
        ("My model", "list '--filter=displayName=\"My model\"' --limit=1"),
    ],
)
def test_a_registered_model_is_found_by_name_id_or_title(
    rt: Runtime, model: str, words: str
) -> None:
    """And copied from where the registry says that its files are."""
    found = from_vertex(rt, model, None)
    copied = next(step.command for step in found.steps if "rsync" in step.command)
    assert words in copied
    assert "artifactUri" in copied


@pytest.mark.parametrize("model", ['a "quoted" one', "--flag", "a\nb", ""])
def test_what_can_be_no_registered_model_is_refused(rt: Runtime, model: str) -> None:
    with pytest.raises(InvalidArgument):
        from_vertex(rt, model, None)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Hub library's cache, empty."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def _snapshot(cache: Path, *files: str) -> Path:
    folder = cache / "models--google--gemma-4-12B-it-qat-w4a16-ct"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for file in ("config.json", *files):
        (snapshot / file).write_text("{}")
    return snapshot


def test_a_model_has_a_place_and_is_told_whole_once_it_is(cache: Path) -> None:
    """The library's own, on this machine and in a container."""
    found = download_path("12b qat")
    assert found.snapshot is None
    assert found.folder == str(cache / "models--google--gemma-4-12B-it-qat-w4a16-ct")
    assert found.in_container.startswith("~/.cache/huggingface/hub/models--google--")
    assert "not on this machine" in found.summary()
    snapshot = _snapshot(cache, "model.safetensors")
    found = download_path("12b qat")
    assert (found.snapshot, found.missing) == (str(snapshot), ())
    assert found.summary().endswith("whole.")


def test_half_a_download_is_not_whole(cache: Path) -> None:
    """Neither without any weights nor with a part of those that the index lists."""
    snapshot = _snapshot(cache)
    assert download_path("12b qat").missing == ("There are no safetensors in it.",)
    (snapshot / "a.safetensors").write_text("{}")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    found = download_path("12b qat")
    assert "b.safetensors" in found.warnings()[0]
    assert found.summary().endswith("not whole.")


def test_a_model_is_downloaded_checked_and_copied_to_the_share(azure: Runtime) -> None:
    """From the folder that it was downloaded to, into one of its own."""
    found = from_the_hub(azure, "12b qat", None, "aca-t4")
    order = ["hf download", "hf cache verify", "share-rm show", "azcopy copy", "storage file list"]
    seen = [next(i for i, s in enumerate(found.steps) if each in s.command) for each in order]
    assert seen == sorted(seen)
    assert f"--local-dir ./{FOLDER}" in commands(found)
    assert f"'./{FOLDER}/*'" in commands(found)
    assert found.destination == f"files://weights/{FOLDER}"


def test_it_is_looked_for_and_served_afterwards(azure: Runtime) -> None:
    looked, served = from_the_hub(azure, "12b qat", None, "aca-a100").next_steps()
    assert looked.tool == "list_bucket_models"
    assert looked.arguments == {"target": "aca-a100", "bucket": "files://weights"}
    assert served.tool == "deploy_vllm"
    assert served.arguments == {
        "target": "aca-a100",
        "model": MODEL,
        "weights": f"files://weights/{FOLDER}",
    }


@pytest.mark.parametrize(
    ("bucket", "settings", "destination"),
    [
        ("files://others/it", {"bucket_name": "g", "vllm_target": "aca-t4"}, "files://others/it"),
        (None, {"vllm_target": "aca-a100"}, f"files://weights/{FOLDER}"),
        ("gs://weights", {"vllm_target": "aca-a100"}, f"gs://weights/{FOLDER}"),
    ],
)
def test_a_bucket_or_the_usual_target_says_which_cloud_is_meant(
    tmp_path: Path, bucket: str | None, settings: dict[str, str], destination: str
) -> None:
    """A share is Azure's whatever else is set, and a bucket Google's."""
    azure = runtime(tmp_path, azure_subscription_id="s", **settings)
    assert from_the_hub(azure, "12b qat", bucket).destination == destination


@pytest.mark.parametrize(
    ("bucket", "target", "words"),
    [
        ("files://weights", "cloud-run-l4", "cloud-run-l4 cannot read a share"),
        ("gs://weights", "aca-a100", "no place that Azure keeps weights in"),
    ],
)
def test_a_target_that_cannot_read_there_is_refused(
    azure: Runtime, bucket: str, target: str, words: str
) -> None:
    with pytest.raises((Unsupported, InvalidArgument), match=words):
        from_the_hub(azure, "12b qat", bucket, target)
