"""What `server.py doctor` looks at; nothing is changed, and nothing that sleeps is woken."""

import os
import platform
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
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
from backends.local.process import Engine, find_vllm
from core.endpoint import trusted
from core.environment import ROOT, inherited_environment
from core.errors import CloudUnavailable, HostError, NotAuthenticated, OpsError
from core.journal import Journal
from core.records import Record, Target
from core.redaction import redact
from core.settings import Settings
from operations.clients import clients
from operations.clients import look as clients_look
from operations.runtime import Stage

_LONGEST: Final = 300
"""Characters of a sentence: a cloud's own words go on for pages."""

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
        """Say it in one sentence."""
        number = len(self.findings)
        if not self.ok:
            failed = [one.about for one in self.findings if one.verdict == "failed"]
            return f"{len(failed)} of {number} fail: {', '.join(failed)}."
        missing, warned = (
            sum(one.verdict == verdict for one in self.findings)
            for verdict in ("missing", "warning")
        )
        return (
            f"Nothing that is needed fails. Looked at: {number}; not set up: {missing};"
            f" warnings: {warned}."
        )


class Look(NamedTuple):
    """One look, which may block."""

    area: str
    about: str
    find: Callable[[], Iterable[Finding]]
    seconds: float
    """After so long it is left alone; it may still hang then."""
    hung: Verdict = "warning"
    """What that means."""


def all_of(looks: Sequence[Look]) -> Report:
    """Look at everything at once; no look keeps the others, or the end, waiting."""
    found: dict[int, tuple[Finding, ...]] = {}

    def run(number: int, look: Look) -> None:
        found[number] = _found(look)

    # Not anyio's threads, which the end of the program would wait for.
    threads = [
        threading.Thread(target=run, args=one, daemon=True, name=f"look at {one[1].about}")
        for one in enumerate(looks)
    ]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread, look in zip(threads, looks, strict=True):
        thread.join(max(0.0, began + look.seconds - time.monotonic()))
    hung = [thread.is_alive() for thread in threads]
    rows = (
        found.get(number) or (_silent(look, hung=hung[number]),)
        for number, look in enumerate(looks)
    )
    return Report(findings=tuple(one for row in rows for one in row), finished=not any(hung))


def plain(words: str) -> str:
    """Give the first lines of somebody else's words as one short sentence, without secrets."""
    said: str = redact(" ".join(words.split()), ())
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]} …"


def _found(look: Look) -> tuple[Finding, ...]:
    try:
        return tuple(look.find())
    except OpsError as exc:
        said = plain(f"{exc.summary} {exc.cause}")
        return (_row(look.area, look.about, "failed", said, plain(exc.fix)),)


def _silent(look: Look, *, hung: bool) -> Finding:
    if hung:
        why = f"No answer within {look.seconds:g} s."
        fix = "Look at network and proxies, then run it again."
        return _row(look.area, look.about, look.hung, why, fix)
    return _row(look.area, look.about, "failed", "The look broke; see above.", "Report it.")


_GIB: Final = 1024**3
_LITTLE_GIB: Final = 1.0
_GET_ENGINE: Final = "Run `make vllm` for one on this CPU, or set VLLM_EXECUTABLE to yours."
_INSTALL: Final = "Run `make install`."


def python() -> Iterator[Finding]:
    """Say which Python runs, and whether every package is there in a version that will do."""
    where = f"Python {platform.python_version()}, {sys.executable}"
    if sys.prefix != sys.base_prefix:
        yield _row("install", "Python", "ok", where)
    else:
        fix = f"{_INSTALL} It makes .venv, and server.py goes on in it."
        yield _row("install", "Python", "warning", f"{where}: not an environment of its own.", fix)
    wrong = "; ".join(_unmet(ROOT / "requirements.txt"))
    all_there = "All that requirements.txt names, as it wants them."
    yield _row(
        "install",
        "packages",
        "failed" if wrong else "ok",
        wrong or all_there,
        _INSTALL if wrong else "",
    )


def _unmet(requirements: Path) -> Iterator[str]:
    from packaging.requirements import Requirement

    for line in requirements.read_text(encoding="utf-8").splitlines():
        wanted = line.partition("#")[0].strip()
        if not wanted:
            continue
        asked = Requirement(wanted)
        try:
            there = version(asked.name)
        except PackageNotFoundError:
            yield f"{asked.name} is missing"
            continue
        if there not in asked.specifier:
            yield f"{asked.name} is {there}, wanted {asked.specifier}"


