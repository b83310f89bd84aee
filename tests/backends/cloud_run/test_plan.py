"""A plan for Cloud Run: pure, with its price, and without the traps that others stepped into."""

from datetime import UTC, datetime
from typing import Any

import pytest
from google.cloud import run_v2

from backends.cloud_run import container
from backends.cloud_run.container import rules, weights_of
from backends.cloud_run.status import before_service
from backends.container import hub_environment
from backends.lifecycle import Pending
from core.errors import InvalidArgument
from core.records import ModelShape, Target
from planner.places import Size
from tests.backends.cloud_run.planned import (
    BUCKET,
    E4B,
    L4,
    QAT_12B,
    QAT_26B,
    QAT_31B,
    RTX,
    drawn,
    planned,
    site,
    spec,
    typed,
)
from tests.backends.cloud_run.sites import backend_of

OLLAMA: dict[str, Any] = {"engine": "ollama", "model": "gemma3:4b"}
_EVERY: list[dict[str, Any]] = [
    {},
    {"weights": BUCKET},
    {"weights": "baked", "image": "docker.io/me/baked:1"},
    OLLAMA,
]
every = pytest.mark.parametrize("said", _EVERY, ids=["hub", "bucket", "baked", "ollama"])
targets = pytest.mark.parametrize("target", [L4, RTX])


def _container(service: run_v2.Service) -> run_v2.Container:
    return service.template.containers[0]


@targets
@every
def test_no_service_steps_into_a_trap(target: str, said: dict[str, Any]) -> None:
    """What Cloud Run refuses, bills or does where nobody says otherwise; the same plan twice is
    equal, so that what is interrupted can go on."""
    service = typed(target, **said, max_replicas=2, max_num_seqs=16)
    template, box = service.template, _container(service)
    probe, liveness, (port,) = box.startup_probe, box.liveness_probe, box.ports
    assert probe.initial_delay_seconds <= 240
    assert probe.period_seconds <= 240
    assert probe.timeout_seconds < probe.period_seconds
    budget = probe.initial_delay_seconds + probe.period_seconds * probe.failure_threshold
    assert 240 <= budget <= 1800
    assert probe.http_get.path in {"/health", "/"}  # a TCP probe gives up after 240 s of loading
    assert probe.http_get.port == port.container_port
    assert port.name == ""  # h2c would have Cloud Run speak HTTP/2 to servers that speak HTTP/1
    assert liveness.timeout_seconds < liveness.period_seconds  # a long prefill is no reason
    assert liveness.period_seconds * liveness.failure_threshold >= 180
    assert box.resources.cpu_idle is False
    assert box.resources.startup_cpu_boost
    assert box.resources.limits["nvidia.com/gpu"] == "1"
    assert template.gpu_zonal_redundancy_disabled
    assert template.execution_environment.name == "EXECUTION_ENVIRONMENT_GEN2"
    assert service.scaling.max_instance_count == template.scaling.max_instance_count == 2
    assert template.max_instance_request_concurrency == 16
    assert template.timeout.seconds == 3600
    assert service.invoker_iam_disabled is False
    assert not any("Anybody" in warning for warning in planned(target, **said).warnings)
    if target == RTX:
        limits = box.resources.limits
        assert (limits["cpu"], limits["memory"]) == ("20", "80Gi")
        assert template.node_selector.accelerator == "nvidia-rtx-pro-6000"
    assert planned(target, **said) == planned(target, **said)


def test_a_plan_needs_neither_project_nor_login() -> None:
    """Whoever only wants to know reads PROJECT_ID where their project will stand."""
    plan = planned()
    assert "projects/PROJECT_ID/" in plan.steps[-1].request["parent"]
    assert all("PROJECT_ID" in step.command for step in plan.steps)
    assert backend_of(site()).engine_name()[1]
    assert not backend_of(site(google_cloud_project="mine")).engine_name()[1]
    assert "/projects/mine/" in planned(site(google_cloud_project="mine")).steps[-1].command


def test_the_price_is_of_the_size_that_is_planned() -> None:
    """A larger instance costs more, also while it is prepared and no service is there yet."""
    small, large = planned(model=QAT_12B, weights=BUCKET), planned(model=E4B)
    for plan in (small, large):
        way = Pending(spec=plan.spec, model=plan.model, where="", since=datetime.now(UTC))
        assert before_service(site(google_cloud_project="mine"), way).usd_per_hour == pytest.approx(
            plan.usd_per_hour, abs=1e-4
        )
    assert small.usd_per_hour == pytest.approx(1.0465, abs=0.001)
    assert large.usd_per_hour == pytest.approx(1.4209, abs=0.001)
    assert any("price" in warning for warning in planned(RTX).warnings)
    assert typed().scaling.min_instance_count == 0
    (said,) = [each for each in planned(min_replicas=1).warnings if "all the time" in each]
    assert "$1,037 a month" in said
    assert not any("all the time" in warning for warning in planned().warnings)


