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
      | {_TIME}[ \t](?!-\ |:)(?:\|\ |\S{{1,80}}\ [\w./@-]{{1,60}}\[\d+\]:\ )?  # kubectl, short-iso
      | [A-Z][a-z]{{2}}\ [\ \d]\d\ \d\d:\d\d:\d\d\ \S{{1,80}}\                 # journald
        [\w./@-]{{1,60}}(?:\[\d+\])?:\ ?
      | [A-Z][a-z]{{2}}\ [\ \d]\d\ {{1,2}}\d\d:\d\d:\d\d\.\d{{3}}\ ?(?=\()          # Modal
      | \[rank\d+\]:\ ?                                           # torchrun, PyTorch
      | [A-Z]{{4,9}}\ \d{{4}}-\d\d-\d\dT[\d:.]{{8,18}}Z\                 # Logs Explorer, as text
        (?:\[[\w.]{{1,60}}:\ [^\]]{{0,80}}\]\ )*
      | \s{{0,8}}"(?:Log_s|Log|textPayload|Msg|message)"\s?:\s?"
      | textPayload:\ ['"]?                                       # gcloud logging read, as YAML
    )""",
    re.VERBOSE | re.ASCII,
)
_LOST: Final = re.compile(r"(?:^|(?<=\) )|(?<=\)))\[[0-9;]{1,9}m|\[0(?:;0)?m ?")
"""Colours whose escape was lost on the way."""
_MOST_HEADS: Final = 8
_OWN: Final = ("log", "textPayload", "Log", "Log_s", "Msg", "MESSAGE")
"""What only shippers call a line."""
_ANY: Final = ("message", "msg", "line", "body")
"""What an error of an API may be called as well, which has no time and no level."""
_TIMES: Final = ("timestamp", "time", "ts", "TimeStamp", "TimeGenerated", "asctime", "@timestamp")
_LEVELS: Final = ("severity", "level", "lvl", "Level", "levelname", "log_level")
_FAULTS: Final = ("error", "err", "exc_info", "exception", "stack_trace")
_CUT: Final = re.compile(
    r'"(?:log|textPayload|Log|Log_s|Msg|message|msg)"\s?:\s?"((?:[^"\\]|\\.)*+)'
)
"""Of a line of JSON that was cut and is none any more."""


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
    text = clean(text)
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
    faults = [str(one[key]) for one in rows for key in _FAULTS if _is_text(one.get(key))]
    faults = [fault for fault in faults if fault != text]
    reason = row.get("Reason") or row.get("Reason_s")
    said = ": ".join([*([str(reason)] if reason else []), str(text), *faults[:2]])
    level = next((str(one[key]) for one in rows for key in _LEVELS if one.get(key)), "")
    at = next((str(row[key]) for key in _TIMES if row.get(key)), "")
    by = "Container Apps" if reason else _cloud(row)
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
    return Shipped(found[1].replace("\\n", "\n").replace('\\"', '"')) if found else None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())
