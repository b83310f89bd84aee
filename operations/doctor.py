"""What `server.py doctor` looks at; nothing is changed, and nothing that sleeps is woken."""

import json
import os
import platform
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import anyio
import httpx2
from pydantic import ValidationError

from backends.aca.site import Clients
from backends.base import World
from backends.google.clients import GoogleClients
from backends.local.devices import read_devices
from backends.local.process import find_vllm
from core.endpoint import trusted
from core.environment import ROOT, inherited_environment
from core.errors import CloudUnavailable, HostError, NotAuthenticated, OpsError
from core.journal import Journal
from core.records import Record, Target
from core.redaction import one_line, redact
from core.settings import Settings
from operations.clients import SCRIPT, SERVER_KEY, clients
from operations.runtime import Stage

_LONGEST: Final = 300
"""Characters of a sentence: a cloud's own words go on for pages."""
_NEAR_SECONDS: Final = 8.0
_REACH_SECONDS: Final = 3.0
_LOGIN_SECONDS: Final = 14.0
"""A machine that is none of the cloud's looks for its metadata server for some seconds."""
_LITTLE_GIB: Final = 1.0
_INSTALL: Final = "Run `make install`."
_GET_ENGINE: Final = "Run `make vllm` for one on this CPU, or set VLLM_EXECUTABLE to yours."
_WHOAMI: Final = "https://huggingface.co/api/whoami-v2"
_LOGIN: Final = "Run `gcloud auth application-default login`."


Verdict = Literal["ok", "missing", "warning", "failed"]
"""`missing` is not needed for the rest; `failed` is."""


class Finding(Record):
    """One thing that was looked at."""

    area: str
    about: str
    verdict: Verdict
    detail: str
    fix: str = ""
    """What to do now, in one line."""


def _row(area: str, about: str, verdict: Verdict, detail: str, fix: str = "") -> Finding:
    return Finding(area=area, about=about, verdict=verdict, detail=detail, fix=fix)


class Report(Record):
    """Everything that was looked at."""

    findings: tuple[Finding, ...]
    finished: bool = True
    """Whether every look came to its end."""

    @property
    def ok(self) -> bool:
        """Whether nothing that is needed fails."""
        return all(one.verdict != "failed" for one in self.findings)

    def summary(self) -> str:
        by = {
            verdict: [one.about for one in self.findings if one.verdict == verdict]
            for verdict in ("failed", "missing", "warning")
        }
        number = len(self.findings)
        if not self.ok:
            return f"{len(by['failed'])} of {number} fail: {', '.join(by['failed'])}."
        return (
            f"Nothing that is needed fails. Looked at: {number}; not set up:"
            f" {len(by['missing'])}; warnings: {len(by['warning'])}."
        )


class Look(NamedTuple):
    """One look, which may block."""

    area: str
    about: str
    find: Callable[[], Iterable[Finding]]
    seconds: float
    """After so long it is left alone; it may still hang then."""


def examined() -> Report:
    """Look at everything, in at most 14 s."""
    try:
        settings: Settings | None = Settings()
    except ValidationError:  # told among the findings
        settings = None
    return all_of([*_near(settings), *(cloud_looks(settings) if settings else ())])