def settings_of(env_file: Path) -> Iterator[Finding]:
    """Say which settings are set, by name, and which cannot be."""
    try:
        settings = Settings()
    except ValidationError as exc:
        rows = exc.errors(include_url=False, include_input=False)
        said = "; ".join(f"{str(row['loc'][0]).upper()}: {row['msg']}" for row in rows)
        yield _settings("failed", f"These cannot be: {said}.", "Correct them, or unset them.")
        return
    names = sorted(name.upper() for name in settings.model_fields_set)
    yield _settings("ok", f"Set: {', '.join(names)}." if names else "None is set.")
    known = Stage(settings).targets
    if settings.vllm_target and settings.vllm_target not in known:
        said = f"VLLM_TARGET names no target: {', '.join(known)}."
        yield _settings("failed", said, "Name one of them.")
    if env_file.exists() and env_file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        said = "Others on this machine can read .env, which may hold a token."
        yield _settings("warning", said, f"chmod 600 {env_file}")


def _settings(verdict: Verdict, detail: str, fix: str = "") -> Finding:
    return _row("install", "settings", verdict, detail, fix)


def disk(settings: Settings) -> Iterator[Finding]:
    """Say whether there is room for what is kept and downloaded."""
    yield _room("state folder", Stage(settings).folder, "VLLM_DEVOPS_STATE_DIR")
    from huggingface_hub.constants import HF_HUB_CACHE

    yield _room("models' cache", Path(HF_HUB_CACHE), "HF_HOME")


def journal(settings: Settings) -> Iterator[Finding]:
    """Say whether the journal can be read.

    Raises:
        HostError: It is damaged, or out of reach.
    """
    kept = Journal(Stage(settings).folder / "journal.db", read_only=True)
    last = kept.operations(1) if kept.exists else ()
    said = "Nothing has been written down yet."
    if last:
        said = f"It can be read; last: {last[0].tool}, {last[0].at:%F %H:%M} UTC."
    yield _row("disk", "journal", "ok", said)


def _room(about: str, folder: Path, variable: str) -> Finding:
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        fix = f"Set {variable} to a folder of yours."
        return _row("disk", about, "failed", f"{there} cannot be written to.", fix)
    free = shutil.disk_usage(there).free / _GIB
    detail = f"{folder}: {free:.1f} GiB free."
    if free < _LITTLE_GIB:
        fix = f"Make room there, or set {variable} to a folder with more."
        return _row("disk", about, "warning", detail, fix)
    return _row("disk", about, "ok", detail)


def engine(settings: Settings) -> Iterator[Finding]:
    """Say which engine the target `local` would start, and on what."""
    found = find_vllm(settings.vllm_executable, ROOT)
    if settings.engine == "simulated":
        yield _engine("ok", "ENGINE=simulated: `local` is served by the simulated one.")
    elif found:
        yield _engine("ok", f"{found.label}: {found.command[0]}")
        yield _accelerator(settings, found)
    elif settings.engine == "real" or settings.vllm_executable:
        said = "The one that VLLM_EXECUTABLE names" if settings.vllm_executable else "A real one"
        yield _engine("failed", f"{said} is not there.", _GET_ENGINE)
    else:
        said = "There is no real one; `local` is served by the simulated one."
        yield _engine("missing", said, _GET_ENGINE)


def _engine(verdict: Verdict, detail: str, fix: str = "") -> Finding:
    return _row("engine", "vLLM", verdict, detail, fix)


def _accelerator(settings: Settings, found: Engine) -> Finding:
    here = read_devices(settings.accelerator_type, cpu_only=found.cpu_only)
    if here:
        return _row("engine", "accelerator", "ok", f"{here.number} x {here.accelerator.title}")
    fix = "Set ACCELERATOR_TYPE if there is one, or install its driver."
    return _row("engine", "accelerator", "warning", "None is known here.", fix)


LOGIN: Final[Mapping[str, str]] = {
    "google": "oauth2.googleapis.com",
    "azure": "login.microsoftonline.com",
}
"""Who must answer before a login can be tried."""
_HOSTS: Final[Mapping[str, tuple[str, ...]]] = {
    "google": (
        LOGIN["google"], "run.googleapis.com", "tpu.googleapis.com", "compute.googleapis.com",
        "secretmanager.googleapis.com", "logging.googleapis.com", "monitoring.googleapis.com",
    ),
    "azure": (LOGIN["azure"], "management.azure.com"),
    "hub": ("huggingface.co",),
}  # fmt: skip
_WHOAMI: Final = "https://huggingface.co/api/whoami-v2"
_REACH_SECONDS: Final = 3.0
_LOOK_SECONDS: Final = 5.0
"""Looking up a name may hang for longer than any timeout of the connection."""
_SKEW_SECONDS: Final = (60.0, 240.0)
"""Worth a word; and what logins refuse: clouds allow five minutes."""


