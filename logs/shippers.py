"""What a line was before compose, Kubernetes, Docker, journald, Ray or a cloud wrapped it."""

import json
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from logs.lines import clean

_MOST: Final = 16_384
"""Characters of a line that are read as JSON."""
_DEEPEST: Final = 40
"""Brackets in such a line that are open at once."""
_TIME: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
_HEADS: Final = re.compile(
    rf"""
    (?: (?!(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|TRACE)\b)
        \ {{0,3}}[\w.-]{{1,80}}\ {{0,40}}\|\ ?                     # docker compose: «vllm-1  | »
      | \[pod/[^\]\s]{{1,200}}\]\ ?                               # kubectl logs --prefix
      | {_TIME}\ (?:stdout|stderr)\ [FP]\ ?                       # a node's own files (CRI)
      | -\ {_TIME}\ (?=[A-Z(])                                     # endpoints of hubs
      | \d{{4}}/\d\d/\d\d\ \d\d:\d\d:\d\d\ ~[ ]
      | <\d{{1,3}}>1\ {_TIME}\ (?:\S{{1,80}}\ ){{4}}(?:-|\[[^\]]{{0,200}}\])[ ]  # syslog
      | (?:\+\ )?[a-z0-9][\w.-]{{0,80}}-[a-z0-9]{{5}}\ (?:\S\ )?[a-z][\w.-]{{0,60}}\    # stern
        (?=[A-Z(]|\ {{2,}}|[\w.]{{1,80}}(?:Error|Exception)\b)
      | \[{_TIME}\]\ (?=\(|[\w.]{{1,80}}(?:Error|Exception)\b|\ {{2,}})
      | {_TIME}[ \t](?!-\ |:)(?:\|\ |\S{{1,80}}\ [\w./@-]{{1,60}}\[\d+\]:\ )?  # kubectl, short-iso
      | [A-Z][a-z]{{2}}\ [\ \d]\d\ \d\d:\d\d:\d\d\ \S{{1,80}}\                 # journald
        [\w./@-]{{1,60}}(?:\[\d+\])?:\ ?
      | [A-Z][a-z]{{2}}\ [\ \d]\d\ {{1,2}}\d\d:\d\d:\d\d\.\d{{3}}\         # Modal
        (?!\S{{1,80}}\ [\w./@-]{{1,60}}\[\d)
      | \[(?:rank|default)\d+\]:\ ?                                # torchrun, PyTorch
      | \d{{1,4}}:\ (?=\(|[\w.]{{1,80}}(?:Error|Exception)\b|[A-Z]{{4,7}}\ )  # srun --label
      | [A-Z]{{4,9}}\ \d{{4}}-\d\d-\d\dT[\d:.]{{8,18}}Z\                 # Logs Explorer, as text
        (?:\[[\w.]{{1,60}}:\ [^\]]{{0,80}}\]\ )*
      | \s{{0,8}}"(?:Log_s|Log|textPayload|Msg|message)"\s?:\s?"
      | textPayload:\ ['"]?                                       # gcloud logging read, as YAML
    )""",
    re.VERBOSE | re.ASCII,
)
_ENGINES: Final = re.compile(
    r"\((?:API[Ss]erver|ApiServer|EngineCore|Worker|VllmWorker|DPCoordinator|RayWorker)"
    r"\w{0,20}[ \w=]{0,40}pid=\d+"
    r"|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d "
)
"""How vLLM's own lines begin; what stands before is some shipper's or manager's."""
_WHOLE: Final = re.compile(
    r"\((?!Ray)\w[\w ]{0,40}pid=|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b|[^\"'`]*+[\"'`]"
)
"""A line that begins so is whole, and what is quoted is no line."""
_MOST_BEFORE: Final = 240
_LOST: Final = re.compile(r"(?:^|(?<=\) )|(?<=\)))\[[0-9;]{1,9}m|\[0(?:;0)?m ?")
"""Colours whose escape was lost on the way."""
_MOST_HEADS: Final = 8
_OWN: Final = ("log", "textPayload", "Log", "Log_s", "Msg", "MESSAGE")
"""What only shippers call a line."""
_ANY: Final = ("message", "msg", "line", "body", "event")
"""What an error of an API may be called as well, which has no time and no level."""
_TIMES: Final = ("timestamp", "time", "ts", "TimeStamp", "TimeGenerated", "asctime", "@timestamp")
_LEVELS: Final = ("severity", "level", "lvl", "Level", "levelname", "log_level")
_OF_PROGRAMS: Final = ("level", "levelname", "log_level", "lvl")
"""Levels that a program gives its own lines; a shipper's are of the stream that they came by."""
_SPOKEN: Final = ("DEBUG", "INFO", "NOTICE", "WARN", "WARNING", "ERROR", "CRITICAL", "FATAL")
_OF_NO_STREAM: Final = ("DEBUG", "NOTICE", "WARN", "WARNING")
"""Nothing is called so by where it came from, so the program said it; on Cloud Run no level is."""
_FAULTS: Final = ("error", "err", "exc_info", "exception", "stack_trace")
_CUT: Final = re.compile(
    r'"(?:log|textPayload|Log|Log_s|Msg|message|msg)"\s?:\s?"((?:[^"\\]|\\.)*+)'
)
"""Of a line of JSON that was cut and is none any more."""
_CUT_LEVEL: Final = re.compile(
    r'"(?:severity|level|levelname)"\s?:\s?"((?i:DEBUG|NOTICE|WARN(?:ING)?))"'
)
_OF_CLOUD: Final = re.compile(r'varlog%2Fsystem|activity|"Reason(?:_s)?"')


