"""How grave lines are."""

from pathlib import Path

import pytest

from logs.read import Severity, clean, gravity

RUN = '"timestamp":"t","logName":"projects/p/logs/run.googleapis.com%2Fstdout"'
SYSTEM = '"timestamp":"t","logName":"projects/p/logs/run.googleapis.com%2Fvarlog%2Fsystem"'
OLLAMA = "time=2026-11-20T11:00:00Z level=INFO"


@pytest.mark.parametrize(
    ("line", "severity"),
    [
        ("INFO 11-20 11:32:07 [api_server.py:5] it failed to fail", "info"),
        ("(EngineCore pid=7) ERROR 11-20 11:32:07 [core.py:1] no", "error"),
        ("(APIServer pid=7) CRITICAL 11-20 11:32:07 [core.py:1] no", "error"),
        ("(Worker_TP0 pid=7) WARNING 11-20 11:32:07 [core.py:1] hm", "warning"),
        ('INFO:     10.0.0.7:5 - "GET /health HTTP/1.1" 200 OK', "info"),
        ('INFO:     10.0.0.7:5 - "GET /none HTTP/1.1" 404 Not Found', "warning"),
        ('INFO:     10.0.0.7:5 - "POST /v1 HTTP/1.1" 500 Internal Server Error', "error"),
        ("ERROR:    Exception in ASGI application", "error"),
        ("2026-11-20 12:00:00,123 - vllm - ERROR - no", "error"),
        ("[2026-11-20 12:00:00] WARNING in app: hm", "warning"),
        ("E1120 11:32:07.036000 100 torch/x.py:53] no", "error"),
        ("W0000 00:00:1712.1 7 x.cc:12] hm", "warning"),
        ("F1120 11:32:07.036 7 tpu.cc:1] no", "error"),
        ("I1120 11:32:07.036 7 tpu.cc:1] cannot be an error", "info"),
        ("2026-11-20 11:32:07.036: E external/xla/xla/service.cc:12] no", "error"),
        ("[WARNING|x.py:12] 2026-11-20 11:32:07,036 >> it failed", "warning"),
        ("2026-11-20 12:00:00.123 [WARNING][x.py:12]: it failed", "warning"),
        ("2026-11-20T12:00:00.123Z  WARN router: x.rs:1: it failed", "warning"),
        ("[2026-11-20T12:00:00Z WARN  tokenizers] it failed", "warning"),
        ("2026-11-20 12:00:00,123 app.run WARNING it failed", "warning"),
        ("20/11/2026 12:00:00 WARNING it failed", "warning"),
        ("2026/11/20 12:00:00 [warn] 1#1: it failed", "warning"),
        ("2026/11/20 12:00:00 [error] 1#1: no", "error"),
        ("[warn] CUDA out of memory", "warning"),
        ("(raylet) [2026-11-20 12:00:00,123 W 7 7] (raylet) x.cc:12: it failed", "warning"),
        ("[2026-11-20 12:00:00,123 E 7 7] x.cc:12: no", "error"),
        ("[2026-11-20 12:00:00 INFO] it failed", "info"),
        ("2026-11-20 12:00:00,123:INFO:jax: it failed", "info"),
        ("[2026-11-20 12:00:00,123][jax.src][INFO] - it failed", "info"),
        ("[2026-11-20 12:00:00,123: INFO/MainProcess] it failed", "info"),
        ("[2026-11-20 12:00:00,123] {jax.py:12} INFO - it failed", "info"),
        ("[I 2026-11-20 12:00:00 jax.py:12] it failed", "info"),
        ("2026-11-20 12:00:00,123 jax[123] INFO it failed", "info"),
        ("info: it failed", "info"),
        ("vllm serve: error: argument --uvicorn-log-level=info: hm", "error"),
        ("W20261120 11:32:07.036 7 x.cc:12] it failed", "warning"),
        ("/opt/x.c:12:3: warning: it failed", "warning"),
        ("W: Failed to fetch http://deb.debian.org/x", "warning"),
        ("** WARNING: CUDA out of memory", "warning"),
        ('{"severity":"WARNING","message":"CUDA out of memory"}', "warning"),
        ('{"severity":"WARNING","message":"CUDA out of memory","labels":{"a', "warning"),
        (f'{{"severity":"INFO","message":"cannot be an error",{RUN}}}', "info"),
        (f'{{"severity":"WARNING","message":"Memory limit exceeded",{SYSTEM}}}', "error"),
        ("CUDA kernel unsupported, falling back to eager", "warning"),
        ("Failed to load cv_utils kernel. Filling of holes will be skipped.", "warning"),
        ("ValueError: out of range, will be ignored", "error"),
        ('{"severity":"ERROR","message":"no"}', "error"),
        ('time="2026-11-20T11:32:07Z" level=warning msg="hm"', "warning"),
        ("Traceback (most recent call last):", "error"),
        ('  File "x.py", line 1, in y', "error"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "error"),
        ("Container terminated with exit code 137", "error"),
        ("Container exited with exit code 0", "info"),
        ("/usr/lib/x.py:12: FutureWarning: hm", "warning"),
        ("RESOURCE_EXHAUSTED: HBM", "error"),
        ("Loading safetensors checkpoint shards:  50% Completed", "info"),
        ("(APIServer pid=1) ValueError: no", "error"),
        ("(EngineCore_DP0 pid=33) torch.OutOfMemoryError: no", "error"),
        ("(Worker_TP0 pid=3)   Value error, max_model_len is odd", "error"),
        ("(EngineCore pid=9) (RayWorkerWrapper pid=7, ip=10.0.0.1) ERROR 11-20 no", "error"),
        ("(pid=7) torch._dynamo.exc.Unsupported: no", "error"),
        ("vllm-1  | (EngineCore_DP0 pid=33) ERROR 11-20 11:32:07 [core.py:1] no", "error"),
        ("vllm-1  | (APIServer pid=1) INFO 11-20 11:32:07 [x.py:1] it failed to fail", "info"),
        ("2026-11-20T11:00:00.123456789Z (APIServer pid=1) ValueError: no", "error"),
        ("2026-11-20T11:00:00.1Z stderr F (APIServer pid=1) ValueError: no", "error"),
        ("[pod/vllm-0/vllm] (APIServer pid=1) ValueError: no", "error"),
        ("[rank0]: ValueError: no", "error"),
        ("[rank0]:[W1120 12:00:00.0 ProcessGroupNCCL.cpp:1496] Warning: an Error", "warning"),
        ("[W socket.cpp:663] [c10d] The client socket has failed to connect", "warning"),
        ("[rank1]:[E ProcessGroupNCCL.cpp:523] it is well", "error"),
        ("Nov 20 12:00:00 gpu-1 vllm[12]: (APIServer pid=1) RuntimeError: no", "error"),
        ('{"log":"(APIServer pid=1) RuntimeError: no\\n","stream":"stderr","time":"t"}', "error"),
        ('{"log":"(APIServer pid=1) INFO 11-20 fine\\n","stream":"stderr","time":"t"}', "info"),
        ('{"textPayload":"(APIServer pid=1) INFO 11-20 fine","severity":"ERROR"}', "info"),
        ('{"textPayload":"it ended","severity":"ERROR"}', "error"),
        ("[1;36m(EngineCore_0 pid=1)[0;0m ERROR 11-20 11:32:07 [core.py:1] no", "error"),
        ("\x1b[1;36m(EngineCore_0 pid=1)\x1b[0;0m ValueError: no", "error"),
        ("2026-11-20 12:00:00.123 | ERROR    | app:run:12 - no", "error"),
        ("vllm-7d9c5b4f-x7k2p vllm ValueError: no", "error"),
        ("+ vllm-7d9c5b4f-x7k2p > vllm (APIServer pid=1) INFO 11-20 11:32:07 it failed", "info"),
        ("<30>1 2026-11-20T12:00:00Z gpu-1 vllm 12 - - ValueError: no", "error"),
        ("Nov 20  12:00:00.123 ValueError: no", "error"),
        ("[default0]:(EngineCore pid=3) ValueError: no", "error"),
        ("0: ValueError: no", "error"),
        ("[2026-11-20 11:00:00] ValueError: no", "error"),
        ("2026/11/20 11:00:00 ~ ValueError: no", "error"),
        ("- 2026-11-20T11:00:00.000+00:00 ValueError: no", "error"),
        ("2026-11-20T11:00:00.000Z\tValueError: no", "error"),
        (
            "2026-11-20 11:00:00 - worker - INFO - (EngineCore pid=3) ERROR 11-20 11:32:07 no",
            "error",
        ),
        ("my runner: (EngineCore pid=3) INFO 11-20 11:32:07 [x.py:1] it failed to fail", "info"),
        ("ValueError: no\r", "error"),
        ('{"levelname":"ERROR","name":"vllm","message":"no","asctime":"t"}', "error"),
        ('{"level":"INFO","message":"no CUDA GPUs, failed","timestamp":"t"}', "info"),
        ('{"level":"warning","event":"ValueError: no","timestamp":"t"}', "warning"),
        ('{"kubernetes":{"pod":"x"},"log":"ValueError: no","time":"t"}', "error"),
        ("vllm serve: error: unrecognized arguments: --no-such-flag", "error"),
        ("usage: vllm serve [model_tag] [options]", "info"),
        ("Illegal instruction (core dumped)", "error"),
        ("terminate called after throwing an instance of 'c10::Error'", "error"),
        ("/bin/sh: 1: nvcc: not found", "error"),
        ("docker: Error response from daemon: could not select device driver", "error"),
        ("huggingface_hub.errors.OfflineModeIsEnabled: no", "error"),
        ('time=2026-11-20T11:00:00Z level=ERROR source=sched.go:1 msg="no"', "error"),
        (f'{OLLAMA} source=sched.go:450 msg="NewLLMServer failed" model=/x error="odd"', "error"),
        (f'{OLLAMA} source=sched.go:641 msg="Load failed" error="odd: context canceled"', "info"),
        (f'{OLLAMA} source=runner.go:522 msg="failure during GPU discovery" error="odd"', "info"),
        ("WARNING:urllib3.connectionpool:Retrying (Retry(total=4", "warning"),
    ],
)
def test_a_line_is_as_grave_as_it_says(line: str, severity: Severity) -> None:
    """A level counts for more than words, a status for more than INFO."""
    assert gravity(line).severity == severity


