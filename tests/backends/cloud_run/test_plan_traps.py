"""What went wrong on Cloud Run for others cannot be planned here: each trap is a sentence."""

from typing import Any

import pytest
from google.cloud import run_v2

from backends.cloud_run import container
from core.errors import InvalidArgument
from tests.backends.cloud_run.planned import (
    BUCKET,
    L4,
    QAT_26B,
    RTX,
    drawn,
    planned,
    site,
    typed,
)

_EVERY: list[dict[str, Any]] = [
    {},
    {"weights": BUCKET},
    {"weights": "baked", "image": "docker.io/me/baked:1"},
    {"engine": "ollama", "model": "gemma3:4b"},
]
every = pytest.mark.parametrize("said", _EVERY, ids=["hub", "bucket", "baked", "ollama"])
targets = pytest.mark.parametrize("target", [L4, RTX])


def _container(service: run_v2.Service) -> run_v2.Container:
    return service.template.containers[0]


@targets
@every
def test_no_service_steps_into_a_trap(target: str, said: dict[str, Any]) -> None:
    """R20 to R25, R35, R36: what Cloud Run refuses, bills or does where nobody says otherwise."""
    service = typed(target, **said, max_replicas=2, max_num_seqs=16)
    template, container = service.template, _container(service)
    probe, (port,) = container.startup_probe, container.ports
    assert probe.initial_delay_seconds <= 240
    assert probe.period_seconds <= 240
    assert probe.timeout_seconds < probe.period_seconds
    budget = probe.initial_delay_seconds + probe.period_seconds * probe.failure_threshold
    assert 240 <= budget <= 1800
    assert probe.http_get.path in {"/health", "/"}  # a TCP probe gives up after 240 s of loading
    assert probe.http_get.port == port.container_port
    assert not probe.tcp_socket
    assert port.name == ""  # h2c would have Cloud Run speak HTTP/2 to servers that speak HTTP/1
    assert container.resources.cpu_idle is False
    assert container.resources.startup_cpu_boost
    assert container.resources.limits["nvidia.com/gpu"] == "1"
    assert template.gpu_zonal_redundancy_disabled
    assert template.execution_environment.name == "EXECUTION_ENVIRONMENT_GEN2"
    assert service.scaling.max_instance_count == template.scaling.max_instance_count == 2
    assert template.max_instance_request_concurrency == 16
    assert template.timeout.seconds == 3600
    assert service.invoker_iam_disabled is False
    assert not any("Anybody" in warning for warning in planned(target, **said).warnings)
    if target == RTX:
        limits = container.resources.limits
        assert (limits["cpu"], limits["memory"]) == ("20", "80Gi")
        assert template.node_selector.accelerator == "nvidia-rtx-pro-6000"


def test_the_probe_outlasts_the_slowest_boot_that_is_foreseen() -> None:
    """R21: 26B took 664 s over gcsfuse and 99 s to compile; its probe may not be shorter."""
    slow: dict[str, Any] = {
        "weights": BUCKET,
        "engine_args": ("--safetensors-load-strategy", "prefetch"),
    }
    assert drawn(model=QAT_26B, **slow).startup.budget_seconds > 664 + 99 + 60
    streamed = drawn(model=QAT_26B, weights=BUCKET).startup.budget_seconds
    assert streamed < drawn(model=QAT_26B, **slow).startup.budget_seconds


def test_concurrency_is_what_vllm_takes_at_once() -> None:
    """R25: less wastes the GPU, more waits in a queue that Cloud Run does not see."""
    assert drawn().concurrency == 256
    assert drawn(RTX).concurrency == 1000
    assert drawn(engine_args=("--max-num-seqs", "24")).concurrency == 24


def test_the_server_listens_where_cloud_run_looks_for_it() -> None:
    """R28: on 127.0.0.1, or on another port, no instance ever gets ready."""
    container = _container(typed())
    words = list(container.args)
    assert words[words.index("--host") + 1] == "0.0.0.0"  # noqa: S104  of the container
    assert words[words.index("--port") + 1] == str(container.ports[0].container_port)
    for flag in ("--host", "--port"):
        with pytest.raises(InvalidArgument):
            typed(engine_args=(flag, "1"))


