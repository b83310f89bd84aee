"""What can be read of a deployment: its address, its log, its configuration."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from backends.base import DeploymentConfig, HasLogs, LogLines, LogQuery, WritesConfig
from core.errors import OpsError, Unsupported
from core.records import State, socket_of
from core.redaction import printable, shortened
from core.reply import note
from logs.failures import error_lines, recognize
from logs.read import Line, body_of
from logs.reduce import Reducer
from operations.limits import MAX_LOG_LINES
from operations.resolve import Found
from operations.runtime import Runtime
from operations.watching.answers import Located
from operations.watching.log_reading import read_log
from operations.watching.snippets import curl, snippets

_MOST_READ: Final = 2_000_000
"""Lines of one call; its time is over before, unless the log lies on this machine."""
_MOST_ROWS: Final = 40
_BRIEF_CHARACTERS: Final = 1_600
_BRIEF_LINE: Final = 200
"""Of lines and of a line that are shown to whoever asks for nothing more."""
_LINE_CHARACTERS: Final = 4_000
"""Of a line that is shown; vLLM's longest, its configuration, has some 3,000."""


class EndpointInfo(Located):
    """Where a deployment answers."""

    url: str
    openai_base_url: str
    """For any OpenAI client."""
    served_model_name: str
    protection: str
    answers: bool
    """Whether /health said yes just now."""
    state: State
    curl: str
    """Fetches its own credential: no key is in it."""
    certificate: str | None = None
    """PEM, of a server that signs for itself: clients must trust it, and may trust it alone."""
    snippets: Mapping[str, str] = {}
    """Code that asks it; no key is in it."""
    config: DeploymentConfig | None = None
    """What runs as shell commands, as docker run and as YAML for git; None if made elsewhere."""

    def summary(self) -> str:
        """Say where, and whether it answers."""
        answers = "answers" if self.answers else f"does not answer: it is {self.state}"
        path = socket_of(self.url)
        where = f"{self.openai_base_url} (through {path})" if path else self.openai_base_url
        return f"{where} {answers}, as {self.served_model_name}."

    def facts(self) -> Mapping[str, Any]:
        """Give what a client must know, and what detail="full" has beside it."""
        kept = {"target", "name", "url", "openai_base_url", "served_model_name", "protection"}
        yaml = ", its configuration as YAML for git" if self.config else ""
        more = f"code for curl and the openai package{yaml}"
        return {**self.model_dump(include=kept), "curl": self.curl, "in full": more}


class Logs(Located):
    """The newest lines of an engine's log, or what all of them come down to."""

    errors: tuple[str, ...] = ()
    """Of one that failed: what says why."""
    lines: tuple[str, ...] = ()
    """Newest last."""
    rows: tuple[str, ...] = ()
    """Instead of lines: one for each kind of line, the gravest first."""
    total: int
    """Lines that were read, or that there are."""
    kinds: int | None = None
    """Of lines, where they were reduced."""
    lines_left_out: int = 0
    """Of kinds that are not among the rows."""
    truncated: bool

    def summary(self) -> str:
        """Say how many of how many."""
        if self.kinds is None:
            newest = f"the newest {len(self.lines)} of {self.total} lines of {self.name}"
            if self.errors:
                why = shortened(self.errors[0], _BRIEF_LINE)
                return f"{self.name} failed with: {why} … Then {newest}, newest last."
            return f"{newest[0].upper()}{newest[1:]}, newest last."
        left = f", {self.lines_left_out} lines of other kinds" if self.lines_left_out else ""
        return (
            f"{self.total} lines of {self.name} are of {self.kinds} kinds: the {len(self.rows)}"
            f" most severe and most frequent{left}."
        )

    def facts(self) -> Mapping[str, Any]:
        """Return the newest lines that there is room for, the rest on request."""
        room, lines = _BRIEF_CHARACTERS - sum(map(len, self.errors)), list[str]()
        for line in reversed(self.lines) if self.lines else self.rows:
            short = shortened(line, _BRIEF_LINE)
            room -= len(short)
            if room < 0:
                break
            lines.append(short)
        errors = [one for one in self.errors if one not in self.summary()]
        return {
            "errors": errors,
            "rows" if self.rows else "lines": lines[:: -1 if self.lines else 1],
        }


class Config(Located):
    """A deployment as commands and files for a person."""

    config: DeploymentConfig

    def summary(self) -> str:
        """Say what it is."""
        return f"{self.name} as shell commands, as docker run and as YAML."


