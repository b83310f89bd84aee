"""A plan for TPUs: pure, with its price, and without the traps (T39 to T58) that others met."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import pytest

from backends.tpu import compute, status, vm
from backends.tpu.site import Blueprint, Place, key_secret, vm_id
from backends.tpu.vm import blueprint, guard_of, with_flags
from core.errors import InvalidArgument
from core.records import NAME_PATTERN, ModelShape
from planner.model import read_model
from planner.places import places
from planner.price import price
from tests.backends.discovery import faults
from tests.backends.tpu.orders import blueprint as ordered
from tests.backends.tpu.orders import request
from tests.backends.tpu.planned import (
    BARE,
    DENSE,
    E4B,
    EIGHT,
    EVERY,
    FOUR,
    MOE,
    ONE,
    drawn,
    planned,
    spec,
)
from tests.backends.tpu.sites import NAMES, offline, on, target_of

FLEX: Final = f"{ONE}-flex"
HUGE: Final = ModelShape(model="some/400b", weight_bytes=800 * 10**9)
INSIDE: Final[dict[str, Any]] = {"access": "internal", "network": "mine/inner"}
BAKED: Final[dict[str, Any]] = {"weights": "baked", "image": "us-docker.pkg.dev/p/r/baked:1"}
SCOPE: Final = "https://www.googleapis.com/auth/cloud-platform"


def asked(target: str, **said: Any) -> tuple[Mapping[str, Any], Mapping[str, Any], Any]:
    """Give what Compute Engine and the queue are asked, and the queue's node."""
    *_, instance, queued = planned(target, **said).steps
    (one,) = queued.request["tpu"]["nodeSpec"]
    return instance.request, queued.request, one["node"]


def args(target: str = ONE, **said: Any) -> tuple[str, ...]:
    return drawn(target, **said).container.args


