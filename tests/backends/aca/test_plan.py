"""A plan for Container Apps: pure, taken by Azure, with its price and what to know first."""

import json
import re
from typing import Any, Final

import pytest
from hypothesis import given, strategies

from backends.aca import container
from backends.aca.app import app_of, blueprint
from backends.aca.container import link_of, rules, weights_of
from backends.aca.site import SHARE, WRITING
from backends.aca.status import startup_probe_of
from core.errors import InvalidArgument
from core.records import ModelShape, Plan, Target
from core.settings import AzurePlane
from planner.flags import Flags, resolve
from planner.model import read_model
from planner.places import accelerator, place
from tests.backends.aca.planned import (
    A100,
    CALLERS,
    DENSE_31B,
    E2B,
    E4B,
    FOLDER,
    GIB,
    PATCHED,
    QAT_12B,
    SMALL,
    T4,
    drawn,
    planned,
    sent,
    site,
    small,
    spec,
    typed,
)
from tests.backends.aca.sites import opened

pytestmark = pytest.mark.anyio
HUGE: Final = ModelShape(model="m", weight_bytes=200 * GIB)


def _whats(plan: Plan) -> str:
    return " ".join(step.what for step in plan.steps)


def _kind(path: str) -> str:
    return path.rsplit("/providers/", 1)[-1].split("/")[1] if "/providers/" in path else path


def test_a_plan_needs_neither_subscription_nor_login() -> None:
    """Whoever only wants to know reads SUBSCRIPTION_ID where theirs will stand."""
    plan = planned()
    assert "/subscriptions/SUBSCRIPTION_ID/" in plan.steps[-1].request["id"]
    mine = site(A100, azure_subscription_id="mine")
    assert planned(mine).steps[-1].request["id"].startswith("/subscriptions/mine/")
    assert site(A100, azure_location="West US 3").ground.region == "westus3"


def test_everything_is_planned_in_the_order_in_which_it_can_be_made() -> None:
    """What a deployment stands on comes first, and the app last."""
    plan = planned()
    kinds = [_kind(step.request["id"]) for step in plan.steps if "id" in step.request]
    assert kinds == [
        "/subscriptions/SUBSCRIPTION_ID/resourceGroups/vllm-devops",
        "workspaces",
        "managedEnvironments",
        "userAssignedIdentities",
        "vaults",
        "roleAssignments",
        "roleAssignments",
        "storageAccounts",
        "roleAssignments",
        "storageAccounts",
        "managedEnvironments",
        "managedEnvironments",
        kinds[-2],
        "containerApps",
    ]
    assert kinds[-2].endswith("/secrets/vllm-devops-gemma-api-key")
    assert "Microsoft.Storage" in plan.steps[0].request["namespaces"]


def test_a_model_that_needs_no_share_plans_none() -> None:
    """It would be billed every month."""
    plan = planned(**small())
    assert "storage account" not in _whats(plan)
    assert "Microsoft.Storage" not in plan.steps[0].request["namespaces"]


def test_a_workspace_of_ones_own_is_not_made() -> None:
    """Its GUID is all that is needed of it."""
    plan = planned(site(A100, azure_log_analytics_workspace_id="guid-of-mine"))
    assert "workspace" not in _whats(plan)
    (environment,) = [one for one in plan.steps if one.what.startswith("Make the environment vllm")]
    logs = environment.request["properties"]["appLogsConfiguration"]["logAnalyticsConfiguration"]
    assert logs == {"customerId": "guid-of-mine"}
    assert "guid-of-mine" in environment.command


def test_no_plan_holds_a_key() -> None:
    """A plan is shown, logged and kept; a token of the settings is none of its business."""
    plan = planned(site(A100, hf_token="hf_secret"))
    text = plan.model_dump_json()
    assert "hf_secret" not in text
    assert "sharedKey" not in json.dumps([step.request for step in plan.steps])
    assert "accountKey" not in json.dumps([step.request for step in plan.steps])


@pytest.mark.parametrize(("target", "hourly"), [(A100, 6.354), (T4, 1.613)])
def test_the_price_is_of_a_whole_replica(target: str, hourly: float) -> None:
    """GPU, processors and memory; and that the sources disagree is said."""
    plan = planned(target, **small())
    assert plan.usd_per_hour == pytest.approx(hourly, abs=0.001)
    assert any("disagree on the price" in warning for warning in plan.warnings)


