"""Why a log's writer ended: known causes, unknown ones in their own words, and no alarm."""

from collections.abc import Sequence

import pytest

from logs.failures import Writer
from logs.verdict import UNKNOWN_CAUSE, Judge, Verdict, died_of, judged, search_words

BEGUN = "(APIServer pid=1) INFO 11-20 11:32:07 [api_server.py:1] vLLM API server version 0.11.0"
UP = "(APIServer pid=1) INFO:     Application startup complete."
SERVED = '(APIServer pid=1) INFO:     10.0.0.7:5 - "POST /v1/completions HTTP/1.1" 200 OK'
LOADED = "(EngineCore pid=2) INFO 11-20 11:32:08 [default_loader.py:1] Loading weights took 3 s"
FULL = "(EngineCore pid=2) OSError: [Errno 28] No space left on device: '/data/x'"
ODD = "(EngineCore pid=2) ERROR 11-20 11:32:09 [core.py:7] RuntimeError: the flux is 7 of 9 at /a/b"
AT = "11-20 11:32:07"
NO_CUDART = (
    f"WARNING {AT} [_custom_ops.py:15] Failed to import from vllm._C with"
    " ImportError('libcudart.so.12: cannot open shared object file')"
)
ASKED = (
    "ERROR: (ResourceNotFound) The Resource 'Microsoft.App/managedEnvironments/an-env' under"
    " resource group 'a-group' was not found."
)
OWN = "RuntimeError: the flux is 7 of 9 at /a/b"
FRAMES = [
    "(EngineCore pid=2) ERROR 11-20 11:32:09 [core.py:7] Traceback (most recent call last):",
    '(EngineCore pid=2) ERROR 11-20 11:32:09 [core.py:7]   File "/opt/core.py", line 9, in run',
    "(EngineCore pid=2) ERROR 11-20 11:32:09 [core.py:7]     raise RuntimeError(words)",
]
IN_KERNEL = FRAMES[1].replace("/opt/core", "/opt/tpu_inference/tpu_inference/kernels/gmm")
IN_VLLM = FRAMES[1].replace("/opt/core", "/opt/vllm/model_executor/models/registry")
IN_JAX = FRAMES[1].replace("/opt/core", "/opt/jax/_src/lax/lax")
ODD_VALUE = "(EngineCore pid=2) ERROR 11-20 11:32:09 [core.py:7] ValueError: the flux is 7 of 9"
DEAD = [
    "(APIServer pid=1) Traceback (most recent call last):",
    "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.",
]
DURING = "During handling of the above exception, another exception occurred:"

TRIED = (
    "(EngineCore pid=2) WARNING Retrying in 8s [Retry 5/5]: Temporary failure in name resolution"
)
STOPPED = "(APIServer pid=1) INFO:     Shutting down"
SOURCE = "(EngineCore pid=2)     raise OSError('No space left on device')"
GONE = "(EngineCore pid=2) RuntimeError: NCCL error: remote process exited"
FROM = (
    '(EngineCore pid=2)   File "/opt/vllm/v1/core/kv.py", line 9, in unify_kv_cache_spec_page_size'
)
ASGI = "(APIServer pid=1) ERROR:    Exception in ASGI application"
LEFT = "(APIServer pid=1) starlette.requests.ClientDisconnect"
READ = "(APIServer pid=1) anyio.EndOfStream"

IGNORED = "(Worker pid=7) Exception ignored in: <function X.__del__ at 0x1>"
FAREWELL = "(Worker pid=7) ImportError: sys.meta_path is None, Python is likely shutting down"
MORE_TRIES = (
    "WARNING:urllib3.connectionpool:Retrying (Retry(total=4)) after connection broken by"
    " 'ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.\")'"
)
UNPLACED = (
    "Warning  FailedScheduling  41m  default-scheduler  0/8 nodes are available: 8 Insufficient"
    " nvidia.com/gpu. preemption: 0/8 nodes are available: 8 No preemption victims found."
)
PLACED = "Normal   Started           38m                kubelet            Started container worker"
UNPLACED_POD = "41m  Warning  FailedScheduling  pod/a-1  8 Insufficient nvidia.com/gpu."
OTHER_PLACED = "38m  Normal   Started           pod/b-1  Started container worker"

