"""What the simulated Compute Engine refuses to make an instance of."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.api_core import exceptions

from core.settings import GooglePlane
from tests.google_plane import Controls
from tests.simulators.google.compute import IMAGE, ZONE, Compute, compute_of, errors_of, instance

pytestmark = pytest.mark.anyio

Spoils = Callable[[dict[str, Any]], Any]


@pytest.fixture
async def compute(plane: GooglePlane, project: str, controls: Controls) -> AsyncIterator[Compute]:
    controls.set(project, tpu_clock=1200)
    async with compute_of(plane, project) as compute:
        yield compute


def _scheduled(**more: Any) -> Spoils:
    return lambda asked: asked["scheduling"].update(more)


def _disk(**more: Any) -> Spoils:
    return lambda asked: asked["disks"][0]["initialize_params"].update(more)


def _seconds(count: int) -> dict[str, int]:
    return {"seconds": count}


def _with(**more: Any) -> Spoils:
    return lambda asked: asked.update(more)


def _named(key: str, link: str) -> Spoils:
    return lambda asked: asked["network_interfaces"][0].update({key: link})


_DAY = 86_400
_ANY: dict[str, tuple[Spoils, str]] = {
    "name": (_with(name="One"), r"resource\.name': 'One'\. Must be a match of regex"),
    "long-name": (_with(name="a" * 64), "Must be a match of regex"),
    "machine-type": (
        _with(machine_type=f"zones/{ZONE}/machineTypes/ct6e-standard-2t"),
        f"Machine type with name 'ct6e-standard-2t' does not exist in zone '{ZONE}'",
    ),
    "bare-machine-type": (_with(machine_type="ct6e-standard-1t"), "The URL is malformed"),
    "machine-type-elsewhere": (
        _with(machine_type="zones/us-east1-d/machineTypes/ct6e-standard-1t"),
        "The URL is malformed",
    ),
    "accelerators": (
        _with(guest_accelerators=[{"accelerator_type": "ct6e", "accelerator_count": 1}]),
        "features are not compatible",
    ),
    "migrates": (
        _scheduled(on_host_maintenance="MIGRATE"),
        "Instances with guest accelerators do not support live migration",
    ),
    "image": (_disk(source_image=IMAGE + "x"), "referenced image resource cannot be found"),
    "image-no-link": (_disk(source_image="ubuntu"), "referenced image resource cannot be found"),
    "small-disk": (
        _disk(disk_size_gb=9),
        r"Requested disk size cannot be smaller than the image size \(10 GB\)",
    ),
    "persistent-disk": (
        _disk(disk_type=f"zones/{ZONE}/diskTypes/pd-balanced"),
        r"\[pd-balanced, ct6e-standard-1t\] features are not compatible for creating instance",
    ),
    "disk-type": (_disk(disk_type=f"zones/{ZONE}/diskTypes/quick"), "diskType resource cannot be"),
    "no-disk": (_with(disks=[]), "must be a boot disk"),
    "no-image": (_with(disks=[{"boot": True}]), "must have a source image"),
    "network": (
        _named("network", "global/networks/other"),
        "The referenced network resource cannot be found",
    ),
    "subnetwork": (
        _named("subnetwork", "regions/us-east5/subnetworks/other"),
        "The referenced subnetwork resource cannot be found",
    ),
    "subnetwork-elsewhere": (
        _named("subnetwork", "regions/europe-west4/subnetworks/default"),
        "The URL is malformed",
    ),
    "project": (
        _named("network", "projects/another/global/networks/default"),
        "in another project",
    ),
    "no-network": (_with(network_interfaces=[]), "Exactly one must be given"),
    "two-addresses": (
        lambda asked: asked["network_interfaces"][0].update(access_configs=[{}, {}]),
        "At most one access config",
    ),
    "label-key": (_with(labels={"Managed": "by"}), "Label key 'Managed' violates format"),
    "label-value": (_with(labels={"by": "Me"}), "Label value 'Me' violates format constraints"),
    "long-label": (_with(labels={"by": "m" * 64}), "violates format constraints"),
    "labels": (_with(labels={f"l{n}": "" for n in range(65)}), "At most 64 labels"),
    "tag": (_with(tags={"items": ["1st"]}), r"resource\.tags\.items\[0\]'"),
    "tags": (_with(tags={"items": [f"t{n}" for n in range(65)]}), "At most 64 tags"),
    "metadata-key": (_with(metadata={"items": [{"key": "a b"}]}), r"items\[0\]\.key"),
    "metadata-twice": (_with(metadata={"items": [{"key": "a"}, {"key": "a"}]}), "duplicate key"),
    "metadata-value": (
        _with(metadata={"items": [{"key": "a", "value": "v" * 262_145}]}),
        "maximum size 262144 bytes",
    ),
    "metadata": (
        _with(metadata={"items": [{"key": f"a{n}", "value": "v" * 250_000} for n in range(3)]}),
        "maximum 524288 bytes",
    ),
    "scope": (_with(service_accounts=[{"scopes": ["cloud"]}]), r"scopes\[0\]"),
    "accounts": (_with(service_accounts=[{}, {}]), "At most one"),
    "both-ends": (
        _scheduled(max_run_duration=_seconds(600), termination_time="2026-12-01T00:00:00Z"),
        "mutually exclusive",
    ),
    "reservation": (_scheduled(provisioning_model="RESERVATION_BOUND"), "no reservation"),
}


@pytest.mark.parametrize("fault", _ANY)
async def test_what_cannot_be_is_refused_at_once(compute: Compute, fault: str) -> None:
    """With 400, the field and what would be right; nothing is there afterwards."""
    asked = instance()
    spoil, words = _ANY[fault]
    spoil(asked)
    with pytest.raises(exceptions.BadRequest, match=words):
        await compute.insert(asked)
    assert await compute.rows("instances", zone=ZONE) == []


_MODELS: dict[str, tuple[str, Spoils, str]] = {
    "standard-action-without-limit": (
        "STANDARD",
        _scheduled(instance_termination_action="DELETE"),
        "You cannot specify a termination action for a VM instance that has the standard",
    ),
    "standard-short": ("STANDARD", _scheduled(max_run_duration=_seconds(29)), "between 30 and"),
    "standard-long": (
        "STANDARD",
        _scheduled(max_run_duration=_seconds(121 * _DAY)),
        "between 30 and",
    ),
    "standard-wait": (
        "STANDARD",
        _with(params={"request_valid_for_duration": _seconds(600)}),
        "Only instances of the model FLEX_START wait",
    ),
    "standard-preemptible": (
        "STANDARD",
        _scheduled(preemptible=True, provisioning_model="STANDARD"),
        "of the model SPOT",
    ),
    "spot-restart": ("SPOT", _scheduled(automatic_restart=True), "restart must be false"),
    "flex-restart": ("FLEX_START", _scheduled(automatic_restart=True), "restart must be false"),
    "flex-short": ("FLEX_START", _scheduled(max_run_duration=_seconds(599)), "between 600 and"),
    "flex-long": (
        "FLEX_START",
        _scheduled(max_run_duration=_seconds(7 * _DAY + 1)),
        "between 600 and",
    ),
    "flex-action": (
        "FLEX_START",
        lambda asked: asked["scheduling"].pop("instance_termination_action"),
        "instanceTerminationAction': ''. It must be set",
    ),
    "flex-short-wait": (
        "FLEX_START",
        _with(params={"request_valid_for_duration": _seconds(89)}),
        "Must be 0, or between 90 and 7200 seconds",
    ),
    "flex-long-wait": (
        "FLEX_START",
        _with(params={"request_valid_for_duration": _seconds(7201)}),
        "Must be 0, or between 90 and 7200 seconds",
    ),
    "flex-reservation": (
        "FLEX_START",
        lambda asked: asked.pop("reservation_affinity"),
        "It must be NO_RESERVATION",
    ),
}


@pytest.mark.parametrize("fault", _MODELS)
async def test_each_provisioning_model_has_rules_of_its_own(compute: Compute, fault: str) -> None:
    model, spoil, words = _MODELS[fault]
    asked = instance(model=model)
    spoil(asked)
    with pytest.raises(exceptions.BadRequest, match=words):
        await compute.insert(asked)


async def test_on_demand_must_say_that_it_does_not_migrate(compute: Compute) -> None:
    """The default is MIGRATE there; SPOT has no other than TERMINATE."""
    for model, refused in (("STANDARD", True), ("SPOT", False), ("FLEX_START", True)):
        asked = instance(f"m-{model[:4].lower()}", model=model)
        del asked["scheduling"]["on_host_maintenance"]
        if refused:
            with pytest.raises(exceptions.BadRequest, match="live migration"):
                await compute.insert(asked)
        else:
            await compute.insert(asked)


async def test_eight_chips_need_one_thread_per_core(compute: Compute) -> None:
    with pytest.raises(exceptions.BadRequest, match="threadsPerCore"):
        await compute.insert(instance(kind="8t"))
    threads: dict[str, Any] = {"advanced_machine_features": {"threads_per_core": 1}}
    assert errors_of(await compute.inserted(instance(kind="8t", **threads))) == []


async def test_the_last_of_each_range_is_accepted(compute: Compute) -> None:
    for number, (run, wait) in enumerate(((600, 90), (7 * _DAY, 7200), (600, 0))):
        asked = instance(f"flex-{number}", model="FLEX_START")
        asked["scheduling"]["max_run_duration"] = _seconds(run)
        asked["params"]["request_valid_for_duration"] = _seconds(wait)
        await compute.insert(asked)
    asked = instance("standard")
    asked["scheduling"] |= {
        "max_run_duration": _seconds(120 * _DAY),
        "instance_termination_action": "DELETE",
    }
    await compute.insert(asked)


async def test_flex_start_runs_a_day_where_nothing_is_said(compute: Compute) -> None:
    asked = instance(model="FLEX_START")
    del asked["scheduling"]["max_run_duration"]
    await compute.insert(asked)
    assert (await compute.get()).scheduling.max_run_duration.seconds == _DAY


async def test_a_zone_without_the_hardware_does_not_know_the_machine(compute: Compute) -> None:
    with pytest.raises(exceptions.BadRequest, match="does not exist in zone 'us-south1-a'"):
        await compute.insert(instance(zone="us-south1-a"), "us-south1-a")


@pytest.mark.parametrize("zone", ["us-central1-a", "europe-west1-b", "asia-northeast1-b"])
async def test_every_zone_is_known_and_has_no_such_machine(compute: Compute, zone: str) -> None:
    """One that has no TPU is not an unknown one: 404 of the machine type."""
    assert zone in {one.name for one in await compute.rows("zones")}
    with pytest.raises(exceptions.NotFound, match=f"{zone}/machineTypes/ct6e-standard-1t' was not"):
        await compute.call("machine_types", "get", zone=zone, machine_type="ct6e-standard-1t")


@pytest.mark.parametrize("host", ["https://compute.mtls.googleapis.com", "http://127.0.0.1:8080"])
async def test_links_are_those_of_whichever_host_was_called(compute: Compute, host: str) -> None:
    """As gcloud writes them, with what a zone sees of a family of images."""
    here, asked = f"{host}/compute/v1/projects/{compute.project}", instance()
    family = IMAGE.rpartition("/")[2]
    image = f"{host}/compute/v1/projects/ubuntu-os-accelerator-images/zones/{ZONE}"
    asked["machine_type"] = f"{here}/zones/{ZONE}/machineTypes/ct6e-standard-1t"
    asked["disks"][0]["initialize_params"]["source_image"] = f"{image}/imageFamilyViews/{family}"
    asked["network_interfaces"][0]["network"] = f"{here}/global/networks/default"
    assert errors_of(await compute.inserted(asked)) == []


async def test_a_zone_that_there_is_not_is_unknown(compute: Compute) -> None:
    with pytest.raises(exceptions.BadRequest, match="Unknown zone"):
        await compute.insert(instance(zone="us-east9-z"), "us-east9-z")


async def test_machines_of_an_earlier_generation_are_not_for_us(compute: Compute) -> None:
    asked = instance(machine_type=f"zones/{ZONE}/machineTypes/ct5lp-hightpu-1t")
    with pytest.raises(exceptions.Forbidden, match=r"not allowed to use .* \[ct5lp-hightpu-1t\]"):
        await compute.insert(asked)


async def test_a_service_account_must_be_there(compute: Compute) -> None:
    asked = instance(service_accounts=[{"email": "nobody@x.iam.gserviceaccount.com"}])
    with pytest.raises(exceptions.NotFound, match="of type 'serviceAccount' was not found"):
        await compute.insert(asked)
    await compute.insert(instance(service_accounts=[{"email": "default"}]))
    found = await compute.get()
    assert found.service_accounts[0].email.endswith("-compute@developer.gserviceaccount.com")


async def test_whoever_may_not_act_as_the_account_is_refused(
    compute: Compute, controls: Controls
) -> None:
    controls.set(compute.project, denied_permissions=("iam.serviceAccounts.actAs",))
    asked = instance(service_accounts=[{}])
    with pytest.raises(exceptions.BadRequest, match="does not have access to service") as refused:
        await compute.insert(asked)
    assert refused.value.errors[0]["reason"] == "serviceAccountAccessDenied"
