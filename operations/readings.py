"""What can be read of a deployment: address, log, memory, configuration."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
from pydantic import Field

from backends.base import DeploymentConfig, HasLogs, LogQuery, WritesConfig
from core.address import IDENTITY_HEADER, KEY_HEADER, socket_of
from core.endpoint import not_running
from core.errors import EndpointError, NotReady, OpsError, Unsupported
from core.records import Access, Answer, Record, State
from core.redaction import printable, shortened
from core.reply import note
from logs.read import Line, body_of
from logs.reduce import Reducer
from logs.verdict import error_lines, recognize
from operations.resolve import Found
from operations.runtime import MAX_LOG_LINES, Runtime


class Located(Answer):
    """An answer about one deployment."""

    target: str
    name: str


READ_SECONDS: Final = 20.0
"""Of a call's 45 s; the rest is for what is made of the lines."""

Feed = Callable[[Sequence[Line]], None]
"""Takes one page, oldest line first; the newest page comes first."""


class ReadSoFar(Record):
    """How much of a log was read."""

    lines: int
    complete: bool
    left_out: str = ""
    """What was not read, and why."""


async def read_log(
    found: Found,
    query: LogQuery,
    feeds: Sequence[Feed],
    *,
    most_lines: int,
    seconds: float = READ_SECONDS,
    whole_pages: bool = False,
) -> ReadSoFar:
    """Give each page to all feeds, newest first.

    `whole_pages`: the last one too, and one line more than those at least, if there is one.

    Raises:
        Unsupported: The target keeps no logs that can be read from here.
        OpsError: Its platform cannot be asked.
    """
    backend = found.backend
    if not isinstance(backend, HasLogs):
        raise Unsupported(
            f"{found.deployment.target} keeps no logs that can be read from here.",
            fix="Read them where the endpoint runs.",
        )
    lines, enough = 0, False
    with anyio.move_on_after(seconds) as limit:
        async with aclosing(backend.log_pages(found.name, query)) as pages:
            async for page in pages:
                kept = page if whole_pages else page[-(most_lines - lines) :]
                for feed in feeds:
                    feed(kept)
                lines += len(kept)
                if enough := lines >= most_lines + whole_pages:
                    break
                await anyio.lowlevel.checkpoint()
    left_out = f"Whatever is older than {lines} lines." if enough else ""
    if limit.cancelled_caught:
        left_out = f"Older lines: {seconds:.0f} s were over."
    return ReadSoFar(lines=lines, complete=not left_out, left_out=left_out)


def curl(name: str, access: Access, path: str, *, body: str = "") -> str:
    """Write a person's own question, which fetches whatever it must show or trust."""
    header = "".join(
        f' -H "{name}: Bearer $({command})"' for name, command in access.header_commands.items()
    )
    data = ""
    if body:
        quoted = body.replace("'", "'\\''")
        data = f" -H 'Content-Type: application/json' -d '{quoted}'"
    through = f" --unix-socket {shlex.quote(access.socket)}" if access.socket else ""
    asked = f"{through}{header}{data} {access.http_url}{path}"
    if not access.certificate_command:
        return f"curl -sS{asked}"
    file = f"{name}.pem"
    return f"{access.certificate_command} > {file} && curl -sS --cacert {file}{asked}"


def openai_client(name: str, access: Access, model: str) -> str | None:
    """Write the same question in Python, with the openai package; None through a unix socket.

    The shell gives it key and certificate by the variables that the package reads.
    """
    if access.socket:
        return None
    commands = dict(access.header_commands)
    key = commands.pop(KEY_HEADER, None)
    sets = [f"OPENAI_BASE_URL={shlex.quote(f'{access.http_url}/v1')}"]
    sets.append(f'OPENAI_API_KEY="$({key})"' if key else "OPENAI_API_KEY=none")
    if access.certificate_command:
        sets.append(f"SSL_CERT_FILE={name}.pem")
    imports, headers = "", ""
    if identity := commands.get(IDENTITY_HEADER):
        sets.append(f'IDENTITY_TOKEN="$({identity})"')
        imports = "import os\n"
        headers = (
            f'default_headers={{"{IDENTITY_HEADER}": "Bearer " + os.environ["IDENTITY_TOKEN"]}}'
        )
    fetched = f"{access.certificate_command} > {name}.pem\n" if access.certificate_command else ""
    return f"""{fetched}export {" ".join(sets)}
python3 - <<'END'
{imports}from openai import OpenAI

client = OpenAI({headers})
messages = [{{"role": "user", "content": "{_TRIAL}"}}]
answer = client.chat.completions.create(model={model!r}, messages=messages, max_tokens=64)
print(answer.choices[0].message.content)
END"""


