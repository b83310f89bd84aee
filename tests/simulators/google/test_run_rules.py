"""What the simulated Cloud Run does not take."""

from collections.abc import Callable

import pytest
from google.api_core import exceptions
from google.cloud.run_v2.types import Container, Service

from tests.simulators.google.run_services import Services, account_of, parent_of, wanted

pytestmark = pytest.mark.anyio


def _limit(name: str, value: str) -> Callable[[Service], None]:
    def change(service: Service) -> None:
        service.template.containers[0].resources.limits[name] = value

    return change


def _probe(field: str, value: int) -> Callable[[Service], None]:
    def change(service: Service) -> None:
        setattr(service.template.containers[0].startup_probe, field, value)

    return change


def _template(field: str, value: object) -> Callable[[Service], None]:
    def change(service: Service) -> None:
        setattr(service.template, field, value)

    return change


def _container(field: str, value: object) -> Callable[[Service], None]:
    def change(service: Service) -> None:
        setattr(service.template.containers[0], field, value)

    return change


def _service(field: str, value: object) -> Callable[[Service], None]:
    def change(service: Service) -> None:
        setattr(service, field, value)

    return change


def _idle(service: Service) -> None:
    service.template.containers[0].resources.cpu_idle = True


def _beside(**said: object) -> Callable[[Service], None]:
    """Put a second container beside the engine's, which gives its port and some memory away."""

    def change(service: Service) -> None:
        engine = service.template.containers[0]
        engine.name, engine.ports = "vllm", []
        engine.resources.limits.update({"cpu": "6", "memory": "24Gi"})
        proxy = {"name": "guard", "image": "nginx", "ports": [{"container_port": 8080}], **said}
        service.template.containers = [engine, Container(**proxy)]

    return change


FLAWS = {
    "two containers without a port": (_beside(ports=[]), "exactly one container must have a port"),
    "two containers of one name": (_beside(name="vllm"), "a name of its own"),
    "a start after nobody": (_beside(depends_on=["other"]), "no other container is named other"),
    "half a processor": (
        _beside(resources={"limits": {"cpu": "500m", "memory": "512Mi"}}),
        "whole number",
    ),
    "more than an instance has": (
        _beside(resources={"limits": {"cpu": "4", "memory": "8Gi"}}),
        "all containers together",
    ),
    "two with a GPU": (
        _beside(resources={"limits": {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}}),
        "only one container can have a GPU",
    ),
    "too few processors": (_limit("cpu", "2"), "limits.cpu"),
    "too many processors": (_limit("cpu", "16"), "limits.cpu"),
    "too little memory": (_limit("memory", "8Gi"), "limits.memory"),
    "unreadable memory": (_limit("memory", "plenty"), "limits.memory"),
    "two accelerators": (_limit("nvidia.com/gpu", "2"), "must be 1"),
    "throttled processors": (_idle, "cpu_idle"),
    "the first generation": (_template("execution_environment", 1), "second generation"),
    "an unknown accelerator": (_template("node_selector", {"accelerator": "a100"}), "accelerator"),
    "a long request": (_template("timeout", {"seconds": 3601}), "template.timeout"),
    "many at once": (_template("max_instance_request_concurrency", 1001), "concurrency"),
    "min above max": (
        _template("scaling", {"min_instance_count": 2, "max_instance_count": 1}),
        "greater or equal than min_instance_count",
    ),
    "a late first probe": (_probe("initial_delay_seconds", 241), "initial_delay_seconds"),
    "rare probes": (_probe("period_seconds", 241), "period_seconds"),
    "a probe that outlasts its period": (_probe("timeout_seconds", 6), "timeout_seconds"),
    "probes for longer than a boot may take": (_probe("failure_threshold", 361), "1800 seconds"),
    "two ports": (
        _container("ports", [{"container_port": 8000}, {"container_port": 8001}]),
        "at most one port",
    ),
    "a port with a strange name": (
        _container("ports", [{"container_port": 8000, "name": "web"}]),
        "http1",
    ),
    "a variable that is Google's": (_container("env", [{"name": "PORT", "value": "1"}]), "PORT"),
    "no image": (_container("image", ""), "image"),
    "a mount of nothing": (
        _container("volume_mounts", [{"name": "w", "mount_path": "/w"}]),
        "no volume is named w",
    ),
    "dashes before mount options": (
        _template("volumes", [{"name": "w", "gcs": {"bucket": "b", "mount_options": ["--uid=0"]}}]),
        "mount options",
    ),
    "a label of the system": (_service("labels", {"run.googleapis.com/x": "y"}), "label key"),
    "a label in capitals": (_service("labels", {"owner": "Me"}), "label value"),
    "an annotation of the system": (
        _service("annotations", {"run.googleapis.com/launch-stage": "BETA"}),
        "reserved",
    ),
    "no container": (_template("containers", []), "exactly one container"),
}


