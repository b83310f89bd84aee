"""What a service, its instances and its log are told as, with every reading planted."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import pytest
from google.cloud import monitoring_v3, run_v2

from backends.cloud_run import access
from backends.cloud_run import status as instances
from backends.cloud_run.service import version_of
from backends.cloud_run.status import label_of
from backends.google import leftovers
from core.errors import ApiDisabled, CloudUnavailable, DeploymentNotFound, NotOurs, NotReady
from core.records import Deployment, DeploymentSpec, State
from core.reply import collecting_notes
from tests.backends.cloud_run.planted import PARENT, SPEC, Planted, labels
from tests.backends.cloud_run.sites import backend_of

pytestmark = pytest.mark.anyio

MANUAL: Final = run_v2.ServiceScaling.ScalingMode.MANUAL
NONE: Final = run_v2.ServiceScaling(scaling_mode=MANUAL, manual_instance_count=0)
ONE: Final = run_v2.ServiceScaling(min_instance_count=1)
RTX: Final = "cloud-run-rtx-pro-6000"


async def seen(there: Planted, name: str = "gemma") -> Deployment:
    return await backend_of(there.site).describe(name)


def failed(message: str, reason: str) -> run_v2.Condition:
    return run_v2.Condition(
        type_="Ready",
        state="CONDITION_FAILED",
        last_transition_time=datetime.now(UTC),
        message=message,
        reason=reason,
    )


class Case(NamedTuple):
    """What is planted, and what it is told as."""

    state: State
    service: dict[str, Any]
    ran: tuple[float, float | None] | None = None
    """An instance: from so many seconds ago to so many, or until now."""
    phase: str = ""
    notes: str = ""
    """Words of them; empty is none at all."""
    asked: bool = False
    """Whether the model was asked, which keeps an instance awake."""
    late: float = 0
    """Seconds by which Cloud Monitoring is."""
    more: Callable[[Planted], None] | None = None
    failure: str = ""


def boots(there: Planted) -> None:
    """An instance begins anew; the log of the one before it is over."""
    there.healthy = False
    there.log("Application startup complete.", ago=50)
    there.log("Starting new instance. Reason: AUTOSCALING", ago=20, log="varlog/system")
    there.log("Starting to load model gemma...", ago=10)


def over(there: Planted, *steps: str) -> None:
    (revision,) = there.project.revisions.values()
    revision.conditions = [
        run_v2.Condition(type_=step, state="CONDITION_SUCCEEDED") for step in steps
    ]


def woken(there: Planted) -> None:
    there.site.woken["gemma"] = datetime.now(UTC) + timedelta(seconds=5)


def answered(there: Planted) -> None:
    there.site.answered.update(there.project.revisions)
    there.healthy = False


OOM: Final = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ROLLING: Final = {"reconciling": True, "latest_ready_revision": "", "uri": ""}
NO_START: Final = {
    "terminal_condition": failed("The container failed to start.", "REVISION_FAILED"),
    "latest_ready_revision": "",
}
BEFORE: Final = {
    "terminal_condition": failed("No.", "CONTAINER_MISSING"),
    "latest_ready_revision": f"{PARENT}/services/gemma/revisions/gemma-00000-old",
}
CASES: Final = {
    "no revision yet": Case(State.CREATING, {"reconciling": True, "latest_created_revision": ""},
         phase="queued"),
    "image there": Case(State.CREATING, ROLLING, phase="provisioning", more=lambda one: over(one,
         "ContainerReady")),
    "revision gone": Case(State.CREATING, {"reconciling": True},
         more=lambda one: one.project.revisions.clear()),
    "boots": Case(State.LOADING, ROLLING, phase="loading weights", more=boots),
    "revision not to be read": Case(State.CREATING, {"reconciling": True}, phase="queued",
         more=lambda one: one.fail("*GetRevision", "PERMISSION_DENIED"),
         notes="look at its revision"),
    "boots without a log": Case(State.CREATING, {"reconciling": True},
         more=lambda one: one.fail("google.logging.*", "PERMISSION_DENIED"), notes="read the log"),
    "up and silent": Case(State.LOADING, {}, (60, None), phase="loading weights", asked=True,
         more=boots, failure="ENDPOINT_ERROR"),
    "ready without a reading": Case(State.READY, {"age_seconds": 30}, asked=True),
    "woken since the reading": Case(State.READY, {"age_seconds": 3600}, (3600, 1800), asked=True,
         more=woken ),
    "kept by hand": Case(State.READY, {"age_seconds": 7200,
         "scaling": run_v2.ServiceScaling(scaling_mode=MANUAL, manual_instance_count=1)},
         asked=True),
    "always kept, started anew": Case(State.LOADING, {"scaling": ONE}, (50, 10), asked=True,
         more=answered, failure="ENDPOINT_ERROR"),
    "asleep": Case(State.ASLEEP, {"age_seconds": 3600}, (3600, 1800)),
    "in doubt asleep": Case(State.ASLEEP, {"age_seconds": 7200}, notes="is taken to sleep"),
    "stopping": Case(State.STOPPING, {"scaling": NONE}, (60, None), phase="without instances"),
    "stopped": Case(State.STOPPED, {"scaling": NONE}, (60, 0)),
    "read before the stop": Case(State.STOPPING, {"age_seconds": 60, "scaling": NONE}, (3600,
         600), "reading", late=120 ),
    "old reading": Case(State.STOPPING, {"age_seconds": 3600, "scaling": NONE}, (3600, None),
         notes="instances is 4", late=430),
    "never ran": Case(State.STOPPED, {"age_seconds": 3600, "scaling": NONE}, notes="was not read"),
    "stop not to be read": Case(State.STOPPING, {"age_seconds": 3600, "scaling": NONE},
         more=lambda one: one.fail("google.monitoring.*", "PERMISSION_DENIED"),
         notes="does not let you"),
    "did not start": Case(State.FAILED, NO_START, failure="STARTUP_PROBE_FAILED"),
    "out of memory": Case(State.FAILED, NO_START, more=lambda one: one.log(OOM),
         failure="DOES_NOT_FIT"),
    "former one serves": Case(State.FAILED, BEFORE, notes="gemma-00000-old, which bills on",
         failure="IMAGE_NOT_FOUND"),
    "being deleted": Case(State.DELETING, {"delete_time": datetime.now(UTC)}),
    "spec lost": Case(State.DELETING, {"annotations": {"vllm-devops/spec": "{broken"},
         "delete_time": datetime.now(UTC)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_it_is_told_as_what_google_and_its_log_say(there: Planted, name: str) -> None:
    """Judged by readings that are minutes old, and never by waking it."""
    case = CASES[name]
    knobs = there.project.knobs.model_copy(update={"metric_delay_seconds": case.late})
    there.project.knobs = knobs
    there.service(**case.service)
    if case.ran:
        there.instance(*case.ran)
    if case.more:
        case.more(there)
    with collecting_notes() as notes:
        now = await seen(there)
    assert now.state is case.state
    assert case.phase in (now.phase.name if now.phase else "")
    assert case.notes in "\n".join(notes)
    assert bool(case.notes) is bool(notes)
    assert there.asked == (["/v1/models"] if case.asked else [])
    assert (now.failure.code if now.failure else "") == case.failure


async def test_a_service_that_is_ready_and_answers_is_told_whole(there: Planted) -> None:
    """State, address, what it runs, what it costs; until when our look keeps an instance."""
    there.service()
    there.instance(started=60)
    now = await seen(there)
    assert (now.state, now.replicas, now.instance) == (State.READY, 1, "gemma-00001-abc")
    assert (now.model, now.url) == (SPEC.model, there.uri)
    assert (now.revision, now.engine) == (SPEC.fingerprint, "simulated vLLM 0.32.0")
    assert now.expires_at == datetime(2100, 1, 1, tzinfo=UTC)
    assert now.usd_per_hour == pytest.approx(0.672 + 4 * 0.0648 + 16 * 0.0072, abs=0.001)
    assert now.usd_so_far == pytest.approx(1.0465 / 60, rel=0.1)
    assert now.awake_until
    assert now.awake_until > datetime.now(UTC)


async def test_a_model_is_asked_once_and_again_after_a_sleep(there: Planted) -> None:
    """Asking keeps an instance awake, and so it bills; another instance loads the model anew."""
    service = there.service(age_seconds=3600)
    there.instance(started=3600, ended=1800)
    there.site.answered.add(service.latest_ready_revision)
    assert (await seen(there)).state is State.ASLEEP
    there.instance(started=10)
    states = [(await seen(there)).state for _ in range(3)]
    assert states == [State.READY] * 3
    assert there.asked == ["/v1/models"]


async def test_one_that_is_kept_awake_anyway_is_kept_by_no_look(there: Planted) -> None:
    """Nothing is postponed where there is always an instance."""
    there.service(scaling=ONE)
    there.instance(started=60)
    now = await seen(there)
    assert (now.state, now.awake_until) == (State.READY, None)


async def test_while_its_container_boots_the_log_tells_how_far_it_is(there: Planted) -> None:
    """The phase began when its line came, whatever clock the container has."""
    there.service(reconciling=True)
    before = datetime.now(UTC)
    there.log(
        "INFO 01-01 00:00:00 [x.py:1] Starting to load model gemma...",
        "Loading safetensors checkpoint shards:  61% Completed | 11/18 [00:20<00:12]",
        ago=10,
    )
    now = await seen(there)
    assert now.phase
    assert (now.state, now.phase.percent) == (State.LOADING, 61)
    assert before <= now.phase.since + timedelta(seconds=10) <= datetime.now(UTC)


@pytest.mark.parametrize("status", ["PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "INTERNAL"])
async def test_without_monitoring_the_state_is_told_all_the_same(
    there: Planted, status: str
) -> None:
    """What is missing is said."""
    there.service(age_seconds=30)
    there.fail("google.monitoring.*", status)
    with collecting_notes() as notes:
        now = await seen(there)
    assert (now.state, now.usd_so_far) == (State.READY, None)
    assert notes


async def test_what_is_not_there_or_not_ours_is_not_told(there: Planted) -> None:
    """A name is no proof of whose it is, and none climbs out of its folder."""
    with pytest.raises(DeploymentNotFound) as caught:
        await seen(there, "../../services/gemma")
    assert there.project.calls == []
    assert caught.value.next_steps[0].tool == "list_deployments"
    there.service("foreign", labels={})
    there.service("other", labels=labels(**{"vllm-devops-target": RTX}))
    with pytest.raises(NotOurs):
        await seen(there, "foreign")
    with pytest.raises(DeploymentNotFound, match=f"it is on {RTX}"):
        await seen(there, "other")
    for name in ("second", "first"):
        there.service(name, delete_time=datetime.now(UTC))
    names = [(each.name, each.state) for each in await backend_of(there.site).list()]
    assert names == [("first", State.DELETING), ("second", State.DELETING)]


async def test_without_run_there_is_nothing_to_tell(there: Planted) -> None:
    """A short failure is not noticed; a lasting one is coded, and no empty list."""
    there.service(age_seconds=30)
    there.fail("*GetService", "UNAVAILABLE", times=1)
    assert (await seen(there)).state is State.READY
    there.fail("*Service*", "INTERNAL")
    with pytest.raises(CloudUnavailable):
        await seen(there)
    with pytest.raises(CloudUnavailable):
        await backend_of(there.site).list()


async def test_no_address_yet_is_not_ready(there: Planted) -> None:
    """Cloud Run hands out the URL a moment after the service."""
    there.service(uri="")
    with pytest.raises(NotReady):
        await access.access(there.site, "gemma")


_BOOT = (
    "[core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: dtype=torch.bfloat16,",
    "INFO 11-21 12:00:30 [x.py:1] Model loading took 8.6 GiB and 20.1 seconds",
    "INFO 11-21 12:00:40 [x.py:1] Application startup complete.",
)


def with_spec(there: Planted, spec: DeploymentSpec) -> None:
    there.service(annotations={"vllm-devops/spec": spec.model_dump_json(exclude_defaults=True)})


async def test_the_log_of_the_boot_tells_version_and_memory(there: Planted) -> None:
    """As vLLM says it itself."""
    there.service()
    there.log(*_BOOT)
    found = await backend_of(there.site).engine_facts("gemma")
    assert (found.version, found.weights_dtype) == ("0.32.0", "torch.bfloat16")
    assert found.memory["weights_gib"] == 8.6


async def test_without_a_log_nothing_is_known(there: Planted) -> None:
    """A log is kept for 30 days."""
    there.service()
    assert (await backend_of(there.site).engine_facts("gemma")).version is None


async def test_memory_is_foreseen_for_the_targets_accelerator(there: Planted) -> None:
    """With the flags that were asked for."""
    with_spec(there, SPEC.model_copy(update={"model": "google/gemma-4-E4B-it"}))
    found = await backend_of(there.site).predicted("gemma")
    assert found
    assert (found.accelerator.name, found.flags.vllm_version) == ("l4", "0.32.0")


async def test_the_machine_is_the_one_that_the_service_has(there: Planted) -> None:
    """Not the largest that the target could give."""
    there.service()
    machine = await backend_of(there.site).hardware("gemma")
    assert (machine.vcpu, machine.ram_gib) == (4, 16)
    assert "L4" in machine.accelerator
    accelerator, count = backend_of(there.site).hardware_known()
    assert (accelerator.name, count) == ("l4", 1)


async def test_an_image_of_ones_own_has_no_version_unless_its_tag_says_it(there: Planted) -> None:
    """The target's own image is known by the rules."""
    service = there.service()
    image = service.template.containers[0]
    assert label_of(there.site, service, "vllm") == "simulated vLLM 0.32.0"
    image.image = "example.com/mine@sha256:00"
    assert label_of(there.site, service, "vllm").endswith("(version not known)")
    image.image = "vllm/vllm-openai@sha256:00"
    assert version_of(there.site, service)
    assert label_of(there.site, service, "ollama") == "simulated Ollama"