def test_a_platform_that_fails_is_grave() -> None:
    """What a container says of failures in passing may be nothing; a platform means it."""
    assert gravity("Readiness probe failed", "cloud run").severity == "error"
    assert gravity("3 of 5 probes failed").severity == "warning"


def test_frames_of_a_traceback_are_details() -> None:
    """The line that says what happened is not lost among forty that say where."""
    lead = "(EngineCore pid=7) ERROR 11-20 11:32:07 [core.py:1] "
    assert gravity(f'{lead}  File "x.py", line 1, in y').is_detail
    assert gravity(f"{lead}    return run()").is_detail
    assert gravity(f"{lead}           ^^^^^").is_detail
    assert not gravity(f"{lead}ValueError: no").is_detail
    assert not gravity(f"{lead}Traceback (most recent call last):").is_detail
    assert gravity('(EngineCore pid=7)   File "x.py", line 1, in y').is_detail
    assert gravity("(EngineCore pid=7)     raise ValueError(").severity == "info"


def test_a_boot_that_went_well_has_no_errors(real_log: Path) -> None:
    """A real engine warns of much and fails at nothing."""
    lines = real_log.read_text(errors="replace").splitlines()
    assert {gravity(clean(line)).severity for line in lines} == {"info", "warning"}


def test_a_rank_between_process_and_level_hides_no_level() -> None:
    """Torch writes so from a worker's process."""
    line = "(Worker_TP1 pid=47) [rank1]:W0509 04:43:46.121000 47 torch/a.py:1] Not enough SMs"
    assert gravity(line)[:2] == ("warning", True)