def reach_looks(settings: Settings) -> Iterator[Look]:
    """Give one look for each host that these settings need."""
    for area in needed(settings):
        for host in _HOSTS[area]:
            yield Look(area, host, partial(_reached, area, host), _LOOK_SECONDS, _without(area))
    if settings.hf_token:
        yield Look("hub", "HF_TOKEN", partial(_token, settings), _LOOK_SECONDS)


def needed(settings: Settings) -> tuple[str, ...]:
    """Name whom these settings need: a rehearsal needs no cloud."""
    if settings.rehearsal:
        return ()
    google = ("google",) if settings.google_cloud_project else ()
    azure = ("azure",) if settings.azure_subscription_id else ()
    return (*google, *azure, "hub")


def _without(area: str) -> Verdict:
    """Say what it means that an API cannot be reached: without the Hub most things work."""
    return "warning" if area == "hub" else "failed"


def _reached(area: str, host: str) -> Iterator[Finding]:
    began = time.time()
    try:
        answer = _client().head(f"https://{host}/")
    except httpx2.HTTPError as exc:
        said = f"It cannot be reached: {type(exc).__name__}."
        yield _row(area, host, _without(area), said, _how(exc))
        return
    seconds = time.time() - began
    yield _row(area, host, "ok", f"It answers in {seconds:.1f} s.")
    yield from clock(host, answer.headers.get("date"), (began + time.time()) / 2)


def clock(host: str, date: str | None, now: float) -> Iterator[Finding]:
    """Say that the clock is wrong; one that is right is not worth a line for each host."""
    try:
        skew = now - parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return
    little, much = _SKEW_SECONDS
    if abs(skew) < little:
        return
    said = f"This machine's clock is {skew:+.0f} s from that of {host}."
    fix = "Set it by NTP (timedatectl set-ntp true): logins are refused when it is far off."
    yield _row("network", "clock", "failed" if abs(skew) > much else "warning", said, fix)


def _token(settings: Settings) -> Iterator[Finding]:
    token = settings.hf_token
    assert token
    headers = {"Authorization": f"Bearer {token.get_secret_value()}"}
    try:
        status = _client().get(_WHOAMI, headers=headers).status_code
    except httpx2.HTTPError as exc:
        said = f"The Hub could not be asked: {type(exc).__name__}."
        yield _row("hub", "HF_TOKEN", "warning", said)
        return
    if status != httpx2.codes.UNAUTHORIZED:
        yield _row("hub", "HF_TOKEN", "ok", "The Hub knows it.")
        return
    fix = (
        "Make a new one (huggingface.co/settings/tokens), or unset it: with a bad one even public"
        " models are refused."
    )
    yield _row("hub", "HF_TOKEN", "failed", "The Hub does not know it, or no longer.", fix)


def _client() -> httpx2.Client:
    """Open what asks; what the environment says of proxies and authorities may not be usable.

    Nothing of that is repeated: a proxy's address may hold a password.
    """
    try:
        return httpx2.Client(verify=trusted(), timeout=_REACH_SECONDS)
    except (ValueError, ImportError, httpx2.InvalidURL) as exc:
        said = "A proxy that the environment names cannot be used."
        fix = "Let HTTPS_PROXY, HTTP_PROXY and ALL_PROXY begin with http:// and name host and port."
        raise HostError(said, fix=fix) from exc


def _how(exc: httpx2.HTTPError) -> str:
    if "CERTIFICATE" in str(exc).upper():
        return "Something between signs in its place: let SSL_CERT_FILE name its authority."
    return "Look at the network, a firewall, or HTTPS_PROXY."


_CLOUDS_SECONDS: Final = 14.0
"""A machine that is none of the cloud's looks for its metadata server for some seconds."""
_TITLES: Final = {"google": "Google Cloud", "azure": "Azure"}
_SETTING: Final = {"google": "google_cloud_project", "azure": "azure_subscription_id"}
_LOGIN: Final = "Run `gcloud auth application-default login`."
_RUN_OUT: Final = f"{_LOGIN} The one that is kept has run out or was withdrawn."


def cloud_looks(settings: Settings, unreachable: Sequence[str]) -> Iterator[Look]:
    """Give one look for each cloud; `unreachable` are hosts that did not answer just now."""
    for area, find in (("google", _google), ("azure", _azure)):
        yield Look(
            area,
            f"{_TITLES[area]} login",
            _asked(area, find, settings, unreachable),
            _CLOUDS_SECONDS,
        )


