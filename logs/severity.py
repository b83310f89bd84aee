"""How grave a line is, by what it says of itself or by its words."""

import re
from typing import Final, Literal, NamedTuple

from logs.shippers import bare, shipped

Severity = Literal["error", "warning", "info"]

GRAVEST_FIRST: Final[tuple[Severity, ...]] = ("error", "warning", "info")

_LEVELS: Final[dict[str, Severity]] = {
    **dict.fromkeys(
        ("EMERGENCY", "ALERT", "CRITICAL", "FATAL", "ERROR", "ERR", "PANIC", "EXCEPTION", "F", "E"),
        "error",
    ),
    **dict.fromkeys(("WARNING", "WARN", "W"), "warning"),
    **dict.fromkeys(("NOTICE", "INFO", "DEBUG", "TRACE", "DEFAULT", "NOTSET", "I"), "info"),
}
_NAMES: Final = "|".join(name for name in _LEVELS if len(name) > 1)
_LEAD: Final = (
    r"\s{0,2}(?:\([^()]{1,80}\)\s+"
    r"|\[(?![IWEF](?:\d{3,8})? |[A-Z]{1,9}\]|(?i:warn|error|info|debug))[^\[\]]{1,80}\]"
    r"(?:\s+|(?=\[))|\{[^{}]{1,80}\}\s+|[0-9][0-9T:.,Z/+-]{4,35}\s+"
    r"|[a-z_]\w*(?:\.\w+)+\s+(?=[A-Z]{4,8}[\s:])|[\w.=/-]{2,60}(?:\[\d+\])?:?\s+(?=INFO[\s:])"
    r"|(?![A-Z]+ - )[\w.]+ - |- |\| )*+"
)
_SPOKEN: Final = (
    # vLLM, uvicorn, Python's logging: «(EngineCore pid=1) ERROR 11-20 …», «INFO:     …».
    re.compile(rf"{_LEAD}\[?({_NAMES})\]?(?=[\s:,|\[]|$)"),
    # glog and abseil: «E1120 11:32:07», and XLA's «2026-11-20 …: E external/xla/…».
    re.compile(rf"{_LEAD}\[?([IWEF])\d{{3,8}} \d\d:\d\d:\d\d"),
    re.compile(r"[0-9][0-9 T:.,Z+-]{9,35}: ([IWEF]) [\w/.-]+:\d+\]"),
    # Ray's and Rust's «[2026-11-20 11:32:07,036 W 55 55] …», nginx's and Lightning's «[warn] …».
    re.compile(
        rf"(?:\([^()]{{1,80}}\)\s+)?\[[0-9][0-9 T:.,Z+-]{{9,35}}\s({_NAMES}|[IWEF])"
        r"(?:[\s/][^\]]{1,60})?\]"
    ),
    # Python's logging as many set it: «2026-11-20 11:32:07,036:INFO:jax:…».
    re.compile(rf"[0-9][0-9 T:.,Z+-]{{9,35}}:({_NAMES}):"),
    re.compile(rf"{_LEAD}\[((?i:{_NAMES}))\]"),
    # Tornado's «[I 2026-11-20 11:32:07 …] …», and those who print «info: …».
    re.compile(r"\[([IWEF]) [0-9][^\[\]]{4,60}\]"),
    re.compile(r"(info|debug|notice)(?::| -) "),
    # zap's «2026-07-25T15:02:37.267Z<tab>warn<tab>…», whose tabs syslog writes as numbers.
    re.compile(r"[0-9][0-9T:.,+-]{9,35}Z?(?:#011|\t)(debug|info|warn|error|fatal)(?:#011|\t)"),
    # Torch before 2.3: «[rank0]:[W socket.cpp:663] …».
    re.compile(rf"{_LEAD}(?:\[rank\d+\]:)?\[([IWEF]) [\w/.-]+:\d+\]"),
    # Structured lines, of Cloud Logging, of Go programs and of proxies; no program's refusal.
    re.compile(
        rf"""(?![^:]{{1,60}}:\serror:\s)[^=:]{{0,40}}(?:[=:].{{0,160}}?)??\b(?:severity|level|lvl)(?:=|["']\s?:\s?)["']?({_NAMES})\b""",
        re.IGNORECASE,
    ),
)
_ANSWER: Final = re.compile(r"HTTP/[0-9.]{1,3}\"?\s(-?[0-9]{1,3})\b")
_STATUS: Final = re.compile(
    r"""(?:exit(?:ed)?\s(?:with\s)?(?:code|status)|exitcode|errno|status(?:[ _]?code)?|signal
       |cuda\serror|code)\b["']?[ =:]*["'(]?(-?[0-9]{1,3})\b""",
    re.VERBOSE | re.ASCII,
)
_STATUS_NAMES: Final = ("code", "status", "exit", "signal", "errno", "cuda error")
_PROCESS: Final = re.compile(r"\A(?:\([^()]{1,80}\) ?)*+")
"""Who writes: «(APIServer pid=1) », «(EngineCore_DP0 pid=33) (RayWorkerWrapper pid=7, ip=…) »."""
_EXCEPTION: Final = re.compile(
    r"""\ {0,3}(?:Exception\ in\ thread\ \S{1,80}\ |Process\ \S{1,80}\ )?
        (?:(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt|Exit|OutOfResources)(?:\(|:|\s*$)
          |(?:[a-z_]\w*\.)+(?:[A-Z]\w*|\w*error|timeout)(?::|\s*$)
          |Value\ error,\ )""",
    re.VERBOSE,
)
"""The line of a traceback that says what happened; pydantic's says «  Value error, …»."""
_REFUSED: Final = re.compile(
    r"""^[^\s:][^:]{0,60}:\ error:\ (?=\S)
      | ^(?:docker|nvidia-container-cli|nvcc|ptxas|runc|podman|ninja|g\+\+|cc1plus)\b.{0,80}?
        \b(?:[Ee]rror|ERROR|fatal|stopped|failed|not\ found)\b
      | ^\S{1,60}(?::\ \S{1,40}){1,3}:\ (?:command\ )?not\ found$ | ^OCI\ runtime
      | ^terminate\ called\ after | ^Fatal\ Python\ error
      | [Ee]rror\ response\ from\ daemon | \bfatal\ error:
    """,
    re.VERBOSE,
)
"""How programs refuse: argparse, compilers, shells, Docker, the C++ runtime."""
_GRAVE: Final = re.compile(
    r"""^\s*Traceback\ \(most\ recent
      | \b(?:Segmentation\ fault|core\ dumped|Out\ of\ memory|OutOfMemory|OOMKilled|Killed\b
        |RESOURCE_EXHAUSTED|No\ space\ left|CrashLoopBackOff|ImagePullBackOff|ErrImagePull
        |panic:|SIGKILL|SIGSEGV|SIGABRT|SIGILL|SIGBUS|Illegal\ instruction|Bus\ error|Aborted\b
        |Segfault\ encountered|Maximum\ Allowed\ Cores|Terminated)
      | (?i:\b(?:fail(?:ed|ure|s)?|fatal|error:|denied|unhealthy|exceeded|cannot|crash(?:ed|ing)?
        |evicted|preempt(?:ed|ion)|exception|not\ enough|insufficient|unable\ to)\b)
    """,
    re.VERBOSE,
)
_DOUBTFUL: Final = re.compile(
    r"\w*Warning:|(?i:\b(?:warning|deprecated|retry(?:ing)?|time(?:d[ -])?out|slow|unhealthy"
    r"|throttl\w+|back-?off|restart(?:ed|ing)?|deadline)\b)"
)
_GLOG: Final = re.compile(rf"{_LEAD}\[?[IWEF]\d{{3,8}} [^\]]{{1,120}}\] ")
_WARNS: Final = re.compile(
    r"\S{1,300}:\d{1,6}: \w*[Ww]arning: |(?:\S{1,80}: )?\w*[Ww]arning: |W: |\[W\] "
    r"|[^\w\s(]{1,3} ?WARNING\b|\S{1,30}: WARNING\b"
)
"""The ways to warn of Python, compilers, apt and those that print."""
_GOES_ON: Final = re.compile(
    r"(?i)\bfall(?:ing|s)?[ -]?back to\b|\b(?:will be|is|are) ignored\b|\bignor(?:ing|ed) error"
    r"|^(?:skipping|ignoring|defaulting to|continuing|overriding|overwriting)\b"
    r"|[.,;)] (?:skipping|ignoring|defaulting to|continuing|overriding|overwriting|removing it)\b"
    r"|\b(?:will|being) be (?:disabled|skipped|overridden|used instead)\b"
    r"|\bwe will (?:override|default|use)\b|\busing \S{1,80} instead\b|\bwill run on the CPU\b"
    r"|[.,;)] using (?:the )?cached\b"
    r"|\bsafely ignore"
)
"""What says how it goes on has ended nothing; an exception may advise the like."""
_LOAD_FAILED: Final = re.compile(
    r"\bsource=(?:sched|server|llama_server|routes)\.go:\d+ msg=(?!.*context canceled).*? error="
)
"""Ollama calls INFO what ends a request's load; its search for GPUs, in other files, may fail."""
_DETAIL: Final = re.compile(r"\s{2,}(?!Value error, )\S|\s*File \"|\s*[\^~]+\s*$|\s*$")