CRASHED = "ContainerTerminated: Container 'vllm' was terminated with exit code '1'"
UNASSIGNED = "AssigningReplicaFailed: Replica 'gemma--1-x' has no host"
ASSIGNED = "AssigningReplica: Replica 'gemma--1-x' has been scheduled to run on a node."
READY = "RevisionReady: Successfully provisioned revision 'gemma--1'"
TO_NONE = "KEDAScaleTargetDeactivated: Deactivated apps/v1.Deployment k8se-apps/g--1 from 1 to 0"

TOO_LARGE = (
    "(APIServer pid=1) ValueError: The decoder prompt contains a(n) image item with length 6105,"
    " which exceeds the pre-allocated encoder cache size 6084. Please reduce the input size"
)
FATAL = "(EngineCore pid=2) ERROR 11-20 11:32:09 [core.py:1] EngineCore encountered a fatal error."
CORE_GONE = (
    "(APIServer pid=1) WARNING 11-28 12:00:10 [core_client.py:817] [shutdown] MPClient: engine core"
    " exited unexpectedly; starting cleanup"
)
PARTS_END = (
    "(APIServer pid=1) INFO 11-28 23:04:32 [utils.py:628] [shutdown] Process manager: send sigterm"
    " to process EngineCore"
)

LOGS: dict[str, tuple[Sequence[str], str | None]] = {
    "a caller that went away": ([BEGUN, UP, ASGI, LEFT], None),
    "a caller that went away, in a log cut before it": ([ASGI, LEFT, SERVED], None),
    "a request that failed": ([ASGI, READ, DURING, f"(APIServer pid=1) {OWN}"], UNKNOWN_CAUSE),
    "a known cause": ([BEGUN, FULL, *DEAD], "DISK_FULL"),
    "an unknown one": ([BEGUN, LOADED, *FRAMES, ODD, *DEAD], UNKNOWN_CAUSE),
    "only that it ended": ([BEGUN, *DEAD], "ENGINE_CORE_DIED"),
    "only a warning that its core ended": ([BEGUN, UP, CORE_GONE, SERVED], "ENGINE_CORE_DIED"),
    "its parts are ended before it warns that its core ended": (
        [BEGUN, UP, SERVED, PARTS_END, CORE_GONE, STOPPED], "ENGINE_CORE_DIED"),
    "a boot that went on": ([BEGUN, FULL, UP], None),
    "another program that starts after its end": (
        [BEGUN, FULL, *DEAD, "INFO:     Application startup complete."], "DISK_FULL"),
    "errors of single requests": ([BEGUN, UP, ODD, SERVED, SERVED], None),
    "an error that an answer follows": ([BEGUN, UP, ODD, SERVED], None),
    "the end of one that served": ([BEGUN, UP, SERVED, ODD, *DEAD, SERVED, SERVED], UNKNOWN_CAUSE),
    "of two boots the last": ([BEGUN, FULL, *DEAD, BEGUN, ODD, *DEAD], UNKNOWN_CAUSE),
    "a boot that has only begun": ([BEGUN, FULL, *DEAD, BEGUN], "DISK_FULL"),
    "one that failed before the last came up": ([BEGUN, FULL, *DEAD, BEGUN, UP], None),
    "what was tried again": (["Retrying in 1s [Retry 1/5]: No space left on device"], None),
    "a look for what need not be there": (
        ["(APIServer pid=1) WARNING 11-20 11:32:07 [cuda.py:1] No CUDA GPUs are available"],
        None,
    ),
    "what it depends on": (["(APIServer pid=1) RuntimeError: No CUDA GPUs are available"],
                           "NO_ACCELERATOR"),
    "a word of error in a boot that goes on": ([ODD.replace("RuntimeError: ", ""), *[LOADED] * 6],
                                               None),
    "retries, and nothing else before the end": ([BEGUN, TRIED, *DEAD], "DNS_FAILED"),
    "retries long before an end": ([BEGUN, TRIED, *[LOADED] * 9, *DEAD], "ENGINE_CORE_DIED"),
    "a try that has more before it, then an end": ([BEGUN, MORE_TRIES, *DEAD], "ENGINE_CORE_DIED"),
    "retries before a cause": ([BEGUN, TRIED, *FRAMES, ODD, *DEAD], UNKNOWN_CAUSE),
    "a stop that was asked for": ([BEGUN, UP, SERVED, STOPPED, ODD, *DEAD], None),
    "a stop of what was seen to serve": ([SERVED, STOPPED, ODD, *DEAD], None),
    "a stop after an error": ([BEGUN, UP, ODD, *DEAD, STOPPED], UNKNOWN_CAUSE),
    "what Python does not mind": (
        [BEGUN, UP, "Exception ignored in: <function X.__del__ at 0x1>", *FRAMES[:1], SOURCE, OWN],
        None,
    ),
    "what Python does not mind, without its frames": ([BEGUN, IGNORED, FAREWELL], None),
    "what Python of a newer version does not mind": (
        [IGNORED.replace("in:", "while calling deallocator"), *FRAMES[:1], SOURCE, FAREWELL], None,
    ),
    "another process that died as one tidied up": ([BEGUN, IGNORED, f"(EngineCore pid=2) {OWN}"],
                                                   UNKNOWN_CAUSE),
    "a death before Python tidied up": ([BEGUN, *FRAMES, ODD, IGNORED, FAREWELL], UNKNOWN_CAUSE),
    "a death after Python tidied up": ([BEGUN, IGNORED, FAREWELL, f"(Worker pid=7) {OWN}"],
                                       UNKNOWN_CAUSE),
    "a level alone, of JSON in lines": (['"severity": "ERROR",', '  "level": "error"'], None),
    "a level beside words": (['"severity": "ERROR", "text": "the llamas sing"'], UNKNOWN_CAUSE),
    "a wait for a node that ended": ([UNPLACED, PLACED], None),
    "a wait for a node that goes on": ([PLACED, UNPLACED], "TOO_FEW_ACCELERATORS"),
    "a wait while another pod started": ([UNPLACED_POD, OTHER_PLACED], "TOO_FEW_ACCELERATORS"),
    "a death after a wait": ([UNPLACED, PLACED, FULL], "DISK_FULL"),
    "a death before a wait that ended": ([FULL, *DEAD, UNPLACED, PLACED], "DISK_FULL"),
    "what falls over after the end": ([BEGUN, GONE, *DEAD, *[LOADED] * 25, FULL], "NCCL_FAILED"),
    "code that could say what it did not": ([BEGUN, *FRAMES[:2], SOURCE, ODD, *DEAD],
                                            UNKNOWN_CAUSE),
    "an exception without words": ([BEGUN, *FRAMES[:1], FROM, "(EngineCore pid=2) AssertionError",
                                    *DEAD], "KV_PAGE_SIZES"),
    "odd words of a TPU's kernel": ([BEGUN, *FRAMES[:2], IN_KERNEL, FRAMES[2], ODD_VALUE, *DEAD],
                                    "TPU_MODEL_UNSUPPORTED"),
    "odd words of a TPU's kernel, and of another traceback": (
        [BEGUN, *FRAMES[:1], IN_KERNEL, *FRAMES, ODD_VALUE, *DEAD], UNKNOWN_CAUSE),
    "odd words of what a TPU's kernel calls in vLLM": (
        [BEGUN, *FRAMES[:1], IN_KERNEL, IN_VLLM, FRAMES[2], ODD_VALUE, *DEAD], UNKNOWN_CAUSE),
    "odd words of JAX, which a program of its own calls": (
        [BEGUN, *FRAMES[:2], IN_JAX, FRAMES[2], ODD_VALUE, *DEAD], "TPU_MODEL_UNSUPPORTED"),
    "odd words of a program that JAX calls": (
        [BEGUN, *FRAMES[:1], IN_JAX, *FRAMES[1:], ODD_VALUE, *DEAD], UNKNOWN_CAUSE),
    "what a library calls an error at each start": (
        ["E0000 00:00:17.1 7 cuda_dnn.cc:8] Unable to register cuDNN factory: once is enough"],
        None,
    ),
    "a library's error that it goes on after": (
        ["E0000 00:00:17.1 7 common_lib.cc:8] Could not set metric server port: INVALID_ARGUMENT"],
        None,
    ),
    "a look for devices": (
        ["xla_bridge.py:8] Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so"],
        None,
    ),
    "a word of error without a level, and the engine goes on": (
        ["(Worker pid=7) Failed to get device capability: it needs CUDA >= 12.9.", LOADED], None,
    ),
    "a word of error without a level, and nothing after it": (
        ["(Worker pid=7) Failed to get device capability: it needs CUDA >= 12.9."], UNKNOWN_CAUSE,
    ),
    "retries that something else follows": ([BEGUN, TRIED, "a and b must have one size", *DEAD],
                                            "ENGINE_CORE_DIED"),
    "a look for devices, by vLLM": (
        [f"ERROR {AT} [tpu_info.py:91] Failed to detect number of TPUs: No such file: '/dev/vfio'"],
        None,
    ),
    "a look at the Hub for a model in a folder": (
        [f"ERROR {AT} [repo_utils.py:45] Error retrieving safetensors: Repo id must use letters",
         ODD, *DEAD],
        UNKNOWN_CAUSE,
    ),
    "a level in brackets behind the module's name": (
        ["[2024-03-05 21:24:30,397] torch._dynamo.convert_frame: [WARNING] AssertionError: x"],
        None,
    ),
    "an exception after a warning of another kind": (
        [NO_CUDART,
         "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0."],
        "DTYPE_UNSUPPORTED",
    ),
    "a warning alone": (
        [NO_CUDART],
        "VERSION_MISMATCH",
    ),
    "what falls over as the process manager stops its workers": (
        ["INFO:     Application startup complete.",
         f"WARNING {AT} [utils.py:620] [shutdown] Process manager: force killing remaining",
         "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe0 in position 181"],
        None,
    ),
    "a request that ended more than itself": ([BEGUN, UP, TOO_LARGE, FATAL], "MM_ITEM_TOO_LARGE"),
    "one in the traceback of the end": ([BEGUN, UP, FATAL, TOO_LARGE, *DEAD], "MM_ITEM_TOO_LARGE"),
    "one long before the end": ([BEGUN, UP, TOO_LARGE, *[ODD] * 30, FATAL], UNKNOWN_CAUSE),
    "one beside a cause": ([BEGUN, UP, TOO_LARGE, FULL, FATAL], "DISK_FULL"),
    "an end far from the request in its traceback": (
        [BEGUN, UP, TOO_LARGE, *[f"(APIServer pid=1)     frame({at})" for at in range(40)], FATAL],
        "MM_ITEM_TOO_LARGE",
    ),
    "what a user wrote": ([f"INFO 11-20 [logger.py:1] Received request a: prompt: '{FULL}'"], None),
}  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([CRASHED, READY], None),
        ([READY, CRASHED], "ENGINE_EXITED"),
        ([TO_NONE], None),
        ([ASKED, "/usr/bin/az containerapp env create -n an-env -g a-group"], None),
        ([ASKED, "/usr/bin/az containerapp env show -n an-env -g a-group"], "TEMPLATE_INVALID"),
        (
            [
                f"(EngineCore pid=9) ERROR 11-20 11:32:17 [core.py:1] {OWN}",
                f"(EngineCore pid=9) INFO 11-20 11:32:18 [core.py:1] {READY}",
            ],
            UNKNOWN_CAUSE,
        ),
    ],
)
def test_what_was_before_its_platform_called_it_ready_ended_nothing(
    lines: Sequence[str], code: str | None
) -> None:
    """A crash of an earlier container, and the rest of one that is idle. No engine says it is."""
    judge = Judge("aca", mixed=True)
    judge.feed(lines)
    verdict = judge.verdict()
    assert (verdict.failure.code if verdict else None) == code


