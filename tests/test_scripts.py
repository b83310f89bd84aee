"""init.sh, set_env.sh and .ci/run: the real scripts, in a copy, among programs that can refuse."""

import re
import shutil
import stat
import sys
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from pydantic import SecretStr

from core.processes import Output, run
from core.settings import ROOT, Settings

pytestmark = pytest.mark.anyio

_SHELLS: Final = tuple(shell for shell in ("bash", "zsh") if shutil.which(shell))
_SCRIPTS: Final = ("init.sh", "set_env.sh")
_PROGRAMS: Final = (
    *(
        "awk",
        "bash",
        "cat",
        "chmod",
        "dirname",
        "env",
        "grep",
        "head",
        "make",
        "mkdir",
        "mktemp",
        "rm",
    ),
    *("sh", "sleep", "tail", "touch", "tr", "zsh"),
)
_NAMES: Final = tuple(name.upper() for name in Settings.model_fields)
_ONE_SECOND: Final = {"INIT_CLI_SECONDS": "1"}

_GCLOUD: Final = """
case $3 in
project) echo my-project ;;
run/region) echo '(unset)' ;;
compute/region) echo europe-west4 ;;
compute/zone) echo europe-west4-b ;;
esac
"""
_AZ: Final = """
case "$1 $2" in
'account show') echo 01234567-89ab-cdef-0123-456789abcdef ;;
'config get') exit 1 ;;
esac
"""
_TERMINAL: Final = """
import os, pty, sys
pid, master = pty.fork()
if pid == 0:
    os.execvp(sys.argv[2], sys.argv[2:])
answers = sys.argv[1].split(",")
seen = ""
while True:
    try:
        got = os.read(master, 4096).decode()
    except OSError:
        break
    if not got:
        break
    seen += got
    while answers and seen.count("(Enter: none") > len(sys.argv[1].split(",")) - len(answers):
        os.write(master, answers.pop(0).encode() + b"\\n")
print(seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


class Checkout:
    """A copy with a space in its path, and only the programs that are put on its PATH."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "check out"
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.root / ".venv/bin").mkdir(parents=True)
        for name in ("Makefile", *_SCRIPTS):
            shutil.copy(ROOT / name, self.root)
        for name in ("requirements.txt", "requirements-dev.txt"):
            (self.root / name).touch()
        self.program(".venv/bin/python", f'exec "{sys.executable}" "$@"')
        (self.root / ".venv/.installed").touch()
        for name in _PROGRAMS:
            (self.bin / name).symlink_to(shutil.which(name) or f"/missing/{name}")

    def program(self, path: str, text: str) -> None:
        """Put a program on the PATH, or somewhere in the checkout."""
        file = self.root / path if "/" in path else self.bin / path
        file.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        file.chmod(0o755)

    async def run(self, *argv: str, **env: str) -> Output:
        """Run a program with nothing else in the environment."""
        given = {"PATH": str(self.bin), "HOME": str(self.root), **env}
        pairs = (f"{name}={value}" for name, value in given.items())
        return await run(("/usr/bin/env", "-i", *pairs, *argv), cwd=self.root, timeout=20)

    async def tell(self, shell: str, text: str, **env: str) -> Output:
        """Give a fresh shell something to do, as a person types it."""
        return await self.run(*_fresh(shell), "-c", text, **env)

    @property
    def dotenv(self) -> Path:
        return self.root / ".env"

    def kept(self) -> dict[str, str]:
        """Read .env line by line."""
        lines = self.dotenv.read_text(encoding="utf-8").splitlines()
        return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


def _fresh(shell: str) -> tuple[str, str]:
    """Name a shell without the files that a person or a distribution gave it."""
    return (shell, "-f") if shell == "zsh" else (shell, "--norc")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture(params=_SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=_SCRIPTS)
