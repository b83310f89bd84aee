"""A simulated VM's address answers those whom the network's firewall rules let in."""

import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from simulators.google.vm import lets_in
from tests.simulators.google.vms import ALL, Vms, bearer, docker, proxy, script, vms_in

pytestmark = pytest.mark.anyio

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


async def test_who_is_not_let_in_gets_no_answer(vms: Vms) -> None:
    """Neither a refusal; once a rule lets them in, the same request is answered."""
    vm = vms.start(PLAIN)
    await vms.until("ready")
    async with httpx2.AsyncClient(trust_env=False, timeout=0.3) as client:
        with pytest.raises(httpx2.ReadTimeout):
            await client.get(f"http://{vm.external_ip}:8000/health")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_open_later, vms)
            reply = await client.get(f"http://{vm.external_ip}:8000/health", timeout=20)
    assert reply.status_code == 200


async def _open_later(vms: Vms) -> None:
    await anyio.sleep(0.1)
    vms.open(US)


async def test_where_nobody_listens_a_connection_is_refused(vms: Vms) -> None:
    """Before the proxy is there, and when the script has ended."""
    vms.open(US)
    vm = vms.start(script(**proxy(tls=False), COMMAND=("vllm",)))
    async with httpx2.AsyncClient(trust_env=False) as client:
        for _ in range(2):
            with pytest.raises(httpx2.TransportError):
                await client.get(f"http://{vm.external_ip}:8000/health")
            await vms.until("ended")


@pytest.mark.parametrize(
    "decided",
    [
        {"TLS": "yes"},
        {"PORT": "8123"},
        {"DOCKER": docker("--net=host")},
        proxy(tls=False, engine_port=8002),
        proxy(tls=False, network="bridge"),
    ],
    ids=[
        *("asked by TLS", "asked at another port", "in a network of its own"),
        *("a proxy before nobody", "a proxy in a network of its own"),
    ],
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


async def test_long_answers_come_in_pieces_and_stop_with_the_vm(vms: Vms) -> None:
    """A stream that is cut short is an error to whoever reads it."""
    vms.open(US)
    vms.knobs(engine_environment={"SIMULATED_ENGINE_STEP_MS": "20"})
    vm = vms.start(PLAIN)
    await vms.until("ready")
    asked = {"model": "m", "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    async with (
        httpx2.AsyncClient(trust_env=False, headers=bearer()) as client,
        client.stream("POST", f"http://{vm.external_ip}:8000/v1/completions", json=asked) as reply,
    ):
        pieces = reply.aiter_bytes()
        assert (await anext(pieces)).startswith(b"data: ")
        vm.end(at_once=True)
        with pytest.raises(httpx2.TransportError):
            async for _ in pieces:
                pass


async def test_a_client_that_leaves_ends_its_request(vms: Vms) -> None:
    """The engine computes no more for it."""
    vms.open(US)
    vms.knobs(engine_environment={"SIMULATED_ENGINE_STEP_MS": "20"})
    vm = vms.start(PLAIN)
    await vms.until("ready")
    base = f"http://{vm.external_ip}:8000"
    asked = {"model": "m", "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    async with httpx2.AsyncClient(trust_env=False, headers=bearer(), base_url=base) as client:
        async with client.stream("POST", "/v1/completions", json=asked) as reply:
            await anext(reply.aiter_bytes())
            assert "vllm:num_requests_running{" in (await client.get("/metrics")).text
        with anyio.fail_after(10):
            while True:
                lines = (await client.get("/metrics")).text.splitlines()
                running = next(one for one in lines if one.startswith("vllm:num_requests_running{"))
                if running.endswith(" 0.0"):
                    break
                await anyio.sleep(0.02)


async def test_without_an_address_of_its_own_there_is_no_door(vms: Vms) -> None:
    """Only that of its network, which nobody reaches from outside."""
    vm = vms.start(PLAIN, external=False)
    assert vm.external_ip == ""
    assert vm.internal_ip.startswith("10.")


async def test_a_machine_without_such_addresses_says_so(vms: Vms) -> None:
    """Its boot ends there, and the serial port tells why."""
    with socket.socket() as everywhere:
        everywhere.bind(("0.0.0.0", 0))  # noqa: S104  that is the point
        everywhere.listen()
        port = everywhere.getsockname()[1]
        vm = vms.start(script(PORT=str(port)))
        await vms.seen(lambda: "startup-script:" in vm.serial)
    assert f"Nothing is free on port {port} of 127.77.0.0/16" in vm.serial
    assert (vm.external_ip, vms.phases()) == ("", [])


async def test_the_same_vm_has_the_same_address_again(vms: Vms) -> None:
    """And two that are there at once never share one."""
    one, two = vms.start(PLAIN), vms.start(PLAIN, zone="us-east5-a")
    assert one.external_ip.startswith("127.77.")
    assert one.external_ip != two.external_ip
    assert one.internal_ip != two.internal_ip
    one.end(at_once=True)
    await one.ended.wait()
    assert vms.start(PLAIN).external_ip == one.external_ip


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ({}, True),
        ({"sourceRanges": [ALL]}, True),
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
    spec = vms.start(PLAIN).spec
    vms.open(US)
    vms.project.firewalls["rule"].update(rule)
    assert lets_in(vms.project, spec, caller="127.0.0.1", port=8000) is expected


@pytest.mark.parametrize(("priority", "expected"), [(999, False), (1000, False), (1001, True)])
async def test_the_more_important_rule_counts(vms: Vms, priority: int, *, expected: bool) -> None:
    """And among equals the one that denies."""
    spec = vms.start(PLAIN).spec
    vms.open(US)
    vms.project.firewalls["deny"] = {**DENIES, "priority": priority}
    assert lets_in(vms.project, spec, caller="127.0.0.1", port=8000) is expected
    assert not lets_in(vms.project, spec, caller="127.0.0.2", port=8000)
