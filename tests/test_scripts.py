"""init.sh and set_env.sh: the real scripts, in a copy, among programs that can refuse."""

import re
import shutil
import stat
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from pydantic import SecretStr

from core.environment import ROOT
from core.settings import Settings
from tests.checkout import SCRIPTS, Checkout

pytestmark = pytest.mark.anyio

_SHELLS: Final = tuple(shell for shell in ("bash", "zsh") if shutil.which(shell))
_NAMES: Final = tuple(name.upper() for name in Settings.model_fields)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture(params=_SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=SCRIPTS)
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


async def test_each_can_be_executed() -> None:
    """`./init.sh` works on a fresh clone."""
    for name in (*SCRIPTS, ".ci/run"):
        assert (ROOT / name).stat().st_mode & stat.S_IXUSR