_TRIAL: Final = "What is Gemma?"
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
    ask: str
    """The same with a question to the model."""
    python: str | None = None
    """That question by the openai package, as a shell runs it; None through a unix socket."""
    config: DeploymentConfig | None = None
    """What runs as shell commands, as docker run and as YAML for git; None if made elsewhere."""

    def summary(self) -> str:
        path = socket_of(self.url)
        where = f"{self.openai_base_url} (through {path})" if path else self.openai_base_url
        if self.answers:
            return f"{where} answers, as {self.served_model_name}."
        return f"{where} does not answer: {self.name} is {self.state}."

    def facts(self) -> Mapping[str, Any]:
        kept = {"target", "name", "url", "openai_base_url", "served_model_name", "protection"}
        parts = ("a Python example" * bool(self.python), "its YAML for git" * bool(self.config))
        more = " and ".join(filter(None, parts)) or None
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
    nothing: str = Field(default="", exclude=True)
    """What is said where there is no line."""

    def summary(self) -> str:
        if self.kinds is None:
            known = "at least " * self.truncated  # nobody asked for more
            lines = f"the newest {len(self.lines)} of {known}{self.total} lines of {self.name}"
            newest = f"{lines}, newest last." if self.lines else self.nothing
            if self.errors:
                why = shortened(self.errors[0], _BRIEF_LINE)
                return f"{self.name} failed with: {why} … Then {newest}"
            return f"{newest[0].upper()}{newest[1:]}"
        left = f", {self.lines_left_out} lines of other kinds" if self.lines_left_out else ""
        return (
            f"{self.total} lines of {self.name} are of {self.kinds} kinds: the {len(self.rows)}"
            f" most severe and most frequent{left}."
        )

    def facts(self) -> Mapping[str, Any]:
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
        return f"{self.name} as shell commands, as docker run and as YAML."


async def endpoint_info(runtime: Runtime, found: Found) -> EndpointInfo:
    """Say where it answers, how it is protected, how to try it and how it is made."""
    deployment = found.deployment
    try:
        access = runtime.remember_credential(await found.backend.access(found.name))
    except NotReady:
        if error := not_running(deployment):  # then no wait gives it an address
            raise error from None
        raise
    served = deployment.served_model_name
    if deployment.state is State.READY and served == "not known":  # its wish cannot be read
        with suppress(EndpointError):
            async with runtime.endpoint(found.backend, found.name) as endpoint:
                served = await endpoint.model_meant(served)
    question = {
        "model": served,
        "messages": [{"role": "user", "content": _TRIAL}],
        "max_tokens": 64,
    }
    return EndpointInfo(
        target=deployment.target,
        name=found.name,
        url=access.base_url,
        openai_base_url=f"{access.http_url}/v1",
        served_model_name=served,
        protection=access.protection,
        answers=deployment.state is State.READY,
        state=deployment.state,
        curl=curl(found.name, access, "/v1/models"),
        certificate=access.certificate,
        ask=curl(found.name, access, "/v1/chat/completions", body=json.dumps(question)),
        python=openai_client(found.name, access, served),
        config=await written_config(found),
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
    here = {"target": found.deployment.target, "name": found.name}
    if reduce:
        reducer = Reducer(newest_first=True, known=runtime.secrets)
        read = await read_log(found, query, [reducer.feed], most_lines=_MOST_READ)
        if not read.complete:
            note(f"Not read: {read.left_out}")
        reduced = reducer.reduced(most=_MOST_ROWS)
        return Logs(
            **here,
            rows=tuple(map(str, reduced.templates)),
            total=reduced.lines,
            kinds=len(reduced.templates) + reduced.templates_left_out,
            lines_left_out=reduced.lines_left_out,
            truncated=not read.complete or reduced.templates_left_out > 0,
        )
    wanted = min(lines, MAX_LOG_LINES)
    pages: list[Sequence[Line]] = []
    read = await read_log(found, query, [pages.append], most_lines=wanted, whole_pages=True)
    texts = [str(line) for page in reversed(pages) for line in page]
    holds = f" with {contains!r}" if contains else ""
    time = f" of the last {minutes} minutes" if minutes else ""
    return Logs(
        **here,
        errors=() if contains or minutes else _errors(found),
        lines=tuple(map(_shown, texts[-wanted:])),
        total=len(texts),
        truncated=not read.complete,
        nothing=f"no line{holds}{time} is in the log of {found.name}.",
    )


def _errors(found: Found) -> tuple[str, ...]:
    """Return the lines that say why it failed, which often stand before its newest."""
    seen = found.deployment.failure.evidence if found.deployment.failure else ()
    return tuple(map(body_of, seen[:1] if recognize(seen[:1]) else error_lines(seen)))


def _shown(text: str) -> str:
    """Make a line fit to be shown: whoever wrote it may have meant to hide or to turn something."""
    cut = "…" if len(text) > _LINE_CHARACTERS else ""
    return f"{printable(shortened(text, _LINE_CHARACTERS))}{cut}"


async def written_config(found: Found) -> DeploymentConfig | None:
    """Return the deployment as text, None where it was made elsewhere or cannot be read."""
    if isinstance(found.backend, WritesConfig):
        try:
            return await found.backend.config(found.name)
        except OpsError as exc:
            note(f"Its configuration could not be read: {exc.summary}")
    return None


async def config(found: Found) -> Config:
    """Return the deployment as text.

    Raises:
        Unsupported: It was not made here.
        OpsError: It cannot be read.
    """
    if not isinstance(found.backend, WritesConfig):
        raise Unsupported(
            f"{found.deployment.target} was not configured from here.", fix="Ask whoever runs it."
        )
    text = await found.backend.config(found.name)
    return Config(target=found.deployment.target, name=found.name, config=text)