def test_a_download_is_only_planned_where_memory_holds_it() -> None:
    """R30: the disk is memory, so that an instance with too little is killed while it loads."""
    made = drawn(model=QAT_26B)
    assert made.size.ram_gib >= 17 + 4
    assert made.container.env["HF_XET_CHUNK_CACHE_SIZE_BYTES"] == "0"
    assert "HF_XET_HIGH_PERFORMANCE" not in made.container.env
    assert drawn(RTX).container.env["HF_XET_HIGH_PERFORMANCE"] == "1"
    with pytest.raises(InvalidArgument, match="of an instance's memory"):
        drawn(L4, model="google/gemma-4-26B-A4B-it")


def test_a_download_from_the_hub_never_leaves_through_the_network() -> None:
    """R31: without a NAT nothing outside Google is reached from there."""
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
    """R32: else the revision fails with SECRETS_ACCESS_CHECK_FAILED; no default account runs."""
    plan = planned(site(google_cloud_project="mine"))
    _key, grant, create = plan.steps
    account = "vllm-devops-runtime@mine.iam.gserviceaccount.com"
    assert grant.request["policy"]["bindings"] == [
        {"role": "roles/secretmanager.secretAccessor", "members": [f"serviceAccount:{account}"]}
    ]
    assert create.request["service"]["template"]["serviceAccount"] == account
    (kept,) = [env for env in _container(typed()).env if env.value_source]
    assert kept.name == "VLLM_API_KEY"
    assert kept.value_source.secret_key_ref.secret == "vllm-devops-gemma-api-key"
    assert not kept.value


def test_a_public_one_still_has_its_key_and_a_warning() -> None:
    """R35: whoever wants it public is told what that costs."""
    service = typed(access="public")
    engine, guard = service.template.containers
    assert service.invoker_iam_disabled
    assert "VLLM_API_KEY" in {env.name for env in engine.env}
    assert (list(engine.ports), list(guard.depends_on)) == ([], [engine.name])
    assert guard.ports[0].container_port != engine.startup_probe.http_get.port
    assert any("Anybody" in warning for warning in planned(access="public").warnings)


@pytest.mark.parametrize("target", [L4, RTX])
def test_an_image_is_built_for_the_driver_of_its_hosts(target: str) -> None:
    """R37: a CUDA newer than the driver's starts nothing; Blackwell needs 12.8 at least."""
    gpu = container.gpu_of(site(target).target)
    assert int(gpu.cuda.split(".")[0]) <= gpu.driver_cuda_major
    assert ("-cu129" in gpu.image) == (gpu.cuda == "12.9")
    if target == RTX:
        assert tuple(map(int, gpu.cuda.split("."))) >= (12, 8)
    assert _container(typed(target)).image == gpu.image
    assert _container(typed(target, image="me/mine@sha256:0")).image == "me/mine@sha256:0"


def test_an_instance_that_always_runs_is_planned_with_its_monthly_price() -> None:
    """R38: one that was left on costs about a thousand dollars a month."""
    assert typed().scaling.min_instance_count == 0
    (said,) = [each for each in planned(min_replicas=1).warnings if "all the time" in each]
    assert "$1,037 a month" in said
    assert not any("all the time" in warning for warning in planned().warnings)


@pytest.mark.parametrize(
    "said",
    [
        {"tensor_parallel_size": 2},
        {"engine_args": ("--tensor-parallel-size", "2")},
        {"engine_args": ("-tp=2",)},
        {"engine_args": ("--pipeline_parallel_size=4",)},
    ],
)
def test_a_model_is_not_spread_over_gpus_that_an_instance_does_not_have(
    said: dict[str, Any],
) -> None:
    """R58: an instance has one GPU, and a /dev/shm that is memory."""
    with pytest.raises(InvalidArgument, match="one GPU"):
        typed(**said)


def test_a_long_prefill_is_no_reason_to_kill_a_server() -> None:
    """Several minutes of silence are; one late answer is not."""
    probe = _container(typed()).liveness_probe
    assert probe.period_seconds >= 60
    assert probe.failure_threshold >= 3
    assert probe.timeout_seconds < probe.period_seconds
