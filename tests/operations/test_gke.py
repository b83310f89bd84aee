"""Manifests for GKE: planned to fit, and what Kubernetes takes."""

import shlex
from collections.abc import Mapping
from typing import Any, Final

import pytest
import yaml

from core.errors import DoesNotFit, InvalidArgument
from core.settings import Settings
from operations.manifests import GkeConfig, config
from tests.operations.kubernetes_objects import check
from tests.operations.shells import assert_shell

Json = dict[str, Any]

WISHES: Final[dict[str, Json]] = {
    "one host": {"model": "26b qat"},
    "two accelerators": {"model": "12b", "gpus": 2, "layout": "concurrency"},
    "a bucket": {"model": "12b qat", "weights": "gs://weights/gemma/12b", "namespace": "serving"},
    "a claim": {"model": "12b qat", "weights": "pvc:weights/12b", "name": "one"},
    "two hosts": {"model": "12b", "gpus": 1, "hosts": 2},
    "two hosts, a bucket": {"model": "31b", "gpus": 2, "hosts": 2, "weights": "gs://weights/31b"},
}


def made(**wish: Any) -> GkeConfig:
    return config(Settings(google_cloud_project="project", google_cloud_location="us-east4"), wish)


def loaded(found: GkeConfig) -> dict[str, Json]:
    return {each["kind"]: each for each in yaml.safe_load_all(found.manifest)}


def pod_of(found: GkeConfig, which: str = "workerTemplate") -> Json:
    kinds = loaded(found)
    if "Deployment" in kinds:
        spec: Json = kinds["Deployment"]["spec"]["template"]["spec"]
        return spec
    template = kinds["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"][which]["spec"]
    assert isinstance(template, dict)
    return template


def environment(pod: Mapping[str, Any]) -> dict[str, Any]:
    return {each["name"]: each for each in pod["containers"][0]["env"]}


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_every_object_is_one_that_kubernetes_takes(wish: Json) -> None:
    """Each attribute is one of the client's models, or one of LeaderWorkerSet's types."""
    for each in yaml.safe_load_all(made(**wish).manifest):
        check(each)


@pytest.mark.parametrize("wish", WISHES.values(), ids=WISHES)
def test_every_command_is_one_that_a_shell_reads(wish: Json) -> None:
    """Nothing in them is to be filled in by hand, and no secret is in an argument."""
    for step in made(**wish).steps:
        assert_shell(step.command)
        assert "<" not in step.command
        assert "--from-literal" not in step.command


@pytest.mark.parametrize(("gpus", "machine"), [(1, "g2-standard-8"), (2, "g2-standard-24")])
def test_a_pod_gets_the_accelerators_that_were_asked_for(gpus: int, machine: str) -> None:
    """On nodes with an L4, and tensor parallel over them."""
    found = made(model="e4b", gpus=gpus)
    pod = pod_of(found)
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4"}
    assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)
    assert found.tensor_parallel_size == gpus
    assert found.machine_type == machine
    assert machine in found.steps[0].command


def test_the_engine_listens_where_the_service_sends() -> None:
    """Not on its own loopback, and the key and the token come from Secrets."""
    found = made(model="26b qat", name="one")
    container = pod_of(found)["containers"][0]
    words = shlex.join(container["args"])
    assert "--host 0.0.0.0 --port 8000" in words
    assert loaded(found)["Service"]["spec"]["ports"][0]["targetPort"] == 8000
    held = environment(pod_of(found))
    key, token = (held[name]["valueFrom"]["secretKeyRef"] for name in ("VLLM_API_KEY", "HF_TOKEN"))
    assert key == {"name": "one-api-key", "key": "api-key"}
    assert token == {"name": "hf-token", "key": "token", "optional": True}


def test_a_service_named_vllm_does_not_break_the_engine() -> None:
    assert pod_of(made(model="e4b", name="vllm"))["enableServiceLinks"] is False


