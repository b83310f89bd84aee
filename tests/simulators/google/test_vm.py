"""A simulated VM boots by its startup script's decisions, and says how far it is."""

import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.iam.v1.policy_pb2 import Policy

from planner.flags import Flags
from planner.memory import plan_memory
from planner.model import read_model
from planner.places import accelerator
from simulators.google.vm import vm_of
from tests.simulators.google.vms import (
    KEY,
    MODEL,
    SCOPE,
    Vms,
    bearer,
    command,
    docker,
    keep,
    proxy,
    script,
    vms_in,
)

pytestmark = pytest.mark.anyio

PHASES = [
    "booting",
    "installing docker",
    "certificate",
    "pulling image",
    "reading secrets",
    "starting engine",
    "ready",
]
LABELS = ("--log-opt", "labels=deployment")
READ = "https://www.googleapis.com/auth/devstorage.read_only"
WRITE = "https://www.googleapis.com/auth/logging.write"


@pytest.fixture
async def vms(tmp_path: Path) -> AsyncIterator[Vms]:
    async with vms_in(tmp_path) as vms:
        yield vms


async def test_it_boots_to_an_engine_that_answers(vms: Vms) -> None:
    """By TLS, at an address of its own, to whom the firewall lets in and who has the key."""
    vms.open("127.0.0.1/32")
    vm = vms.start()
    await vms.until("ready")
    assert vms.phases() == PHASES
    trust = ssl.create_default_context(cadata=vms.told("certificate")[0])
    trust.verify_flags |= ssl.VERIFY_X509_STRICT
    base = f"https://{vm.external_ip}:8000"
    async with httpx2.AsyncClient(base_url=base, verify=trust, trust_env=False) as client:
        assert (await client.get("/v1/models")).status_code == 401
        reply = await client.get("/v1/models", headers=bearer())
        assert reply.json()["data"][0]["id"] == "m"


async def test_nobody_else_is_believed_to_be_it(vms: Vms) -> None:
    """The certificate of one VM is not that of another."""
    vms.open("127.0.0.1/32")
    one = vms.start()
    two = vms.start(id="vllm-devops-two")
    await vms.seen(lambda: vms.phases().count("ready") == 2)
    assert one.external_ip != two.external_ip
    first, second = vms.told("certificate")
    answers = [await _healthy(one.external_ip, pem) for pem in (first, second)]
    assert sorted(answers) == [False, True]


async def _healthy(address: str, pem: str) -> bool:
    trust = ssl.create_default_context(cadata=pem)
    async with httpx2.AsyncClient(verify=trust, trust_env=False) as client:
        try:
            return (await client.get(f"https://{address}:8000/health")).is_success
        except httpx2.ConnectError as exc:
            return "CERTIFICATE_VERIFY_FAILED" not in str(exc)


async def test_entries_say_whose_they_are(vms: Vms) -> None:
    """The script's by their own labels, docker's by the container's."""
    vms.start()
    await vms.until("ready")
    one = next(one for one in vms.project.log if one.log_name == "vllm-devops")
    assert one.resource == "global"
    assert one.own_labels == {"deployment": "one", "phase": "booting"}
    assert one.payload == {"phase": "booting", "message": one.text}
    line = next(one for one in vms.project.log if one.log_name == "gcplogs-docker-driver")
    assert line.resource == "gce_instance"
    assert line.payload["container"]["name"] == "/vllm-devops-one"
    assert line.payload["container"]["metadata"] == {"deployment": "one"}
    assert all(KEY not in one.model_dump_json() for one in vms.project.log)


async def test_a_node_has_docker_and_needs_not_install_it(vms: Vms) -> None:
    """Unlike the image of an instance."""
    vms.start(plane="queued", has_docker=True)
    await vms.until("ready")
    assert "installing docker" not in vms.phases()


async def test_without_tls_it_speaks_plain_http(vms: Vms) -> None:
    """And makes no certificate."""
    vms.open("127.0.0.1/32")
    vm = vms.start(script(**proxy(tls=False)))
    await vms.until("ready")
    assert "certificate" not in vms.phases()
    async with httpx2.AsyncClient(trust_env=False) as client:
        reply = await client.get(f"http://{vm.external_ip}:8000/health")
    assert reply.status_code == 200