class Gravity(NamedTuple):
    """How grave a line is."""

    severity: Severity
    is_spoken: bool = False
    """Whether the line names its level."""
    is_detail: bool = False
    """Whether it is a frame of a traceback, a line of its code, or nothing but a header."""


def gravity(text: str, platform: str = "") -> Gravity:
    """Say how grave a clean line is; a level in it counts for more than its words.

    >>> gravity("(EngineCore pid=7) ERROR 11-20 11:32:07 [core.py:1] it died").severity
    'error'
    >>> gravity('INFO:     10.0.0.7:5 - "POST /v1/completions HTTP/1.1" 500 Internal').severity
    'error'
    """
    line = shipped(text)
    text = line.text.partition("\n")[0]
    for pattern in _SPOKEN:
        if match := pattern.match(text):
            severity = _LEVELS[match[1].upper()]
            body = text[match.end() :]
            if severity == "info":
                if _LOAD_FAILED.search(text):
                    return Gravity("error", is_spoken=True)
                return Gravity(_by_status(text) or severity, is_spoken=True)
            is_detail = bool(_DETAIL.match(_body(body)))
            return Gravity(severity, is_spoken=True, is_detail=is_detail)
    text = _PROCESS.sub("", text, count=1)
    if text.lstrip().startswith('File "'):
        return Gravity("error", is_detail=True)
    if _WARNS.match(text):
        return Gravity("warning", is_spoken=True)
    platform = platform or line.platform
    by_words = _by_words(text, platform)
    if not platform and _is_note(text):
        return Gravity("warning", is_spoken=True)
    if by_words != "error" and line.level:
        return Gravity(_LEVELS.get(line.level.upper(), by_words))
    return Gravity(by_words)