def test_what_never_sleeps_is_told_by_the_month_unless_it_ends_before() -> None:
    """A month of it is no bill of what is stopped after half an hour."""
    told = {
        ends: " ".join(planned(min_replicas=1, ttl_minutes=minutes).warnings)
        for ends, minutes in {"never": None, "soon": 30}.items()
    }
    assert "runs all the time, asked or not: $4,638 a month" in told["never"]
    assert "runs until its end, asked or not: $6.35 an hour" in told["soon"]


_RANGE: Final = {"azure_allowed_addresses": "203.0.113.0/24"}


@pytest.mark.parametrize(
    ("words", "told", "untold"),
    [
        ("240 s", {}, None),
        ("api.ipify.org", {}, {"settings": _RANGE}),
        ("api.ipify.org", {}, {"settings": {"rehearsal": True}}),
        ("anybody reaches it", {"access": "public"}, {}),
        ("cannot ask it", {"access": "internal"}, {}),
        ("named by a tag", {}, {"image": PATCHED}),
        ("AcrPull", {"image": "mine.azurecr.io/vllm:1"}, {}),
        ("norwayeast is not on", {"settings": {"azure_location": "norwayeast"}}, {}),
        ("startup probe gives up", {"shape": HUGE, "model": "some/200g"}, {}),
        ("a month, also while", {}, small()),
    ],
)
def test_what_to_know_before_it_is_paid_for_is_told_where_it_is_so(
    words: str, told: dict[str, Any], untold: dict[str, Any] | None
) -> None:
    """Once, and not where it is otherwise (A2, A10, A12)."""

    def warnings(settings: dict[str, Any] | None = None, **said: Any) -> list[str]:
        plan = planned(site(A100, **(settings or {})), **said)
        return [each for each in plan.warnings if words in each]

    assert len(warnings(**told)) == 1
    assert untold is None or not warnings(**untold)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"max_model_len": 10_000_000}, "beyond the model's"),
        ({"port": 8000}, "own address"),
        ({"min_replicas": 3}, "more than max_replicas"),
        ({"network": "vnet/subnet"}, "that of its environment"),
        ({"engine": "ollama"}, "Cloud Run alone"),
        ({"name": "a"}, "No container app"),
        ({"engine_args": ("--api-key", "x")}, "key of its own"),
        ({"model": "/home/me/gemma"}, "a folder of this machine"),
        ({"weights": "baked"}, "need the image"),
        ({"max_replicas": 1001}, "1000 replicas at most"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(said: dict[str, Any], why: str) -> None:
    """A refusal now is cheaper than a failed revision later."""
    with pytest.raises(InvalidArgument, match=why) as refused:
        planned(shape=ModelShape(model="m", max_position_embeddings=131_072), **said)
    assert refused.value.fix


@pytest.mark.parametrize("model", [E2B, DENSE_31B])
def test_an_app_tells_the_patience_that_its_plan_gave_it(model: str) -> None:
    """Whether a boot is long enough for it, and how long a wake is waited for, hangs on that."""
    seconds, probe = startup_probe_of(typed(model=model))
    startup = drawn(model=model).startup
    assert seconds == startup.budget_seconds
    assert probe.startswith(f"{startup.failures} failures of /")


def test_a_model_that_nobody_measured_is_planned_on_the_safe_side() -> None:
    """Not knowing is said: the share, the longest boot, and vLLM's usual number of requests."""
    unknown = ModelShape(model="someone/else")
    made = drawn(shape=unknown, model="someone/else")
    assert made.mount is not None
    assert made.startup.budget_seconds == 4800
    assert made.cooldown_seconds == 4800
    assert made.concurrency == 256
    plan = planned(shape=unknown, model="someone/else")
    assert plan.memory is None
    assert any("boot takes is not known" in warning for warning in plan.warnings)


@pytest.mark.parametrize("model", [E2B, E4B])
def test_a_model_too_wide_for_an_older_cards_attention_is_refused(model: str) -> None:
    """vLLM would start, load for minutes, and die; an image of one's own may have another."""
    with pytest.raises(InvalidArgument, match="98,304 bytes") as refused:
        drawn(T4, model=model)
    assert "aca-a100" in refused.value.fix
    assert "57712" in refused.value.cause
    assert drawn(T4, model=model, image=PATCHED)
    assert drawn(T4, **small())


EMPTY = ModelShape(model="m")


@pytest.mark.parametrize(
    ("target", "said", "words"),
    [
        (T4, {"dtype": "bfloat16"}, "no bfloat16"),
        (T4, {"engine_args": ("--dtype=bfloat16",)}, "no bfloat16"),
        (T4, {"kv_cache_dtype": "bfloat16"}, "not for a cache"),
        (T4, {"quantization": "fp8"}, "no fp8 weights"),
        (A100, {"kv_cache_dtype": "fp8"}, "no fp8 cache"),
    ],
)
def test_what_a_card_does_not_compute_in_is_refused_for_a_model_that_cannot_be_read(
    target: str, said: dict[str, Any], words: str
) -> None:
    """There is no plan of its memory that would say so."""
    with pytest.raises(InvalidArgument, match=words):
        drawn(target, EMPTY, **said)


PLACE = place("aca-a100")


def test_a_folder_of_a_share_is_read_and_never_written() -> None:
    """The link is another one than that for downloads, for it opens the share another way."""
    found = weights_of(spec(weights="files://models/google/gemma"), EMPTY, PLACE)
    assert found.mount is not None
    assert (found.mount.share, found.mount.link) == ("models", "models-ro")
    assert found.mount.read_only
    assert found.model == "/weights/google/gemma"
    assert found.env == {"HF_HUB_OFFLINE": "1"}
    again = weights_of(spec(weights="files://models/gemma/"), EMPTY, PLACE)
    assert again.model == "/weights/gemma"


@pytest.mark.parametrize(
    "location",
    [
        "gs://bucket/folder",
        "files://weights",
        "files://weights/",
        "files://Weights/folder",
        "files://we--ights/folder",
        "files://w/folder",
        "files://weights/a/../b",
        "files://weights/a//b",
    ],
)
def test_what_is_no_folder_of_a_share_is_refused(location: str) -> None:
    """A bucket of Google's among them: nothing but Azure Files can be mounted."""
    with pytest.raises(InvalidArgument, match="no folder of a file share") as refused:
        drawn(weights=location)
    assert "files://SHARE/FOLDER" in refused.value.fix


def test_downloads_keep_no_second_copy_on_the_disk() -> None:
    """The chunk cache of hf_xet would fill the container's disk beside the files."""
    assert drawn().container.env["HF_XET_CHUNK_CACHE_SIZE_BYTES"] == "0"
    assert "HF_XET_CHUNK_CACHE_SIZE_BYTES" not in drawn(weights="files://weights/a").container.env


@pytest.mark.parametrize("share", ["weights", "2026-models", "a" * 30, "m" * 63])
def test_a_link_is_named_as_azure_takes_it_whatever_its_share_is_called(share: str) -> None:
    """A share may begin with a digit and be twice as long; each has links of its own."""
    names = [link_of(share, read_only=read_only) for read_only in (False, True)]
    for name in names:
        assert re.fullmatch(r"[a-z](-?[a-z0-9]){0,31}", name)
        assert len(name) <= 32
    assert names[0] != names[1]
    assert link_of(f"{share[:-1]}z", read_only=True) != names[1]


targets = pytest.mark.parametrize("target", [A100, T4])


@targets
def test_the_size_and_the_boot_are_those_that_the_planner_reckons_with(target: str) -> None:
    named = site(target).target
    place = container.place_of(named)
    assert place.name == target
    assert place.sizes == (container.size_of(named, spec()),)
    assert container.gpu_of(named).profile_type in " ".join(place.limits)


@targets
def test_the_usual_number_of_requests_is_the_planners(target: str) -> None:
    """It decides how many requests one replica is given at once."""
    gpu = container.gpu_of(site(target).target)
    device = accelerator(container.place_of(site(target).target).accelerator)
    known = resolve(read_model(QAT_12B), device, Flags())
    assert known.max_num_seqs == gpu.max_num_seqs


def test_a_target_whose_gpu_container_apps_do_not_have_is_refused() -> None:
    """A made-up target says so at once, and names those that there are."""
    for odd in ("h100", None):
        unknown = Target(name="odd", backend="aca", description="", accelerator=odd)
        with pytest.raises(InvalidArgument) as refused:
            container.place_of(unknown)
        assert "a100-80" in refused.value.fix


@pytest.mark.parametrize("name", ["", "a", "4gemma", "Gemma", "gemma-", "a--b", "a_b", "a" * 33])
def test_what_no_app_can_be_called_is_refused(name: str) -> None:
    """The tools' own rule takes forty characters and double hyphens; Azure does not."""
    for taken in ("ab", "gemma-4", "a1-b2-c3", "a" * 32):
        assert drawn(name=taken)
    with pytest.raises((InvalidArgument, ValueError), match=r"No container app|name"):
        drawn(name=name)


_EVERY: list[dict[str, Any]] = [
    small(),
    small(weights=FOLDER),
    small(weights="baked", image=PATCHED),
    {"model": DENSE_31B, "image": PATCHED},
]
every = pytest.mark.parametrize("said", _EVERY, ids=["hub", "folder", "baked", "large"])


@targets
@every
def test_autoscaling_ends_no_boot(target: str, said: dict[str, Any]) -> None:
    """A1: the cooldown counts from when a replica is scheduled, and is 300 s where nobody says.

    25 minutes between image and container were seen, which are the cooldown's as well.
    """
    made = drawn(target, **said)
    scale = sent(target, **said)["properties"]["template"]["scale"]
    assert scale["cooldownPeriod"] == made.cooldown_seconds
    assert scale["pollingInterval"] == 30
    assert made.cooldown_seconds >= 900
    assert made.cooldown_seconds >= made.boot_seconds + 1500


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
    assert properties["workloadProfileName"] == {A100: "gpu-a100", T4: "gpu-t4"}[target]
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
        made.boot_seconds + 120, 4800
    )


