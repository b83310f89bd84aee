"""What goes wrong on a VM: tried again where that can help, told always, and never for ever."""

from pathlib import Path

import pytest

from tests.backends.tpu.fake_vm import FakeVm
from tests.backends.tpu.sites import offline
from tests.backends.tpu.test_script_runs import script

pytestmark = pytest.mark.anyio

_LOCKED = "E: Could not get lock /var/lib/dpkg/lock-frontend"
_REFUSED = "curl: (22) The requested URL returned error: 403"


@pytest.fixture
def vm(tmp_path: Path) -> FakeVm:
    return FakeVm(tmp_path)


def _impatient(said: str) -> str:
    """Let a script that nothing answers tell its end less often; a boot of it takes seconds."""
    assert "left=20" in said
    return said.replace("left=20", "left=6")


async def test_what_stumbles_is_tried_again_and_each_try_is_told(tmp_path: Path) -> None:
    """Nothing that passes is a reason to give a chip back; all in one boot, which takes seconds.

    A fresh VM updates itself and holds the lock of apt; docker starts beside the script, and again
    where Ubuntu updates it; a grant takes minutes to be known everywhere (T44), by docker's driver
    as well, for which the container is made anew.
    """
    vm = FakeVm(tmp_path, has_docker=False)
    for what in ("logs", "apt", "daemon", "pull", "secret", "run"):
        vm.fail(what, 2)
    vm.fail("inspect", 5)
    await vm.boot(script())
    assert [row for row in vm.told if row[1].startswith("Try 3 of ")] == [
        ("installing docker", f"Try 3 of 6, for: {_LOCKED}"),
        ("installing docker", "Try 3 of 12, for: Cannot connect to the Docker daemon."),
        ("pulling image", "Try 3 of 6, for: Error: manifest unknown"),
        ("reading secrets", f"Try 3 of 12, for: {_REFUSED}"),
        ("starting engine", "Try 3 of 6, for: docker: failed to initialize logging driver"),
    ]
    assert vm.phases.count("booting") == 1
    assert "DPkg::Lock::Timeout=900" in vm.called("apt-get")[0]
    ran, removed = vm.called("docker", "run"), vm.called("docker", "rm", "--force")
    assert (len(ran), len(removed)) == (4, 3)  # twice the proxy alone
    assert vm.phases[-2:] == ["ready", "ended"]


@pytest.mark.life
async def test_a_log_that_takes_nothing_does_not_stop_a_boot(vm: FakeVm) -> None:
    """The console stands in for it: it has every step, and the whole certificate."""
    vm.fail("logs", 999)
    done = await vm.boot(_impatient(script()))
    assert vm.entries == []
    assert f"vllm-devops: certificate: {vm.certificate.read_text()}" in done.stdout
    assert "vllm-devops: ready: " in done.stdout
    assert "Cloud Logging did not take that" in done.stdout


@pytest.mark.life
async def test_an_image_that_is_not_there_ends_it(vm: FakeVm) -> None:
    """With docker's own words, after as many tries as it has; no container is tried."""
    vm.fail("pull", 99)
    done = await vm.boot(script())
    assert done.returncode == 1
    assert vm.phases.count("pulling image") == 6
    phase, message = vm.told[-1]
    assert (phase, "cannot be pulled: Error: manifest unknown" in message) == ("failed", True)
    assert not vm.called("docker", "run")


@pytest.mark.life
async def test_docker_that_cannot_be_installed_ends_it(tmp_path: Path) -> None:
    """No network, or no such package."""
    vm = FakeVm(tmp_path, has_docker=False)
    vm.fail("apt", 99)
    await vm.boot(script())
    assert vm.told[-1] == (
        "failed",
        f"Docker cannot be installed: {_LOCKED}",
    )


@pytest.mark.parametrize("secret", ["vllm-devops-tpu-gemma-api-key", "hf-token"])
async def test_a_secret_that_is_not_there_ends_it(vm: FakeVm, secret: str) -> None:
    """Without its key the engine would answer everybody: it is not started at all."""
    vm.take(f"secret-{secret}")
    done = await vm.boot(script(offline(hf_token="hf_x")).replace("again 12 ", "again 2 "))
    assert done.returncode == 1
    assert vm.told[-1] == (
        "failed",
        f"The secret {secret} cannot be read: curl: (22) The requested URL returned error: 404",
    )
    assert vm.phases.count("failed") == 1
    assert not vm.called("docker", "run")


async def test_an_empty_key_is_no_key(vm: FakeVm) -> None:
    """vLLM takes an empty key for none."""
    vm.put("secret-vllm-devops-tpu-gemma-api-key", "")
    await vm.boot(script())
    assert vm.told[-1][0] == "failed"
    assert not vm.called("docker", "run")


@pytest.mark.life
async def test_a_certificate_that_was_not_taken_is_told_again(vm: FakeVm) -> None:
    """Nobody could trust an engine of which nobody knows the certificate, while its chip bills."""
    vm.fail("logs", 6)
    await vm.boot(script())
    assert vm.phases[-3:] == ["certificate", "ready", "ended"]
    assert vm.phases.count("certificate") == 1


@pytest.mark.life
async def test_the_end_is_told_though_the_log_stumbles_for_long(vm: FakeVm) -> None:
    """Who does not hear of it pays for a chip that serves nothing."""
    vm.put("states", "exited 1 0\n")
    vm.fail("logs", 3 * 5 + 5)
    await vm.boot(_impatient(script()))
    assert vm.phases == ["ended"]


@pytest.mark.life
async def test_a_container_that_cannot_be_started_ends_it(vm: FakeVm) -> None:
    """An account that may not write logs is refused by docker's driver."""
    vm.fail("run", 99)
    await vm.boot(script())
    assert vm.told[-1] == (
        "failed",
        "The container cannot be started: docker: failed to initialize logging driver",
    )


async def test_an_engine_that_ends_at_once_is_told_with_its_code(vm: FakeVm) -> None:
    """It is not started again: what fails in a boot fails in the next, and the chip bills on."""
    vm.put("states", "exited 1 0\n")
    done = await vm.boot(script())
    assert done.returncode == 1
    assert vm.phases[-2:] == ["starting engine", "ended"]
    assert vm.told[-1][1] == "The engine ended with exit code 1."
    assert len(vm.called("docker", "run")) == 2  # the proxy and the engine, once each
    assert not vm.called("docker", "update")


async def test_a_container_that_somebody_removed_is_told(vm: FakeVm) -> None:
    """What is gone is gone: nobody waits for it for ever."""
    vm.fail("inspect", 99)
    await vm.boot(script())
    assert vm.told[-1] == ("failed", "The container is gone: Error: No such object")
    assert len(vm.called("docker", "inspect")) == 12


@pytest.mark.life
async def test_a_vm_without_an_account_says_so_on_its_console(vm: FakeVm) -> None:
    """Without a token it can neither log nor read its key (T44)."""
    vm.fail("token", 999)
    done = await vm.boot(_impatient(script()).replace("again 12 ", "again 2 "))
    assert done.returncode == 1
    assert "vllm-devops: failed: The secret" in done.stdout
    assert "The VM has no access token." in done.stdout
    assert not vm.called("docker", "run")


async def test_what_nobody_foresaw_is_told_as_well(vm: FakeVm) -> None:
    """A disk that is full, say: the script does not end without a word."""
    broken = script().replace('mkdir -p "$ROOT$CACHE"', "false")
    await vm.boot(broken)
    assert vm.told[-1] == ("failed", "The startup script ended with code 1.")