def script(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


def _listed(name: str) -> set[str]:
    text = (ROOT / "set_env.sh").read_text(encoding="utf-8")
    (words,) = re.findall(rf"^{name}='([^']*)'", text, flags=re.MULTILINE)
    return set(words.split())


async def test_the_names_are_those_of_the_settings() -> None:
    """set_env.sh exports every setting, and nothing that is none."""
    assert _listed("names") == set(_NAMES)


async def test_the_secrets_are_those_of_the_settings() -> None:
    """What the settings call a secret, set_env.sh does not print."""
    fields = Settings.model_fields.items()
    secret = {name.upper() for name, field in fields if SecretStr in get_args(field.annotation)}
    assert _listed("secrets") == secret


async def test_sourced_it_exports(checkout: Checkout, shell: str) -> None:
    """What is in .env reaches the programs that the shell starts, and what was set stays."""
    checkout.dotenv.write_text("MODEL_NAME=ours\nENGINE=real\nBUCKET_NAME=b\nOTHER=x\n")
    told = await checkout.tell(
        shell, "BUCKET_NAME=typed; source ./set_env.sh; env", ENGINE="simulated"
    )
    lines = told.stdout.splitlines()
    assert {"MODEL_NAME=ours", "ENGINE=simulated", "BUCKET_NAME=typed"} <= set(lines)
    assert not any(line.startswith("OTHER=") for line in lines)


async def test_it_can_be_sourced_from_anywhere(checkout: Checkout, shell: str) -> None:
    """The .env beside the script counts, not the one of the current folder."""
    checkout.dotenv.write_text("MODEL_NAME=ours\n")
    told = await checkout.tell(shell, f"cd / && . '{checkout.root}/set_env.sh' && env")
    assert "MODEL_NAME=ours" in told.stdout.splitlines()


async def test_the_shell_reads_what_the_server_reads(
    checkout: Checkout, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quotes, comments, spaces, `export` and small letters mean the same to both."""
    checkout.dotenv.write_bytes(
        b"# a comment\n\nMODEL_NAME=first\nMODEL_NAME=last # the last one counts\n"
        b"export BUCKET_NAME='it costs $5 # and no ` less'  # single\n"
        b'AZURE_LOCATION="West US\'s 3"\r\n'
        b"GOOGLE_CLOUD_ZONE = spaced-b  \ngoogle_cloud_project=small\n"
        b"AZURE_RESOURCE_GROUP=a#b\nAZURE_KEYVAULT_NAME=\nnonsense\n"
        b"HF_TOKEN=hf_!x*y?z~\nAZURE_STORAGE_ACCOUNT=no newline"
    )
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)
    read = Settings(_env_file=checkout.dotenv)
    fields = [name for name in Settings.model_fields if name.split("_")[0] in _WORDS]
    wanted = [str(_plain(getattr(read, name)) or "") for name in fields]
    shown = "; ".join(f'echo "${{{name.upper()}:-}}"' for name in fields)
    told = await checkout.tell(shell, f". ./set_env.sh; {shown}")
    assert told.stdout.splitlines() == wanted
    assert "West US's 3" in wanted


_WORDS: Final = {"model", "bucket", "azure", "google", "hf"}


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


async def test_what_it_cannot_read_it_names(checkout: Checkout) -> None:
    """A value that the two would read differently is left out aloud; the rest is there."""
    checkout.dotenv.write_text('MODEL_NAME=${HOME}\nENGINE="a\\"b"\nBUCKET_NAME=b\n')
    told = await checkout.tell("bash", ". ./set_env.sh; env")
    assert "BUCKET_NAME=b" in told.stdout
    assert "MODEL_NAME" not in told.stdout
    assert "line 1" in told.stderr
    assert "line 2" in told.stderr


@pytest.mark.parametrize("how", ["./set_env.sh", *(f"{shell} set_env.sh" for shell in _SHELLS)])
async def test_executed_it_prints_without_secrets(checkout: Checkout, how: str) -> None:
    """What it prints can be evaluated; a secret is only said to be set."""
    checkout.dotenv.write_text("MODEL_NAME='a b'\nHF_TOKEN=hf_sentinel\n")
    told = await checkout.run(*how.split(), VLLM_API_KEY="key_sentinel")
    assert told.returncode == 0
    assert "export MODEL_NAME=a\\ b" in told.stdout
    assert "HF_TOKEN is set" in told.stdout
    assert "sentinel" not in told.stdout + told.stderr
    assert "source set_env.sh" in told.stderr


_LOOK: Final = {
    "bash": "set +o; shopt -p; declare -F; trap -p; compgen -v; alias; pwd; umask",
    "zsh": "setopt; print -l ${(ok)functions} ${(ok)parameters} ${(ok)aliases}; trap; pwd; umask",
}


@pytest.mark.parametrize("works", [True, False], ids=("works", "fails"))
async def test_sourced_it_leaves_the_shell_as_it_was(
    checkout: Checkout, shell: str, script: str, *, works: bool
) -> None:
    """No option, function, variable or trap comes or goes, and the shell goes on."""
    if not works:
        checkout.dotenv.mkdir()
    look = _LOOK[shell]
    text = f'a=$({look}); . ./{script} >out 2>&1; b=$?; echo "$a"; echo ----; {look}; echo $b'
    told = await checkout.tell(shell, f'a= b=; : "$_"; {text}', OLDPWD="/")
    before, _, after = told.stdout.partition("----\n")
    *after_lines, status = after.splitlines()
    assert set(after_lines) - set(before.splitlines()) <= _OWN_TO_THE_SHELL
    assert set(before.splitlines()) - set(after_lines) <= _OWN_TO_THE_SHELL
    assert (status == "0") is works


_OWN_TO_THE_SHELL: Final = {"BASH_REMATCH", "PIPESTATUS", "match", "mbegin", "mend"}


async def test_a_strict_shell_may_source_it(checkout: Checkout, shell: str, script: str) -> None:
    """Neither an unset variable nor an inner failure ends it."""
    told = await checkout.tell(shell, f"set -eu; . ./{script} && echo alive")
    assert told.returncode == 0, told.stderr
    assert told.stdout.endswith("alive\n")


async def test_another_shell_is_told(checkout: Checkout, script: str) -> None:
    """Sh says what is needed and goes on."""
    checkout.program("plain", f'exec {shutil.which("dash") or "bash"} "$@"')
    told = await checkout.run("plain", "-c", f". ./{script}; echo alive")
    assert told.stdout.endswith("alive\n")


async def test_init_keeps_what_the_clouds_tools_say(checkout: Checkout) -> None:
    """The project, region and zone are found; what is `(unset)` is not."""
    checkout.program("gcloud", _GCLOUD)
    checkout.program("az", _AZ)
    done = await checkout.run("./init.sh")
    assert done.returncode == 0, done.stderr
    assert checkout.kept() == {
        "GOOGLE_CLOUD_PROJECT": "my-project",
        "GOOGLE_CLOUD_LOCATION": "europe-west4",
        "GOOGLE_CLOUD_ZONE": "europe-west4-b",
        "AZURE_SUBSCRIPTION_ID": "01234567-89ab-cdef-0123-456789abcdef",
    }
    assert "AZURE_LOCATION is missing" in done.stdout
    assert "make demo" in done.stdout


async def test_only_its_owner_reads_the_file(checkout: Checkout) -> None:
    """A file that others could read is closed to them, and its lines stay."""
    checkout.dotenv.write_text("# mine\nMODEL_NAME=m")
    checkout.dotenv.chmod(0o644)
    await checkout.run("./init.sh", GOOGLE_CLOUD_PROJECT="p")
    assert stat.S_IMODE(checkout.dotenv.stat().st_mode) == 0o600
    assert checkout.dotenv.read_text() == "# mine\nMODEL_NAME=m\nGOOGLE_CLOUD_PROJECT=p\n"


async def test_a_second_run_changes_nothing(checkout: Checkout) -> None:
    """What is in .env wins over what gcloud says now."""
    checkout.program("gcloud", _GCLOUD)
    await checkout.run("./init.sh")
    once = checkout.dotenv.read_bytes()
    checkout.program("gcloud", "echo another")
    await checkout.run("./init.sh")
    assert checkout.dotenv.read_bytes() == once


async def test_a_secret_of_the_environment_is_not_written(checkout: Checkout) -> None:
    """It is said to be set, and neither kept nor shown."""
    done = await checkout.run("./init.sh", HF_TOKEN="hf_sentinel")
    assert "HF_TOKEN is set" in done.stdout
    assert "sentinel" not in done.stdout + done.stderr + checkout.dotenv.read_text()


async def test_a_value_with_spaces_is_read_back(checkout: Checkout, shell: str) -> None:
    """It is written so that server and shells read it alike."""
    told = await checkout.tell(
        shell, "./init.sh && unset GOOGLE_CLOUD_PROJECT && . ./set_env.sh && env",
        GOOGLE_CLOUD_PROJECT='my $5 "project" # one',
    )  # fmt: skip
    wanted = 'my $5 "project" # one'
    assert f"GOOGLE_CLOUD_PROJECT={wanted}" in told.stdout.splitlines()
    assert Settings(_env_file=checkout.dotenv).google_cloud_project == wanted


async def test_a_value_that_cannot_be_written_is_named(checkout: Checkout) -> None:
    """It is left out of .env, with what to do instead."""
    done = await checkout.run("./init.sh", GOOGLE_CLOUD_PROJECT="it's")
    assert done.returncode == 1
    assert "GOOGLE_CLOUD_PROJECT" in done.stderr
    assert checkout.kept() == {}


async def test_a_hanging_gcloud_is_left_behind(checkout: Checkout) -> None:
    """It is asked once, ended with its children, and the rest goes on."""
    checkout.program("gcloud", 'echo asked >>"$HOME/log"; (exec -a "$HOME/child" sleep 98) | cat')
    done = await checkout.run("./init.sh", **_ONE_SECOND)
    assert done.returncode == 0, done.stderr
    assert "gcloud did not answer within 1 s" in done.stderr
    assert (checkout.root / "log").read_text() == "asked\n"
    assert f"{checkout.root}/child" not in (await run(("ps", "-eo", "args"))).stdout


@pytest.mark.parametrize(
    "says",
    [
        "echo my-project; exit 1",
        "printf 'WARNING: old\\nmy-project\\n'",
        "printf '\\033[1mmy project\\0'",
        "echo 'x; rm -rf ~'",
        "read -r line </dev/tty; echo $line",
        "cat",
    ],
)
async def test_what_no_project_is_called_is_no_project(checkout: Checkout, says: str) -> None:
    """A refusal, a warning or rubbish is not written down."""
    checkout.program("gcloud", says)
    done = await checkout.run("./init.sh", **_ONE_SECOND)
    assert done.returncode == 0, done.stderr
    assert checkout.kept() == {}
    assert "nothing can be deployed on Google Cloud" in done.stdout


async def test_on_a_terminal_it_asks(checkout: Checkout) -> None:
    """What is typed is kept, and the token is not shown."""
    answers = "proj,us-central1,,,hf_typed"
    done = await checkout.run(sys.executable, "-c", _TERMINAL, answers, "./init.sh", TERM="dumb")
    assert done.returncode == 0, done.stdout
    assert checkout.kept() == {
        "GOOGLE_CLOUD_PROJECT": "proj",
        "GOOGLE_CLOUD_LOCATION": "us-central1",
        "HF_TOKEN": "hf_typed",
    }
    assert "hf_typed" not in done.stdout


async def test_in_ci_it_never_asks(checkout: Checkout) -> None:
    """Not even on a terminal."""
    done = await checkout.run(sys.executable, "-c", _TERMINAL, ",", "./init.sh", CI="true")
    assert done.returncode == 0
    assert "(Enter: none" not in done.stdout


async def test_without_a_python_it_says_so(checkout: Checkout, shell: str) -> None:
    """The reason is there, sourcing fails, and the shell goes on."""
    checkout.program("python3", "exit 1")
    shutil.rmtree(checkout.root / ".venv")
    told = await checkout.tell(shell, ". ./init.sh; echo status $?")
    assert told.stdout.endswith("status 1\n")
    assert "Python 3.11 or newer" in told.stderr


async def test_without_make_it_says_so(checkout: Checkout) -> None:
    """It names what to install."""
    (checkout.bin / "make").unlink()
    done = await checkout.run("./init.sh")
    assert done.returncode == 1
    assert "make is missing" in done.stderr


_RECIPES: Final = "lint test test-engine:\n\t@echo did $@\n"
_ENGINE: Final = '\t@(exec -a "vllm serve" sleep 30) >/dev/null 2>&1 &\n'


async def _ci(checkout: Checkout, recipes: str) -> Output:
    checkout.root.joinpath(".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", checkout.root / ".ci")
    checkout.root.joinpath("Makefile").write_text(f"SHELL := /bin/bash\n{recipes}")
    return await checkout.run(".ci/run")


async def test_ci_runs_what_the_readme_says(checkout: Checkout) -> None:
    """It prints each step and ends well."""
    done = await _ci(checkout, _RECIPES)
    assert done.returncode == 0, done.stderr
    for step in ("lint", "test", "test-engine"):
        assert f"== make {step}\n" in done.stdout
        assert f"did {step}\n" in done.stdout


async def test_ci_fails_when_an_engine_is_left_behind(checkout: Checkout) -> None:
    """It names it and ends it."""
    done = await _ci(checkout, _RECIPES + _ENGINE)
    assert done.returncode == 1
    assert "left behind" in done.stderr


async def test_ci_fails_when_a_step_fails(checkout: Checkout) -> None:
    """The steps after it are not run."""
    done = await _ci(checkout, "lint:\n\t@exit 1\n")
    assert done.returncode not in {0, 127}
    assert "make test" not in done.stdout


async def test_each_can_be_executed() -> None:
    """`./init.sh` works on a fresh clone."""
    for name in (*_SCRIPTS, ".ci/run"):
        assert (ROOT / name).stat().st_mode & stat.S_IXUSR