@given(strategies.floats(min_value=0, max_value=6e3))
def test_a_startup_probe_is_taken_and_long_enough(seconds: float) -> None:
    """A10: never beyond 240 failures of 240 s, and never shorter than the boot, up to our end."""
    chosen, most = rules().startup_probe, 4800
    made = container.startup_probe(site(A100).target, seconds)
    assert made.failures <= 240
    assert made.period_seconds <= 240
    assert made.budget_seconds >= min(seconds + chosen.margin_seconds, most)
    assert made.budget_seconds < most + made.period_seconds


def test_a_long_prefill_is_no_death() -> None:
    """The server answers /health late while it reads a long prompt: minutes must go by."""
    alive, ready = rules().liveness_probe, rules().readiness_probe
    assert alive.timeout_seconds >= 30
    assert alive.period_seconds * alive.failures >= 300
    assert ready.period_seconds * ready.failures >= 60


_WISHES: dict[str, dict[str, Any]] = {
    "hub": {"model": SMALL.model},
    "folder": {"model": SMALL.model, "weights": f"files://{SHARE}/gemma", "access": "public"},
    "baked": {"model": SMALL.model, "weights": "baked", "image": PATCHED, "access": "internal"},
    "large": {"model": DENSE_31B, "image": PATCHED, "min_replicas": 1, "max_replicas": 2},
    "long": {"model": SMALL.model, "engine_args": ("--chat-template", "it's {% x %} " * 60)},
}


@pytest.mark.parametrize("target", [A100, T4])
@pytest.mark.parametrize("wish", _WISHES)
async def test_every_plan_is_taken(
    azure: AzurePlane, subscription: str, target: str, wish: str
) -> None:
    """Probes, sizes, names, tags, links and the profile are such that an app is made of them."""
    async with opened(azure, subscription, target) as there:
        wanted = spec(**_WISHES[wish])
        shape = SMALL if wanted.model == SMALL.model else read_model(wanted.model)
        made = blueprint(there, wanted, shape)
        app = app_of(there, made, kept_at=await there.clients.secrets_url(), addresses=CALLERS)
        client = (await there.clients.apps()).container_apps
        group = there.ground.resource_group
        await client.begin_create_or_update(group, wanted.name, app, **WRITING)
        kept: Any = await client.get(group, wanted.name)
    assert kept.tags == dict(app.tags or {})
    assert kept.properties.workload_profile_name == container.gpu_of(there.target).profile
