"""A user's machine for the installer: programs that can refuse, a cache, a clone."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.lowlevel

from backends.local.install import RECIPE, Host, Installer, Recipe
from core.processes import Output

LINUX = Host("Linux x86_64", "3.11", "3.11.7", "/usr")
TABLE = tomllib.loads(RECIPE.read_text("utf-8"))


def recipe(**engine: Any) -> Recipe:
    """The recipe that ships, with other lines under [engine], on a disk that is never full."""
    return Recipe.model_validate(
        {**TABLE, "engine": {**TABLE["engine"], "free_gib": 0.0, **engine}}
    )


class Killed(BaseException):
    """What a person's Ctrl-C or a power cut does to an installation."""


@dataclass
class Programs:
    """Emulates python, pip, uv and vllm: each does its part, and refuses when it cannot."""

    offline: bool = False
    local_torch: bool = True
    pip_settings: str = ""
    killed_at: str | None = None
    refuses: str | None = None
    calls: list[tuple[str, ...]] = field(default_factory=list)
    environments: list[Mapping[str, str]] = field(default_factory=list)

    async def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout: float = 120,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Output:
        await anyio.lowlevel.checkpoint()
        self.calls.append(tuple(argv))
        self.environments.append(env or {})
        step = self._step(argv)
        if step == self.killed_at:
            raise Killed
        if step == self.refuses:
            return refusal("it would not")
        home = Path(argv[-1]) if step == "venv" else Path(argv[0]).parents[1]
        return getattr(self, f"_{step}")(home, list(argv), env or {})  # type: ignore[no-any-return] # by name

    @staticmethod
    def _step(argv: Sequence[str]) -> str:
        words = {"venv": "venv", "download": "torch", "config": "config", "-P": "model"}
        named = [step for word, step in words.items() if word in argv[1:4]]
        if named:
            return named[0]
        return {"uv": "packages", "vllm": "version"}.get(Path(argv[0]).name, "uv")

    def _venv(self, home: Path, argv: list[str], env: Mapping[str, str]) -> Output:
        if home.exists():
            return refusal("there is a half-made one in the way")
        (home / "lib/python3.11/site-packages").mkdir(parents=True)
        (home / "bin").mkdir()
        (home / "bin/python").touch()
        return done()

    def _uv(self, home: Path, argv: list[str], env: Mapping[str, str]) -> Output:
        if self.offline:
            return refusal("Could not find a version that satisfies the requirement uv")
        (home / "bin/uv").touch()
        return done()

    def _config(self, home: Path, argv: list[str], env: Mapping[str, str]) -> Output:
        return done(self.pip_settings)

    def _torch(self, home: Path, argv: list[str], env: Mapping[str, str]) -> Output:
        if not self.local_torch:
            return refusal("No matching distribution found for torch")
        wheels = Path(argv[argv.index("--dest") + 1])
        wheels.mkdir()
        (wheels / "torch.whl").touch()
        return done()

    def _packages(self, home: Path, argv: list[str], env: Mapping[str, str]) -> Output:
        dropped = Path(argv[argv.index("--overrides") + 1]).read_text("utf-8").splitlines()
        if 'triton ; sys_platform == "never"' not in dropped:
            return refusal("triton breaks the import of vllm")
        if not (home / "bin/uv").exists():
            return refusal("no uv")
        if "--find-links" in argv and not (home / "parts/wheels/torch.whl").exists():
            return refusal("the wheels are not there")
        (home / "bin/vllm").touch()
        return done()

    def _model(self, home: Path, argv: list[str], env: Mapping[str, str]) -> Output:
        if env.get("HF_HUB_OFFLINE") != "1":
            return refusal("the model hub must stay out of it")
        Path(argv[-1]).mkdir()
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            (Path(argv[-1]) / name).touch()
        return done()

    def _version(self, home: Path, argv: list[str], env: Mapping[str, str]) -> Output:
        shims = list(home.glob("lib/python*/site-packages/vllm-*.dist-info/METADATA"))
        if not shims:
            return refusal("PackageNotFoundError: vllm")
        return done(shims[0].read_text("utf-8").split("Version: ")[-1])


def done(stdout: str = "") -> Output:
    return Output(returncode=0, stdout=stdout, stderr="")


def refusal(words: str) -> Output:
    return Output(returncode=1, stdout="", stderr=words)


@dataclass
class Machine:
    """One user's machine: a cache, a clone of the repository, and what was said there."""

    folder: Path
    programs: Programs = field(default_factory=Programs)
    said: list[str] = field(default_factory=list)

    def installer(
        self, *, what: Recipe | None = None, host: Host = LINUX, clone: str = "clone"
    ) -> Installer:
        (self.folder / clone).mkdir(exist_ok=True)
        return Installer(
            recipe=what or recipe(),
            host=host,
            cache=self.folder / "cache",
            link=self.folder / clone / ".vllm",
            run=self.programs,
            say=self.said.append,
        )
