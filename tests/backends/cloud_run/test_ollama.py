"""The small way: a model in Ollama's image, built without uploading anything."""

import re
from typing import Any

import pytest
import yaml

from backends.cloud_run import build as images
from backends.google.clients import as_sent
from core.errors import InvalidArgument
from core.records import DeploymentSpec
from tests.backends.cloud_run.planned import L4, RTX, drawn, planned, site, spec
from tests.backends.discovery import faults

_WHERE = {"project": "mine", "region": "us-east4"}


def _wish(model: str = "gemma3:4b", **said: Any) -> DeploymentSpec:
    return spec(model=model, engine="ollama", **said)


@pytest.mark.parametrize("model", ["gemma4:26b", "gemma4:31b", "google/gemma-4-26B-A4B-it"])
def test_a_model_beyond_ten_gigabytes_is_refused_with_the_reason(model: str) -> None:
    """Google's own advice; vLLM with a bucket is the way for those."""
    with pytest.raises(InvalidArgument, match="beyond 10 GB") as refused:
        planned(L4, engine="ollama", model=model)
    assert "gs://" in refused.value.fix


@pytest.mark.parametrize(
    ("model", "tag"),
    [
        ("google/gemma-4-E4B-it", "gemma4:e4b"),
        ("google/gemma-4-E2B-it", "gemma4:e2b"),
        ("gemma3:4b", "gemma3:4b"),
        ("somebody/model:q4_K_M", "somebody/model:q4_K_M"),
    ],
)
def test_a_model_goes_by_the_hubs_name_or_by_ollamas(model: str, tag: str) -> None:
    """A tag of its library is taken as it is."""
    assert images.ollama_tag(model) == tag


@pytest.mark.parametrize("model", ["someone/else", "x:y; rm -rf /", "a:b\nRUN evil", "a b:c"])
def test_what_ollama_does_not_call_a_model_is_refused(model: str) -> None:
    """Nothing that is no tag gets into a Dockerfile."""
    with pytest.raises(InvalidArgument):
        images.ollama_tag(model)


def test_the_image_holds_the_model_under_the_name_it_is_asked_for_by() -> None:
    """Then a client of the Hub's name and one of Ollama's both find it."""
    written = images.dockerfile(_wish("google/gemma-4-E4B-it"))
    assert written.startswith("FROM ollama/ollama:")
    assert "OLLAMA_HOST=0.0.0.0:8080" in written
    assert "OLLAMA_KEEP_ALIVE=-1" in written
    assert "ollama pull gemma4:e4b && ollama cp gemma4:e4b google/gemma-4-E4B-it" in written
    assert "ollama cp" not in images.dockerfile(_wish())
    assert 'ENTRYPOINT ["ollama", "serve"]' in written


def test_the_build_uploads_nothing_and_is_what_googles_document_describes() -> None:
    """Its first step writes the Dockerfile; nothing in it is a substitution of Cloud Build's."""
    build = images.build_of(_wish(), **_WHERE)
    sent = as_sent(build)
    assert faults("cloudbuild.v1", "Build", sent) == []
    assert "source" not in sent
    assert "machineType" not in sent["options"]
    assert sent["timeout"] == "3600s"
    recipe, image = build.steps
    assert images.dockerfile(_wish()) in recipe.script
    assert list(image.args) == ["build", "--tag", build.images[0], "."]
    assert "$" not in recipe.script + " ".join(image.args)
    assert list(build.tags) == ["vllm-devops", "gemma", _wish().fingerprint]
    name = f"us-east4-docker.pkg.dev/mine/vllm-devops/gemma:{_wish().fingerprint}"
    assert list(build.images) == [name]


def test_the_build_runs_as_an_account_of_its_own_and_says_where_its_log_goes() -> None:
    """None named would be the project's default account, which may hold anything."""
    sent = as_sent(images.build_of(_wish(), **_WHERE))
    email = "vllm-devops-builder@mine.iam.gserviceaccount.com"
    assert sent["serviceAccount"] == f"projects/mine/serviceAccounts/{email}"
    assert sent["options"]["logging"] == "CLOUD_LOGGING_ONLY"


def test_the_file_for_gcloud_says_the_same_as_the_typed_build() -> None:
    """What a person submits by hand is what the tools submit."""
    sent = as_sent(images.build_of(_wish(), **_WHERE))
    sent["options"]["diskSizeGb"] = int(sent["options"]["diskSizeGb"])
    pasted = images.submit_command(_wish(), **_WHERE)
    found = re.search(r"<<'END_OF_BUILD'\n(.*)END_OF_BUILD\n(gcloud .*)", pasted, re.DOTALL)
    assert found
    assert yaml.safe_load(found[1]) == sent
    assert {"--no-source", "--region=us-east4"} <= set(found[2].split())


@pytest.mark.parametrize("target", [L4, RTX])
def test_it_is_served_without_a_key_and_so_only_to_whom_google_knows(target: str) -> None:
    """Ollama checks nobody; Cloud Run has to."""
    made = drawn(target, engine="ollama", model="gemma3:4b", max_model_len=8192, max_num_seqs=2)
    assert made.container.secrets == {}
    assert made.spec.access != "public"
    assert (made.container.port, made.container.health) == (8080, "/")
    assert made.container.env["OLLAMA_CONTEXT_LENGTH"] == "8192"
    assert made.container.env["OLLAMA_NUM_PARALLEL"] == str(made.concurrency) == "2"
    with pytest.raises(InvalidArgument, match="no key"):
        drawn(target, engine="ollama", model="gemma3:4b", access="public")


@pytest.mark.parametrize(
    "said", [{"kv_cache_dtype": "fp8"}, {"engine_args": ("--x",)}, {"weights": "hub"}]
)
def test_what_only_vllm_has_is_refused_and_not_passed_over(said: dict[str, Any]) -> None:
    """A flag that is silently ignored is a wrong answer."""
    with pytest.raises(InvalidArgument):
        drawn(L4, engine="ollama", model="gemma3:4b", **said)


def test_the_plan_builds_first_unless_an_image_is_given() -> None:
    """The service needs the image; a key it does not need."""
    opened = site(google_cloud_project="mine")
    build, create = planned(opened, engine="ollama", model="gemma3:4b").steps
    assert build.request["projectId"] == "mine"
    image = create.request["service"]["template"]["containers"][0]["image"]
    assert build.request["build"]["images"] == [image]
    (only,) = planned(opened, engine="ollama", model="gemma3:4b", image="me/mine:1").steps
    assert "/services/gemma?allowMissing=true" in only.command