async def endpoint_info(runtime: Runtime, found: Found) -> EndpointInfo:
    """Say where it answers, how it is protected, how to try it and how it is made."""
    access = runtime.keep_quiet(await found.backend.access(found.name))
    deployment = found.deployment
    return EndpointInfo(
        target=deployment.target,
        name=found.name,
        url=access.base_url,
        openai_base_url=f"{access.http_url}/v1",
        served_model_name=deployment.served_model_name,
        protection=access.protection,
        answers=deployment.state is State.READY,
        state=deployment.state,
        curl=curl(found.name, access, "/v1/models"),
        certificate=access.certificate,
        snippets=snippets(found.name, access, deployment.served_model_name),
        config=await _config(found),
    )


async def logs(
    runtime: Runtime,
    found: Found,
    *,
    lines: int,
    contains: str | None,
    minutes: int | None = None,
    reduce: bool = False,
) -> Logs:
    """Give the newest lines, of so many minutes if they are said; or all of them, reduced.

    Raises:
        Unsupported: The target keeps no logs that can be read from here.
        OpsError: Its platform cannot be asked.
    """
    since = datetime.now(UTC) - timedelta(minutes=minutes) if minutes else None
    query = LogQuery(since=since, contains=(contains,) if contains else ())
    if reduce:
        return await _reduced(runtime, found, query)
    if minutes:
        return await _newest(found, query, lines)
    return await _newest_of_all(found, lines=lines, contains=contains)


async def _reduced(runtime: Runtime, found: Found, query: LogQuery) -> Logs:
    reducer = Reducer(newest_first=True, known=runtime.secrets)
    read = await read_log(found, query, [reducer.feed], most_lines=_MOST_READ)
    if not read.complete:
        note(f"Not read: {read.left_out}")
    reduced = reducer.reduced(most=_MOST_ROWS)
    return Logs(
        target=found.deployment.target,
        name=found.name,
        rows=tuple(map(str, reduced.templates)),
        total=reduced.lines,
        kinds=len(reduced.templates) + reduced.templates_left_out,
        lines_left_out=reduced.lines_left_out,
        truncated=not read.complete or reduced.templates_left_out > 0,
    )


async def _newest(found: Found, query: LogQuery, lines: int) -> Logs:
    wanted = min(lines, MAX_LOG_LINES)
    pages: list[Sequence[Line]] = []
    read = await read_log(found, query, [pages.append], most_lines=wanted)
    texts = [str(line) for page in reversed(pages) for line in page]
    return Logs(
        target=found.deployment.target,
        name=found.name,
        lines=tuple(map(_shown, texts)),
        total=len(texts),
        truncated=not read.complete,
    )


def _errors(found: Found) -> tuple[str, ...]:
    """Return the lines that say why it failed, which often stand before its newest."""
    seen = found.deployment.failure.evidence if found.deployment.failure else ()
    return tuple(map(body_of, seen[:1] if recognize(seen[:1]) else error_lines(seen)))


async def _newest_of_all(found: Found, *, lines: int, contains: str | None) -> Logs:
    if not isinstance(found.backend, HasLogs):
        raise Unsupported(
            f"{found.deployment.target} keeps no logs that can be read from here.",
            fix="Read them where the endpoint runs.",
        )
    seen: LogLines = await found.backend.logs(
        found.name, lines=min(lines, MAX_LOG_LINES), contains=contains
    )
    return Logs(
        target=found.deployment.target,
        name=found.name,
        errors=() if contains else _errors(found),
        lines=tuple(map(_shown, seen.lines)),
        total=seen.total,
        truncated=seen.total > len(seen.lines),
    )


def _shown(text: str) -> str:
    """Make a line fit to be shown: whoever wrote it may have meant to hide or to turn something."""
    cut = "…" if len(text) > _LINE_CHARACTERS else ""
    return f"{printable(shortened(text, _LINE_CHARACTERS))}{cut}"


async def _config(found: Found) -> DeploymentConfig | None:
    """Return the deployment as text, None where it was made elsewhere or cannot be read."""
    if not isinstance(found.backend, WritesConfig):
        return None
    try:
        return await found.backend.config(found.name)
    except OpsError as exc:
        note(f"Its configuration could not be read: {exc.summary}")
        return None


async def config(found: Found) -> Config:
    """Give the deployment as text."""
    if not isinstance(found.backend, WritesConfig):
        raise Unsupported(
            f"{found.deployment.target} was not configured from here.",
            fix="Ask whoever runs it.",
        )
    return Config(
        target=found.deployment.target,
        name=found.name,
        config=await found.backend.config(found.name),
    )
