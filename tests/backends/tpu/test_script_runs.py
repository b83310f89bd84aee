"""The startup script in a real bash: what it does in which order, and what it tells."""

import stat
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backends.tpu.site import Site
from backends.tpu.vm import (
    container_command,
    docker_arguments,
    guard_arguments,
    guard_of,
    startup_script,
)
from core.processes import Output, run
from tests.backends.tpu.fake_vm import KEY, SECRETS, TOKEN, FakeVm
from tests.backends.tpu.planned import drawn
from tests.backends.tpu.sites import offline

pytestmark = pytest.mark.anyio

IMAGE = "vllm/vllm-tpu@sha256:" + "0" * 64
_HEALTH = ("curl", "--silent", "--fail", "--max-time", "10", "--output")


def script(where: Site | str = "tpu-v6e-1", *, image: str = IMAGE, **said: Any) -> str:
    return startup_script(drawn(where, **said), image=image)


GUARD = "vllm-devops-gemma-guard"


@pytest.fixture
def vm(tmp_path: Path) -> FakeVm:
    return FakeVm(tmp_path)


class Booted(NamedTuple):
    vm: FakeVm
    done: Output


@pytest.fixture(scope="module")
def boots() -> list[Booted]:
    return []


@pytest.fixture
async def booted(boots: list[Booted], tmp_path_factory: pytest.TempPathFactory) -> Booted:
    """One boot on Compute Engine, whose image has no docker, for all that only read it: seconds."""
    if not boots:
        vm = FakeVm(tmp_path_factory.mktemp("vm"), has_docker=False)
        boots.append(Booted(vm, await vm.boot(script(offline("tpu-v6e-4", hf_token="hf_x")))))
    return boots[0]


async def test_a_boot_tells_every_step_in_its_order(booted: Booted) -> None:
    """The phases are those that others read; the console has the same, and nothing else."""
    vm, done = booted
    assert vm.phases == [
        "booting",
        "installing docker",
        "certificate",
        "pulling image",
        "reading secrets",
        "starting engine",
        "ready",
        "ended",
    ]
    assert done.returncode == 1
    assert vm.told[-1] == ("ended", "The engine ended with exit code 0.")
    pem = vm.certificate.read_text().strip()
    console = done.stdout.replace(pem, "").splitlines()
    assert [line.split(": ")[:2] for line in console] == [
        ["vllm-devops", phase] for phase in vm.phases
    ]
    assert done.stderr == ""


async def test_an_entry_is_found_by_its_deployment(booted: Booted) -> None:
    """As Cloud Logging takes it, on any VM: of the resource global, with labels of its own."""
    first, *_, last = booted.vm.entries
    assert first["logName"] == "projects/proj/logs/vllm-devops"
    assert first["resource"] == {"type": "global", "labels": {"project_id": "proj"}}
    (entry,) = first["entries"]
    assert entry["labels"] == {"deployment": "gemma", "phase": "booting"}
    assert (entry["severity"], last["entries"][0]["severity"]) == ("INFO", "ERROR")


async def test_the_container_runs_as_it_was_decided(booted: Booted) -> None:
    """Word for word, JSON and all; an older container of that name goes first."""
    vm, made = booted.vm, drawn(offline("tpu-v6e-4", hf_token="hf_x"))
    removed = vm.calls.index(["docker", "rm", "--force", "vllm-devops-gemma", GUARD])
    before, ran = vm.called("docker", "run")
    assert removed < vm.calls.index(before) < vm.calls.index(ran)
    proxy = guard_of(made)
    shown = (proxy.image, *proxy.command, *proxy.args)
    assert before[2:] == ["--detach", *guard_arguments(made), *shown]
    assert ran[2:] == ["--detach", *docker_arguments(made), IMAGE, *container_command(made)]
    assert vm.called("docker", "pull") == [
        ["docker", "pull", "--quiet", image] for image in (proxy.image, IMAGE)
    ]
    assert '{"image": 4, "audio": 1}' in ran


async def test_secrets_reach_the_container_and_nothing_else(booted: Booted) -> None:
    """T45: they are in no argument of any program, no output, no log and no file."""
    vm, done = booted
    assert vm.read("run").split() == [f"key={KEY}", f"token={TOKEN}"]
    _proxy, ran = vm.called("docker", "run")
    passed = [ran[at + 1] for at, word in enumerate(ran) if word == "-e"]
    assert passed[-2:] == ["VLLM_API_KEY", "HF_TOKEN"]
    left = [path.read_text() for path in vm.root.rglob("*") if path.is_file()]
    seen = "".join((str(vm.calls), done.stdout, done.stderr, vm.read("entries"), *left))
    assert [secret for secret in SECRETS if secret in seen] == []