def all_of(looks: Sequence[Look]) -> Report:
    """Look at everything at once; no look keeps the others, or the end, waiting."""
    found: dict[int, tuple[Finding, ...]] = {}

    def run(number: int, look: Look) -> None:
        try:
            found[number] = tuple(look.find())
        except OpsError as exc:
            said = _plain(f"{exc.summary} {exc.cause}")
            found[number] = (_row(look.area, look.about, "failed", said, _plain(exc.fix)),)

    # Not anyio's threads, which the end of the program would wait for.
    threads = [
        threading.Thread(target=run, args=one, daemon=True, name=f"look at {one[1].about}")
        for one in enumerate(looks)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    finished, findings = True, list[Finding]()
    for number, (thread, look) in enumerate(zip(threads, looks, strict=True)):
        thread.join(max(0.0, began + look.seconds - time.monotonic()))
        if number in found:
            findings += found[number]
        elif thread.is_alive():
            finished = False
            why, fix = f"No answer within {look.seconds:g} s.", "Look at network and proxies."
            findings.append(_row(look.area, look.about, "warning", why, fix))
        else:
            why, fix = "The look broke; see above.", "Report it."
            findings.append(_row(look.area, look.about, "failed", why, fix))
    return Report(findings=tuple(findings), finished=finished)


def _plain(words: str) -> str:
    """Return the beginning of somebody else's words on one line, without secrets."""
    return one_line(redact(words, ()), _LONGEST)


def _near(settings: Settings | None) -> Iterator[Look]:
    yield Look("install", "Python", python, _NEAR_SECONDS)
    yield Look("install", "settings", partial(settings_of, ROOT / ".env"), _NEAR_SECONDS)
    yield Look("clients", "MCP clients", configured, _NEAR_SECONDS)
    if settings:
        yield Look("disk", "disk", partial(_disk, settings), _NEAR_SECONDS)
        yield Look("disk", "journal", partial(_journal, settings), _NEAR_SECONDS)
        yield Look("engine", "vLLM", partial(engine, settings), _NEAR_SECONDS)


def python() -> Iterator[Finding]:
    """Say which Python runs, and whether every package is there in a version that will do."""
    where = f"Python {platform.python_version()}, {sys.executable}"
    if sys.prefix != sys.base_prefix:
        yield _row("install", "Python", "ok", where)
    else:
        fix = f"{_INSTALL} It makes .venv, and server.py goes on in it."
        yield _row("install", "Python", "warning", f"{where}: not an environment of its own.", fix)
    if wrong := "; ".join(_unmet(ROOT / "requirements.txt")):
        yield _row("install", "packages", "failed", wrong, _INSTALL)
    else:
        all_there = "All that requirements.txt names, as it wants them."
        yield _row("install", "packages", "ok", all_there)


def _unmet(requirements: Path) -> Iterator[str]:
    from packaging.requirements import Requirement

    lines = requirements.read_text(encoding="utf-8").splitlines()
    for wanted in filter(None, (line.partition("#")[0].strip() for line in lines)):
        asked = Requirement(wanted)
        try:
            there = version(asked.name)
        except PackageNotFoundError:
            yield f"{asked.name} is missing"
        else:
            if there not in asked.specifier:
                yield f"{asked.name} is {there}, wanted {asked.specifier}"


def settings_of(env_file: Path) -> Iterator[Finding]:
    """Say which settings are set, by name, and which cannot be."""
    row = partial(_row, "install", "settings")
    try:
        settings = Settings()
    except ValidationError as exc:
        rows = exc.errors(include_url=False, include_input=False)
        said = "; ".join(f"{str(one['loc'][0]).upper()}: {one['msg']}" for one in rows)
        yield row("failed", f"These cannot be: {said}.", "Correct them, or unset them.")
        return
    names = sorted(name.upper() for name in settings.model_fields_set)
    yield row("ok", f"Set: {', '.join(names)}." if names else "None is set.")
    known = Stage(settings).targets
    if settings.vllm_target and settings.vllm_target not in known:
        said = f"VLLM_TARGET names no target: {', '.join(known)}."
        yield row("failed", said, "Name one of them.")
    if env_file.exists() and env_file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        said = "Others on this machine can read .env, which may hold a token."
        yield row("warning", said, f"chmod 600 {env_file}")


def _disk(settings: Settings) -> Iterator[Finding]:
    """Say whether there is room for what is kept and downloaded."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folders = (
        ("state folder", Stage(settings).folder, "VLLM_DEVOPS_STATE_DIR"),
        ("models' cache", Path(HF_HUB_CACHE), "HF_HOME"),
    )
    for about, folder, variable in folders:
        there = next(path for path in (folder, *folder.parents) if path.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            fix = f"Set {variable} to a folder of yours."
            yield _row("disk", about, "failed", f"{there} cannot be written to.", fix)
            continue
        free = shutil.disk_usage(there).free / 2**30
        little = free < _LITTLE_GIB
        fix = f"Make room there, or set {variable} to a folder with more." if little else ""
        detail = f"{folder}: {free:.1f} GiB free."
        yield _row("disk", about, "warning" if little else "ok", detail, fix)


def _journal(settings: Settings) -> Iterator[Finding]:
    kept = Journal(Stage(settings).folder / "journal.db", read_only=True)
    last = kept.operations(1) if kept.exists else ()
    said = "Nothing has been written down yet."
    if last:
        said = f"It can be read; last: {last[0].tool}, {last[0].at:%F %H:%M} UTC."
    yield _row("disk", "journal", "ok", said)


def engine(settings: Settings) -> Iterator[Finding]:
    """Say which engine the target `local` would start, and on what."""
    row = partial(_row, "engine", "vLLM")
    found = find_vllm(settings.vllm_executable, ROOT)
    if settings.engine == "simulated":
        yield row("ok", "ENGINE=simulated: `local` is served by the simulated one.")
    elif found:
        yield row("ok", f"{found.label}: {found.command[0]}")
        here = read_devices(settings.accelerator_type, cpu_only=found.cpu_only)
        if here:
            said = f"{here.number} x {here.accelerator.title}"
            yield _row("engine", "accelerator", "ok", said)
        else:
            fix = "Set ACCELERATOR_TYPE if there is one, or install its driver."
            yield _row("engine", "accelerator", "warning", "None is known here.", fix)
    elif settings.engine == "real" or settings.vllm_executable:
        said = "The one that VLLM_EXECUTABLE names" if settings.vllm_executable else "A real one"
        yield row("failed", f"{said} is not there.", _GET_ENGINE)
    else:
        said = "There is no real one; `local` is served by the simulated one."
        yield row("missing", said, _GET_ENGINE)


def configured() -> Iterator[Finding]:
    """Say of each client whose file is there whether it names this checkout; nothing is quoted."""
    environment = inherited_environment()
    script = json.dumps(str(ROOT / SCRIPT), ensure_ascii=False)
    seen = False
    for client in clients():
        row = partial(_row, "clients", client.title)
        file, fix = client.place(environment), f"Run `make mcp-config CLIENT={client.name}`."
        try:
            if not file.is_file():
                continue
            text, seen = file.read_bytes().decode(), True
        except (OSError, UnicodeError) as exc:
            yield row("warning", f"{file} cannot be read: {type(exc).__name__}.", fix)
            continue
        if SERVER_KEY not in text:
            yield row("missing", f"{file} does not name {SERVER_KEY}.", fix)
        elif script in text:
            yield row("ok", f"{file} names this checkout.")
        elif SCRIPT in text:
            yield row("warning", f"{file} starts another checkout's {SCRIPT}.", fix)
        else:
            yield row("ok", f"{file} names {SERVER_KEY}: an address.")
    if not seen:
        said = "None that is known is configured here."
        yield _row("clients", "MCP clients", "missing", said, "Run `make mcp-config`.")


def _token(settings: Settings) -> Iterator[Finding]:
    row = partial(_row, "hub", "HF_TOKEN")
    token = settings.hf_token
    assert token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
    try:
        status = _client().get(_WHOAMI, headers=headers).status_code
    except httpx2.HTTPError as exc:
        said, fix = f"The Hub could not be asked: {type(exc).__name__}.", "Look at HTTPS_PROXY."
        yield row("warning", said, fix)
        return
    if status != httpx2.codes.UNAUTHORIZED:
        yield row("ok", "The Hub knows it.")
        return
    fix = (
        "Make a new one (huggingface.co/settings/tokens), or unset it: with a bad one even public"
        " models are refused."
    )
    yield row("failed", "The Hub does not know it, or no longer.", fix)


def _client() -> httpx2.Client:
    """Open what asks; of a proxy that cannot be used nothing is repeated: it may hold a password.

    Raises:
        HostError: What the environment says of proxies cannot be used.
    """
    try:
        return httpx2.Client(verify=trusted(), timeout=_REACH_SECONDS)
    except (ValueError, ImportError, httpx2.InvalidURL) as exc:
        said = "A proxy that the environment names cannot be used."
        fix = "Let HTTPS_PROXY, HTTP_PROXY and ALL_PROXY begin with http:// and name host and port."
        raise HostError(said, fix=fix) from exc


def cloud_looks(settings: Settings) -> Iterator[Look]:
    """Yield one look for each login; a token that can be had has also crossed the network."""
    clouds = (
        ("google", "Google Cloud", "google_cloud_project", _google),
        ("azure", "Azure", "azure_subscription_id", _azure),
    )
    for area, title, setting, log_in in clouds:
        about = f"{title} login"
        find = partial(_login, partial(_row, area, about), title, setting, log_in, settings)
        yield Look(area, about, find, _LOGIN_SECONDS)
    if settings.hf_token:
        yield Look("hub", "HF_TOKEN", partial(_token, settings), _LOGIN_SECONDS)


def _login(
    row: Callable[..., Finding],
    title: str,
    setting: str,
    log_in: Callable[[Settings], str],
    settings: Settings,
) -> Iterator[Finding]:
    if settings.rehearsal:
        yield row("ok", "A rehearsal needs none.")
    elif not getattr(settings, setting):
        said = f"{setting.upper()} is not set: nothing can be deployed on {title}."
        yield row("missing", said, "Set it (`source init.sh` asks for it) if you want to.")
    else:
        yield row("ok", log_in(settings))


def _google(settings: Settings) -> str:
    """Fetch a token and forget it; say whose it is."""
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.auth.transport.requests import Request

    found: Any = anyio.run(GoogleClients(*_world(settings, "google_cloud_project")).credentials)
    try:
        if not found.valid:
            found.refresh(Request())
    except TransportError as exc:
        said = "Google does not answer: give a token."
        raise CloudUnavailable(said, cause=_plain(str(exc)), fix="Run it again.") from exc
    except GoogleAuthError as exc:
        said = "Google refuses the login that is kept."
        fix = f"{_LOGIN} The one that is kept has run out or was withdrawn."
        raise NotAuthenticated(said, cause=_plain(str(exc)), fix=fix) from exc
    kind = type(found).__module__.partition("google.")[2] or type(found).__module__
    return f"A token for {settings.google_cloud_project} can be had ({kind})."


def _azure(settings: Settings) -> str:
    """Fetch a token and forget it."""

    async def ask() -> None:
        caller = Clients(*_world(settings, "azure_subscription_id"))
        try:
            await caller.caller()
        finally:
            await caller.aclose()

    anyio.run(ask)
    return f"A token for subscription {settings.azure_subscription_id} can be had."


def _world(settings: Settings, needs: str) -> tuple[Target, World]:
    stage = Stage(settings)
    target = next(one for one in stage.targets.values() if one.needs == needs)
    return target, World(settings, stage.folder, ())