@pytest.mark.parametrize("case", LOGS)
def test_a_log_says_why_its_last_boot_ended(case: str) -> None:
    """What it outlived, tried again or only looked for ended nothing."""
    lines, code = LOGS[case]
    verdict = judged(lines)
    assert (verdict.failure.code if verdict else None) == code


RAN = '[GIN] 2026/08/20 - 11:00:09 | 200 |  1.2s |  127.0.0.1 | POST     "/api/chat"'
BROKE = '[GIN] 2026/08/20 - 11:00:08 | 500 |  1.2s |  127.0.0.1 | POST     "/api/chat"'
ABORT = (
    'time=2026-08-20T11:00:07Z level=ERROR source=sched.go:734 msg="error loading llama server"'
    ' error="llama runner process has terminated: exit status 2"'
)
CONFIG = '2025/02/25 17:49:00 routes.go:1186: INFO server config env="map[OLLAMA_DEBUG:false]"'
BLOBS = "2024/04/07 15:45:52 images.go:996: total blobs: 10"
TAKEN = "Error: listen tcp 127.0.0.1:11434: bind: address already in use"
ODDER = "Error: the llamas sing"
PULLING = 'Failed to pull image "x.azurecr.io/i:1": dial tcp 10.0.0.5:443: i/o timeout'

