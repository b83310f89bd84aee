"""init.sh: the real script, among clouds' tools that answer, hang or talk nonsense."""

import shutil
import stat
import sys
from pathlib import Path
from typing import Final

import psutil
import pytest

from core.settings import Settings
from tests.checkout import Checkout

pytestmark = pytest.mark.anyio

_SHELLS: Final = tuple(shell for shell in ("bash", "zsh") if shutil.which(shell))
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


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture(params=_SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


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
    running = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert [f"{checkout.root}/child", "98"] not in running


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
