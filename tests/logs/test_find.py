"""`python -m logs find`, as it is typed."""

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from core.environment import ROOT
from core.processes import run
from logs.__main__ import main

FULL = "OSError: [Errno 28] No space left on device: '/data/x'"
ODD = "ValueError: the flux of hf_abcdefghijklmnopqrstuvwx is odd"
CLOUD = [
    {"timestamp": "2026-11-20T12:00:02Z", "textPayload": "RuntimeError: Engine core initialization"
     " failed. See root cause above.", "resource": {"type": "cloud_run_revision"}},
    {"timestamp": "2026-11-20T12:00:01Z", "severity": "ERROR", "textPayload": "Memory limit of"
     " 32768 MiB exceeded with 33000 MiB used.",
     "logName": "projects/p/logs/run.googleapis.com%2Fvarlog%2Fsystem"},
]  # fmt: skip


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    status = main(["find", "--json", *arguments])
    return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("tied", [False, True])
def test_the_newest_line_may_stand_first_in_any_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, tied: bool
) -> None:
    """What failed once serves since; many lines may have one time, as Log Analytics has them."""
    said = [FULL, *(ROOT / "tests/data/boot-default.log").read_text().splitlines()]
    seconds = [0.0 if tied else place / 4 for place in range(len(said) - 1)]
    written = [
        {"timestamp": f"2026-11-20T12:00:{at:05.2f}Z", "textPayload": line, "resource": {}}
        for at, line in zip([*seconds, 59], said, strict=True)
    ]
    for name, entries in (("oldest", written), ("newest", written[::-1])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, entries)))
        (tmp_path / f"{name}.json").write_text(json.dumps(entries))
    status, found = rows(capsys, *map(str, tmp_path.iterdir()))
    assert len(found) == 4
    assert status == 0, [(row["file"], row["line"]) for row in found if row["code"]]


def test_a_long_log_is_not_read_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On standard error, which no program takes for the answer."""
    monkeypatch.setattr("logs.__main__._SILENT_SECONDS", 0.0)
    log = tmp_path / "long.log"
    log.write_text("fine\n" * 3)
    assert main(["find", str(log)]) == 0
    answer = capsys.readouterr()
    assert f"{log}: 3 lines are read.\n" in answer.err
    assert answer.out == f"{log}: nothing is wrong in 3 lines.\n"


def test_each_file_is_judged_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code, cause, fix, line, number and level of each; the status says that one failed."""
    logs = {
        "known.log": f"fine\nvllm-1  | {FULL}\n",
        "docker.json": json.dumps({"log": f"{FULL}\n", "stream": "stderr", "time": "t"}),
        "windows.log": f"fine\r\n{FULL}\r\nbar 1\rbar 2\r\n",
        "logger.json": json.dumps(
            {
                "level": "ERROR",
                "message": "it ended",
                "exc_info": f"Traceback (most recent call last):\n  x\n{FULL}",
                "ts": 1,
            }
        ),
        "unknown.log": f"{ODD}\n",
        "export.json": json.dumps(CLOUD, indent=1),
        "compact.json": json.dumps(CLOUD),
        "fine.log": (ROOT / "tests/data/boot-default.log").read_text(),
    }
    for name, text in logs.items():
        (tmp_path / name).write_text(text)
    status, found = rows(capsys, *(str(tmp_path / name) for name in logs))
    assert status == 1
    assert [(row["writer"], row["code"], row["number"], row["level"]) for row in found] == [
        ("engine", "DISK_FULL", 2, "error"),
        ("engine", "DISK_FULL", 1, "error"),
        ("engine", "DISK_FULL", 2, "error"),
        ("engine", "DISK_FULL", 1, "error"),
        ("engine", "UNKNOWN_CAUSE", 1, "error"),
        ("cloud_run", "OUT_OF_HOST_MEMORY", 2, "error"),
        ("cloud_run", "OUT_OF_HOST_MEMORY", 2, "error"),
        ("engine", None, None, None),
    ]
    assert found[0]["line"] == FULL
    assert all(row["cause"] and row["fix"] for row in found[:7])
    assert found[4]["search"] == "ValueError the flux of is odd"
    assert "hf_abc" not in json.dumps(found)