def test_the_startup_probe_outlasts_the_slowest_boot_that_is_foreseen() -> None:
    """A larger model gets more time, and the rollout more than its pod."""
    small, large = made(model="e2b qat"), made(model="26b qat")
    assert large.startup_seconds > small.startup_seconds > 120
    probe = pod_of(large)["containers"][0]["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == large.startup_seconds
    deployment = loaded(large)["Deployment"]["spec"]
    assert deployment["progressDeadlineSeconds"] > large.startup_seconds + 300
    assert deployment["strategy"] == {"type": "Recreate"}


def test_processes_that_share_a_model_get_shared_memory() -> None:
    """A container has 64 MiB of it by itself, with which NCCL ends in a bus error."""
    volumes = {each["name"]: each for each in pod_of(made(model="12b", gpus=2))["volumes"]}
    assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
    mounts = pod_of(made(model="12b", gpus=2))["containers"][0]["volumeMounts"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in mounts  # noqa: S108  the engine's
    assert "shm" not in str(pod_of(made(model="26b qat"))["volumes"])


def test_weights_in_a_bucket_are_mounted_and_the_hub_is_not_asked() -> None:
    """By the GCS FUSE driver, with the pod's own identity."""
    found = made(**WISHES["a bucket"], name="one")
    pod = pod_of(found)
    volume = next(each for each in pod["volumes"] if each["name"] == "weights")
    assert volume["csi"]["driver"] == "gcsfuse.csi.storage.gke.io"
    assert volume["csi"]["volumeAttributes"]["bucketName"] == "weights"
    annotations = loaded(found)["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations == {"gke-gcsfuse/volumes": "true"}
    assert pod["serviceAccountName"] == loaded(found)["ServiceAccount"]["metadata"]["name"]
    words = shlex.join(pod["containers"][0]["args"])
    assert words.startswith("/weights/gemma/12b --served-model-name google/gemma-4-12B-it-qat")
    assert "HF_TOKEN" not in environment(pod)
    assert environment(pod)["HF_HUB_OFFLINE"]["value"] == "1"
    assert any("ns/serving/sa/one" in step.command for step in found.steps)


def test_weights_in_a_claim_are_mounted_to_be_read() -> None:
    """And no identity of the cluster is given to the pod."""
    pod = pod_of(made(**WISHES["a claim"]))
    volume = next(each for each in pod["volumes"] if each["name"] == "weights")
    assert volume["persistentVolumeClaim"] == {"claimName": "weights", "readOnly": True}
    assert pod["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in pod
    assert pod["containers"][0]["args"][0] == "/weights/12b"


def test_tensor_parallelism_over_hosts_is_a_leader_worker_set() -> None:
    """The leader answers, the worker waits for it, and a Service of another name finds it."""
    found = made(**WISHES["two hosts"], name="one")
    kinds = loaded(found)
    assert found.kind == "LeaderWorkerSet"
    assert found.tensor_parallel_size == 2
    assert kinds["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["size"] == 2
    leader, worker = pod_of(found, "leaderTemplate"), pod_of(found, "workerTemplate")
    group = ["--nnodes", "2", "--node-rank", "$(LWS_WORKER_INDEX)"]
    for pod in (leader, worker):
        assert " ".join(group) in " ".join(pod["containers"][0]["args"])
    assert worker["containers"][0]["args"][-1] == "--headless"
    assert "startupProbe" in leader["containers"][0]
    assert "startupProbe" not in worker["containers"][0]
    assert "LWS_LEADER_ADDRESS" in worker["initContainers"][0]["command"][-1]
    compile(worker["initContainers"][0]["command"][-1], "waiting", "exec")
    service = kinds["Service"]
    assert service["metadata"]["name"] != "one"
    assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_what_does_not_fit_is_refused_with_what_would() -> None:
    """With one accelerator the 31B is too large; with two it fits."""
    with pytest.raises(DoesNotFit) as caught:
        made(model="31b qat")
    assert "1 L4" in caught.value.summary
    step = caught.value.next_steps[0]
    assert step.tool == "get_vllm_gpu_deployment_config"
    assert step.arguments == {"model": "31b qat", "gpus": 2, "hosts": 1}
    assert made(**step.arguments).tensor_parallel_size == 2


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"model": "nobody/knows-it"}, "cannot be planned"),
        ({"model": "26b qat", "gpus": 3}, "gpus"),
        ({"model": "26b qat", "namespace": "a b"}, "namespace"),
        ({"model": "26b qat", "name": "A"}, "name"),
        ({"model": "26b qat", "image": "an image"}, "image"),
        ({"model": "26b qat", "weights": "gs://weights/../x"}, "cannot read"),
        ({"model": "26b qat", "weights": "gs://weights/$(X)"}, "cannot read"),
        ({"model": "26b qat", "weights": "baked"}, "cannot read"),
        ({"model": "26b qat", "max_model_len": 300_000}, "beyond"),
    ],
)
def test_what_cannot_be_is_refused(wish: Json, words: str) -> None:
    """Before anything is written that a cluster would refuse or misread."""
    with pytest.raises(InvalidArgument, match=words):
        made(**wish)


@pytest.mark.parametrize(("model", "said"), [("e4b", False), ("31b", True)])
def test_files_that_outgrow_a_usual_node_say_so(model: str, *, said: bool) -> None:
    """A pod of 58 GiB of weights is never placed on a node of 100 GB."""
    notes = made(model=model, gpus=2, hosts=2).warnings()
    assert any("boot disk" in note and "100 GB" in note for note in notes) == said, notes
