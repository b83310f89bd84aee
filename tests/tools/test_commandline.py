"""`python server.py call TOOL key=value …`, for make and for shells."""

import io
import json
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from core.environment import ROOT, inherited_environment
from server import main
from tests.soon import HANGS
from tests.tools.calls import MODEL
from tests.tools.world import operations_of, plant, still_engine
from tools import commandline


@pytest.fixture(autouse=True)
def _a_shell(monkeypatch: pytest.MonkeyPatch, state_dir: Path) -> None:
    """Settings come from the environment, and standard input is no terminal."""
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", str(state_dir))
    monkeypatch.setenv("ENGINE", "simulated")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(commandline, "_WAIT_SECONDS", 1)


def call(*words: str) -> int:
    return main(["call", *words])


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("tool", "word", "value"),
    [
        ("deploy_vllm", "max_model_len=4096", "4096"),
        ("deploy_vllm", "model=/a b/c=d", "/a b/c=d"),
        ("deploy_vllm", "engine_args=--seed 1 --note 'two words'", None),
        ("deploy_vllm", 'engine_args=["--seed", "1", "--note", "two words"]', None),
        ("query_gemma4", "prompt=Say \"x=y\" and 'z'", "Say \"x=y\" and 'z'"),
        ("query_gemma4", "prompt=", ""),
        ("query_gemma4", 'prompt=["not", "a list"]', '["not", "a list"]'),
        ("run_benchmark", "contexts=8,512", ["8", "512"]),
        ("run_benchmark", "requests_per_second=[0.5, 2]", [0.5, 2]),
        ("compare_benchmarks", "benchmarks=a,b c", ["a,b", "c"]),
        ("query_vllm", 'messages=[{"role": "user"}]', [{"role": "user"}]),
    ],
)
def test_words_become_what_the_parameter_takes(
    tool: str, word: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a list is read as one: as JSON, or as the words of a shell."""
    expected = ["--seed", "1", "--note", "two words"] if value is None else value
    assert commandline._argument(tool, word)[1] == expected


def test_a_tools_text_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A person reads Markdown; the exit status is 0 when it went well."""
    assert call("list_targets") == 0
    assert capsys.readouterr().out.startswith("**14 targets, 1 configured: local; ")


def test_json_is_the_structured_half(capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads the envelope, and nothing else is on standard output."""
    assert call("get_help", "topic=get_logs", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is True
    assert told["summary"].startswith("get_logs: ")


def test_a_failure_is_exit_status_one(capsys: pytest.CaptureFixture[str]) -> None:
    """A script notices, and the person reads code and fix."""
    assert call("status_vllm", "name=nobody") == 1
    assert "**DEPLOYMENT_NOT_FOUND**" in capsys.readouterr().out


def test_an_endless_number_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """JSON has none: only a shell can say so. It was a fault of the server."""
    assert call("deploy_vllm", "target=cloud-run-l4", "model=12b qat", "max_usd=inf") == 1
    told = capsys.readouterr().out
    assert told.startswith("**INVALID_ARGUMENT**")
    assert "max_usd" in told


def test_a_state_folder_that_cannot_be_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rehearsal keeps its clouds there: that it cannot is no fault of the server."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("VLLM_DEVOPS_STATE_DIR", str(tmp_path / "file"))
    monkeypatch.setenv("REHEARSAL", "1")
    assert call("status_vllm", "target=cloud-run-l4", "name=x") == 1
    told = capsys.readouterr().out
    assert told.startswith("**HOST_ERROR**")
    assert "VLLM_DEVOPS_STATE_DIR" in told


@pytest.mark.parametrize(
    "words",
    [
        ("nonsense",),
        ("get_help", "topic"),
        ("deploy_vllm", "engine_args=[1"),
        ("deploy_vllm", "engine_args='open"),
    ],
)
def test_what_cannot_be_asked_is_exit_status_two(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was called: one line on standard error says what is wrong."""
    assert call(*words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.strip().splitlines()) == 1


def test_waiting_prints_phases_and_ends_when_it_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed last is the settled state. A second: an engine is started."""
    assert call("deploy_vllm", f"model={MODEL}", "name=one", "--wait") == 0
    said = capsys.readouterr()
    assert "one on local is loading" in said.err
    assert said.out.startswith("**one on local is ready")


@pytest.mark.life
def test_waiting_for_a_benchmark_ends_with_its_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make benchmark` stays until it is over. Seconds: an engine and a sweep are started."""
    monkeypatch.setenv("SIMULATED_ENGINE_TIME_SCALE", "0")
    assert call("deploy_vllm", f"model={MODEL}", "name=one", "--wait") == 0
    words = ("contexts=8", "concurrencies=1,2", "cell_seconds=0.1", "wait_s=0", "--wait")
    assert call("run_benchmark", *words) == 0
    said = capsys.readouterr()
    assert "of 2 cells" in said.err
    assert "of 2 measured cells" in said.out
    assert "report.html" in said.out


def test_waiting_for_a_boot_that_fails_is_exit_status_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`make deploy` in a script stops there, and shows why."""
    still_engine(monkeypatch, "echo 'OSError: No space left on device'; exit 1")
    assert call("deploy_vllm", f"model={MODEL}", "name=one", "--wait") == 1
    assert "DISK_FULL" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("data", "status"),
    [
        ({"state": "asleep"}, 0),
        ({"state": "asleep", "failure": {"code": "BOOT_CUT_OFF"}}, 1),
        ({"state": "ready", "failure": None}, 0),
    ],
)
def test_what_sleeps_because_its_boot_was_cut_off_is_exit_status_one(
    data: dict[str, Any], status: int
) -> None:
    """`make deploy` in a script would go on as if it had ever answered."""
    assert commandline._failed({"ok": True, "data": data}) == status


def test_without_a_terminal_the_token_is_printed(
    state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script cannot be asked: it gets a preview, and its next call may carry the token."""
    folder = plant(state_dir)
    assert call("destroy_vllm", "--make", "destroy") == 1
    assert "`make destroy` with YES=1" in capsys.readouterr().out
    assert call("destroy_vllm", "--json") == 1
    token = json.loads(capsys.readouterr().out)["data"]["confirm"]
    assert folder.path.exists()
    assert call("destroy_vllm", f"confirm={token}") == 0
    assert not folder.path.exists()


def test_yes_agrees_beforehand(state_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plant(state_dir)
    assert call("destroy_vllm", "--yes") == 0
    assert not folder.path.exists()
    assert operations_of(state_dir)[-1].result == "ok"


@pytest.mark.parametrize(("said", "status"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_a_person_at_a_terminal_is_asked(
    said: str,
    status: int,
    state_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only a yes is one; the question goes to standard error."""
    folder = plant(state_dir)
    monkeypatch.setattr(sys, "stdin", Terminal(said))
    assert call("destroy_vllm") == status
    assert folder.path.exists() is bool(status)
    assert "Delete one on local" in capsys.readouterr().err


def test_read_only_holds_in_a_shell(
    monkeypatch: pytest.MonkeyPatch, state_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("READ_ONLY", "1")
    assert call("destroy_vllm", "--yes") == 1
    assert "READ_ONLY" in capsys.readouterr().out
    assert not state_dir.exists()


@pytest.mark.anyio
@pytest.mark.life
async def test_control_c_stops_waiting_and_not_the_boot(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deployment goes on, the words say so. A second: a server of its own is started."""
    monkeypatch.setenv("SIMULATED_ENGINE_BOOT_SECONDS", "600")
    words = ("call", "deploy_vllm", f"model={MODEL}", "name=one", "--wait")
    command = [sys.executable, str(ROOT / "server.py"), *words]
    async with await anyio.open_process(command, env=inherited_environment()) as shell:
        assert shell.stderr
        with anyio.fail_after(HANGS):
            said = await shell.stderr.receive()
            assert b"one on local is loading" in said
            shell.send_signal(signal.SIGINT)
            rest = b"".join([part async for part in shell.stderr])
            assert await shell.wait() == 130
    assert rest.decode().strip() == (
        "Stopped waiting; what was started goes on. Call again to go on."
    )