def after(words: tuple[str, ...], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("target", EVERY)
def test_no_request_steps_into_a_trap(target: str) -> None:
    """What is sent is meant, ends, is reached, may read its secrets, and fits."""
    instance, queued, node = asked(target)
    flex, chips = target.endswith("-flex"), target.split("-")[2]
    # T39: flex-start that an SDK drops becomes on demand, at twice the price.
    model = {"-spot": "SPOT", "-flex": "FLEX_START"}.get(target[len(ONE) :], "STANDARD")
    assert instance["scheduling"]["provisioningModel"] == model
    assert queued.get("provisioningModel", "STANDARD") == model
    assert "schedulingConfig" not in node
    # T43: by REST and SDK there is no external address, unless it is asked for.
    assert instance["networkInterfaces"][0]["accessConfigs"][0]["type"] == "ONE_TO_ONE_NAT"
    assert node["networkConfig"]["enableExternalIps"] is True
    # T44: with the default scopes Secret Manager answered 403 for half an hour.
    (account,) = instance["serviceAccounts"]
    assert account == {
        "email": "vllm-devops-runtime@proj.iam.gserviceaccount.com",
        "scopes": [SCOPE],
    }
    assert node["serviceAccount"]["scope"] == [SCOPE]
    # T46: a chip that nobody uses bills like one that is used; nobody has seen the queue take an
    # end for spot or on demand.
    assert instance["scheduling"]["maxRunDuration"] == {"seconds": "14400"}
    assert instance["scheduling"]["instanceTerminationAction"] == "DELETE"
    assert queued.get("runDuration") == ({"maxRunDuration": "14400s"} if flex else None)
    # T48: 10 GB are Compute Engine's default, on a kind that a v6e does not take.
    disk = instance["disks"][0]["initializeParams"]
    assert int(disk["diskSizeGb"]) >= 200
    assert disk["diskType"].endswith("/hyperdisk-balanced")
    assert int(node.get("bootDiskConfig", {}).get("diskSizeGb", 0)) >= (200 if flex else 0)
    # T52: names are of this generation.
    assert instance["machineType"].endswith(f"/ct6e-standard-{chips}t")
    assert (node["acceleratorType"], node["runtimeVersion"]) == (f"v6e-{chips}", "v2-alpha-tpuv6e")
    everything = planned(target).model_dump_json().lower()
    assert not [old for old in ("v5litepod", "ct5lp", "tpuv5") if old in everything]
    threads = {"threadsPerCore": 1} if chips == "8" else None
    assert instance.get("advancedMachineFeatures") == threads


@pytest.mark.parametrize("target", EVERY)
def test_a_plan_is_pure_has_its_price_and_holds_no_secret(target: str) -> None:
    """What was filled in is what is compared; a v6e-8 costs eight times a v6e-1, spot half."""
    plan, model = planned(target), read_model(E4B)
    again = blueprint(offline(target), plan.spec, model)
    assert again == drawn(target)
    assert (again.spec, again.labels["vllm-devops-spec"]) == (plan.spec, plan.spec.fingerprint)
    chips, one = int(target.split("-")[2]), planned(f"{ONE}{target[len(ONE) :]}")
    disk = 200 * 0.08 / 730  # of an instance, which has one for all of its chips
    assert plan.usd_per_hour == pytest.approx(chips * ((one.usd_per_hour or 0) - disk) + disk, 1e-4)
    cheaper = (plan.usd_per_hour or 0) < (planned(target[: len(ONE)]).usd_per_hour or 0)
    assert cheaper == target.endswith(("-spot", "-flex"))
    assert status.usd_per_hour(offline(target)) == pytest.approx(plan.usd_per_hour, abs=1e-4)
    said = planned(offline(target, hf_token="hf_secret")).model_dump_json()
    assert "hf_secret" not in said  # T45: metadata is read by whoever is on the VM
    place = places()[target]
    assert (place.deployable_by, place.accelerator) == ("tpu", "v6e")
    assert vm.generation_of(place)


def test_every_target_has_a_place_and_a_price_of_its_own_wins() -> None:
    """T52: chips of a v5e have other machines and images."""
    assert set(NAMES) == set(EVERY)
    own = target_of(ONE).model_copy(update={"usd_per_hour": 1.25})
    assert status.usd_per_hour(replace(offline(), target=own)) == 1.25
    assert price(places()[ONE]).usd_per_hour
    with pytest.raises(InvalidArgument, match="not known here"):
        vm.generation_of(places()[ONE].model_copy(update={"accelerator": "v5e"}))
    longest = "a" + "b" * 39
    assert re.fullmatch(NAME_PATTERN, longest)
    assert len(vm_id(longest)) <= 63  # of instances, nodes, tags, rules and labels
    assert len(key_secret(longest)) <= 255


def test_a_plan_needs_neither_project_nor_login() -> None:
    """Whoever only wants to know reads PROJECT_ID where their project will stand."""
    bare = offline(project="")
    assert all("PROJECT_ID" in step.command for step in planned(bare).steps)
    assert on(bare).engine_name()[1]
    assert on(offline()).engine_name() == ("vLLM 0.27.0 (vllm/vllm-tpu:v0.27.0)", "")
    assert "/projects/mine/" in planned(offline(project="mine")).steps[-1].command


def test_the_memory_is_foreseen_for_all_chips_and_the_image() -> None:
    """T55: what does not fit is known before anybody pays for finding out."""
    small, large = (planned(one, model=DENSE, max_model_len=8192).memory for one in (ONE, FOUR))
    assert small
    assert large
    assert (small.fits, large.fits, large.accelerator, large.count) == (False, True, "v6e", 4)
    assert small.vllm_version != "0.32.0"
    assert planned(shape=BARE, model="someone/else").memory is None


def test_the_steps_are_key_grant_firewall_and_both_requests() -> None:
    """In the order in which they are made; the search goes on from there."""
    said = [one.what for one in planned(EIGHT, zones=("us-east5-a", "us-east5-b")).steps]
    assert len(said) == 6
    assert "your addresses alone" in said[2]
    assert said[3] == "Make the job vllm-tpu-lease-gemma in us-central1, which ends it"
    wish = "Make a VM with v6e-8 (on-demand), asked for of "
    assert said[4].startswith(f"{wish}Compute Engine in us-east5-a, then at 3 more places")
    assert said[5] == f"{wish}the queue of Cloud TPU in us-east5-a"
    alone = planned(EIGHT, zones=("us-east5-a",), control_plane="queued").steps[-1]
    assert alone.what.startswith(f"{wish}the queue")
    assert "more places" not in alone.what


def test_a_firewall_rule_lets_in_whom_the_settings_name() -> None:
    """private: the callers; public: everybody; internal: there is none. Rules have no labels."""
    mine = offline(google_allowed_addresses=("203.0.113.0/24",))
    rule = planned(mine).steps[2].request
    assert rule["sourceRanges"] == ["203.0.113.0/24"]
    assert planned(mine, access="public").steps[2].request["sourceRanges"] == ["0.0.0.0/0"]
    assert planned().steps[2].request["sourceRanges"] == ["YOUR_ADDRESS/32"]
    body = dict(compute.firewall_rule(mine, "gemma", ordered(mine), ["203.0.113.7/32"]).body)
    assert faults("compute.v1", "Firewall", body) == []
    assert body["allowed"] == [{"IPProtocol": "tcp", "ports": ["8000"]}]
    assert body["targetTags"] == [body["name"]] == ["vllm-devops-gemma"]
    assert body["description"] == f"managed-by=vllm-devops-agent deployment=gemma target={ONE}"
    assert faults("compute.v1", "Firewall", {**body, "labels": {}}) == ["Firewall.labels: unknown"]


def sent(target: str, kind: Any, **said: Any) -> tuple[str, str, Any]:
    """Give what a target sends to a control plane, and the document that describes it."""
    site = offline(target)
    made = request(ordered(site, **said), **{"vllm-devops-expires": "1795303931"})
    body = site.planes[kind].bodies(made)
    if kind == "compute":
        return "compute.v1", "Instance", body
    version = "v2" if site.provisioning == "on-demand" else "v2alpha1"
    return f"tpu.{version}", "QueuedResource", body


@pytest.mark.parametrize("kind", ["queued", "compute"])
@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize(
    "said", [{}, {"run_seconds": None, "external_ip": False}, {"subnetwork": "s"}]
)
def test_every_body_is_one_that_google_describes(target: str, kind: str, said: Any) -> None:
    """No field is unknown, mistyped, or Google's own to set."""
    assert faults(*sent(target, kind, **said)) == []


@pytest.mark.parametrize(("wait", "seconds"), [(60, "90"), (600, "600"), (90000, "7200")])
def test_flex_start_waits_within_its_bounds_and_has_an_end_and_a_disk(
    wait: int, seconds: str
) -> None:
    """By v2alpha1 alone: this body is refused by the document of the API that the SDK speaks."""
    body = sent(FLEX, "compute", wait_seconds=wait)[2]
    assert body["params"] == {"requestValidForDuration": {"seconds": seconds}}
    assert body["reservationAffinity"] == {"consumeReservationType": "NO_RESERVATION"}
    body = sent(FLEX, "queued", disk_gb=300)[2]
    assert body["queueingPolicy"] == {"validUntilDuration": "600s"}
    assert body["tpu"]["nodeSpec"][0]["node"]["bootDiskConfig"] == {"diskSizeGb": "300"}
    assert len(faults("tpu.v2", "QueuedResource", body)) == 3


def test_an_end_is_not_said_where_there_is_none() -> None:
    """On demand and for ever: what would be done at the end is refused without an end."""
    said = sent(ONE, "compute", run_seconds=None)[2]["scheduling"]
    assert "instanceTerminationAction" not in said
    assert "maxRunDuration" not in said
    spot = sent(f"{ONE}-spot", "compute", run_seconds=None)[2]["scheduling"]
    assert spot["instanceTerminationAction"] == "DELETE"
    [interface] = sent(FOUR, "compute", subnetwork="inner")[2]["networkInterfaces"]
    assert interface["subnetwork"] == "regions/us-east5/subnetworks/inner"


def test_without_an_address_of_its_own_it_needs_nat() -> None:
    """T43: only who brings a network of their own can have none."""
    made = drawn(**INSIDE)
    assert [made.external_ip, drawn(access="internal").external_ip] == [False, True]
    instance, _queued, node = asked(ONE, **INSIDE)
    assert "accessConfigs" not in instance["networkInterfaces"][0]
    assert not node["networkConfig"].get("enableExternalIps")


class Warned(NamedTuple):
    """Words that a person reads before paying, and a wish without which they are not said."""

    words: str
    said: Mapping[str, Any] = {}
    target: str = ONE
    otherwise: tuple[str, Mapping[str, Any]] | None = None


WARNED: Final = (
    # T40: hardware in a zone does not mean that its chips are given in every way.
    Warned("us-central1-b: not known to give v6e-1 as flex-start", {"zones": ("us-central1-b",)},
           FLEX, (ONE, {"zones": ("us-central1-b",)})),
    Warned("us-central1-a: not known to give v6e-1 as flex-start", {"zones": ("us-central1-a",)},
           FLEX, (FLEX, {"zones": ("us-east5-a",)})),
    # T41: it holds quota until it is deleted, and nobody sees it who does not look.
    Warned("leftover", otherwise=(ONE, {"control_plane": "compute"})),
    # T46: on the queue only flex-start has an end; ours needs a job, or a server that runs.
    Warned("only while this server runs", {"lease": "server"}, otherwise=(ONE, {})),
    Warned("may delete every one of the project", otherwise=(FLEX, {})),
    Warned("$0.10 a month", otherwise=(ONE, {"control_plane": "compute"})),
    Warned("$11.97 at most"),
    Warned("Nothing ends it", {"ttl_minutes": 0}, otherwise=(ONE, {})),
    Warned("Spot:", target=f"{ONE}-spot", otherwise=(ONE, {})),
    Warned("Cloud NAT", INSIDE, otherwise=(ONE, {"network": "mine/inner"})),
    Warned("but /health and /ping"),
    Warned("but /health and /ping", {"access": "public"}),
    Warned("SSH tunnel", {"access": "internal"}, otherwise=(ONE, {})),
    Warned("120 minutes at most", {"zone_wait_minutes": 600}, FLEX,
           (ONE, {"zone_wait_minutes": 600})),
    # T51: a v6e does not reckon in fp8.
    Warned("fp8", {"quantization": "fp8"}, otherwise=(ONE, {})),
    Warned("fp8", {"shape": ModelShape(model="m", quantization="fp8", weight_bytes=10**10)}),
    Warned("fp8", {"shape": ModelShape(model="m", quantization_bits=8, weight_bytes=10**10)}),
    Warned("fp8", {"kv_cache_dtype": "fp8"}),
    Warned("fp8", {"engine_args": ("--kv-cache-dtype=fp8_e5m2",)}),
    # T48: a node of the queue has 100 GB, and only flex-start can ask for more.
    Warned("in the VM's memory", {"model": DENSE}, FOUR, (FOUR, {})),
    Warned("100 GB", {"shape": HUGE}, otherwise=(ONE, {})),
    Warned("not known", {"shape": BARE, "model": "someone/else"}),
)  # fmt: skip


@pytest.mark.parametrize("row", WARNED, ids=lambda row: f"{row.words} {row.target}")
def test_what_to_know_before_paying_is_said(row: Warned) -> None:
    assert any(row.words in one for one in planned(row.target, **row.said).warnings)
    if row.otherwise:
        target, said = row.otherwise
        assert not any(row.words in one for one in planned(target, **said).warnings)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"max_model_len": 10_000_000}, "beyond the model's"),
        ({"port": 8000}, "answers on port 8000"),
        ({"min_replicas": 0}, "one VM"),
        ({"max_replicas": 2}, "one VM"),
        ({"engine": "ollama", "model": "gemma3:4b"}, "no build for TPUs"),
        *(({"network": one}, "no network") for one in ("a/", "/b", "a/b/c", "projects/p/x", "A")),
        *(({"zones": (one,)}, "no zone") for one in ("us-east5", "", "us-east5-", "US-EAST5-B")),
        *(({"zones": (one,)}, "no zone") for one in ("a b", "-", "../x-a1-b")),
        ({"model": "/home/me/gemma"}, "a folder of this machine"),
        ({"weights": "baked"}, "need the image"),
        ({"weights": "gs://bucket/folder"}, "do not read"),
        ({"weights": "files://share/folder"}, "do not read"),
        ({"engine_args": ("--api-key", "x")}, "key of its own"),
        ({"engine_args": ("--chat-template", "a\nreadonly IMAGE=x")}, "control character"),
        ({"ttl_minutes": 200_000}, "cannot be"),
        *(({"target": FLEX, "ttl_minutes": one}, "10 to 10080 minutes") for one in (0, 9, 10_081)),
        # tpu-inference takes all chips of a VM, or dies.
        *(({"target": FOUR, "tensor_parallel_size": one}, "all 4 chips") for one in (2, 8)),
        *(
            ({"target": FOUR, "engine_args": one}, "all 4 chips")
            for one in (("-tp", "2"), ("--tensor_parallel_size=8",), ("-dp=2",))
        ),
        ({"target": FOUR, "engine_args": ("--pipeline-parallel-size", "4")}, "all 4 chips"),
        # The engine would refuse these ten minutes later.
        ({"max_num_batched_tokens": 2048, "shape": None}, "2496 of an image"),
        ({"engine_args": ("--max-num-batched-tokens", "1024"), "shape": None}, "2496 of an image"),
        ({"shape": HUGE, "control_plane": "queued"}, "does not fit on a node"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(said: dict[str, Any], why: str) -> None:
    """A refusal now is cheaper than a chip that serves nothing."""
    shape = ModelShape(model="m", max_position_embeddings=131_072, weight_bytes=10**9)
    wish: dict[str, Any] = {"shape": shape, **said}
    with pytest.raises(InvalidArgument, match=why) as refused:
        planned(wish.pop("target", ONE), **wish)
    assert refused.value.fix


def test_zones_are_searched_from_the_settings_own_on() -> None:
    """By default a search: one zone alone seldom has a chip. Those that are said, in their order:
    somebody may have to stay in Europe."""
    here = drawn(offline(google_cloud_zone="europe-west4-a"))
    assert here.places[:3] == (
        Place("europe-west4-a", "compute"),
        Place("europe-west4-a", "queued"),
        Place("us-central1-b", "compute"),
    )
    assert len(here.places) == len(set(here.places)) == 10
    assert drawn().places[0].zone == "us-east5-b"
    zones = ("us-east5-b", "europe-west4-a", "us-east5-b", "us-central1-ai1a")
    made = drawn(zones=zones, control_plane="compute")
    assert made.places == tuple(Place(zone, "compute") for zone in (*zones[:2], zones[3]))
    with pytest.raises(InvalidArgument, match="no zone") as refused:
        drawn(offline(google_cloud_zone="us-east5"))  # a region, by mistake
    assert "GOOGLE_CLOUD_ZONE" in refused.value.fix


@pytest.mark.parametrize(
    ("target", "said", "seconds"),
    [
        (ONE, {}, 600),
        (ONE, {"zones": ("us-east5-b",), "control_plane": "queued"}, 7200),
        (ONE, {"zones": ("us-east5-b",)}, 600),
        (ONE, {"zone_wait_minutes": 45}, 2700),
        (FLEX, {"zone_wait_minutes": 600, "control_plane": "queued"}, 36_000),
    ],
)
def test_a_place_is_waited_for_so_long(target: str, said: dict[str, Any], seconds: int) -> None:
    """Two hours for one alone, ten minutes where others are to be tried."""
    assert drawn(target, **said).wait_seconds == seconds


def test_a_wish_decides_how_long_it_runs_and_in_which_network() -> None:
    """T46: 0 is for ever; a network of the automatic kind has a subnetwork in each region."""
    runs = [drawn(ttl_minutes=one).run_seconds for one in (0, 90)]
    assert [*runs, drawn(FLEX, ttl_minutes=10).run_seconds] == [None, 5400, 600]
    named = [vm.network_of(spec(network=one)) for one in (None, "mine", "mine/inner")]
    assert named == [("default", ""), ("mine", ""), ("mine", "inner")]


def test_a_plan_of_another_spec_is_another_vm() -> None:
    """The fingerprint on its label tells whether it is what was asked for."""
    first, second = drawn(), drawn(max_num_seqs=8)
    assert first.labels["vllm-devops-spec"] != second.labels["vllm-devops-spec"]
    own = ("managed-by", "vllm-devops-target", "vllm-devops-deployment")
    assert [first.labels[one] for one in own] == ["vllm-devops-agent", ONE, spec().name]


def test_a_model_is_spread_over_every_chip_and_gemma_4_takes_images() -> None:
    """A chip that is left over is paid for; an image is read in one piece, so a batch holds it."""
    for target, chips in ((ONE, 1), (FOUR, 4), (EIGHT, 8)):
        assert drawn(target).spec.tensor_parallel_size == chips
        assert drawn(target, tensor_parallel_size=chips).spec.tensor_parallel_size == chips
    assert after(args(FOUR), "--tensor-parallel-size") == "4"
    words = args()
    assert "--tensor-parallel-size" not in words
    assert "--disable-chunked-mm-input" in words
    assert after(words, "--max-num-batched-tokens") == "4096"
    limits = [after(args(FOUR, model=one), "--limit-mm-per-prompt") for one in (E4B, MOE)]
    assert [json.loads(one) for one in limits] == [{"image": 4, "audio": 1}, {"image": 4}]
    for text in (
        args(engine_args=("--language-model-only",), max_num_batched_tokens=1024),
        args(shape=BARE, model="someone/else"),
    ):
        assert not [word for word in text if "-mm-" in word]
    for model in (E4B, MOE):  # what a VM's metadata says can be deployed again
        once = with_flags(spec(model), read_model(model), 4)
        assert with_flags(once, read_model(model), 4) == once


@pytest.mark.parametrize(
    "said",
    [
        {"max_num_batched_tokens": 8192},
        {"engine_args": ("--max_num_batched_tokens=8192",)},
        {"engine_args": ("--limit_mm_per_prompt", '{"image": 1}')},
        {"engine_args": ("--disable_chunked_mm_input",)},
    ],
)
def test_what_is_said_is_not_said_twice(said: dict[str, Any]) -> None:
    """The caller's own word stands."""
    words = [word.partition("=")[0].replace("_", "-") for word in args(**said)]
    for flag in ("batched-tokens", "limit-mm-per-prompt", "chunked-mm-input"):
        assert sum(word.endswith(flag) for word in words) == 1
    assert "4096" not in args(**said) or "batched" not in str(said)


def home(made: Blueprint) -> str:
    return made.container.env.get("HF_HOME", "")


def test_a_disk_holds_image_weights_and_more() -> None:
    """T48: a node of the queue has 100 GB: weights that are larger lie in memory, or elsewhere."""
    assert drawn().disk_gb == 200
    assert drawn(FOUR, shape=HUGE, control_plane="compute").disk_gb >= 800 + 30
    assert drawn(FLEX, shape=HUGE, control_plane="queued").disk_gb >= 800
    assert drawn(shape=BARE, model="someone/else").disk_gb == 300
    assert home(drawn(FOUR, model=DENSE)).startswith("/dev/shm/")  # noqa: S108  the engine's
    for other in (
        drawn(FOUR),
        drawn(f"{FOUR}-flex", model=DENSE),
        drawn(FOUR, model=DENSE, control_plane="compute"),
    ):
        assert home(other) == "/cache/hub"
    assert {place.plane for place in drawn(ONE, shape=HUGE).places} == {"compute"}


def test_weights_come_from_the_hub_or_with_the_image_and_a_token_by_reference() -> None:
    """T45: without the secret a VM would not start; its value is in no plan."""
    baked = drawn(offline(hf_token="hf_secret"), **BAKED)
    assert (baked.container.env["HF_HUB_OFFLINE"], home(baked)) == ("1", "")
    assert "HF_TOKEN" not in baked.container.secrets
    assert "HF_TOKEN" not in drawn().container.secrets
    kept = drawn(offline(hf_token="hf_secret"))
    assert kept.container.secrets["HF_TOKEN"] == "hf-token"
    assert "hf_secret" not in kept.model_dump_json()


@pytest.mark.parametrize("access", ["private", "public", "internal"])
def test_the_proxy_speaks_tls_but_inside_a_tunnel(access: str) -> None:
    """A key over plain HTTP can be read by whoever is on the way; the engine is on no way."""
    made = drawn(access=access)
    assert after(made.container.args, "--host") == "127.0.0.1"
    assert not [word for word in made.container.args if "ssl" in word]
    said = guard_of(made).env["GUARD_CONFIGURATION"]
    assert ("ssl_certificate /tls/cert.pem" in said) == made.opened == (access != "internal")