def test_what_ollama_logs_of_a_failed_load_at_info_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The request's status says less; and an unknown error of a load is told in its own words."""
    load = 'time=2024-09-18T01:00:00Z level=INFO source=sched.go:450 msg="NewLLMServer failed"'
    short = "model requires more system memory (20.1 GiB) than is available (15.2 GiB)"
    answer = '[GIN] 2024/09/18 - 01:00:09 | 500 |  1.2s |  127.0.0.1 | POST     "/api/generate"'
    for name, error in {"known": short, "unknown": "the flux is odd"}.items():
        (tmp_path / name).write_text(f'{load} model=/x error="{error}"\n{answer}\n')
    status, found = rows(capsys, str(tmp_path / "known"), str(tmp_path / "unknown"))
    assert status == 1
    assert [(row["writer"], row["code"], row["number"]) for row in found] == [
        ("ollama", "OUT_OF_HOST_MEMORY", 1),
        ("ollama", "UNKNOWN_CAUSE", 1),
    ]
    assert "the flux is odd" in found[1]["cause"]


def test_the_system_log_of_container_apps_is_known_by_its_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As JSON lines and as an export, also where no row names the app."""
    system = [
        {"TimeStamp": "2026-06-22 02:24:38 +0000 UTC", "Type": "Normal",
         "Msg": "Successfully connected to events server", "Reason": "ConnectedToEventsServer"},
        {"TimeStamp": "2026-06-22 02:24:40 +0000 UTC", "Type": "Warning",
         "Msg": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
         "Reason": "FailedScheduling"},
    ]  # fmt: skip
    (tmp_path / "export").write_text(json.dumps(system, indent=1))
    (tmp_path / "lines").write_text("".join(f"{json.dumps(row)}\n" for row in system))
    status, found = rows(capsys, str(tmp_path / "export"), str(tmp_path / "lines"))
    assert status == 1
    assert [(row["writer"], row["code"], row["number"]) for row in found] == [
        ("aca", "GPU_HOST_NOT_ASSIGNED", 2)
    ] * 2


def test_what_is_not_wrong_or_cannot_be_read_shows_in_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 where all is fine, 2 where a file is not there; the others are judged all the same."""
    fine = tmp_path / "fine.log"
    fine.write_bytes(b"INFO:     up\n\xff\xfe\n")
    assert rows(capsys, str(fine)) == (
        0,
        [{"file": str(fine), "writer": "engine", "lines": 2, "code": None, "cause": None,
          "fix": None, "line": None, "number": None, "level": None, "evidence": []}],
    )  # fmt: skip
    status, found = rows(capsys, str(tmp_path / "none.log"), str(fine))
    assert (status, len(found)) == (2, 1)


