"""A real vLLM for CPUs in `.vllm` with a tiny Gemma 4: `python -m backends.local.install`."""

import argparse
import hashlib
import json
import platform
import shutil
import sys
import time
import tomllib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import anyio
import platformdirs

from backends.common.concurrency import locked
from core import PRODUCT, processes
from core.errors import DiskFull, OpsError, Unsupported
from core.processes import Run
from core.records import Record

RECIPE: Final = Path(__file__).with_name("vllm.toml")
WITHOUT_IT: Final = "ENGINE=simulated needs no vLLM; VLLM_EXECUTABLE=/path/to/vllm takes yours."


class Engine(Record):
    """What is installed and what that takes; `vllm.toml` has the sources."""

    distribution: str
    version: str
    torch: str
    uv: str
    platforms: tuple[str, ...]
    pythons: tuple[str, ...]
    shim_version: str
    dropped: tuple[str, ...]
    download_mb: int
    disk_gib: float
    free_gib: float
    minutes: int


class Recipe(Record):
    """`vllm.toml`: what to install, and what the tiny model looks like."""

    engine: Engine
    tiny_model: dict[str, Any]

    @classmethod
    def read(cls) -> "Recipe":
        """Read the one that is shipped."""
        return cls.model_validate(tomllib.loads(RECIPE.read_text(encoding="utf-8")))


class Host(NamedTuple):
    """The machine, and the Python with its home, that a virtual environment is bound to."""

    platform: str
    minor: str
    python: str
    home: str

    @classmethod
    def here(cls) -> "Host":
        system, python = f"{platform.system()} {platform.machine()}", platform.python_version()
        return cls(system, python.rpartition(".")[0], python, sys.base_prefix)


def fingerprint(recipe: Recipe, host: Host, script: str) -> str:
    """Name an installation: the same name is the same engine and the same model."""
    said = json.dumps([recipe.model_dump(mode="json"), host, script], sort_keys=True)
    return hashlib.sha256(said.encode()).hexdigest()[:12]


TINY_MODEL: Final = Path(__file__).with_name("tiny_model.py")
LINK: Final = Path(__file__).parents[2] / ".vllm"
MODEL: Final = "tiny-gemma-4"
MARKER: Final = "complete"
"""Written last: a build without it was killed on its way and is thrown away."""
_LONGEST_BUILD_SECONDS: Final = 1800.0
"""For which somebody else's build is waited for."""
OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


class InstallFailed(OpsError):
    """A step of the installation did not succeed; `.vllm` is as it was."""

    code = "ENGINE_INSTALL_FAILED"
    retryable = True


def uv_environment(pip_settings: str) -> dict[str, str]:
    """Tell uv, which reads no pip.conf, the mirror and the certificates that pip was told."""
    names = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}
    # pip lists its environment first, and that wins.
    lines = (line.partition("=") for line in reversed(pip_settings.splitlines()))
    said = ((name.rpartition(".")[2], value.strip("'\"")) for name, _, value in lines)
    return {names[name]: value for name, value in said if name in names}


