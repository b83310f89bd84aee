"""What went wrong on Container Apps for others cannot be planned here: each trap is a sentence."""

from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ODataV4Format

from backends.aca.container import rules
from backends.aca.site import error_of
from core.errors import PermissionDenied, QuotaExceeded
from core.records import ModelShape
from tests.backends.aca.planned import (
    A100,
    CALLERS,
    DENSE_31B,
    E4B,
    FOLDER,
    GIB,
    PATCHED,
    T4,
    drawn,
    planned,
    sent,
    small,
)

_EVERY: list[dict[str, Any]] = [
    small(),
    small(weights=FOLDER),
    small(weights="baked", image=PATCHED),
    {"model": DENSE_31B, "image": PATCHED},
]
every = pytest.mark.parametrize("said", _EVERY, ids=["hub", "folder", "baked", "large"])
targets = pytest.mark.parametrize("target", [A100, T4])


@targets
@every
def test_autoscaling_ends_no_boot(target: str, said: dict[str, Any]) -> None:
    """A1: the cooldown counts from when a replica is scheduled, and is 300 s where nobody says."""
    made = drawn(target, **said)
    scale = sent(target, **said)["properties"]["template"]["scale"]
    assert scale["cooldownPeriod"] == made.cooldown_seconds
    assert scale["pollingInterval"] == 30
    assert made.cooldown_seconds >= 900
    assert made.cooldown_seconds >= made.boot_seconds


def test_the_cooldown_outlasts_a_host_that_comes_late() -> None:
    """A1: 25 minutes between image and container were seen, which are the cooldown's as well."""
    for target, said in ((A100, {"model": E4B}), (A100, small(weights=FOLDER)), (T4, small())):
        assert drawn(target, **said).cooldown_seconds >= drawn(target, **said).boot_seconds + 1500


def test_a_long_cooldown_is_told_with_what_it_costs() -> None:
    """A1: what keeps a boot alive keeps an idle replica as well; a wake bills both."""
    said = [each for each in planned().warnings if "after its last request" in each]
    assert len(said) == 1
    assert said[0].count("$") == 2
    assert "wake" in said[0]
    assert not any("last request" in each for each in planned(min_replicas=1).warnings)


@targets
@every
def test_an_app_is_scaled_reached_and_sized_as_azure_needs_it(
    target: str, said: dict[str, Any]
) -> None:
    """A3, A11, A14, A18.

    Up to ten replicas, each with a GPU, where nobody says; a redirect from http turns a POST into a
    GET; Azure refuses other totals than the profile's, and knows no field for GPUs; the GPU is
    given to the first container alone.
    """
    properties = sent(target, **said)["properties"]
    template, ingress = properties["template"], properties["configuration"]["ingress"]
    scale = template["scale"]
    assert (scale["minReplicas"], scale["maxReplicas"]) == (0, 1)
    (rule,) = scale["rules"]
    assert rule["http"]["metadata"] == {"concurrentRequests": "256"}
    other = sent(target, **said, max_replicas=2, max_num_seqs=16)["properties"]["template"]["scale"]
    assert other["maxReplicas"] == 2
    assert other["rules"][0]["http"]["metadata"]["concurrentRequests"] == "16"
    assert (ingress["allowInsecure"], ingress["transport"]) == (False, "http")
    assert ingress["targetPort"] == 8080
    assert ingress["traffic"] == [{"weight": 100, "latestRevision": True}]
    rules = [(one["ipAddressRange"], one["action"]) for one in ingress["ipSecurityRestrictions"]]
    assert rules == [(address, "Allow") for address in CALLERS]
    sizes = [one["resources"] for one in template["containers"]]
    whole = {A100: (24, 220), T4: (8, 56)}[target]
    memory = sum(float(size["memory"].removesuffix("Gi")) for size in sizes)
    assert (sum(size["cpu"] for size in sizes), memory) == whole
    assert all(set(size) == {"cpu", "memory"} for size in sizes)
    assert properties["workloadProfileName"] == drawn(target, **said).profile
    assert [one["name"] for one in template["containers"]] == ["vllm", "guard"]
    assert "initContainers" not in template