@pytest.mark.parametrize("flaw", FLAWS)
async def test_what_cannot_be_is_refused_with_its_field(services: Services, flaw: str) -> None:
    """Nothing is made, and the message names what is wrong."""
    change, words = FLAWS[flaw]
    service = wanted(services.project)
    change(service)
    with pytest.raises(exceptions.InvalidArgument, match=words):
        await services.create(service)
    assert services.controls.get(services.project)["services"] == []


@pytest.mark.parametrize("name", ["Upper", "1st", "ends-", "a" * 50, ""])
async def test_a_name_that_cannot_be_is_refused(services: Services, name: str) -> None:
    """Lower-case letters, digits and hyphens; fewer than 50."""
    with pytest.raises(exceptions.InvalidArgument, match="service_id"):
        await services.create(service_id=name)


async def test_the_service_as_it_stands_is_taken(services: Services) -> None:
    """What every flaw above is made from has none."""
    services.controls.set(services.project, rollout="never")
    assert (await services.create()).operation.name


async def test_a_region_without_the_accelerator_is_refused(services: Services) -> None:
    """The largest GPU is not everywhere."""
    services.controls.set(services.project, quotas={"rtx-pro-6000": 1})
    service = wanted(services.project)
    service.template.node_selector.accelerator = "nvidia-rtx-pro-6000"
    service.template.containers[0].resources.limits.update({"cpu": "20", "memory": "80Gi"})
    with pytest.raises(exceptions.InvalidArgument, match="not supported in region us-east4"):
        await services.client.create_service(
            parent=parent_of(services.project, "us-east4"), service=service, service_id="one"
        )


@pytest.mark.parametrize(("lone", "word"), [(True, "without"), (False, "with")])
async def test_without_quota_nothing_is_made(
    services: Services,
    lone: bool,  # noqa: FBT001
    word: str,
) -> None:
    """The two kinds have quotas of their own; that with redundancy is none."""
    services.controls.set(services.project, quotas={"l4": 0})
    service = wanted(services.project)
    service.template.gpu_zonal_redundancy_disabled = lone
    with pytest.raises(exceptions.InvalidArgument, match=f"using GPUs {word} zonal redundancy"):
        await services.create(service)


async def test_more_instances_than_the_quota_are_refused(services: Services) -> None:
    """The limit and what was asked for are both told."""
    service = wanted(services.project)
    service.template.scaling.max_instance_count = 4
    with pytest.raises(exceptions.InvalidArgument, match="requested: 4 allowed: 3"):
        await services.create(service)


async def test_instances_without_a_limit_are_a_hundred(services: Services) -> None:
    """Whoever names no limit asks for Google's default, which no quota of GPUs allows."""
    service = wanted(services.project)
    service.template.scaling.max_instance_count = 0
    with pytest.raises(exceptions.InvalidArgument, match="requested: 100 allowed: 3"):
        await services.create(service)


async def test_an_account_that_is_not_there_cannot_be_acted_as(services: Services) -> None:
    """Google says it as a permission that is missing."""
    service = wanted(services.project)
    service.template.service_account = account_of(services.project).replace("runtime", "nobody")
    with pytest.raises(exceptions.PermissionDenied, match="actAs"):
        await services.create(service)


async def test_violations_come_as_details_too(services: Services) -> None:
    """A program finds the field without reading the sentence."""
    service = wanted(services.project)
    _idle(service)
    with pytest.raises(exceptions.InvalidArgument) as caught:
        await services.create(service)
    assert "template.containers[0].resources.cpu_idle" in str(caught.value.details)


@pytest.mark.parametrize(
    ("quotas", "words"),
    [
        (
            {"memory_gib": 40},
            "MemAllocPerProjectRegion requested: 68719476736 allowed: 42949672960",
        ),
        ({"cpu": 15}, "CpuAllocPerProjectRegion requested: 16000 allowed: 15000"),
    ],
)
async def test_more_cpu_or_memory_than_the_quota_is_refused(
    services: Services, quotas: dict[str, int], words: str
) -> None:
    """All instances count together; one fewer would do."""
    services.controls.set(services.project, quotas=quotas, rollout="never")
    service = wanted(services.project)
    service.template.scaling.max_instance_count = 2
    with pytest.raises(exceptions.InvalidArgument, match=words) as caught:
        await services.create(service)
    assert "must be set to 1 or fewer" in caught.value.message
    service.template.scaling.max_instance_count = 1
    assert (await services.create(service)).operation.name
