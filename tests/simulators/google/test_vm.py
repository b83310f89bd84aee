"""A simulated VM boots by its startup script's decisions, and says how far it is."""

import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from google.iam.v1.policy_pb2 import Policy

from simulators.google.vm import lets_in
from tests.simulators.google.vms import (
    SCOPE,
    Vms,
    command,
    docker,
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


PLAIN = script(**proxy(tls=False))
US = "127.0.0.1/32"
DENIES = {
    "name": "deny",
    "network": "global/networks/default",
    "denied": [{"IPProtocol": "all"}],
    "sourceRanges": [US],
}


@pytest.fixture
async def vms(tmp_path: Path) -> AsyncIterator[Vms]:
    async with vms_in(tmp_path) as vms:
        yield vms


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


@pytest.mark.parametrize("lacks", ["role", "scope", "api", "logs"])
async def test_without_the_right_to_write_only_the_serial_port_tells(vms: Vms, lacks: str) -> None:
    """And docker does not start a container whose log cannot be written."""
    if lacks == "role":
        vms.project.policy = Policy()
    if lacks == "api":
        vms.project.apis.discard("logging.googleapis.com")
    vms.knobs(vm_trouble="no-logs" if lacks == "logs" else "ok")
    vm = vms.start(scopes=(READ,) if lacks == "scope" else (SCOPE,))
    await vms.seen(lambda: " failed: " in vm.serial.text)
    driver = "unable to connect or authenticate with Google Cloud Logging"
    assert (driver in vm.serial.text) is (lacks != "scope")
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
    """Three times; docker forgets the exit code of what it starts again (moby, SetRunning)."""
    vm = vms.start()
    for times in range(1, 5):
        await vms.seen(lambda times=times: vms.phases().count("ready") == times)  # type: ignore[misc]  # bound for the loop
        assert vm.stop_engine()
    assert await vms.until("ended") == "The engine ended with exit code 137."
    again = "The engine ended and is started again."
    assert vms.told("starting engine").count(again) == 3
    assert not vm.stop_engine()


@pytest.mark.parametrize("at_once", [True, False])
async def test_it_ends_in_the_middle_of_its_boot(vms: Vms, *, at_once: bool) -> None:
    """Also before its first second."""
    early = vms.start()
    early.end(at_once=at_once)
    await early.ended.wait()
    assert "login" not in early.serial.text
    vms.knobs(tpu_clock=10.0)
    vm = vms.start()
    await vms.until("installing docker")
    vm.end(at_once=at_once)
    await vm.ended.wait()
    assert "pulling image" not in vms.phases()
    assert not [one for one in psutil.process_iter() if str(vm.folder) in " ".join(_words(one))]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def test_another_script_boots_to_nothing(vms: Vms) -> None:
    """And the serial port says what is wrong with it."""
    vm = vms.start("#!/bin/bash\napt-get install docker.io\n")
    await vms.seen(lambda: "startup-script:" in vm.serial.text)
    assert "is the only one run here" in vm.serial.text
    none = vms.start("", id="vllm-devops-none")
    await vms.seen(lambda: "No startup scripts to run." in none.serial.text)
    assert vms.project.log == []


@pytest.mark.parametrize(
    "decided",
    [
        {"TLS": "yes"},
        {"DOCKER": docker("--net=host")},
        proxy(tls=False, engine_port=8002),
    ],
    ids=["asked by TLS", "in a network of its own", "a proxy before nobody"],
)
async def test_an_engine_that_cannot_be_asked_is_never_ready(
    vms: Vms, decided: Mapping[str, Any]
) -> None:
    """However well it runs; hence it is not started again either."""
    vm = vms.start(script(**{**proxy(tls=False), **decided}))
    await vms.seen(lambda: "INFO:     Application startup complete." in vms.output())
    vms.start(PLAIN, id="vllm-devops-two")
    await vms.until("ready")  # the other one's: in that time the first could have been
    assert vm.stop_engine()
    await vms.until("ended")
    assert vms.phases().count("ready") == 1


async def test_a_machine_without_such_addresses_says_so(vms: Vms) -> None:
    """Its boot ends there, and the serial port tells why."""
    with socket.socket() as everywhere:
        everywhere.bind(("0.0.0.0", 0))  # noqa: S104  that is the point
        everywhere.listen()
        port = everywhere.getsockname()[1]
        vm = vms.start(script(PORT=str(port)))
        await vms.seen(lambda: "startup-script:" in vm.serial.text)
    assert f"Nothing is free on port {port} of 127.77.0.0/16" in vm.serial.text
    assert (vm.external_ip, vms.phases()) == ("", [])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, True),
        ({"sourceRanges": ["0.0.0.0/0"]}, True),
        ({"sourceRanges": ["10.0.0.0/8", "::/0"]}, False),
        ({"sourceRanges": [], "sourceTags": ["web"]}, False),
        ({"sourceRanges": []}, True),
        ({"targetTags": ["another"]}, False),
        ({"targetTags": []}, True),
        ({"targetTags": [], "targetServiceAccounts": ["other@x"]}, False),
        ({"network": "global/networks/other"}, False),
        ({"direction": "EGRESS"}, False),
        ({"disabled": True}, False),
        ({"allowed": [{"IPProtocol": "udp", "ports": ["8000"]}]}, False),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["22", "7000-9000"]}]}, True),
        ({"allowed": [{"IPProtocol": "tcp", "ports": ["80"]}]}, False),
        ({"allowed": [{"IPProtocol": "tcp"}]}, True),
        ({"priority": 900}, True),
        ({"priority": 1100}, True),
    ],
)
async def test_a_rule_says_who_comes_in(
    vms: Vms, rule: Mapping[str, Any], *, expected: bool
) -> None:
    """By network, direction, tags or accounts, sources, protocol and port."""
    spec = vms.spec()
    vms.open(US)
    vms.project.firewalls["rule"].update(rule)
    assert lets_in(vms.project, spec, caller="127.0.0.1", port=8000) is expected


@pytest.mark.parametrize(("priority", "expected"), [(999, False), (1000, False), (1001, True)])
async def test_the_more_important_rule_counts(vms: Vms, priority: int, *, expected: bool) -> None:
    """And among equals the one that denies."""
    spec = vms.spec()
    vms.open(US)
    vms.project.firewalls["deny"] = {**DENIES, "priority": priority}
    assert lets_in(vms.project, spec, caller="127.0.0.1", port=8000) is expected
    assert not lets_in(vms.project, spec, caller="127.0.0.2", port=8000)
