"""Help: tools, settings, concepts, codes and failures, found by whatever a person types."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from pydantic import SecretStr

from backends.common.preflight import read_needs
from benchmark.figures import limits
from core import VERSION
from core.environment import ROOT, read_toml
from core.errors import NextStep, NotFound, OpsError
from core.records import Answer, Record, listed
from core.redaction import redact
from core.settings import Settings
from logs.failures import WRITERS, catalogue
from operations.case import ills
from operations.measurement import folders
from operations.resolve import deployed
from operations.runtime import Runtime
from planner import catalog

KINDS: Final = frozenset({"target", "name", "model", "run"})
"""What can be chosen: the arguments of prompts and of addresses that are not free text."""

Given = Mapping[str, str]
"""What was said before, by the names of the arguments."""


def choices(runtime: Runtime, what: str, given: Given) -> list[str]:
    """Return what `what` may be, likeliest first; no cloud and no engine is asked."""
    known: list[str] = []
    with suppress(OSError, OpsError):  # a folder or a journal that cannot be read
        known.extend(_known(runtime, what, given))
    return [word for word in dict.fromkeys(known) if redact(word, runtime.secrets) == word]


def fitting(typed: str, known: Iterable[str]) -> list[str]:
    """Keep what begins as was typed, then what holds it elsewhere; case does not matter.

    >>> fitting("E4", ["google/gemma-4-E4B-it", "e4b", "tpu"])
    ['e4b', 'google/gemma-4-E4B-it']
    """
    wanted = typed.lower()
    holding = [word for word in known if wanted in word.lower()]
    return sorted(holding, key=lambda word: not word.lower().startswith(wanted))


def _known(runtime: Runtime, what: str, given: Given) -> Iterator[str]:
    match what:
        case "target":
            yield from (*runtime.stage.usable, *runtime.stage.targets)
        case "name":
            for one in reversed(deployed(runtime.stage.journal)):
                if given.get("target") in {None, "", one.target}:
                    yield one.name
        case "model":
            own = runtime.settings.model_name
            yield from (*([own] if own else []), *(entry.model for entry in catalog.entries()))
        case "run":
            yield from (folder.path.name for folder in folders(runtime))


Kind = Literal[
    "tool", "how-to", "concept", "setting", "argument", "error", "failure", "benchmark verdict"
]
_ORDER: Final[tuple[Kind, ...]] = get_args(Kind)
"""Of things with one name, the one that is explained first."""
_DATA: Final = Path(__file__).with_name("help.toml")
_MOST: Final = 5
"""Entries of one answer."""
_NEAREST: Final = 3
_ENOUGH: Final = 2
"""The score from which an entry counts as found: a word of its name, or two of its text; of a
single word, one."""
_ROLES: Final = "permissions on "
_RIGHTS: Final = ("roles", "permissions", "rights", "iam", "identity")
_SMALL_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        "a an and are at be by can do does for from give how i if in is it me mean means my of on"
        " or please show tell that the there this to use what which who why with you your",
    )
)
_STEM: Final = 4
"""Letters from which the beginning of a word stands for the word: rotate, rotates."""


class ToolText(NamedTuple):
    """What is known of a registered tool."""

    description: str
    parameters: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]


class Entry(Record):
    """One thing that is explained."""

    name: str
    kind: Kind
    says: str
    value: str | None = None
    """Of a setting; secrets only as «set»."""
    listed: str = ""
    """How a tool is listed that this profile does not list."""
    parameters: dict[str, str] = {}
    """Of a tool, with type and meaning."""
    see: tuple[str, ...] = ()
    """Tools, arguments and settings that help."""
    also: tuple[str, ...] = ()
    """Other names that people type."""


class RoleRow(Record):
    """One role that the identity of this server needs in a cloud."""

    cloud: str
    role: str
    why: str
    permissions: tuple[str, ...]


class Help(Answer):
    """What this server can do, or what one thing means."""

    version: str = VERSION
    topic: str | None = None
    entries: tuple[Entry, ...] = ()
    roles: tuple[RoleRow, ...] = ()
    exact: bool = True
    """Whether something is called so; else these are the nearest."""

    def summary(self) -> str:
        if self.topic is None:
            tools = [one for one in self.entries if one.kind == "tool"]
            settings = len(self.entries) - len(tools)
            groups = ", ".join(dict.fromkeys(one.listed for one in tools))
            return (
                f"{len(tools)} tools and {settings} settings, to {groups}; get_help(topic=…)"
                " explains a tool, argument, setting, concept or error code."
            )
        if self.exact:
            first = self.entries[0]
            value = f" is {first.value}" if first.kind == "setting" else ""
            return f"{first.name}{value}: {first.says}"
        names = ", ".join(one.name for one in self.entries)
        return f"Nothing is called '{self.topic}'; these have to do with it: {names}."

    def facts(self) -> Mapping[str, Any]:
        if self.topic is None:
            tools = [one for one in self.entries if one.kind == "tool"]
            groups = dict.fromkeys(one.listed for one in tools)
            return {
                "version": self.version,
                "tools": {
                    group: ", ".join(one.name for one in tools if one.listed == group)
                    for group in groups
                },
                "settings": {one.name: one.value for one in self.entries if one.kind == "setting"},
            }
        if not self.exact:
            return {one.name: f"{one.kind}. {one.says}" for one in self.entries}
        roles: dict[str, dict[str, str]] = {}
        for row in self.roles:
            whys = roles.setdefault(row.cloud, {})
            whys[row.role] = f"{whys[row.role]}; {row.why}" if row.role in whys else row.why
        first, *others = self.entries
        kept = first.model_dump(include={"kind", "value", "listed", "parameters", "see"})
        more = {f"{one.name} ({one.kind})": one.says for one in others}
        return {**kept, **more, **roles}


def explain(
    runtime: Runtime, topic: str | None, tools: Mapping[str, ToolText], groups: Mapping[str, str]
) -> Help:
    """Give the listed tools and the settings in short, or what a topic means.

    Raises:
        NotFound: Nothing has to do with the topic; the error names the nearest.
    """
    if topic is None:
        return Help(entries=tuple(_overview(runtime, tools, groups)))
    entries = tuple(_everything(runtime, tools, groups))
    wanted = _plain(topic)
    if found := sorted(
        (one for one in entries if wanted in _names(one)), key=lambda one: _ORDER.index(one.kind)
    ):
        return _about(topic, found[:_MOST])
    if found := _matching(wanted, entries):
        whole = [one for one in found if _has_all(wanted, one)]
        if len(whole) == 1:
            return _about(topic, whole)
        return Help(topic=topic, entries=tuple(found), exact=False)
    nearest = _nearest(wanted, entries)
    raise NotFound(
        f"Nothing here has to do with '{topic[:60]}'.",
        fix=f"Did you mean {', '.join(nearest[:-1])} or {nearest[-1]}?",
        next_steps=tuple(NextStep("get_help", {"topic": name}) for name in nearest),
    )


def _about(topic: str, entries: Sequence[Entry]) -> Help:
    """Explain what is called so; of rights also what each role is for."""
    clouds = {one.name.removeprefix(_ROLES) for one in entries}
    roles = tuple(row for row in _roles() if {row.cloud, "permissions"} & clouds)
    return Help(topic=topic, entries=tuple(entries), roles=roles)


def _overview(
    runtime: Runtime, tools: Mapping[str, ToolText], groups: Mapping[str, str]
) -> Iterator[Entry]:
    for name, tool in tools.items():
        if name in runtime.listed:
            first = tool.description.strip().splitlines()[0]
            yield Entry(name=name, kind="tool", says=first, listed=groups[name])
    yield from (row for row in _settings(runtime) if row.value != "not set")


def _everything(
    runtime: Runtime, tools: Mapping[str, ToolText], groups: Mapping[str, str]
) -> Iterator[Entry]:
    """Give every entry; of those with the same name the first is the one that is meant."""
    for name, tool in tools.items():
        yield Entry(
            name=name,
            kind="tool",
            says=" ".join(tool.description.split()),
            listed="" if name in runtime.listed else f"with TOOLSETS={groups[name]}",
            parameters=dict(_parameters(tool)),
        )
    yield _unlisted(runtime, groups)
    yield from _arguments(tools)
    yield from _settings(runtime)
    yield from _written()
    yield from _rights()
    yield from _codes()


def _unlisted(runtime: Runtime, groups: Mapping[str, str]) -> Entry:
    hidden = [name for name in groups if name not in runtime.listed]
    of = {group: [name for name in hidden if groups[name] == group] for group in groups.values()}
    names = "; ".join(f"{group}: {', '.join(tools)}" for group, tools in of.items() if tools)
    return Entry(
        name="tools that are not listed",
        kind="how-to",
        says=f"{len(hidden)} tools can be called and are not listed; TOOLSETS=all, or their groups,"
        f" lists them. {names}.",
        also=("hidden tools", "other tools", "all tools", "more tools", "toolsets"),
    )


def _parameters(tool: ToolText) -> Iterator[tuple[str, str]]:
    for name, row in tool.parameters.items():
        words = row.get("description") or read_toml(_DATA)["argument"].get(name, "")
        yield name, f"{_type(row)}{', required' if name in tool.required else ''}. {words}".strip()


def _type(row: Mapping[str, Any]) -> str:
    kind = " or ".join(map(str, row["enum"])) if "enum" in row else str(row.get("type", "any"))
    if kind == "array":
        kind = f"list of {row.get('items', {}).get('type', 'any')}s"
    return f"{kind}, default {row['default']}" if "default" in row else kind


def _arguments(tools: Mapping[str, ToolText]) -> Iterator[Entry]:
    """Give each argument once, with every meaning that it has and the tools that take it."""
    meanings: dict[str, dict[str, list[str]]] = {}
    for tool, text in tools.items():
        for name, words in _parameters(text):
            meanings.setdefault(name, {}).setdefault(words, []).append(tool)
    for name, rows in meanings.items():
        said = [f"{words} (of {listed(takers, most=_NEAREST)})" for words, takers in rows.items()]
        yield Entry(name=name, kind="argument", says=" ".join(said))


def _settings(runtime: Runtime) -> Iterator[Entry]:
    for name, field in Settings.model_fields.items():
        value = getattr(runtime.settings, name)
        shown = "set" if isinstance(value, SecretStr) else str(value)
        yield Entry(
            name=name.upper(),
            kind="setting",
            says=" ".join((field.description or "").split()),
            value="not set" if value in {None, ()} else shown,
        )


@cache
def _written() -> tuple[Entry, ...]:
    """Return what the file explains; `{models}` are those of the catalog."""
    sizes = (one.model.removeprefix("google/") for one in catalog.entries() if not one.quantized)
    models = ", ".join(size.removesuffix("-it") for size in sizes)
    return tuple(
        Entry.model_validate({**row, "says": row["says"].replace("{models}", models)})
        for row in read_toml(_DATA)["entry"]
    )


@cache
def _rights() -> tuple[Entry, ...]:
    """Return for each cloud the roles that whoever deploys needs, by whatever people call them."""
    return tuple(
        Entry(
            name=f"{_ROLES}{needs['title']}",
            kind="how-to",
            says=f"{', '.join(dict.fromkeys(row['role'] for row in needs['permissions']))}.",
            also=tuple(
                f"{word} {rights}"
                for word in (*needs["also"], needs["title"].lower())
                for rights in _RIGHTS
            ),
        )
        for needs in _needs()
    )


@cache
def _needs() -> tuple[dict[str, Any], ...]:
    files = sorted((ROOT / "backends").glob("*/needs.toml"))
    return tuple(read_needs(file.parent.name) for file in files)


@cache
def _codes() -> tuple[Entry, ...]:
    """Give what every code means: of errors, of failures in a log, of spoiled benchmark cells."""
    found: dict[str, Entry] = {}
    for error in _errors():
        again = "Retryable." if error.retryable else "Not retryable."
        says = f"{' '.join((error.__doc__ or '').split())} {again}"
        found.setdefault(error.code, Entry(name=error.code, kind="error", says=says))
    for row in (one for writer in WRITERS for one in catalogue(writer)):
        says = f"{_without_figures(row.cause)} {_without_figures(row.fix)}".strip()
        found.setdefault(row.code, Entry(name=row.code, kind="failure", says=says))
    for code, one in ills().items():
        says = _without_figures(f"{one['cause']} {one['fix']}".replace("{again}", "{anew}"))
        found.setdefault(code, Entry(name=code, kind="failure", says=says))
    for limit in limits().values():
        found.setdefault(
            limit.code, Entry(name=limit.code, kind="benchmark verdict", says=limit.why)
        )
    return tuple(found.values())


def _errors(kind: type[OpsError] = OpsError) -> Iterator[type[OpsError]]:
    for one in kind.__subclasses__():
        if one.__doc__ and "code" in vars(one):
            yield one
        yield from _errors(one)


def _without_figures(words: str) -> str:
    return re.sub(r"(\{[^{}]+\})+", "…", words)


@cache
def _roles() -> tuple[RoleRow, ...]:
    """Give what each cloud's `needs.toml` asks of whoever deploys."""
    return tuple(
        RoleRow(
            cloud=needs["title"], role=row["role"], why=row["why"], permissions=tuple(row["names"])
        )
        for needs in _needs()
        for row in needs["permissions"]
    )


