"""Other people's results in our form, audited: guidellm's, aiperf's, and tables of any kind.

Each form becomes rows of columns, and one table says which column means what.
"""

import csv
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from pydantic import ValidationError

from benchmark.folder import RunFolder
from benchmark.import_audit import (
    FEWEST,
    Claims,
    Figures,
    Run,
    audit,
    ground_of,
    make_cell,
    number,
    spread,
    whole,
)
from benchmark.records import (
    Arrivals,
    CellResult,
    CellSpec,
    CellState,
    Code,
    Host,
    Load,
    Manifest,
    Progress,
    Provenance,
    RunPlan,
    RunState,
    Subject,
    Verdict,
    Workload,
    percent,
    seconds,
)
from core.environment import read_toml
from core.errors import InvalidArgument, NotFound
from core.redaction import one_line
from planner.model import full_name

MOST_CELLS: Final = 5_000
_MOST_BYTES: Final = 64 * 2**20
"""guidellm can keep every request in its report; parsed, it takes ten times its size."""
_GZIP: Final = b"\x1f\x8b"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_COMPARED: Final = 50
"""Other imports that a new one is held against."""
_WORDS: Final = 120
"""Characters of a file's own words."""
_DEEPEST: Final = 12
_UNKNOWN: Final = "not known"
_LOOKED_FOR: Final = (
    "a CSV or JSON with one row or object for each load, which has a concurrency, max_concurrency, "
    "num_concurrent_requests or request_rate and a throughput or a latency: the articles' CSV "
    "(context_size, concurrency, success_rate, …), vllm bench serve and sweep, sglang "
    "bench_serving, inference-perf's stages, llmperf's summary; the JSON or CSV of aiperf and "
    "genai-perf (profile_export_aiperf.json, …_genai_perf.csv), a request_latency with its unit; "
    "guidellm's JSON: an object with `benchmarks`, each with metrics.requests_per_second and "
    "metrics.prompt_token_count"
)
Json = Mapping[str, Any]
T = TypeVar("T")


class Imported(NamedTuple):
    """Somebody else's results in our form, with what the audit says against them."""

    manifest: Manifest
    cells: tuple[CellResult, ...]
    notes: tuple[str, ...]
    """What the file does not say, or says in another way than ours."""


class Read(NamedTuple):
    """What a file holds, before it is audited."""

    tool: str
    cells: tuple[CellResult, ...]
    workload: Workload
    model: str | None
    created_at: datetime | None
    articles: bool
    """One prompt for all, bursts that are counted whole."""
    notes: tuple[str, ...]


def import_file(path: Path, *, claims: Claims, others: Sequence[Run] = ()) -> Imported:
    """Read a file of another tool and audit it; `others` are runs that it may be a copy of.

    Raises:
        InvalidArgument: It cannot be read, or is of no form that is known; it says what was
            looked for.
    """
    read = _read(path, claims)
    if not read.cells:
        raise InvalidArgument(
            f"{path.name} has no row that could be a cell.", fix=f"Give {_LOOKED_FOR}."
        )
    manifest = _manifest(path, read, claims)
    said = claims.model_copy(
        update={"model": claims.model or read.model, "output_tokens": read.workload.output_tokens}
    )
    # A file that is imported again is no copy of itself.
    strange = [other for other in others if other.run_id != manifest.run_id]
    cells = audit(read.cells, said, others=strange)
    return Imported(manifest, cells, (*read.notes, *_not_said(read, said)))


def save_import(imported: Imported, folder: RunFolder) -> None:
    """Write it as a run that is done, to be reported and compared like ours.

    Raises:
        DiskFull: It cannot be written.
    """
    folder.create(imported.manifest)
    folder.cells_file.unlink(missing_ok=True)
    for cell in imported.cells:
        folder.add(cell)
    folder.tell(
        Progress(
            state=RunState.DONE,
            reason="imported, not measured here",
            cells_done=len(imported.cells),
            cells_total=len(imported.cells),
            elapsed_seconds=0.0,
            updated_at=imported.manifest.created_at,
        )
    )


def earlier(folders: Iterable[RunFolder]) -> Iterator[Run]:
    """Give the first imports among some runs: it is among them that copies are found."""
    left = _COMPARED
    for folder in folders:
        try:
            manifest = folder.manifest()
        except NotFound:
            continue
        if manifest.imported_from and left:
            left -= 1
            called = f"{manifest.run_id} ({manifest.subject.model})"
            yield Run(called, folder.cells(), manifest.run_id)