PLATFORMS: dict[str, tuple[Writer, Sequence[str], str | None]] = {
    "a runner that died": ("ollama", [ABORT, BROKE], "OLLAMA_RUNNER_FAULT"),
    "one request that was answered then": ("ollama", [ABORT, BROKE, RAN], "OLLAMA_RUNNER_FAULT"),
    "one after which all goes on": ("ollama", [ABORT, BROKE, RAN, RAN], None),
    "one that dies again": ("ollama", [ABORT, RAN, RAN, ABORT, BROKE], "OLLAMA_RUNNER_FAULT"),
    "a start of an older Ollama": ("ollama", [TAKEN, CONFIG, ODDER], UNKNOWN_CAUSE),
    "a start of the oldest": ("ollama", [TAKEN, BLOBS, ODDER], UNKNOWN_CAUSE),
    "a line that calls itself an error": ("ollama", ['{"error":"llamas sing"}'], UNKNOWN_CAUSE),
    "an image that was pulled at last": ("aca", [PULLING, READY], None),
    "a replica that got a host at last": ("aca", [UNASSIGNED, ASSIGNED], None),
    "an image that cannot be pulled": ("aca", [READY, PULLING], "REGISTRY_UNREACHABLE"),
    "a pull that was given up": (
        "aca", [PULLING.replace("dial tcp 10.0.0.5:443: i/o timeout", "context canceled")],
        "REGISTRY_UNREACHABLE",
    ),
    "zap's warning": ("tpu", ['2026-07-25T15:02:37.2Z#011warn#011x.go:1#011{"error": "x"}'], None),
}  # fmt: skip