def is_exception(text: str) -> bool:
    """Whether a line is the one of a traceback that says what happened.

    >>> is_exception("(APIServer pid=1) ValueError: no"), is_exception("    raise ValueError(no)")
    (True, False)
    """
    return bool(_EXCEPTION.match(body_of(text)))


def process_of(text: str) -> str:
    """Return how the process that writes a line names itself, "" where it does not.

    >>> process_of("(Worker pid=7) (Worker_TP2 pid=7) it died")
    '(Worker pid=7) (Worker_TP2 pid=7) '
    """
    found = _PROCESS.match(text)
    return found[0] if found else ""


def decisive(text: str) -> re.Match[str] | None:
    """Find the number that decides what a line means (group 1): no template masks it.

    >>> decisive("Container left with exit code 137")[1]
    '137'
    """
    at = text.find("HTTP/")
    if at >= 0:
        return _ANSWER.match(text, at)
    folded = text.lower()
    if len(folded) != len(text) or not any(map(folded.__contains__, _STATUS_NAMES)):
        return None
    found = _STATUS.finditer(folded)
    return next((one for one in found if not folded[one.start() - 1 : one.start()].isalpha()), None)


def _by_status(text: str) -> Severity | None:
    """Say it by the status of an answer or of a process, None where there is none or it is good."""
    match = decisive(text)
    if match is None:
        return None
    number, name = int(match[1]), match[0].lower()
    if name.startswith(("http/", "status")):
        return "error" if number >= 500 else "warning" if number >= 400 else None
    return "error" if number and "exit" in name else None


def _is_note(text: str) -> bool:
    return bool(_GOES_ON.search(text)) and not (_EXCEPTION.match(text) or _REFUSED.search(text))


def _by_words(text: str, platform: str) -> Severity:
    if by_status := _by_status(text):
        return by_status
    if _EXCEPTION.match(text) or _REFUSED.search(text):
        return "error"
    found = _GRAVE.search(text)
    if found and (platform or not found[0].islower()):
        return "error"
    return "warning" if found or _DOUBTFUL.search(text) else "info"


_PLACE: Final = re.compile(r"(?:[\s:]*(?:\d\d-\d\d )?[\d:.,]*)?\s*\[?[\w./-]+:\d+\] ?|[\s:]{0,5}")


def body_of(text: str) -> str:
    """Return a line without what stands before its words: process, level, time and place.

    >>> body_of("(EngineCore pid=7) ERROR 11-20 11:32:07 [core.py:1] ValueError: no")
    'ValueError: no'
    """
    text = bare(text)
    if match := _SPOKEN[0].match(text):
        return _body(text[match.end() :])
    if match := _GLOG.match(text):
        return text[match.end() :]
    return _PROCESS.sub("", text, count=1)


def _body(text: str) -> str:
    """Take date and place off what follows a level; a traceback's indentation stays."""
    match = _PLACE.match(text)
    return text[match.end() :] if match else text