class Shipped(NamedTuple):
    """A line as its writer wrote it, and what the shipper adds."""

    text: str
    """May be several lines."""
    level: str = ""
    """As the shipper calls it; platforms give each line one, whatever is in it."""
    platform: str = ""
    """Who wrote it, where the shipper says that it was not the container."""
    at: str = ""
    """When, as the shipper says it."""


def bare(text: str) -> str:
    r"""Return a line without what its shippers put before and around it.

    >>> bare("vllm-1  | (APIServer pid=1) ValueError: no")
    '(APIServer pid=1) ValueError: no'
    >>> bare('{"log":"ValueError: no\\n","stream":"stderr"}')
    'ValueError: no'
    """
    return shipped(text).text.rstrip()


def shipped(text: str) -> Shipped:
    """Return what was written, by whom and how grave the shipper calls it."""
    text = clean(text.rstrip().replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text)
    if "m" in text[:200] and "[" in text[:200]:
        text = _LOST.sub("", text)
    level = platform = at = ""
    for _ in range(_MOST_HEADS):
        if match := _HEADS.match(text):
            text = text[match.end() :]
            continue
        found = _unwrapped(text) if text[:1] == "{" else None
        if found is None:
            break
        text, level = clean(found.text), level or found.level
        platform, at = platform or found.platform, at or found.at
    match = _ENGINES.search(text, 0, _MOST_BEFORE)
    if match and not _WHOLE.match(text, 0, match.start() + 1):
        text = text[match.start() :]
    return Shipped(text, level, platform, at)


def entry(row: Mapping[str, Any]) -> Shipped | None:
    """Return the line in one entry of a log that is JSON, None where it holds none."""
    inner = row.get("jsonPayload") or row.get("protoPayload") or row.get("properties")
    rows = (row, inner) if isinstance(inner, Mapping) else (row,)
    stamped = any(row.get(key) for key in (*_TIMES, *_LEVELS))
    keys = (*_OWN, *_ANY) if stamped else _OWN
    text = next((one[key] for one in rows for key in keys if _is_text(one.get(key))), None)
    if text is None and isinstance(inner, Mapping) and isinstance(inner.get("status"), Mapping):
        text = inner["status"].get("message")
    if not _is_text(text):
        return None
    given = [one.get(key) for one in rows for key in _FAULTS]
    words = [one.get("message") if isinstance(one, Mapping) else one for one in given]
    faults = [str(fault) for fault in words if _is_text(fault) and fault != text]
    reason = row.get("Reason") or row.get("Reason_s")
    said = ": ".join([*([str(reason)] if reason else []), str(text), *faults[:2]])
    level = next((str(one[key]) for one in rows for key in _LEVELS if one.get(key)), "")
    by = "Container Apps" if reason else _cloud(row)
    own = next((str(one[key]).upper() for one in rows for key in _OF_PROGRAMS if one.get(key)), "")
    is_run = "run.googleapis.com%2Fstd" in str(row.get("logName", ""))
    if not (own or by) and (level.upper() in _OF_NO_STREAM or is_run):
        own = level.upper()
    if own in _SPOKEN and not _ENGINES.match(said):
        said = "\n".join(f"{own} {line}" for line in said.split("\n"))
    at = next((str(row[key]) for key in _TIMES if row.get(key)), "")
    return Shipped(said, level, by, at)


def _cloud(row: Mapping[str, Any]) -> str:
    """Name the platform of Google's whose own entry it is: the engine's come by stdout, stderr."""
    name = str(row.get("logName", ""))
    return "Google" if "varlog%2Fsystem" in name or "activity" in name else ""


def _unwrapped(text: str) -> Shipped | None:
    if len(text) > _MOST or text.count("{") + text.count("[") > _DEEPEST:
        row = None
    else:
        try:
            row = json.loads(text)
        except ValueError:
            row = None
    if isinstance(row, dict):
        return entry(row)
    found = _CUT.match(text, text.find('"')) or _CUT.search(text)
    if found is None:
        return None
    written = found[1].replace("\\n", "\n").replace('\\"', '"')
    level = _CUT_LEVEL.search(text)
    is_own = level and not _OF_CLOUD.search(text) and not _ENGINES.match(written)
    return Shipped(f"{level[1].upper()} {written}" if level and is_own else written)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