def test_no_file_is_too_odd(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Deep JSON, a line of megabytes, nothing at all."""
    odd = {"deep": "[{" + '"a":[' * 100_000, "long": "x" * 3_000_000 + f"\n{FULL}\n", "empty": ""}
    for name, text in odd.items():
        (tmp_path / name).write_text(text)
    status, found = rows(capsys, *(str(tmp_path / name) for name in odd))
    assert (status, [row["code"] for row in found]) == (2, ["DISK_FULL"])


@pytest.mark.anyio
async def test_make_says_the_same_in_words(tmp_path: Path) -> None:
    """What is wrong, what to do, and the line that says so."""
    log = tmp_path / "engine.log"
    log.write_text(f"{FULL}\n")
    done = await run(["make", "-s", "-C", str(ROOT), "find", f"LOG={log}"], timeout=60)
    assert done.stdout.startswith(f"{log}: DISK_FULL: A disk is full.\n  Fix: ")
    assert f"  Line 1 (error): {FULL}" in done.stdout


@pytest.mark.parametrize("data", [gzip.compress(FULL.encode(), mtime=0), FULL.encode("utf-16")])
def test_what_is_no_plain_text_is_not_taken_for_a_healthy_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    """It says what to do."""
    odd = tmp_path / "x.log.gz"
    odd.write_bytes(data)
    assert main(["find", str(odd)]) == 2
    assert "unpack it" in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"", b"\n \n", b"[]", random.Random(7).randbytes(200_000)])
def test_what_holds_no_line_of_text_is_judged_neither_well_nor_ill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes
) -> None:
    """A log that failed to be written must not be taken for that of a healthy engine."""
    (tmp_path / "odd.log").write_bytes(data)
    assert main(["find", str(tmp_path / "odd.log")]) == 2
    said = capsys.readouterr()
    assert (said.out, "no line of text" in said.err) == ("", True)


UP = "INFO:     Application startup complete."
PREEMPTED = (
    "WARNING 12-01 10:00:00 [scheduler.py:1] Sequence group 7 is preempted by"
    " PreemptionMode.RECOMPUTE mode because there is not enough KV cache space."
)


def load(running: int, waiting: int, full: float) -> str:
    return (
        "(APIServer pid=1) INFO 12-01 10:00:00 [loggers.py:273] Engine 000: Avg prompt throughput:"
        f" 9.0 tokens/s, Avg generation throughput: 900.0 tokens/s, Running: {running} reqs,"
        f" Waiting: {waiting} reqs, GPU KV cache usage: {full}%, Prefix cache hit rate: 0.0%"
    )


def told(tmp_path: Path, capsys: pytest.CaptureFixture[str], *lines: str) -> tuple[int, Any]:
    log = tmp_path / "engine.log"
    log.write_text("".join(f"{line}\n" for line in (UP, *lines)))
    status, (row,) = rows(capsys, str(log))
    return status, row


BUSY, CALM = load(18, 201, 99.8), load(3, 0, 8.0)


@pytest.mark.parametrize(
    "lines", [[BUSY] * 5, [BUSY], [CALM, *[PREEMPTED, load(18, 43, 80.0)] * 3]]
)
def test_an_overloaded_engine_is_not_called_healthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str]
) -> None:
    """Its newest statistics say so: most wait, and the KV cache is full or requests put back."""
    status, row = told(tmp_path, capsys, *lines)
    assert (status, row["code"], row["level"]) == (1, "REQUESTS_WAIT", "warning")
    assert row["line"] in lines[-1]
    assert row["cause"] == f"{201 if BUSY in lines else 43} requests waited while 18 ran."


@pytest.mark.parametrize(
    "lines",
    [
        [BUSY, BUSY, BUSY, CALM],
        [CALM, CALM, BUSY, BUSY],
        [load(3, 5, 99.0)] * 4,
        [load(200, 40, 99.0)] * 4,
        [load(18, 201, 40.0)] * 4,
    ],
)
def test_a_short_burst_is_no_overload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str]
) -> None:
    """Nor are a few that wait, a full cache whose requests run, or one that has room."""
    assert told(tmp_path, capsys, *lines)[0] == 0


def answer(request: str, status: str) -> str:
    return f'(APIServer pid=1) INFO:     127.0.0.1:46686 - "{request} HTTP/1.1" {status}'


MISNAMED = (
    "ERROR 08-13 16:59:20 [serving_chat.py:140] Error with model object='error' message='The model"
    " `other/model` does not exist.' type='NotFoundError' param=None code=404"
)
CHAT = "POST /v1/chat/completions"


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([answer("POST /generate", "404 Not Found")], "REQUESTS_FAIL"),
        ([answer("POST /v1/audio/transcriptions", "400 Bad Request")], "REQUESTS_FAIL"),
        ([answer("GET /v1/chat/completions", "401 Unauthorized")], "CALLER_REFUSED"),
        ([MISNAMED], "MODEL_NAME_NOT_SERVED"),
        ([MISNAMED, answer(CHAT, "404 Not Found")], "MODEL_NAME_NOT_SERVED"),
        ([answer(CHAT, "200 OK"), *[answer(CHAT, "404 Not Found")] * 2], "REQUESTS_FAIL"),
    ],
)
def test_requests_that_are_refused_are_told_where_nothing_graver_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str], code: str
) -> None:
    """Only the access log, or the name that was asked for, shows it."""
    status, row = told(tmp_path, capsys, *lines)
    assert (status, row["code"], row["level"]) == (1, code, "warning")
    assert row["line"] in lines
    assert row["fix"]
    assert told(tmp_path, capsys, *lines, FULL)[1]["code"] == "DISK_FULL"


@pytest.mark.parametrize(
    "lines",
    [
        [answer(f"GET {path}", "404 Not Found") for path in ("/", "/robots.txt", "/.env", "/v1/x")],
        [answer("GET /v1/models", "401 Unauthorized"), answer("GET /v1", "404 Not Found")],
        [answer("GET /v1/chat/completions", "405 Method Not Allowed")],
        [answer(CHAT, "400 Bad Request"), answer(CHAT, "200 OK"), answer(CHAT, "200 OK")],
        [MISNAMED, answer(CHAT, "404 Not Found"), *[answer(CHAT, "200 OK")] * 2],
    ],
)
def test_a_scanner_or_one_odd_request_among_many_is_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str]
) -> None:
    """Every server that can be reached is asked for what it does not have."""
    assert told(tmp_path, capsys, *lines)[0] == 0
