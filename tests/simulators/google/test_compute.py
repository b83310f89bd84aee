"""What the simulated Compute Engine refuses, and how it ends what it was not asked to end."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.api_core import exceptions

from core.settings import GooglePlane
from tests.google_plane import Controls
from tests.simulators.google.compute import (
    IMAGE,
    OTHER_ZONE,
    ZONE,
    Compute,
    compute_of,
    errors_of,
    instance,
)

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
    "threads": (
        _with(machine_type=f"zones/{ZONE}/machineTypes/ct6e-standard-8t"),
        r"threadsPerCore': '2'. Machine type ct6e-standard-8t supports 1 thread",
    ),
    "migrates-by-default": (
        lambda asked: asked["scheduling"].pop("on_host_maintenance"),
        "live migration",
    ),
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


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"name": "One"}, r"resource\.name"),
        ({"allowed": []}, "Exactly one of allowed or denied"),
        ({"denied": [{"I_p_protocol": "tcp"}]}, "Exactly one of allowed or denied"),
        ({"allowed": [{"I_p_protocol": "quic"}]}, "IPProtocol': 'quic'"),
        ({"allowed": [{"I_p_protocol": "300"}]}, "IPProtocol': '300'"),
        ({"allowed": [{"I_p_protocol": "tcp", "ports": ["http"]}]}, r"ports\[0\]': 'http'"),
        ({"allowed": [{"I_p_protocol": "tcp", "ports": ["9-8"]}]}, r"ports\[0\]': '9-8'"),
        ({"allowed": [{"I_p_protocol": "tcp", "ports": ["70000"]}]}, r"ports\[0\]': '70000'"),
        ({"source_ranges": ["1.2.3.4/8"]}, "Must be a valid CIDR address range"),
        ({"source_ranges": ["somebody"]}, "Must be a valid CIDR address range"),
        ({"target_tags": ["Tag"]}, r"targetTags\[0\]"),
        ({"priority": 70_000}, "between 0 and 65535"),
        ({"network": "global/networks/other"}, "referenced network resource cannot be found"),
        ({"network": "other"}, "The URL is malformed"),
    ],
)
async def test_a_rule_that_cannot_be_is_refused(
    compute: Compute, more: dict[str, Any], words: str
) -> None:
    rule = {
        "name": "one",
        "network": "global/networks/default",
        "direction": "INGRESS",
        "allowed": [{"I_p_protocol": "tcp", "ports": ["8000"]}],
        "source_ranges": ["1.2.3.4/32"],
        "target_tags": ["one"],
    }
    with pytest.raises(exceptions.BadRequest, match=words):
        await compute.call("firewalls", "insert_unary", firewall_resource={**rule, **more})
    assert await compute.rows("firewalls") == []


_ENDS_AS_STOCK_OUT = [(503, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")]


@pytest.mark.parametrize(
    ("model", "quotas", "expected"),
    [
        ("STANDARD", {"compute": 0}, [(403, "QUOTA_EXCEEDED")]),
        ("SPOT", {"compute-preemptible": 0}, [(403, "QUOTA_EXCEEDED")]),
        ("STANDARD", {"compute-preemptible": 0}, []),
        ("SPOT", {"compute": 0}, []),
        ("FLEX_START", {"compute-preemptible": 0, "compute": 1}, []),
        ("FLEX_START", {"compute-preemptible": 0, "compute": 0}, _ENDS_AS_STOCK_OUT),
    ],
)
async def test_each_provisioning_model_has_a_quota(
    compute: Compute, controls: Controls, model: str, quotas: dict[str, int], expected: list[Any]
) -> None:
    """Flex-start takes the standard one where its own is used up, and waits where both are."""
    controls.set(compute.project, tpu_quotas=quotas)
    asked = instance(model=model)
    if model == "FLEX_START":
        asked["params"]["request_valid_for_duration"] = _seconds(600)
    assert errors_of(await compute.inserted(asked)) == expected


async def test_a_zone_that_does_not_take_the_provisioning_model_says_so(compute: Compute) -> None:
    operation = await compute.inserted(instance(model="FLEX_START", zone=OTHER_ZONE), OTHER_ZONE)
    assert errors_of(operation) == [(400, "UNSUPPORTED_OPERATION")]


async def test_lists_come_in_pages(compute: Compute) -> None:
    """By the terms of a filter that all have to hold."""
    for name in ("one", "two", "three"):
        await compute.insert(instance(name, labels={"kind": name[0]}))
    listed = await compute.rows("instances", zone=ZONE, max_results=2)
    assert [one.name for one in listed] == ["one", "three", "two"]
    for words, names in {
        'labels.kind="t"': ["three", "two"],
        'labels.kind="t" AND name != two': ["three"],
        'name eq "t.*"': ["three", "two"],
        "labels.other:*": [],
    }.items():
        listed = await compute.rows("instances", zone=ZONE, filter=words)
        assert [one.name for one in listed] == names, words
    with pytest.raises(exceptions.BadRequest, match="Invalid list filter"):
        await compute.rows("instances", zone=ZONE, filter="name > one")