def test_the_memory_is_foreseen_for_the_gpu_and_the_image() -> None:
    """What does not fit is known before anybody pays for finding out."""
    memory = planned(model=QAT_12B, max_model_len=8192).memory
    assert memory is not None
    assert (memory.fits, memory.accelerator) == (True, "l4")
    tight = planned(model=QAT_31B, max_model_len=8192).memory
    assert tight is not None
    assert not tight.fits
    assert planned(engine="ollama").memory is None


def test_an_instance_holds_the_files_and_what_is_offloaded() -> None:
    """Its disk is memory, so that one with too little is killed while it loads."""
    assert drawn(model=QAT_12B).size.ram_gib == 32
    assert drawn(model=QAT_12B, memory_gib=16).size.ram_gib == 16
    assert drawn(model=QAT_12B, weights=BUCKET).size.ram_gib == 16
    assert drawn(model=QAT_12B, weights=BUCKET, cpu_offload_gb=5).size.ram_gib == 32
    assert drawn(model=QAT_26B).size.ram_gib >= 17 + 4
    env = drawn(model=QAT_26B).container.env
    assert env["HF_XET_CHUNK_CACHE_SIZE_BYTES"] == "0"
    assert "HF_XET_HIGH_PERFORMANCE" not in env
    assert hub_environment(rules().hub, 80)["HF_XET_HIGH_PERFORMANCE"] == "1"
    for said in (
        {"model": QAT_31B, "cpu_offload_gb": 14},
        {"model": QAT_31B, "cpu_offload_gb": 30, "weights": BUCKET},
        {"model": "google/gemma-4-26B-A4B-it"},
    ):
        with pytest.raises(InvalidArgument, match="GiB of an instance's memory"):
            drawn(**said)


def test_a_model_that_nobody_measured_gets_the_largest_instance_and_the_longest_boot() -> None:
    """Not knowing is said, and planned for on the safe side."""
    unknown = ModelShape(model="someone/else")
    plan = planned(shape=unknown, model="someone/else")
    made = drawn(shape=unknown, model="someone/else")
    assert (made.size.vcpu, made.size.ram_gib) == (8, 32)
    assert (made.startup.budget_seconds, made.concurrency) == (1800, 256)
    assert plan.memory is None
    assert sum("not known" in warning for warning in plan.warnings) == 2