async def counts(there: Planted) -> list[int]:
    now = datetime.now(UTC)
    return [one.count for one in await instances.read_instances(there.site, "gemma", now)]


async def test_busy_and_idle_instances_of_the_deployment_are_counted_together(
    there: Planted,
) -> None:
    """Both are billed; what ended is none, and what never was is no reading."""
    there.instance(started=60, name="other")
    assert await counts(there) == []
    there.instance(started=60)
    there.instance(started=60)
    there.project.instances[1].busy.append((0.0, None))
    assert await counts(there) == [2]
    for one in there.project.instances:
        one.ended = datetime.now(UTC).timestamp()
    assert await counts(there) == [0]


def test_a_series_that_has_ended_counts_no_more() -> None:
    """A former revision's last point stays the newest of its series."""
    now = datetime.now(UTC)

    def one(at: datetime, count: int) -> monitoring_v3.TimeSeries:
        point = monitoring_v3.Point(
            interval=monitoring_v3.TimeInterval(end_time=at),
            value=monitoring_v3.TypedValue(int64_value=count),
        )
        return monitoring_v3.TimeSeries(points=[point])

    reading = instances.newest_reading([one(now, 1), one(now - timedelta(seconds=60), 1)])
    assert reading
    assert (reading.count, reading.at) == (1, now)