@dataclass(frozen=True, kw_only=True)
class Installer:
    """Builds one recipe in the user's cache, once, and lets `.vllm` point there."""

    recipe: Recipe
    host: Host
    cache: Path
    link: Path
    run: Run = processes.run
    say: Callable[[str], None]

    @property
    def home(self) -> Path:
        """Where this recipe is built for good: a virtual environment cannot be moved."""
        name = fingerprint(self.recipe, self.host, TINY_MODEL.read_text("utf-8"))
        return self.cache / f"vllm-{name}"

    def built(self) -> bool:
        return (self.home / MARKER).is_file() and (self.home / "bin/python").exists()

    def linked(self) -> bool:
        return self.built() and self.link.resolve() == self.home.resolve()

    async def install(self) -> None:
        """Have `.vllm` be this recipe. There already: only linked; killed on its way: redone."""
        engine, host = self.recipe.engine, self.host
        if host.platform not in engine.platforms or host.minor not in engine.pythons:
            raise Unsupported(
                f"vLLM {engine.version} for CPUs is built for {', '.join(engine.platforms)} with"
                f" Python {', '.join(engine.pythons)}; this is {host.platform} with Python"
                f" {host.python}.",
                fix=WITHOUT_IT,
            )
        if self.link.exists() and not self.link.is_symlink():
            raise InstallFailed(f"{self.link} was not made by this.", fix=f"Move {self.link} away.")
        self.cache.mkdir(parents=True, exist_ok=True)
        lock = self.home.with_suffix(".lock")
        async with locked(lock, str(self.home), seconds=_LONGEST_BUILD_SECONDS):
            if not self.built():
                await self._build()
        self._point()

    async def _build(self) -> None:
        self._refuse_a_full_disk()
        engine = self.recipe.engine
        self.say(
            f"vLLM {engine.version} for CPUs: downloads about {engine.download_mb} MB, needs"
            f" {engine.disk_gib:.1f} GiB in {self.home}, takes about {engine.minutes} minutes.\n"
        )
        shutil.rmtree(self.home, ignore_errors=True)
        try:
            for label, step in self._steps():
                started = time.perf_counter()
                self.say(f"  {label:<40}")
                await step()
                self.say(f"{time.perf_counter() - started:6.1f} s\n")
        except OpsError:
            self.say("failed\n")
            shutil.rmtree(self.home, ignore_errors=True)
            raise
        (self.home / MARKER).touch()

    def _refuse_a_full_disk(self) -> None:
        free, needed = shutil.disk_usage(self.cache).free / 2**30, self.recipe.engine.free_gib
        if free < needed:
            raise DiskFull(
                f"{self.cache} has {free:.1f} GiB free; installing vLLM takes {needed:.1f} GiB.",
                fix=f"Make room, or set XDG_CACHE_HOME to a larger disk. {WITHOUT_IT}",
            )

    def _steps(self) -> tuple[tuple[str, Callable[[], Awaitable[object]]], ...]:
        return (
            ("virtual environment", self._make_environment),
            ("vLLM, torch and what they need", self._install_packages),
            ("a name that `vllm` answers to", self._write_shim),
            ("tiny Gemma 4 with random weights", self._make_model),
            ("vllm --version", self._see_it_start),
        )

    async def _make_environment(self) -> None:
        await self._must(sys.executable, "-m", "venv", str(self.home))
        await self._must(*self._pip("install", "--quiet", self.recipe.engine.uv))

    async def _install_packages(self) -> None:
        engine, parts = self.recipe.engine, self.home / "parts"
        parts.mkdir()
        overrides, wheels = parts / "overrides.txt", parts / "wheels"
        overrides.write_text("".join(f'{it} ; sys_platform == "never"\n' for it in engine.dropped))
        wanted = f"torch=={engine.torch}"
        fetch = self._pip("download", "--no-deps", "--dest", str(wheels), wanted)
        fetched = (await self.run(fetch, timeout=900)).returncode == 0
        # Else it is PyTorch's own build for CPUs.
        torch = ("--find-links", str(wheels)) if fetched else ("--torch-backend", "cpu")
        settings = await self.run(self._pip("config", "list"))
        await self._must(
            *(str(self.home / "bin/uv"), "pip", "install"),
            *("--python", str(self.home / "bin/python"), "--compile-bytecode"),
            *("--overrides", str(overrides), *torch),
            *(f"{engine.distribution}=={engine.version}", wanted),
            env=uv_environment(settings.stdout),
        )
        shutil.rmtree(parts)

    async def _write_shim(self) -> None:
        version = self.recipe.engine.shim_version
        packages = self.home / "lib" / f"python{self.host.minor}" / "site-packages"
        (shim := packages / f"vllm-{version}.dist-info").mkdir()
        (shim / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")

    async def _make_model(self) -> None:
        # -P: the script's neighbours must not be taken for the libraries it imports.
        python, out = str(self.home / "bin/python"), str(self.home / MODEL)
        await self._must(python, "-P", str(TINY_MODEL), out, env=OFFLINE)

    async def _see_it_start(self) -> None:
        said = await self._must(str(self.home / "bin/vllm"), "--version", env=OFFLINE)
        if self.recipe.engine.version not in said:
            raise InstallFailed(f"vllm says it is {said!r}.", fix=f"Delete {self.home}; make vllm.")

    def _pip(self, *arguments: str) -> tuple[str, ...]:
        return (str(self.home / "bin/python"), "-m", "pip", *arguments)

    async def _must(self, *argv: str, env: Mapping[str, str] | None = None) -> str:
        done = await self.run(argv, timeout=1800, cwd=self.cache, env=env)
        if done.returncode:
            raise InstallFailed(
                f"`{' '.join(argv[:4])} …` failed with status {done.returncode}.",
                cause=(done.stdout + done.stderr).strip()[-1500:],
                fix=f"See whether pip reaches its index, then `make vllm` again. {WITHOUT_IT}",
            )
        return done.stdout.strip()

    def _point(self) -> None:
        before, fresh = self.link.resolve(), self.link.with_name(f"{self.link.name}.new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(self.home, target_is_directory=True)
        fresh.replace(self.link)
        self.say(f"{self.link} -> {self.home}\n")
        if before.parent == self.cache.resolve() and before != self.home.resolve():
            self.say(f"{before} stays for other clones; delete it when there are none.\n")


async def main(argv: Sequence[str], installer: Installer) -> int:
    parser = argparse.ArgumentParser(prog="python -m backends.local.install", description=__doc__)
    parser.add_argument("--if-missing", action="store_true", help="say nothing when it is there")
    options = parser.parse_args(argv)
    try:
        if not (options.if_missing and installer.linked()):
            await installer.install()
    except OpsError as exc:
        sys.stderr.write(f"{exc.code}: {exc.summary}\n{exc.cause}\n  fix: {exc.fix}\n")
        return 1
    return 0


def installer() -> Installer:
    """Give the one that builds the shipped recipe for this machine."""
    return Installer(
        recipe=Recipe.read(),
        host=Host.here(),
        cache=platformdirs.user_cache_path(PRODUCT),
        link=LINK,
        say=partial(print, end="", flush=True),
    )


if __name__ == "__main__":
    sys.exit(anyio.run(main, sys.argv[1:], installer()))