async def test_four_chips_boot_as_the_planner_foresees(vms: Vms) -> None:
    """In tpu-inference's words, with the memory of all chips."""
    vms.start(script(COMMAND=command(chips=4)), accelerator="v6e-4")
    await vms.until("ready")
    said = "\n".join(vms.output())
    assert "Mesh('data': 1, 'model': 4," in said
    assert (
        said.index("Init worker |") < said.index("Init model |") < said.index("Memory statistics")
    )
    flags = Flags(tensor_parallel_size=4, max_model_len=4096, vllm_version="0.32.0")
    foreseen = plan_memory(read_model(MODEL), accelerator("v6e"), flags)
    each = f"({foreseen.weights_gib:.2f}, 31.24)"
    assert f"Init model | hbm=[{', '.join([each] * 4)}]GiB" in said
    assert f"KV cache size: {foreseen.kv_expected.kv_tokens:,} tokens" in said
    assert "total_hbm_limit_gb=124.96GiB" in said
    assert "Warm-up call pass finished in" in said


async def test_a_token_reaches_the_engine_where_there_is_one(vms: Vms) -> None:
    """Both secrets are read."""
    keep(vms.project, "hf-token", "hf_secret")
    vms.start(script(TOKEN_SECRET="hf-token"))
    await vms.until("ready")
    assert vms.told("reading secrets") == ["key hf-token"]


@pytest.mark.parametrize(
    ("spec", "decided", "knobs", "words"),
    [
        ({}, {}, {"vm_trouble": "no-docker"}, "Docker cannot be installed"),
        ({}, {}, {"vm_trouble": "image-missing"}, "manifest unknown"),
        ({}, {"IMAGE": "vllm/vllm-tpu:never"}, {}, "manifest unknown"),
        ({}, {"IMAGE": "europe-docker.pkg.dev/other/r/i:1"}, {}, "denied: Permission"),
        ({"disk_gb": 10}, {}, {}, "no space left on device"),
        ({"external": False, "has_docker": True}, {}, {}, "request canceled while waiting"),
        ({"scopes": (WRITE,)}, {}, {}, "The secret key cannot be read: curl: (22)"),
        ({}, {"KEY_SECRET": "none"}, {}, "returned error: 404"),
        ({}, {"DOCKER": docker(more=("--gpu", "1"))}, {}, "unknown flag: --gpu"),
        ({}, {"DOCKER": docker(more=("--log-opt", "x=y"))}, {}, "'x' is not a valid option"),
    ],
)
async def test_what_a_step_cannot_do_is_told(
    vms: Vms,
    spec: Mapping[str, Any],
    decided: Mapping[str, Any],
    knobs: Mapping[str, Any],
    words: str,
) -> None:
    """After it was tried again; the engine is then never started."""
    vms.knobs(**knobs)
    vms.start(script(**decided), **spec)
    assert words in await vms.until("failed")
    assert "ready" not in vms.phases()
    assert vms.output() == []


async def test_a_secret_that_may_not_be_read_is_asked_for_again(vms: Vms) -> None:
    """A grant may take minutes until it is known everywhere."""
    keep(vms.project, "key", KEY, readable=False)
    vms.knobs(tpu_clock=200.0)
    vms.start()
    await vms.seen(lambda: len(vms.told("reading secrets")) == 3)
    assert "error: 403" in vms.told("reading secrets")[-1]
    keep(vms.project, "key", KEY)
    await vms.until("ready")


@pytest.mark.parametrize("lacks", ["role", "scope", "api", "logs"])
async def test_without_the_right_to_write_only_the_serial_port_tells(vms: Vms, lacks: str) -> None:
    """And docker does not start a container whose log cannot be written."""
    if lacks == "role":
        vms.project.policy = Policy()
    if lacks == "api":
        vms.project.apis.discard("logging.googleapis.com")
    vms.knobs(vm_trouble="no-logs" if lacks == "logs" else "ok")
    vm = vms.start(scopes=(READ,) if lacks == "scope" else (SCOPE,))
    await vms.seen(lambda: " failed: " in vm.serial)
    driver = "unable to connect or authenticate with Google Cloud Logging"
    assert (driver in vm.serial) is (lacks != "scope")
    assert vms.project.log == []