@pytest.mark.parametrize("case", PLATFORMS)
def test_what_went_on_after_a_failure_outlived_it(case: str) -> None:
    """Ollama's server goes on after its runner, an app after what a platform tried again."""
    writer, lines, code = PLATFORMS[case]
    judge = Judge(writer, mixed=True)
    judge.feed(lines)
    verdict = judge.verdict()
    assert (verdict.failure.code if verdict else None) == code


def unknown(lines: Sequence[str]) -> Verdict:
    verdict = judged(lines)
    assert verdict
    assert verdict.failure.code == UNKNOWN_CAUSE
    return verdict


def test_an_unknown_cause_is_told_in_the_engines_own_words() -> None:
    """The line, its place, words for a search, and a call; frames and consequences are none."""
    verdict = unknown([BEGUN, *FRAMES, ODD, *[one.replace("ERROR", "INFO") for one in DEAD]])
    assert (verdict.line, verdict.number, verdict.level) == (OWN, 5, "error")
    assert verdict.failure.evidence == (OWN,)
    assert verdict.search == "RuntimeError the flux is of at"
    assert verdict.search in verdict.failure.fix
    assert [step.tool for step in verdict.failure.next] == ["get_logs", "deploy_vllm"]


def test_of_chained_exceptions_the_first_is_told_and_the_last_is_beside_it() -> None:
    """What a look-up that failed says alone is little: then it is the one made of it."""
    first, last = "OSError: the disk sings", "RuntimeError: the engine cannot begin"
    verdict = unknown(["Traceback (most recent call last):", first, "", DURING, "", last, *DEAD])
    assert (verdict.line, verdict.failure.evidence) == (first, (first, last))
    verdict = unknown(["KeyError: 'odd'", "", DURING, "", last, *DEAD])
    assert (verdict.line, verdict.failure.evidence) == (last, (last, "KeyError: 'odd'"))