def _text(path: Path) -> str:
    unreadable = partial(
        InvalidArgument, f"{path.name} cannot be read as text.", fix=f"Give {_LOOKED_FOR}."
    )
    try:
        if path.exists() and not path.is_file():  # a pipe or a device has no end
            raise unreadable(cause="It is no regular file.")
        if path.stat().st_size > _MOST_BYTES:
            raise InvalidArgument(
                f"{path.name} has more than {_MOST_BYTES // 2**20} MiB.",
                fix="Leave out the single requests when you write it.",
            )
        data = path.read_bytes()
        if data.startswith(_GZIP):
            raise unreadable(
                cause="It is compressed.", fix="Unpack it first, such as by gunzip -k."
            )
        if not data.strip():
            raise unreadable(cause="It is empty, neither JSON nor a CSV.")
        return data.decode("utf-16" if data.startswith(_UTF_16) else "utf-8-sig")
    except (OSError, ValueError) as exc:  # ValueError: a name that no file can have, or no UTF-8
        raise unreadable(cause=str(exc)) from exc


def _read(path: Path, claims: Claims) -> Read:
    text = _text(path)
    try:
        documents = list(_documents(text))
        rows = from_documents(documents) if documents else from_csv(text)
        if rows is not None:
            return read_table(rows, claims)
    except (csv.Error, ArithmeticError, RecursionError, ValidationError) as exc:
        raise InvalidArgument(
            f"{path.name} holds figures that no benchmark can have.",
            fix=f"Give {_LOOKED_FOR}.",
            cause=type(exc).__name__,
        ) from exc
    # What it is is said in general: a file that was named by mistake may hold secrets.
    if not documents:
        cause = "It is neither JSON nor a CSV with those columns."
    elif isinstance(documents[0], dict):
        cause = "It is JSON, with other keys."
    else:
        cause = f"It is JSON, but no object: {type(documents[0]).__name__}."
    raise InvalidArgument(
        f"{path.name} is of no form that is read here.",
        fix=f"Give one of these: {_LOOKED_FOR}.",
        cause=cause,
    )