@pytest.mark.parametrize(("plane", "status"), [("queued", "failed"), ("compute", "ready")])
async def test_a_node_must_be_told_whose_log_it_is(vms: Vms, plane: str, status: str) -> None:
    """Its VM is in a project of Google's."""
    vms.start(
        script(DOCKER=docker("--log-opt", "gcp-project=p-vm", "labels=deployment", more=LABELS)),
        plane=plane,
    )
    await vms.until(status)


@pytest.mark.parametrize(
    ("decided", "status", "words"),
    [
        ({"COMMAND": command()[2:]}, 127, "exec: google/gemma-4-E2B-it: not found"),
        ({"DOCKER": docker("--privileged")}, 1, "open(/dev/vfio/0): Operation not permitted"),
        ({"IMAGE": "vllm/vllm-openai:v0.27.0"}, 1, "Failed to infer device type"),
        ({"COMMAND": command(chips=2)}, 1, "Number of devices 4 must equal the product of mesh"),
        (
            {"COMMAND": command(chips=4), "DOCKER": docker("--shm-size=16g")},
            135,
            "Fatal Python error: Bus error",
        ),
        ({"COMMAND": command("--bogus", chips=4)}, 2, "unrecognized arguments: --bogus"),
    ],
)  # fmt: skip
async def test_an_engine_that_cannot_run_ends(
    vms: Vms, decided: Mapping[str, Any], status: int, words: str
) -> None:
    """Once, with its own words in the log."""
    vms.start(script(**decided), accelerator="v6e-4")
    assert await vms.until("ended") == f"The engine ended with exit code {status}."
    assert words in "\n".join(vms.output())
    assert vms.phases().count("starting engine") == 1


async def test_an_engine_that_has_served_is_started_again(vms: Vms) -> None:
    """Three times; the script asks docker for that once it is ready."""
    vm = vms.start()
    for times in range(1, 5):
        await vms.seen(lambda times=times: vms.phases().count("ready") == times)  # type: ignore[misc]  # bound for the loop
        assert vm.stop_engine()
    assert await vms.until("ended") == "The engine ended with exit code 137."
    again = "The engine ended with exit code 137 and is started again."
    assert vms.told("starting engine").count(again) == 3
    assert not vm.stop_engine()


async def test_its_end_is_polite_or_at_once(vms: Vms) -> None:
    """What it wrote stays; nothing answers any more, and nobody finds it."""
    for politely in (True, False):
        vms.project.log.clear()
        vm = vms.start()
        assert vm_of(vms.world, vms.project, "compute", "us-east5-b", vm.spec.id) is vm
        await vms.until("ready")
        vm.end(at_once=not politely)
        await vm.ended.wait()
        said = "\n".join(vms.output())
        assert ("[shutdown] API server: shutdown triggered" in said) is politely
        assert "ended" not in vms.phases()
        assert vm_of(vms.world, vms.project, "compute", "us-east5-b", vm.spec.id) is None
        async with httpx2.AsyncClient(trust_env=False) as client:
            with pytest.raises(httpx2.ConnectError):
                await client.get(f"http://{vm.external_ip}:8000/")


@pytest.mark.parametrize("at_once", [True, False])
async def test_it_ends_in_the_middle_of_its_boot(vms: Vms, *, at_once: bool) -> None:
    """Also before its first second."""
    early = vms.start()
    early.end(at_once=at_once)
    await early.ended.wait()
    assert "login" not in early.serial
    vms.knobs(tpu_clock=10.0)
    vm = vms.start()
    await vms.until("installing docker")
    vm.end(at_once=at_once)
    await vm.ended.wait()
    assert "pulling image" not in vms.phases()


async def test_another_script_boots_to_nothing(vms: Vms) -> None:
    """And the serial port says what is wrong with it."""
    vm = vms.start("#!/bin/bash\napt-get install docker.io\n")
    await vms.seen(lambda: "startup-script:" in vm.serial)
    assert "There is no part between '# --- decided ---'" in vm.serial
    none = vms.start("", id="vllm-devops-none")
    await vms.seen(lambda: "No startup scripts to run." in none.serial)
    assert vms.project.log == []