def test_what_many_requests_say_does_not_hide_what_ended_it() -> None:
    """The rare line of error is the one that counts."""
    often = "(APIServer pid=1) ValueError: the request has 9 tokens too many"
    verdict = unknown([BEGUN, UP, *[often] * 50, ODD, *DEAD])
    assert verdict.line == OWN


def test_the_status_of_an_end_is_told_with_its_own_words() -> None:
    """Of one that was killed nobody asked what it wrote."""
    told = died_of(1, [BEGUN, ODD])
    assert (told.code, OWN in told.cause, "exit status 1" in told.cause) == (
        UNKNOWN_CAUSE,
        True,
        True,
    )
    assert died_of(-9, [BEGUN, ODD]).code == "KILLED"
    assert died_of(-9, [BEGUN, FULL]).code == "DISK_FULL"


def test_a_platforms_log_holds_its_engines_lines_too() -> None:
    """Whose a line is shows by its level or its process; no container speaks for its platform."""
    spoken = "Memory limit of 32768 MiB exceeded with 33000 MiB used."
    for line, code in ((spoken, "OUT_OF_HOST_MEMORY"), (f"(APIServer pid=1) INFO {spoken}", None)):
        judge = Judge("cloud_run", mixed=True)
        judge.feed([line])
        verdict = judge.verdict()
        assert (verdict.failure.code if verdict else None) == code


@pytest.mark.parametrize(("writer", "code"), [("tpu", "VERSION_MISMATCH"), ("engine", None)])
def test_words_of_an_engine_may_mean_more_on_its_platform(writer: Writer, code: str | None) -> None:
    """On a TPU the engine is of two packages, and a signature that differs is one of two dates."""
    said = (
        "ERROR 11-20 11:32:09 [core.py:7] TypeError: Backend.__init__() got an unexpected keyword"
    )
    judge = Judge(writer, mixed=True)
    judge.feed([BEGUN, f"(EngineCore pid=2) {said} argument 'q_lora_rank'", *DEAD])
    verdict = judge.verdict()
    told = verdict.failure.code if verdict else None
    assert told == code if code else told != "VERSION_MISMATCH"


def test_search_words_name_nobody() -> None:
    """Numbers, paths, addresses and what is quoted are of this one case; a status tells much."""
    line = "ValueError: Layer 'a.b' of /home/ann/m7/x.bin: 12 != 14 at 0xdeadbeef, see https://h/x"
    assert search_words(line) == "ValueError Layer of at see"
    assert search_words("HTTPError: 403 of 512") == "HTTPError 403 of"


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (OWN, "github.com/vllm-project/vllm"),
        ("ERROR: (gcloud.run.deploy) The llamas sing", "issuetracker.google.com"),
        ("Error response from daemon: the llamas sing", "github.com/moby/moby"),
        ("ERROR: (ContainerAppSings) The llamas", "github.com/microsoft/azure-container-apps"),
    ],
)
def test_an_unknown_failure_is_looked_for_where_its_program_is_at_home(
    line: str, place: str
) -> None:
    """Not all that stands in an engine's log is the engine's."""
    assert f"{place} for: " in unknown([line]).failure.fix


def test_what_a_refusal_says_in_several_lines_is_told_whole() -> None:
    """Pydantic names the model of settings, the field and the reason each in a line of its own."""
    lines = ["1 validation error for SpeculativeConfig", "prompt_size", "  Field required [type=x]"]
    refused = judged([BEGUN, *(f"(APIServer pid=1) {line}" for line in lines), *DEAD])
    assert refused
    assert (
        refused.failure.cause
        == "vLLM does not take prompt_size in SpeculativeConfig: Field required."
    )


def test_a_process_that_dies_is_no_part_of_the_line_before_it() -> None:
    """Python names it in a line of its own, before its traceback."""
    verdict = unknown(
        [BEGUN, f"(EngineCore pid=2) {OWN}", "(EngineCore pid=2) Process EngineCore:", *DEAD]
    )
    assert verdict.failure.evidence == (OWN,)