def _asked(area: str, find: Any, settings: Settings, unreachable: Sequence[str]) -> Any:
    name, setting = _TITLES[area], _SETTING[area]

    row = partial(_row, area, f"{name} login")

    def look() -> Iterator[Finding]:
        if settings.rehearsal:
            yield row("ok", "A rehearsal needs none.")
        elif not getattr(settings, setting):
            said = f"{setting.upper()} is not set: nothing can be deployed on {name}."
            yield row("missing", said, "Set it (`source init.sh` asks for it) if you want to.")
        elif LOGIN[area] in unreachable:
            yield row("warning", f"Not tried: {LOGIN[area]} cannot be reached.")
        else:
            yield row("ok", find(settings))

    return look


def _google(settings: Settings) -> str:
    """Fetch a token and forget it; say whose it is."""
    from google.auth.exceptions import GoogleAuthError, TransportError
    from google.auth.transport.requests import Request

    clients = GoogleClients(*_stage(settings, "google_cloud_project"))
    found: Any = anyio.run(clients.credentials)
    try:
        if not found.valid:
            found.refresh(Request())
    except TransportError as exc:
        said = "Google does not answer: give a token."
        raise CloudUnavailable(said, cause=plain(str(exc)), fix="Run it again.") from exc
    except GoogleAuthError as exc:
        said = "Google refuses the login that is kept."
        raise NotAuthenticated(said, cause=plain(str(exc)), fix=_RUN_OUT) from exc
    kind = type(found).__module__.partition("google.")[2] or type(found).__module__
    return f"A token for {settings.google_cloud_project} can be had ({kind})."


def _azure(settings: Settings) -> str:
    """Fetch a token and forget it."""

    async def ask() -> None:
        clients = Clients(*_stage(settings, "azure_subscription_id"))
        try:
            await clients.caller()
        finally:
            await clients.aclose()

    anyio.run(ask)
    return f"A token for subscription {settings.azure_subscription_id} can be had."


def _stage(settings: Settings, needs: str) -> tuple[Target, World]:
    stage = Stage(settings)
    target = next(one for one in stage.targets.values() if one.needs == needs)
    return target, World(settings, stage.folder, ())


def configured() -> Iterator[Finding]:
    """Say of each client whose configuration is there whether it starts this checkout."""
    seen = [one for one in clients_look(ROOT, inherited_environment()) if one.state != "absent"]
    for one in seen:
        name, write = one.client.name, f"Run `make mcp-config CLIENT={one.client.name} WRITE=1`."
        told: Mapping[str, tuple[Verdict, str]] = {
            "well": ("ok", ""),
            "off": ("missing", f"Switch it on there, or in {one.client.title}, if you want it."),
            "without": ("missing", write),
            "wrong": ("warning", write),
            "unreadable": ("warning", f"Mend it, or see `make mcp-config CLIENT={name}`."),
        }
        verdict, fix = told[one.state]
        yield _row("clients", one.client.title, verdict, one.detail, fix)
    if not seen:
        first, *others = (client.name for client in clients())
        fix = f"Run `make mcp-config CLIENT={first} WRITE=1`; or one of: {', '.join(others)}."
        said = "None that is known is configured here."
        yield _row("clients", "MCP clients", "missing", said, fix)


_NEAR_SECONDS: Final = 8.0


def examined() -> Report:
    """Look at everything, in at most 25 s."""
    try:
        settings: Settings | None = Settings()
    except ValidationError:  # told among the findings
        settings = None
    first = all_of([*_near(), *(_of(settings) if settings else ())])
    if settings is None:
        return first
    unreachable = [one.about for one in first.findings if one.verdict != "ok"]
    second = all_of(tuple(cloud_looks(settings, unreachable)))
    findings = (*first.findings, *second.findings)
    return Report(findings=_once(findings), finished=first.finished and second.finished)


def _near() -> Iterator[Look]:
    env_file = ROOT / ".env"
    yield Look("install", "Python", python, _NEAR_SECONDS)
    yield Look("install", "settings", partial(settings_of, env_file), _NEAR_SECONDS)
    yield Look("clients", "MCP clients", configured, _NEAR_SECONDS)


def _of(settings: Settings) -> Iterator[Look]:
    yield Look("disk", "disk", partial(disk, settings), _NEAR_SECONDS)
    yield Look("disk", "journal", partial(journal, settings), _NEAR_SECONDS)
    yield Look("engine", "vLLM", partial(engine, settings), _NEAR_SECONDS)
    yield from reach_looks(settings)


def _once(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Put what belongs together side by side, and let one host speak for the clock."""
    clocks = [one for one in findings if one.about == "clock"]
    areas = tuple(dict.fromkeys(one.area for one in findings))
    kept = (one for one in findings if one.about != "clock" or one is clocks[0])
    return tuple(sorted(kept, key=lambda one: areas.index(one.area)))