def test_the_probe_outlasts_the_slowest_boot_that_is_foreseen() -> None:
    """26B took 664 s over gcsfuse and 99 s to compile; one that cannot is said before."""
    slow: dict[str, Any] = {
        "weights": BUCKET,
        "engine_args": ("--safetensors-load-strategy", "prefetch"),
    }
    assert drawn(model=QAT_26B, **slow).startup.budget_seconds > 664 + 99 + 60
    streamed = drawn(model=QAT_26B, weights=BUCKET).startup.budget_seconds
    assert streamed < drawn(model=QAT_26B, **slow).startup.budget_seconds
    large = ModelShape(model="some/70b", weight_bytes=70 * 2**30)
    plan = planned(RTX, shape=large, weights=BUCKET, engine_args=("--load-format", "auto"))
    assert any("boot may be ended" in warning for warning in plan.warnings)
    assert not any("boot may be ended" in warning for warning in planned(model=QAT_12B).warnings)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"max_model_len": 10_000_000}, "beyond the model's"),
        ({"engine_args": ("--max-model-len=10M",)}, "beyond the model's"),
        ({"port": 8000}, "own address"),
        ({"min_replicas": 3}, "more than max_replicas"),
        ({"network": "default"}, "no subnetwork"),
        ({"network": "a/b/c"}, "no subnetwork"),
        ({"model": "/home/me/gemma"}, "a folder of this machine"),
        ({"model": "~/gemma"}, "a folder of this machine"),
        ({"weights": "baked"}, "need the image"),
        ({"weights": "gs://bucket-only"}, "no folder of a bucket"),
        ({"weights": "gs://bucket/a/../b"}, "no folder of a bucket"),
        ({"weights": "gs://bucket//a"}, "no folder of a bucket"),
        ({"weights": "files://share/folder"}, "no folder of a bucket"),
        ({"access": "internal"}, "not kept inside a network"),
        ({"build_machine": "e2-highcpu-8"}, "Nothing is built"),
        ({"engine_args": ("--api-key", "x")}, "key of its own"),
        ({"engine_args": ("--host", "1")}, ""),
        ({"engine_args": ("--port", "1")}, ""),
        ({"tensor_parallel_size": 2}, "one GPU"),
        ({"engine_args": ("-tp=2",)}, "one GPU"),
        ({"engine_args": ("--pipeline_parallel_size=4",)}, "one GPU"),
        ({"cpu": 2}, "beside this GPU"),
        ({"cpu": 5}, "beside this GPU"),
        ({"cpu": 16}, "beside this GPU"),
        ({"cpu": 4.5}, "cpu"),
        ({"memory_gib": 8}, "beside this GPU"),
        ({"memory_gib": 40}, "beside this GPU"),
        ({"memory_gib": 16.5}, "memory_gib"),
        ({"cpu": 4, "memory_gib": 32}, "beside this GPU"),
        ({"cpu": 8, "access": "public"}, "beside this GPU"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(said: dict[str, Any], why: str) -> None:
    """A refusal now is cheaper than a failed revision later."""
    with pytest.raises(InvalidArgument) as refused:
        planned(shape=ModelShape(model="m", max_position_embeddings=131_072), **said)
    assert why in f"{refused.value} {refused.value.fix}"
    assert refused.value.fix


@pytest.mark.parametrize("name", ["", "4gemma", "Gemma", "gemma-", "a_b", "a" * 50])
def test_what_no_service_can_be_called_is_refused(name: str) -> None:
    """The pattern is Cloud Run's own."""
    container.refuse_name("gemma-4")
    with pytest.raises(InvalidArgument):
        container.refuse_name(name)


@targets
def test_every_size_that_the_planner_offers_is_one_that_cloud_run_gives(target: str) -> None:
    """Two tables of one thing must not drift apart."""
    named = site(target).target
    place, gpu = container.place_of(named), container.gpu_of(named)
    for size in place.sizes:
        container.refuse_size(gpu, place, size, Size(vcpu=0, ram_gib=0))
    assert place.name == target
    assert ("-cu129" in gpu.image) == (
        target != RTX
    )  # Blackwell needs CUDA 12.8 and has driver 580
    assert _container(typed(target)).image == gpu.image
    assert _container(typed(target, image="me/mine@sha256:0")).image == "me/mine@sha256:0"


def test_a_target_whose_gpu_cloud_run_does_not_have_is_refused() -> None:
    """A made-up target says so at once, and names those that there are."""
    for accelerator in ("nvidia-h100", None):
        odd = Target(name="odd", backend="cloud_run", description="", accelerator=accelerator)
        with pytest.raises(InvalidArgument) as refused:
            container.place_of(odd)
        assert "nvidia-l4" in refused.value.fix


def test_a_region_that_is_not_listed_is_a_warning_and_what_is_no_region_is_refused() -> None:
    """Google adds regions often, and knows which; of one by invitation the quota decides."""
    for target, region in ((L4, "europe-north1"), (RTX, "us-east4")):
        made = planned(site(target, google_cloud_location=region))
        (warning,) = [one for one in made.warnings if region in one]
        assert "us-central1" in warning
    for name in ("europe", "us-east4-a", "Frankfurt"):
        with pytest.raises(InvalidArgument, match="no region of Google Cloud"):
            drawn(site(L4, google_cloud_location=name))
    invited = planned(site(L4, google_cloud_location="us-central1"))
    assert any("invitation" in warning for warning in invited.warnings)
    assert not any("invitation" in warning for warning in planned(L4).warnings)


@pytest.mark.parametrize(
    ("target", "said", "size"),
    [
        (L4, {"cpu": 8}, (8, 32)),
        (L4, {"cpu": 6}, (6, 24)),
        (L4, {"memory_gib": 24}, (8, 24)),
        (L4, {"cpu": 8, "memory_gib": 20}, (8, 20)),
        (RTX, {"cpu": 30}, (30, 80)),
        (RTX, {"memory_gib": 176}, (44, 176)),
    ],
)
def test_processors_and_memory_that_are_asked_for_are_given(
    target: str, said: dict[str, Any], size: tuple[int, int]
) -> None:
    """What is left out fits the rest; where Google names no largest size, more is doubted."""
    made = planned(target, model="google/gemma-4-E2B-it", **said)
    limits = made.steps[-1].request["service"]["template"]["containers"][0]["resources"]["limits"]
    assert (limits["cpu"], limits["memory"]) == (str(size[0]), f"{size[1]}Gi")
    doubted = any("names no largest size" in warning for warning in made.warnings)
    assert doubted == (target == RTX)


def test_concurrency_is_what_vllm_takes_at_once() -> None:
    """Less wastes the GPU, more waits in a queue that Cloud Run does not see."""
    assert drawn().concurrency == 256
    assert drawn(RTX).concurrency == 1000
    assert drawn(engine_args=("--max-num-seqs", "24")).concurrency == 24


def test_the_server_listens_where_cloud_run_looks_for_it() -> None:
    """On 127.0.0.1, or on another port, no instance ever gets ready."""
    box = _container(typed())
    words = list(box.args)
    assert words[words.index("--host") + 1] == "0.0.0.0"  # noqa: S104  of the container
    assert words[words.index("--port") + 1] == str(box.ports[0].container_port)


def test_a_download_from_the_hub_never_leaves_through_the_network() -> None:
    """Without a NAT nothing outside Google is reached from there."""
    egress = run_v2.VpcAccess.VpcEgress
    through: dict[str, Any] = {"network": "default/inner"}
    assert typed(**through).template.vpc_access.egress == egress.PRIVATE_RANGES_ONLY
    inside = typed(**through, weights=BUCKET)
    assert inside.template.vpc_access.egress == egress.ALL_TRAFFIC
    (interface,) = inside.template.vpc_access.network_interfaces
    assert (interface.network, interface.subnetwork) == ("default", "inner")
    assert any("Private Google" in each for each in planned(**through, weights=BUCKET).warnings)
    assert not typed().template.vpc_access.network_interfaces


def test_whoever_runs_the_instances_may_read_their_key_and_is_nobody_else() -> None:
    """Else the revision fails; no default account runs, and every name follows from the spec."""
    plan = planned(site(google_cloud_project="mine"))
    key, grant, create = plan.steps
    account = "vllm-devops-runtime@mine.iam.gserviceaccount.com"
    assert grant.request["policy"]["bindings"] == [
        {"role": "roles/secretmanager.secretAccessor", "members": [f"serviceAccount:{account}"]}
    ]
    assert create.request["service"]["template"]["serviceAccount"] == account
    (kept,) = [env for env in _container(typed()).env if env.value_source]
    assert (kept.name, kept.value) == ("VLLM_API_KEY", "")
    assert kept.value_source.secret_key_ref.secret == key.request["secretId"]
    assert key.request["secretId"] == "vllm-devops-gemma-api-key"


def test_the_token_of_the_hub_is_a_reference_where_one_is_kept() -> None:
    """Without the secret a reference would keep every instance from starting."""
    assert "HF_TOKEN" not in drawn().container.secrets
    kept = drawn(site(hf_token="hf_secret"))
    assert kept.container.secrets["HF_TOKEN"] == "hf-token"
    assert "hf_secret" not in kept.model_dump_json()
    assert "HF_TOKEN" not in drawn(site(hf_token="hf_secret"), weights=BUCKET).container.secrets


def test_a_public_one_still_has_its_key_and_a_warning() -> None:
    """Whoever wants it public is told what that costs."""
    service = typed(access="public")
    engine, guard = service.template.containers
    assert service.invoker_iam_disabled
    assert "VLLM_API_KEY" in {env.name for env in engine.env}
    assert (list(engine.ports), list(guard.depends_on)) == ([], [engine.name])
    assert guard.ports[0].container_port != engine.startup_probe.http_get.port
    assert any("Anybody" in warning for warning in planned(access="public").warnings)


def test_a_bucket_is_mounted_to_be_read_by_anybody_and_written_by_nobody() -> None:
    """Options of gcsfuse have no dashes here; an image may run as another user than root."""
    weights = weights_of(spec(model="/models/gemma", weights=BUCKET + "/"))
    assert weights.mount is not None
    assert (weights.mount.bucket, weights.model) == ("my-bucket", "/weights/models/gemma")
    assert not any(option.startswith("-") for option in weights.mount.options)
    assert {"implicit-dirs", "file-mode=444", "dir-mode=555"} <= set(weights.mount.options)
    baked = weights_of(spec(weights="baked", image="me/gemma:1"))
    assert baked.env == weights.env == {"HF_HUB_OFFLINE": "1"}
    hub = weights_of(spec())
    assert [one.fills_memory for one in (weights, baked, hub)] == [False, False, True]
    assert "HF_HUB_OFFLINE" not in hub.env


@pytest.mark.parametrize(
    ("args", "added", "source"),
    [
        ((), ("--load-format", "runai_streamer"), "gcs-streamed"),
        (("--load-format", "runai_streamer"), (), "gcs-streamed"),
        (("--load-format=auto",), (), "gcs-fuse"),
        (("--safetensors-load-strategy", "prefetch"), (), "gcs-fuse"),
    ],
)
def test_files_are_streamed_unless_the_caller_reads_them_otherwise(
    args: tuple[str, ...], added: tuple[str, ...], source: str
) -> None:
    """gcsfuse crawls where safetensors are read at random; the boot is foreseen for the way."""
    weights = weights_of(spec(weights=BUCKET, engine_args=args))
    assert (weights.args, weights.boot_source) == (added, source)
    words = list(_container(typed(weights=BUCKET, engine_args=args)).args)
    assert sum(word.startswith("--load-format") for word in words) <= 1