def test_a_line_that_was_broken_is_told_whole_and_nothing_is_glued_on_to_it() -> None:
    """By the entry that fits most of it, with its figures; a new statement is no part of it."""
    whole = (
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens"
        " that can be stored in KV cache (33312)."
    )
    for words in ("maximum number", "that can", "seq len"):
        first, rest = whole[: whole.index(words)].rstrip(), whole[whole.index(words) :]
        for dying in ([], ["Process EngineCore:"]):
            verdict = judged([BEGUN, f"(EngineCore pid=2) {first}", rest, *dying, *DEAD])
            assert verdict
            assert verdict.failure.code == "KV_CACHE_TOO_SMALL"
            assert "33312" in verdict.failure.cause
            assert "Process" not in verdict.line


def test_what_is_held_does_not_grow_with_the_lines() -> None:
    """A thousand kinds of words of error at most, whatever is written."""
    judge = Judge()
    kinds = (f"{'x' * (number % 40)} {'y' * (number // 40)} {number}" for number in range(1_200))
    judge.feed(f"RuntimeError: {kind}" for kind in kinds)
    verdict = judge.verdict()
    assert verdict
    assert len(verdict.failure.evidence) <= 6
    told = [int(line.split()[-1]) for line in (verdict.line, *verdict.failure.evidence)]
    assert max(told) == 999


WORK = "(EngineCore pid=7) INFO 11-20 12:00:01 [loggers.py:1] Engine 000: Running: 1 reqs"
DEATH = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause."


@pytest.mark.parametrize(
    "word",
    [
        "(EngineCore pid=7) ERROR 11-20 12:00:00 [a.py:1] ValueError: nobody knows that",
        "(APIServer pid=1) ERROR 11-20 12:00:00 [a.py:1] json.decoder.JSONDecodeError: Extra data",
    ],
)
def test_what_an_engine_goes_on_after_ended_nothing(word: str) -> None:
    """Known or not, an error after which it works is none; one after which it dies is."""
    assert judged([word, WORK, WORK]) is None
    assert judged([word, WORK]) is not None
    assert judged([word, WORK, WORK, DEATH]) is not None
    assert judged([WORK, WORK, word]) is not None
    assert judged([word, *[WORK.replace("Engine 000", "Killing local workers")] * 2]) is not None


def test_what_a_module_warns_of_as_it_is_loaded_is_no_failing_request() -> None:
    """Torchvision says so of each image that has no codec."""
    said = "torchvision/io/image.py:14: UserWarning: Failed to load image Python extension: x"
    assert judged([said]) is None
    assert judged([said.partition("UserWarning: ")[2]]) is not None


def test_an_engines_last_line_is_its_end_only_if_it_calls_itself_an_error() -> None:
    """A log that is cut off ends with any line."""
    assert judged([WORK, "Cannot use version 2 of that on this device"]) is None
    assert judged([WORK, "error: cannot use version 2 of that"]) is not None


def test_vllms_words_are_not_ollamas() -> None:
    """In a log of Ollama a library of vLLM's is another program's; a full disk is the machine's."""
    words = "ImportError: vllm/_C.abi3.so: undefined symbol: _ZN5torch3jit17"
    full = judged(["OSError: [Errno 28] No space left on device"], "ollama")
    unknown = judged([words], "ollama")
    assert full
    assert unknown
    assert (full.failure.code, unknown.failure.code) == ("DISK_FULL", UNKNOWN_CAUSE)


def test_the_form_of_a_clouds_answer_counts_in_no_programs_exception() -> None:
    """Google's error 403 says that something is not allowed; an exception may quote one."""
    answer = "googleapi: Error 403: The principal may not read that, forbidden"
    codes = []
    for line in (answer, f"app.ReadError: {answer}"):
        judge = Judge("cloud_run", mixed=True)
        judge.feed([line])
        verdict = judge.verdict()
        codes.append(verdict and verdict.failure.code)
    assert codes == ["CALLER_NOT_ALLOWED", UNKNOWN_CAUSE]


def test_what_a_shipper_sends_as_one_is_several_lines() -> None:
    """The cause is told, not the longest match: as if each line had come by itself."""
    lines = [
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
        "OSError: [Errno 28] No space left on device: '/data/x'",
    ]
    apart, as_one = judged(lines), judged(["\n".join(lines)])
    assert apart
    assert as_one
    assert as_one.failure.code == apart.failure.code == "DISK_FULL"