def _documents(text: str) -> Iterator[Any]:
    """Yield the JSON documents of a file, one or one on each line; none if it is no JSON."""
    try:
        yield json.loads(text)
    except (ValueError, RecursionError):
        try:
            yield from [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            return


def _manifest(path: Path, read: Read, claims: Claims) -> Manifest:
    cells, model = read.cells, claims.model or read.model
    created = read.created_at or datetime.fromtimestamp(path.stat().st_mtime, UTC)
    slug = re.sub(r"[^a-z0-9]+", "-", path.stem.lower()).strip("-")[:48] or "file"
    return Manifest(
        run_id=f"{created:%Y%m%d-%H%M%S}-import-{slug}",
        created_at=created,
        base_url=f"imported:{path.name}",
        plan=RunPlan(
            profile="article" if read.articles else "standard",
            contexts=tuple(dict.fromkeys(c.spec.context for c in cells if c.spec.context)),
            loads=tuple(dict.fromkeys(cell.spec.load for cell in cells)),
            workload=read.workload,
        ),
        subject=Subject(
            model=full_name(model) if model else _UNKNOWN, max_model_len=claims.max_model_len
        ),
        provenance=Provenance(
            **claims.model_dump(
                include={"target", "accelerator", "accelerator_count", "usd_per_hour"}
            ),
            price_source=None if claims.usd_per_hour is None else "said at the import",
        ),
        host=Host(versions={"tool": read.tool}),
    )


def _not_said(read: Read, claims: Claims) -> Iterator[str]:
    if not claims.model:
        yield "No model is said, so no speed can be held against what the hardware can do."
    elif not (claims.accelerator or claims.target):
        yield "No accelerator is said, so no speed can be held against what it can do."
    elif ground_of(claims) is None:
        yield (
            "The planner does not know this model on this accelerator: no speed and no cold start "
            "is judged."
        )
    if claims.usd_per_hour is None:
        yield "No price is said, so there is no $."
    if len({cell.id for cell in read.cells}) < len(read.cells):
        yield "Some cells are in the file more than once; the last counts."


_FILE: Final = read_toml(Path(__file__).with_name("imports.toml"))
_COLUMNS: Final[Mapping[str, Sequence[str]]] = _FILE["columns"]
_BARE: Final = "throughput"
"""A column whose unit only the articles' scripts tell: requests/s."""
_TIMES: Final[Mapping[str, str]] = _FILE["times"]
_POINTS: Final[Mapping[str, str]] = _FILE["points"]
_UNITS: Final[Mapping[str, float]] = _FILE["units"]
_PREFIXES: Final = ("results_", "successes_latency_")
_LLMPERF: Final = "results_inter_token_latency_s"
"""Its quotient of a whole request and its tokens, the first among them: no TPOT, and no ITL
(ray-project/llmperf, openai_chat_completions_client.py, read 2026-11-23)."""
_NOT_TIMES: Final = ("failures_", "goodput", "load_summary_", _LLMPERF)
_WELL: Final = frozenset({"ok", "success", "passed", "done", "complete", "completed"})
_MOST_OF: Final = 0.8
"""Share of a file's rows that shows what its columns mean."""
_SKIPPED: Final = re.compile(r"skip|infeasible|not.?run", re.IGNORECASE)


@dataclass(kw_only=True, eq=False)
class Row:
    """One row."""

    fields: Mapping[str, Any] = field(kw_only=False)
    """By normalised name; nested keys are joined."""
    above: str | None = None
    """The model that stands above it."""
    detail: Json = field(default_factory=dict)
    """The object that it was in the file."""
    guidellm: bool = False
    """Whether it is a benchmark of guidellm's, which says its load as a strategy alone."""
    strategy: Load | None = None

    @property
    def model(self) -> str | None:
        said = self.first("model", lambda each: each if isinstance(each, str) and each else None)
        return one_line(said, _WORDS) if said else self.above

    def first(self, name: str, read: Callable[[Any], T | None]) -> T | None:
        """Give the best column that says this, read; None where none does."""
        found = (read(self.fields.get(column)) for column in _COLUMNS[name])
        return next((each for each in found if each is not None), None)

    def number(self, name: str) -> float | None:
        return self.first(name, number)

    def whole(self, name: str) -> int | None:
        return self.first(name, whole)

    def text(self, name: str) -> str:
        return self.first(name, lambda each: None if each in (None, "") else str(each)) or ""

    @cached_property
    def times(self) -> dict[str, dict[str, float]]:
        """ttft, tpot, itl and e2el in seconds, by point."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for column, text in self.fields.items():
            value, known = number(text), _time(column)
            if known and value is not None:
                name, point, scale = known
                found[name].setdefault(point, value * scale)
        return dict(found)

    @cached_property
    def rate(self) -> float | None:
        requests, minute = self.number("requests"), self.number("requests_per_minute")
        return minute / 60 if requests is None and minute is not None else requests

    @property
    def is_articles(self) -> bool:
        """Whether it is of the articles' kind: one prompt for all, no answer streamed."""
        streamed = self.times.keys() & {"ttft", "tpot", "itl"} or self.text("input_tokens")
        return not (streamed or self.guidellm or self.fields.get(_WRITER))

    @property
    def is_blank(self) -> bool:
        """Whether it holds nothing of what came of its load, not even that it failed."""
        counts = ("succeeded", "failed", "share", "output", "output_tokens")
        said = any(self.number(name) is not None for name in counts)
        return not (said or self.times or self.rate is not None or self.text("status"))

    @property
    def is_result(self) -> bool:
        """Whether it says a load and what came of it."""
        load = self.number("concurrency") or self.number("rate") or "request_rate" in self.fields
        return bool(load) and bool(
            self.skipped
            or self.rate is not None
            or (self.number("output") is not None and self.times)
            or self.times.keys() & {"ttft", "e2el"}
        )

    @property
    def counted(self) -> bool:
        """Whether it says how many requests its figures are of."""
        return self.whole("succeeded") is not None or self.whole("sent") is not None

    @property
    def skipped(self) -> str | None:
        status = self.text("status")
        return one_line(status, _WORDS) if _SKIPPED.match(status) else None

    @property
    def is_of_inference_perf(self) -> bool:
        return any(name.startswith("successes_") for name in self.fields)

    @property
    def context(self) -> int | None:
        if said := self.whole("context"):
            return said
        mean, count, tokens = map(self.number, ("mean_context", "succeeded", "input_tokens"))
        if count and tokens and tokens > 0:
            mean = tokens / count
        return max(1, round(mean)) if mean and 0 < mean < 1e9 else None

    @property
    def answer(self) -> float | None:
        said, mean, count, tokens = map(
            self.number, ("answer", "mean_answer", "succeeded", "output_tokens")
        )
        output, requests = self.number("output"), self.number("requests")
        if said:
            return said
        if tokens and count:
            return tokens / count
        return mean or (output / requests if output and requests else None)

    def load(self, *, articles: bool) -> Load | None:
        """Give its load; `request_rate` inf without a concurrency sends all at once."""
        most, rate, sent = self.whole("concurrency"), self.number("rate"), self.whole("sent")
        if self.guidellm or self.strategy:
            return self.strategy
        if most and self.fields.get("load_summary_concurrency") is not None:
            rate = None  # inference-perf computes one for concurrent stages, too
        if rate and rate > 0:
            asked = whole(self.fields.get("max_concurrency")) or None
            return Load(arrivals=Arrivals.POISSON, requests_per_second=rate, concurrency=asked)
        if most:
            once = articles and not (sent and sent > most)
            return Load(arrivals=Arrivals.ONCE if once else Arrivals.CLOSED, concurrency=most)
        if "request_rate" in self.fields and sent:
            return Load(arrivals=Arrivals.ONCE, concurrency=sent)
        each = self.times.get("e2el", {}).get("mean")
        flying = self.number("in_flight") or (self.rate or 0) * (each or 0)
        return Load(concurrency=max(1, round(flying))) if 0 < flying < 1e9 else None

    def counts(self, scale: float) -> tuple[int, int, int | None]:
        """Give successes, failures, and how many were sent where the file counts them apart."""
        succeeded, failed, asked = map(self.whole, ("succeeded", "failed", "sent"))
        if succeeded is not None:
            lost = max(0, (asked or succeeded) - succeeded) if failed is None else failed
            return succeeded, lost, asked
        if asked is not None and failed is not None:
            return max(0, asked - failed), failed, asked
        share = self.number("share")
        if share is None:
            fine = self.number("requests") or self.number("output") or self.times
            share = 1 / scale if fine and (self.text("status") or "ok") in _WELL else 0.0
        share *= scale
        total = asked or self.whole("concurrency") or 1
        well = round(share * total)
        if 0 < share < 1:  # of a number that the file does not say
            well = min(max(well, 1), max(total - 1, 1))
            return well, max(total - well, 1), None
        return well, max(0, total - well), total

    def wall_seconds(self) -> float | None:
        units = {"": 1.0, **{f"_{unit}": by for unit, by in _UNITS.items()}}
        every = itertools.product(_COLUMNS["wall"], units.items())
        found = ((number(self.fields.get(f"{name}{unit}")), by) for name, (unit, by) in every)
        return next((value * by for value, by in found if value is not None), None)


_NO_WORDS: Final = frozenset({"quantiles", "percentiles", "successful"})


def _time(column: str) -> tuple[str, str, float] | None:
    """Read a column's name as one of the times: what, which point of it, and its unit.

    >>> _time("mean_ttft_ms"), _time("results_ttft_s_quantiles_p50"), _time("avg_latency")
    (('ttft', 'mean', 0.001), ('ttft', 'p50', 1.0), ('e2el', 'mean', 1.0))
    >>> _time("std_ttft_ms"), _time("failures_request_latency_mean")
    (None, None)
    """
    if column.startswith(_NOT_TIMES):
        return None
    for prefix in _PREFIXES:
        column = column.removeprefix(prefix)
    words = [word for word in column.split("_") if word not in _NO_WORDS]
    points = [word for word in words if word in _POINTS]
    units = [word for word in words if word in _UNITS]
    rest = "_".join(word for word in words if word not in _POINTS and word not in _UNITS)
    if rest not in _TIMES or len(points) > 1 or len(units) > 1:
        return None
    if rest == "request" and not (points and units):
        return None
    point = _POINTS[points[0]] if points else "mean"
    return _TIMES[rest], point, _UNITS[units[0]] if units else 1.0


_WRITER: Final = "written_by"
"""Our own column: which of several programs with one form wrote it."""
_GROUPED: Final = re.compile(r"\s*-?[1-9]\d{0,2}(,\d{3})+(\.\d+)?\s*")
_PERCENT: Final = re.compile(r"(\s*-?\d+(?:[.,]\d+)?)\s*%\s*")
_BEFORE_HEAD: Final = 8
"""Lines of a title or a comment that may stand above a table."""
_DECIMAL_COMMA: Final = re.compile(r"\s*-?\d+,\d+\s*")


def from_csv(text: str) -> list[Row] | None:
    """Give the rows of a CSV; None where its head has no names of a table of results.

    Raises:
        csv.Error: A field is too long to be one.
    """
    lines = text.splitlines()
    tables = (_table(lines[above:]) for above in range(min(_BEFORE_HEAD, len(lines))))
    return next((rows for rows in tables if rows is not None), None)


def _table(lines: Sequence[str]) -> list[Row] | None:
    """Give the rows below a head; None where the first line is none."""
    delimiter = max(",;\t", key="".join(lines[:1]).count)
    reader = csv.reader(lines, delimiter=delimiter)
    head = [_normal(name) for name in next(reader, [])]
    if head[:1] == ["metric"]:
        metrics = _metrics([head, *reader])
        return [_aiperf_row(metrics, "aiperf or genai-perf")] if _is_aiperf(metrics) else None
    if len(set(head)) < 2 or not Row(dict.fromkeys(head, 1)).is_result:
        return None
    rows = (
        [_without_commas(each, delimiter) for each in line]
        for line in reader
        if "".join(line).strip()
    )
    return _bounded([Row(dict(zip(head, line, strict=False))) for line in rows])


def _without_commas(text: str, delimiter: str) -> str:
    """Write a figure as Python does: a comma groups thousands where it also parts columns.

    >>> _without_commas("1,009.57", ","), _without_commas("120,5", ";")
    ('1009.57', '120.5')

    Raises:
        InvalidArgument: It may be the one or the other.
    """
    if percent := _PERCENT.fullmatch(text):
        text = percent[1]
    grouped = _GROUPED.fullmatch(text)
    if delimiter == ",":
        return text.replace(",", "") if grouped else text
    if grouped:
        raise InvalidArgument(
            f"Nobody can say whether {text} in the file is above or below a thousand.",
            fix="Write decimal points, and nothing between thousands.",
        )
    return text.replace(",", ".") if _DECIMAL_COMMA.fullmatch(text) else text


def from_documents(documents: Sequence[Any]) -> list[Row] | None:
    """Give the rows that are anywhere in JSON documents; None where there is none.

    An object alone may leave its load unsaid; its requests in flight are then computed.
    """
    alone = documents[0] if len(documents) == 1 and isinstance(documents[0], Mapping) else None
    written = [each for each in documents if _is_aiperf(each)]
    if written and len(written) == len(documents):
        told = ("aiperf" if "aiperf_version" in each else "genai-perf" for each in written)
        return _bounded([_aiperf_row(each, tool) for each, tool in zip(written, told, strict=True)])
    if alone and _is_guidellm(alone):
        return [_guidellm_row(each, alone) for each in alone["benchmarks"]]
    rows = [row for each in documents for row in _rows(each, None, 0)]
    if not rows and alone:
        row = Row(_flat(alone), detail=alone)
        rows = [row] if row.rate is not None and "e2el" in row.times else []
    return _bounded(rows) if rows else None


def _bounded(rows: list[Row]) -> list[Row]:
    if len(rows) > MOST_CELLS:
        raise InvalidArgument(
            f"The file has {len(rows):,} rows; {MOST_CELLS:,} cells are the most that are read.",
            fix="Give summaries, not single requests.",
        )
    return rows


def _rows(value: Any, model: str | None, depth: int) -> Iterator[Row]:
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for each in value:
            yield from _rows(each, model, depth + 1)
    elif isinstance(value, Mapping):
        row = Row(_flat(value), above=model, detail=value)
        if row.is_result:
            yield row
            return
        for key, each in value.items():
            inner = key if isinstance(key, str) and key.count("/") == 1 else row.model
            yield from _rows(each, inner, depth + 1)


def _flat(value: Json, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Join nested keys; lists are of single requests and stay out."""
    found: dict[str, Any] = {}
    for key, each in value.items():
        name = f"{prefix}{_normal(key)}"
        if isinstance(each, Mapping) and depth < 4:
            found = _flat(each, f"{name}_", depth + 1) | found
        elif isinstance(each, str | int | float) or each is None:
            found[name] = each
    return found


def _normal(name: object) -> str:
    words = str(name)[:80].lower().replace("%", " pct ")
    return re.sub(r"[^a-z0-9]+", "_", words).strip("_")


_LATE: Final = 0.1
"""Share of a request's time from which a late start is a bottleneck of the client."""
_OPEN: Final = {
    "constant": Arrivals.CONSTANT,
    "async": Arrivals.CONSTANT,
    "poisson": Arrivals.POISSON,
}


def _nested(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _is_guidellm(document: Json) -> bool:
    found = document.get("benchmarks")
    if not isinstance(found, list) or not found:
        return False
    return all(_nested(each, "metrics", "requests_per_second") is not None for each in found)


def _guidellm_row(benchmark: Json, report: Json) -> Row:
    """Give a benchmark as a row; without the prompt length of a success it has no load."""
    about = {name: value for name, value in benchmark.items() if name != "requests"}
    fields = _flat({"metrics": about["metrics"], "duration": about.get("duration")})
    counts = ("request_totals_successful", "request_latency_successful_count")
    well = (whole(fields.get(f"metrics_{name}")) for name in counts)
    fields["completed"] = next((count for count in well if count), 0)
    fields["failed"] = whole(fields.get("metrics_request_totals_errored")) or 0
    settings = [benchmark.get("config"), benchmark.get("args"), report.get("args")]
    kinds = (*_every(settings, "request_type"), *_every(settings, "request_format"))
    fields["endpoint_type"] = str(next((kind for kind in kinds if kind), "chat"))
    fields["model"] = next(_every(settings, "model"), None)
    began = number(benchmark.get("start_time"))
    if began and 0 < began < datetime(9999, 1, 1, tzinfo=UTC).timestamp():
        fields["date"] = f"{datetime.fromtimestamp(began, UTC):%Y%m%d-%H%M%S}"
    row = Row(fields, detail=about, guidellm=True)
    if row.number("mean_context"):
        row.strategy = _strategy(next(_every(settings[:2], "strategy"), None), row)
    return row


def _strategy(strategy: Any, row: Row) -> Load:
    kind = str(_nested(strategy, "type_") or _nested(strategy, "kind"))
    streams, rate = whole(_nested(strategy, "streams")), number(_nested(strategy, "rate"))
    if kind == "synchronous":
        return Load(concurrency=1)
    if kind == "concurrent" and streams:
        return Load(concurrency=streams)
    if kind in _OPEN and rate:
        return Load(arrivals=_OPEN[kind], requests_per_second=rate)
    if kind == "throughput":
        most = whole(_nested(strategy, "max_concurrency"))
        return Load(concurrency=most or max(1, round(row.number("in_flight") or 1)))
    raise InvalidArgument(
        f"A benchmark in the file has the strategy {one_line(kind, 40)}, which is not read here.",
        fix="Import synchronous, concurrent, throughput, constant or poisson benchmarks.",
    )


def _is_aiperf(document: Any) -> bool:
    """Whether it has a latency with its unit, as aiperf and genai-perf write it."""
    unit = _nested(document, "request_latency", "unit")
    return isinstance(unit, str) and number(_nested(document, "request_latency", "avg")) is not None


def _metrics(lines: Iterable[Sequence[str]]) -> Json:
    """Read a CSV that has a metric on each line, in sections with heads of their own."""
    found: dict[str, dict[str, Any]] = {}
    head: Sequence[str] = ()
    for line in lines:
        if _normal(line[0] if line else "") == "metric":
            head = ["avg" if _normal(name) == "value" else _normal(name) for name in line]
        elif line:
            name, _, unit = line[0].rstrip(")").partition(" (")
            figures = (_without_commas(text, ",") for text in line[1:])
            row = dict(zip(head[1:], figures, strict=False)) | {"unit": unit}
            found.setdefault(_normal(name), row)
    return found


def _aiperf_row(document: Json, tool: str) -> Row:
    """Give a run as a row; what is said of its load lies where each version keeps it."""
    fields = {name: _nested(document, each, "avg") for name, each in _FILE["aiperf"].items()}
    config = document.get("input_config")
    for ours, theirs in _FILE["aiperf_times"].items():
        unit = _normal(_nested(document, theirs, "unit"))
        points = {each: _nested(document, theirs, each) for each in _POINTS}
        fields |= {f"{each}_{ours}_{unit}": value for each, value in points.items()}
    lasted = _normal(_nested(document, "benchmark_duration", "unit"))
    fields[f"duration_{lasted}"] = _nested(document, "benchmark_duration", "avg")
    fields["max_concurrency"] = _only(config, "concurrency")
    fields["request_rate"] = rate = _only(config, "request_rate")
    kind = _nested(config, "endpoint", "type") or _nested(config, "endpoint_type")
    names = _nested(config, "endpoint", "model_names") or _nested(config, "model_names")
    names = names or _nested(config, "model")
    fields["model"] = names[0] if isinstance(names, list) and names else names
    fields |= {"endpoint_type": kind, "date": document.get("start_time"), _WRITER: tool}
    cancelled = {"warning": "the run was cancelled"} if document.get("was_cancelled") else {}
    # perf_analyzer, which sends for genai-perf, has even gaps unless it is told otherwise.
    patterns = (*_every(config, "request_rate_mode"), *_every(config, "arrival_pattern"))
    even = tool == "genai-perf" or "constant" in {str(each).lower() for each in patterns}
    load = Load(arrivals=Arrivals.CONSTANT, requests_per_second=rate) if even and rate else None
    said = {name: value for name, value in fields.items() if value is not None}
    return Row(said, detail=cancelled, strategy=load)


def _every(config: Any, name: str, depth: int = 0) -> Iterator[Any]:
    """Yield what stands under a name, wherever a version keeps it."""
    if depth > _DEEPEST or not isinstance(config, Mapping | list):
        return
    if isinstance(config, Mapping) and config.get(name) is not None:
        yield config[name]
    for each in config.values() if isinstance(config, Mapping) else config:
        yield from _every(each, name, depth + 1)


def _only(config: Any, name: str) -> float | None:
    """Return the one figure of that name in a configuration; None if there are several."""
    found = {figure for each in _every(config, name) if (figure := number(each))}
    return found.pop() if len(found) == 1 else None


def _warnings(detail: Json) -> Iterator[str]:
    """Give what a tool itself says against a cell, as words or, of guidellm, in its figures."""
    for name in ("warning", "warnings"):
        said = detail.get(name)
        for each in said[:5] if isinstance(said, list) else [said]:
            words = _nested(each, "message") or each
            if isinstance(words, str) and words.strip():
                yield f"the tool's own warning: {one_line(words, _WORDS)}"
    if any(each is True for each in _every(detail, "is_over_saturated")):
        yield "guidellm: over-saturated, requests came faster than they were answered"
    late, took = (
        number(_nested(detail, "scheduler_metrics", name))
        for name in ("request_targeted_start_delay_avg", "request_time_avg")
    )
    if late and took and late > _LATE * took:
        yield (
            f"guidellm's own workers started requests {seconds(late)} late on average, "
            f"{percent(late / took)} of a request: the client is a bottleneck"
        )


_TABLE: Final = "a table of results"
_READ: Final = frozenset(column for columns in _COLUMNS.values() for column in columns)
_WORDED: Final = frozenset(
    each for name in ("model", "api", "date", "status") for each in _COLUMNS[name]
)
_NAMED: Final = 3
"""Models that a note lists."""
_SHOWN: Final = 8
"""Columns that a note lists."""


def _is_figure(column: str) -> bool:
    return bool(_time(column)) or column in _READ - _WORDED


def _filled(rows: Sequence[Row]) -> dict[str, object]:
    return {column: each for row in rows for column, each in row.fields.items() if each}


def _supposed(rows: Sequence[Row]) -> Iterator[str]:
    """Say in one line by which units columns of somebody's own table are read that name none."""
    filled = _filled(rows)
    named = filled.keys() & {*_COLUMNS["requests"][:-1]}
    bare = {
        "seconds": [
            column
            for column in filled
            if _time(column) and not _UNITS.keys() & {*column.split("_")}
        ],
        "requests/s": [_BARE] if _BARE in filled and not named else [],
    }
    taken = [
        f"{', '.join(f'`{column}`' for column in columns[:_SHOWN])} as {unit}"
        for unit, columns in bare.items()
        if columns
    ]
    if taken:
        yield f"Columns that name no unit are taken so: {'; '.join(taken)}."


def _not_plain(rows: Sequence[Row]) -> Iterator[str]:
    """Say what of somebody's own table is not read."""
    filled = _filled(rows)
    left = [name for name in filled if name not in _READ and not _time(name)]
    if left:
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        yield f"Columns that are not read: {', '.join(left[:_SHOWN])}{more}."
    cells = (each for row in rows for each in row.fields.items() if _is_figure(each[0]))
    lost = [text for _, text in cells if re.search(r"\d", str(text)) and number(text) is None]
    if lost:
        first = one_line(lost[0], 20)
        yield f"{len(lost)} figures are no plain numbers and left out, first {first}."


class _Meaning(NamedTuple):
    """What all rows of a file together say of its columns."""

    articles: bool
    several: bool
    """Cells differ in how long answers may be."""
    scale: float
    """Of the share of successes: 0.01 where it is in percent."""
    one_each: bool
    """It does not say how many it sent, which were as many as its concurrency."""


def read_table(rows: Sequence[Row], claims: Claims) -> Read:
    """Read each row as a cell.

    Raises:
        InvalidArgument: No result has a success whose prompt length is known.
    """
    loaded = [row for row in rows if row.whole("concurrency") is not None]
    articles = bool(loaded) and all(row.is_articles for row in loaded)
    told = [row for row in rows if not row.is_blank]
    placed = [row for row in told if row.load(articles=articles) is not None]
    only = rows[0] if len(rows) == 1 else None
    if (only and only.context is None and only.whole("succeeded") == 0) or (
        not placed and any(row.guidellm for row in rows)
    ):
        raise InvalidArgument(
            "The file has no request that succeeded with a prompt length that is known.",
            fix="Import a result with successful requests and how long their prompts were.",
        )
    alike = [
        (row.whole("succeeded") or 0) + (row.whole("failed") or 0) == row.whole("concurrency")
        for row in placed
        if row.whole("succeeded") is not None
    ]
    meaning = _Meaning(
        articles=articles,
        several=len({row.whole("answer") for row in placed}) > 1,
        scale=0.01 if any((row.number("share") or 0) > 1.5 for row in placed) else 1.0,
        one_each=articles and bool(alike) and sum(alike) >= _MOST_OF * len(alike),
    )
    tokens = claims.output_tokens or max((row.answer or 0 for row in placed), default=0)
    # Only a detailed result shows whether all answers were of one length.
    lengths = [row.detail.get("output_lens") for row in placed]
    fixed = bool(lengths) and all(
        isinstance(each, list) and len(set(map(str, each))) == 1 for each in lengths
    )
    tool = _tool(placed, articles=articles)
    return Read(
        tool=tool,
        cells=tuple(_cell(row, claims, meaning) for row in placed),
        workload=Workload(
            api="chat" if placed and "chat" in placed[0].text("api") else "completion",
            output_tokens=max(1, round(tokens)),
            fixed_output=fixed and not articles,
            prefix_share=1.0 if articles else 0.0,
        ),
        model=next((row.model for row in placed if row.model), None),
        created_at=_when(placed[0].text("date")) if placed else None,
        articles=articles,
        notes=(
            *(_supposed(placed) if tool == _TABLE else ()),  # a wrong unit spoils every figure
            *_models(placed),
            *_notes(rows, placed, tool, tokens),
        ),
    )


def _tool(rows: Sequence[Row], *, articles: bool) -> str:
    first = rows[0].fields if rows else {}
    marks = (
        ("the articles' sweep script", articles),
        ("guidellm", bool(rows) and rows[0].guidellm),
        (str(first.get(_WRITER)), _WRITER in first),
        ("llmperf", any(name.startswith("results_") for name in first)),
        ("inference-perf", bool(rows) and rows[0].is_of_inference_perf),
        ("sglang bench_serving", "sharegpt_output_len" in first or "accept_length" in first),
        ("vllm bench sweep", "run_number" in first),
        ("vllm bench serve", {"request_throughput", "completed"} <= first.keys()),
    )
    return next((tool for tool, holds in marks if holds), _TABLE)


def _cell(row: Row, claims: Claims, meaning: _Meaning) -> CellResult:
    spec = CellSpec(
        context=row.context or 0,
        load=row.load(articles=meaning.articles) or Load(),
        output_tokens=(row.whole("answer") or None) if meaning.several else None,
    )
    if row.skipped:
        return CellResult(spec=spec, state=CellState.SKIPPED, reason=row.skipped)
    succeeded, failed, sent = row.counts(meaning.scale)
    share, output, total, given = map(row.number, ("share", "output", "total", "input"))
    if output is None and row.rate and meaning.articles:
        output = row.rate * (claims.output_tokens or row.whole("answer") or 1)
    if given is None and total is not None and output is not None and total >= output:
        given = total - output
    # sglang says beside the greatest concurrency what it was on average.
    has_mean = row.guidellm or row.fields.get("max_concurrency")
    said = [Verdict(code=Code.TOOL_WARNING, because=words) for words in _warnings(row.detail)]
    if not (row.counted or meaning.articles) and 0 < succeeded < FEWEST:
        unsaid = "the file does not say of how many requests its figures are"
        said.append(Verdict(code=Code.TOO_FEW_SAMPLES, because=unsaid))
    if meaning.articles and spec.load.arrivals is not Arrivals.ONCE:
        counted = f"{succeeded + failed} requests of one prompt, counted once with ramp and drain"
        said.append(Verdict(code=Code.ARTICLE_METHOD, because=f"{counted}: no steady state"))
    figures = Figures(
        succeeded=succeeded,
        failed=failed,
        sent=row.whole("concurrency") if meaning.one_each and sent is None else sent,
        share=None if share is None else share * meaning.scale,
        wall_seconds=row.wall_seconds(),
        requests_per_second=row.rate,
        output_tokens_per_second=output,
        input_tokens_per_second=given,
        total_tokens_per_second=total,
        answer_tokens=row.number("answer"),
        concurrency_mean=row.number("in_flight") if has_mean else None,
        times={name: spread(succeeded, points) for name, points in row.times.items() if succeeded},
        whole_run=not row.guidellm,
        recounted=row.is_of_inference_perf,
        said=said,
        **{name: row.number(name) for name in ("input_tokens", "output_tokens", "goodput")},
    )
    return make_cell(spec, figures, claims)


def _when(text: str) -> datetime | None:
    for form in ("%Y%m%d-%H%M%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"):
        with suppress(ValueError):
            return datetime.strptime(text, form).replace(tzinfo=UTC)
    return None


def _models(placed: Sequence[Row]) -> Iterator[str]:
    """Say that a file is of several models, where it is."""
    models = dict.fromkeys(row.model for row in placed if row.model)
    if len(models) > 1:
        yield (
            f"It has results of {len(models)} models ({', '.join([*models][:_NAMED])}), and all are"
            " kept as the first's: give a file for each."
        )


def _notes(rows: Sequence[Row], placed: Sequence[Row], tool: str, tokens: float) -> Iterator[str]:
    blank = sum(row.is_blank and row.load(articles=False) is not None for row in rows)
    if blank:
        yield f"{blank} rows name a load and nothing that came of it: they are left out."
    left = len(rows) - len(placed) - blank
    if left and tool == "guidellm":
        yield f"{left} of {len(rows)} benchmarks have no success of known prompt length: left out."
    elif left:
        yield f"{left} rows name no load and are left out."
    if not all(row.context for row in placed):
        yield "The file does not say how long its prompts were: no prefill is judged."
    if not tokens:
        yield "The output length is not in the file: one token is assumed."
    if tool == "guidellm":
        yield "TPOT is guidellm's inter-token latency: the same quotient, weighted by tokens."
    elif placed and "request_throughput" in placed[0].fields:
        yield "Throughput is of the whole run, ramp and drain too; TTFT counts from the sending."
    if any(number(row.fields.get("burstiness")) not in {None, 1.0} for row in placed):
        yield "Gaps between requests have another burstiness than 1: they are taken as Poisson."
    if tool == "llmperf":
        yield "llmperf's inter-token latency has the first token in it: it is no TPOT, left out."
    if tool == _TABLE:
        yield from _not_plain(placed)
    if placed and not any(row.guidellm or row.is_result for row in placed):
        yield "No load is in the file: requests in flight are computed as rate times latency."