async def test_a_metric_that_the_project_never_had_is_no_reading(there: Planted) -> None:
    """Google answers so until the first instance ever; an API that is off names the remedy."""
    there.fail("google.monitoring.*", "NOT_FOUND")
    assert await counts(there) == []
    there.project.apis.discard("monitoring.googleapis.com")
    there.fail("nothing", "NOT_FOUND")
    with pytest.raises(ApiDisabled, match="instances"):
        await counts(there)


async def test_what_was_billed_is_summed_over_instances_and_revisions(there: Planted) -> None:
    """Since the service was made: 900 seconds, some minutes late."""
    service = there.service(age_seconds=1800)
    there.instance(started=1200, ended=600)
    there.instance(started=300)
    hourly = instances.usd_per_hour(there.site, service) or 0
    usd = await instances.usd_so_far(there.site, service, datetime.now(UTC))
    assert usd == pytest.approx(900 / 3600 * hourly, rel=0.14)


@pytest.mark.parametrize(
    ("cpu", "memory", "gib"),
    [
        ("8", "32Gi", 32),
        ("8000m", "32768Mi", 32),
        ("8", "34359738368", 32),
        ("lots", "16Gi", None),
    ],
)
def test_money_is_not_guessed_where_the_size_cannot_be_read(
    cpu: str, memory: str, gib: int | None
) -> None:
    """Google takes what Kubernetes takes; a service that was changed by hand may say anything."""
    limits = run_v2.ResourceRequirements(limits={"cpu": cpu, "memory": memory})
    template = run_v2.RevisionTemplate(containers=[run_v2.Container(resources=limits)])
    size = leftovers.size_of(run_v2.Service(template=template))
    assert (size.ram_gib if size else None) == gib
    assert leftovers.size_of(run_v2.Service()) is None