def test_a_line_that_sounds_bad_counts_some_lines_later_as_well() -> None:
    """What is said in between is of the end, not of the cause."""
    verdict = judged(["cannot find the flux", "so be it", "and that", "and this", *DEAD])
    assert verdict
    assert verdict.failure.code == UNKNOWN_CAUSE
    assert verdict.line == "cannot find the flux"


def test_a_server_whose_newest_answer_is_its_own_failure_is_told_until_it_answers_again() -> None:
    """The access log says so alone; what a caller did wrong is no failure of the server."""
    broke = SERVED.replace("200 OK", "500 Internal Server Error")
    verdict = judged([BEGUN, UP, SERVED, broke])
    assert verdict is not None
    assert (verdict.failure.code, verdict.rank) == ("REQUESTS_FAIL", "warning")
    assert "/v1/completions was answered with 500" in verdict.failure.cause
    assert judged([BEGUN, UP, broke, SERVED]) is None
    assert judged([BEGUN, UP, SERVED, SERVED.replace("200 OK", "401 Unauthorized")]) is None
    odd = broke.replace("/v1/completions", "/v1/completions?q=my%20words")
    assert judged([BEGUN, UP, odd]) is None


def test_an_end_without_a_cause_shows_the_request_that_was_turned_away_before_it() -> None:
    """It may be what the caller saw."""
    refused = SERVED.replace("200 OK", "400 Bad Request")
    verdict = judged([BEGUN, LOADED, refused, *DEAD])
    assert verdict is not None
    assert any('"POST /v1/completions HTTP/1.1" 400' in one for one in verdict.failure.evidence)


RECEIPT = "pydantic_core._pydantic_core.ValidationError: 1 validation error for Receipt"
WRONG = "  Input should be a valid integer [type=int_parsing, input_value='x', input_type=str]"


@pytest.mark.parametrize(
    ("writer", "lines", "code"),
    [
        ("engine", [RECEIPT, "total", WRONG], "BAD_ENGINE_ARGUMENT"),
        ("engine", ["ValueError: Token is invalid"], "HUB_TOKEN_REFUSED"),
        ("engine", ["jwt.exceptions.ExpiredSignatureError: Token is expired"], "HUB_TOKEN_REFUSED"),
        ("engine", ["ERROR: Invalid token"], "HUB_TOKEN_REFUSED"),
        ("aca", ['{"title":"One or more validation errors occurred."}'], "TEMPLATE_INVALID"),
        ("aca", ["An error occurred (InvalidParameterValue) when calling it"], "TEMPLATE_INVALID"),
        (
            "aca",
            ["System.Text.Json.JsonException: The JSON value could not be converted to System.Int"],
            "TEMPLATE_INVALID",
        ),
    ],
)
def test_what_a_neighbours_program_refuses_is_none_of_ours(
    writer: Writer, lines: Sequence[str], code: str
) -> None:
    """A sidecar or a client writes into the same log, in the words of its own libraries."""
    judge = Judge(writer, mixed=True)
    judge.feed(lines)
    verdict = judge.verdict()
    assert verdict is None or verdict.failure.code != code


def test_what_pydantic_refuses_of_vllms_own_classes_is_told() -> None:
    """Its words are the same."""
    verdict = judged([RECEIPT.replace("Receipt", "LoRAConfig"), "max_lora_rank", WRONG])
    assert verdict is not None
    assert verdict.failure.code == "BAD_ENGINE_ARGUMENT"


@pytest.mark.parametrize("serving", [[], [BEGUN, UP, LOADED, LOADED]])
@pytest.mark.parametrize("form", ['{"error":{%s}}', '{"object":"error",%s}'])
def test_the_answer_to_a_failed_request_is_told_of_one_that_serves(
    serving: Sequence[str], form: str
) -> None:
    """Whose log ends with it asks why; an engine that wrote on went on without it."""
    answer = form % '"message":"the flux is odd","type":"BadRequestError","code":400'
    verdict = judged([*serving, answer])
    assert verdict
    assert verdict.failure.code == UNKNOWN_CAUSE
    assert verdict.line == answer
    assert not serving or judged([*serving, answer, LOADED, LOADED]) is None