def _names(entry: Entry) -> set[str]:
    return {_plain(name) for name in (entry.name, *entry.also)}


def _plain(text: str) -> str:
    """Write a topic as its words alone.

    >>> _plain("What does KV-cache mean?")
    'kv cache'
    >>> _plain("get_help")
    'get help'
    """
    words = re.findall(r"[a-z0-9]+", text.lower())
    return " ".join([word for word in words if word not in _SMALL_WORDS] or words)


def _matching(wanted: str, entries: Iterable[Entry]) -> list[Entry]:
    """Give the entries with most of the words in name or text, the best first."""
    words = wanted.split()
    scored = [(_score(words, one), one) for one in entries]
    best = max(score for score, _ in scored)
    enough = min(_ENOUGH, len(words))
    if best < enough:
        return []
    scored = [row for row in scored if row[0] >= max(enough, best / 2)]
    return [one for _, one in sorted(scored, key=lambda row: -row[0])][:_MOST]


def _score(words: list[str], entry: Entry) -> float:
    names = set(" ".join(_names(entry)).split())
    text = set(_plain(entry.says).split())
    named = sum(any(_same(word, name) for name in names) for word in words)
    told = sum(any(_same(word, other) for other in text) for word in words)
    return 2 * named + told


def _has_all(wanted: str, entry: Entry) -> bool:
    names = set(" ".join(_names(entry)).split())
    return entry.kind in {"how-to", "concept"} and names >= set(wanted.split())


def _same(word: str, other: str) -> bool:
    if word == other:
        return True
    short, long = sorted((word, other), key=len)
    return len(short) >= _STEM and long.startswith(short)


def _nearest(wanted: str, entries: Iterable[Entry]) -> list[str]:
    def likeness(entry: Entry) -> float:
        return max(SequenceMatcher(None, wanted, name).ratio() for name in _names(entry))

    ranked = sorted(entries, key=likeness, reverse=True)
    return list(dict.fromkeys(one.name for one in ranked))[:_NEAREST]