async def test_what_it_keeps_only_root_can_read(booted: Booted) -> None:
    """The certificate's key above all."""
    kept = [path for path in booted.vm.root.rglob("*") if path.is_file()]
    assert "key.pem" in {path.name for path in kept}
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}


@pytest.mark.parametrize(
    "name",
    [("ip", "203.0.113.7"), ("ip", "10.0.0.2"), ("ip", "127.0.0.1"), ("hostname", "localhost")],
)
async def test_the_certificate_is_of_the_vms_addresses_and_told(
    booted: Booted, name: tuple[str, str]
) -> None:
    """Whoever trusts it alone gets to this VM alone, also by the strictest rules."""
    vm, (kind, address) = booted.vm, name
    (pem,) = [message for phase, message in vm.told if phase == "certificate"]
    assert pem == vm.certificate.read_text().strip()
    said = (*("-x509_strict", "-purpose", "sslserver"), f"-verify_{kind}", address)
    path = str(vm.certificate)
    done = await run(["openssl", "verify", *said, "-CAfile", path, path])
    assert done.returncode == 0, done.stderr


async def test_health_is_asked_by_that_certificate(booted: Booted) -> None:
    """Not with eyes shut: --insecure is never said."""
    vm = booted.vm
    (asked,) = vm.called(*_HEALTH)
    assert asked[-1] == "https://127.0.0.1:8000/health"
    assert vm.read("trusted") == vm.certificate.read_text().strip()
    assert not [call for call in vm.calls if {"-k", "--insecure"} & set(call)]


async def test_ubuntu_does_not_update_itself_meanwhile(booted: Booted) -> None:
    """It would restart docker, and an engine that ends in its boot is not started again."""
    vm = booted.vm
    (stopped,) = vm.called("systemctl", "stop")
    assert {"apt-daily-upgrade.timer", "apt-daily-upgrade.service"} <= set(stopped)
    assert vm.calls.index(stopped) < vm.calls.index(vm.called("docker", "version")[0])


async def test_tracing_shows_no_secret(vm: FakeVm) -> None:
    """Whoever traces a script that fails must not print its secrets on the console (T45)."""
    traced = script(offline(hf_token="hf_x")).replace("#!/bin/bash\n", "#!/bin/bash\nset -x\n", 1)
    done = await vm.boot(traced)
    assert vm.phases[-1] == "ended"
    assert not [secret for secret in SECRETS if secret in done.stdout + done.stderr]


async def test_inside_its_network_it_speaks_plain_http(vm: FakeVm) -> None:
    """A tunnel encrypts what goes through it: there is no certificate to tell of."""
    vm.take("external-ip")
    await vm.boot(script(access="internal", network="mine/inner"))
    assert "certificate" not in vm.phases
    assert vm.called(*_HEALTH)[0][-1] == ("http://127.0.0.1:8000/health")


@pytest.mark.life
async def test_a_second_boot_is_as_the_first(vm: FakeVm) -> None:
    """After a reboot the container is made anew, and the compiled programs are still there."""
    await vm.boot(script())
    kept = vm.root / "var/lib/vllm-devops/cache/compiled"
    kept.write_text("programs")
    before = list(vm.phases)
    vm.put("states", "running 0 0\nexited 0 0\n")
    await vm.boot(script())
    assert vm.phases == [*before, *before]
    assert kept.read_text() == "programs"


async def test_ready_is_told_once_health_answers(vm: FakeVm) -> None:
    """Not when the container runs (T47); a long compile is waited for (T50)."""
    vm.put("states", "running 0 0\n" * 6 + "exited 0 0\n")
    vm.fail("health", 4)
    await vm.boot(script())
    assert vm.phases[-2:] == ["ready", "ended"]
    assert len(vm.called(*_HEALTH)) == 5


async def test_an_engine_that_has_served_is_started_again(vm: FakeVm) -> None:
    """Docker does it, three times; it is told, and so is when it serves again."""
    vm.put("states", "running 0 0\nrunning 0 0\nrunning 0 1\nexited 137 3\n")
    await vm.boot(script())
    assert vm.phases[-4:] == ["ready", "starting engine", "ready", "ended"]
    assert vm.told[-3][1] == "The engine ended and is started again."
    assert vm.called("docker", "update")[0][2:4] == ["--restart", "on-failure:3"]


async def test_googles_own_registry_is_shown_the_account_by_a_pipe(vm: FakeVm) -> None:
    """An image of the project is not public; the token stays off every command line."""
    await vm.boot(script(image="us-docker.pkg.dev/proj/mine/vllm:1"))
    (login,) = vm.called("docker", "login")
    assert login[2:] == [
        *("--username", "oauth2accesstoken", "--password-stdin"),
        "https://us-docker.pkg.dev",
    ]
    assert vm.read("login") == "ya29.of-the-vm"
    assert not list(vm.root.rglob("config.json"))