@pytest.mark.parametrize(("size", "mounted"), [(9 * GIB, False), (10 * GIB, True), (None, True)])
def test_no_model_is_downloaded_to_a_disk_that_is_too_small(
    size: int | None, *, mounted: bool
) -> None:
    """A8: 9.6 GiB were seen to fit, and how large the disk is nobody says."""
    shape = ModelShape(model="m", weight_bytes=size)
    body = sent(shape=shape, model="some/model")["properties"]["template"]
    container, _ = body["containers"]
    home = [env["value"] for env in container["env"] if env["name"] == "HF_HOME"]
    assert ("volumes" in body) == mounted
    assert bool(home) == mounted
    if mounted:
        (volume,), (mount,) = body["volumes"], container["volumeMounts"]
        assert volume["name"] == mount["volumeName"]
        assert (volume["storageType"], volume["storageName"]) == ("AzureFile", "weights")
        assert home[0].startswith(f"{mount['mountPath']}/")
        assert "." not in volume["name"]


def test_a_boot_from_a_share_is_reckoned_by_the_shares_throughput() -> None:
    """A9: 58 GiB took 9 min 36 s at 135 MiB/s, and nobody had said so before."""
    shape = ModelShape(model="m", weight_bytes=58 * GIB)
    plan = planned(shape=shape, model="some/58g", weights=FOLDER)
    (said,) = [each for each in plan.warnings if "MiB/s" in each]
    assert "58.0 GiB" in said
    assert "8 min" in said
    made = drawn(shape=shape, model="some/58g", weights=FOLDER)
    assert made.boot_seconds > 576
    first = drawn(shape=shape, model="some/58g")
    assert first.boot_seconds > made.boot_seconds + 58 * 1024 / 800


@targets
@every
def test_a_boot_is_watched_by_its_health_and_given_its_time(
    target: str, said: dict[str, Any]
) -> None:
    """A10: without a startup probe, or with one of 240 s, a slow boot begins again and again."""
    made = drawn(target, **said)
    container, _ = sent(target, **said)["properties"]["template"]["containers"]
    probes = {probe["type"]: probe for probe in container["probes"]}
    assert set(probes) == {"Startup", "Readiness", "Liveness"}
    assert len(container["probes"]) == 3
    for kind, most in (("Startup", 240), ("Readiness", 48), ("Liveness", 30)):
        probe = probes[kind]
        assert probe["httpGet"]["path"] == "/health"
        assert probe["httpGet"]["port"] == 8080
        assert 1 <= probe["failureThreshold"] <= most
        assert 1 <= probe["timeoutSeconds"] <= probe["periodSeconds"] <= 240
    startup = probes["Startup"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= min(
        made.boot_seconds + 120, rules().startup_probe.most_seconds
    )


def test_a_boot_beyond_the_probes_end_is_said_before() -> None:
    """A10: otherwise the first sign is a replica that begins anew after more than an hour."""
    huge = ModelShape(model="m", weight_bytes=200 * GIB)
    plan = planned(shape=huge, model="some/200g")
    assert any("startup probe gives up" in warning for warning in plan.warnings)
    assert not any("startup probe gives up" in warning for warning in planned().warnings)


def test_what_azure_answers_is_judged_by_its_body() -> None:
    """A57: an operation that failed is told with status 200."""
    failed = HttpResponseError("Operation returned an invalid status 'OK'")
    failed.status_code = 200
    failed.error = ODataV4Format({"code": "MaxNumberOfRegionalEnvironmentsInSubExceeded"})
    assert isinstance(error_of(failed, "make it"), QuotaExceeded)
    failed.error = ODataV4Format({"code": "AuthorizationFailed"})
    assert isinstance(error_of(failed, "make it"), PermissionDenied)
