"""Python, its packages, the settings, the disk and the engine of this machine."""

import os
import platform
import shutil
import stat
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from backends.local.devices import read_devices
from backends.local.process import Engine, claim, find_vllm
from core.environment import ROOT
from core.errors import PortInUse
from core.journal import Journal
from core.settings import Settings
from operations.doctor.findings import Finding, Verdict
from operations.stage import Stage

_GIB: Final = 1024**3
_LITTLE_GIB: Final = 1.0
_GET_ENGINE: Final = "Run `make vllm` for one on this CPU, or set VLLM_EXECUTABLE to yours."
_INSTALL: Final = "Run `make install`."
_ROOM: Final = "Make room there, or set {variable} to a folder with more."


def python() -> Iterator[Finding]:
    """Say which Python runs, and whether every package is there in a version that will do."""
    inside = sys.prefix != sys.base_prefix
    where = f"Python {platform.python_version()}, {sys.executable}"
    yield Finding(
        area="install",
        about="Python",
        verdict="ok" if inside else "warning",
        detail=where if inside else f"{where}: not an environment of its own.",
        fix="" if inside else f"{_INSTALL} It makes .venv, and server.py goes on in it.",
    )
    wrong = tuple(_unmet(ROOT / "requirements.txt"))
    yield Finding(
        area="install",
        about="packages",
        verdict="failed" if wrong else "ok",
        detail="; ".join(wrong) if wrong else "All that requirements.txt names, as it wants them.",
        fix=_INSTALL if wrong else "",
    )


def _unmet(requirements: Path) -> Iterator[str]:
    from packaging.requirements import Requirement

    for line in requirements.read_text(encoding="utf-8").splitlines():
        wanted = line.partition("#")[0].strip()
        if not wanted:
            continue
        asked = Requirement(wanted)
        try:
            there = version(asked.name)
        except PackageNotFoundError:
            yield f"{asked.name} is missing"
            continue
        if there not in asked.specifier:
            yield f"{asked.name} is {there}, wanted {asked.specifier}"


def settings_of(env_file: Path) -> Iterator[Finding]:
    """Say which settings are set, by name, and which cannot be."""
    try:
        settings = Settings()
    except ValidationError as exc:
        rows = exc.errors(include_url=False, include_input=False)
        said = "; ".join(f"{str(row['loc'][0]).upper()}: {row['msg']}" for row in rows)
        yield _settings("failed", f"These cannot be: {said}.", "Correct them, or unset them.")
        return
    names = sorted(name.upper() for name in settings.model_fields_set)
    yield _settings("ok", f"Set: {', '.join(names)}." if names else "None is set.")
    known = Stage(settings).targets
    if settings.vllm_target and settings.vllm_target not in known:
        said = f"VLLM_TARGET names no target: {', '.join(known)}."
        yield _settings("failed", said, "Name one of them.")
    if env_file.exists() and env_file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        said = "Others on this machine can read .env, which may hold a token."
        yield _settings("warning", said, f"chmod 600 {env_file}")


def _settings(verdict: Verdict, detail: str, fix: str = "") -> Finding:
    return Finding(area="install", about="settings", verdict=verdict, detail=detail, fix=fix)


def disk(settings: Settings) -> Iterator[Finding]:
    """Say whether there is room for what is kept and downloaded."""
    yield _room("state folder", Stage(settings).folder, "VLLM_DEVOPS_STATE_DIR")
    from huggingface_hub.constants import HF_HUB_CACHE

    yield _room("models' cache", Path(HF_HUB_CACHE), "HF_HOME")


def journal(settings: Settings) -> Iterator[Finding]:
    """Say whether the journal can be read.

    Raises:
        HostError: It is damaged, or out of reach.
    """
    kept = Journal(Stage(settings).folder / "journal.db", read_only=True)
    yield Finding(area="disk", about="journal", verdict="ok", detail=_last_of(kept))


def _last_of(kept: Journal) -> str:
    if not kept.exists:
        return "Nothing has been written down yet."
    last = kept.operations(1)
    if not last:
        return "It can be read; nothing has been changed yet."
    return f"It can be read; last: {last[0].tool}, {last[0].at:%F %H:%M} UTC."


def _room(about: str, folder: Path, variable: str) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free / _GIB
    detail = f"{folder}: {free:.1f} GiB free."
    fix = _ROOM.format(variable=variable)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return Finding(
            area="disk",
            about=about,
            verdict="failed",
            detail=f"{there} cannot be written to.",
            fix=f"Set {variable} to a folder of yours.",
        )
    short = free < _LITTLE_GIB
    return Finding(
        area="disk",
        about=about,
        verdict="warning" if short else "ok",
        detail=detail,
        fix=fix if short else "",
    )


def engine(settings: Settings) -> Iterator[Finding]:
    """Say which engine the target `local` would start, and on what."""
    found = find_vllm(settings.vllm_executable, ROOT)
    if settings.engine == "simulated":
        yield _engine("ok", "ENGINE=simulated: `local` is served by the simulated one.")
    elif found:
        yield _engine("ok", f"{found.label}: {found.command[0]}")
        yield _accelerator(settings, found)
    elif settings.engine == "real" or settings.vllm_executable:
        said = "The one that VLLM_EXECUTABLE names" if settings.vllm_executable else "A real one"
        yield _engine("failed", f"{said} is not there.", _GET_ENGINE)
    else:
        said = "There is no real one; `local` is served by the simulated one."
        yield _engine("missing", said, _GET_ENGINE)


def _engine(verdict: Verdict, detail: str, fix: str = "") -> Finding:
    return Finding(area="engine", about="vLLM", verdict=verdict, detail=detail, fix=fix)


def _accelerator(settings: Settings, found: Engine) -> Finding:
    here = read_devices(settings.accelerator_type, cpu_only=found.cpu_only)
    return Finding(
        area="engine",
        about="accelerator",
        verdict="ok" if here else "warning",
        detail=f"{here.number} x {here.accelerator.title}" if here else "None is known here.",
        fix="" if here else "Set ACCELERATOR_TYPE if there is one, or install its driver.",
    )


def port(number: int) -> Iterator[Finding]:
    """Say whether MCP over HTTP could be spoken on its usual port."""
    try:
        claim(number)
        said = "Free for `make http`."
    except PortInUse:
        said = "In use: by `make http`, or by another program (then give --port)."
    yield Finding(area="network", about=f"port {number}", verdict="ok", detail=said)
