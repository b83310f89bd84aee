"""What stands beside the tools: resources, prompts, skills and completion."""

import json
import re
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from logging import DEBUG
from typing import Any, Final

from fastmcp import FastMCP
from fastmcp.exceptions import NotFoundError, ResourceError, ValidationError
from fastmcp.prompts import Prompt, PromptArgument
from fastmcp.resources import Resource, ResourceTemplate
from fastmcp.server.completions import MAX_COMPLETION_VALUES, CompletionReference
from fastmcp.server.context import Context
from fastmcp.server.providers import Provider
from fastmcp.skills import Skill as AgentSkill
from fastmcp.skills.provider import SkillsDirectoryProvider
from fastmcp.utilities.components import FastMCPComponent
from fastmcp.utilities.versions import VersionSpec
from mcp.types import Completion, CompletionArgument, CompletionContext, PromptReference
from pydantic import Field

from core.environment import ROOT
from core.errors import InvalidArgument, NotFound, OpsError
from core.records import Answer
from core.redaction import one_line, redact
from core.reply import collecting_notes, in_full, outgoing, success
from core.settings import REHEARSAL, Settings
from operations import targets
from operations.resolve import find
from operations.runtime import Runtime
from tools.surface import TOOLS, offered, runtime

SKILLS: Final = ROOT / "skills"
_FENCE: Final = "---\n"
_CALL: Final = re.compile(r"`(\w+)(?:`|\()")


PROFILES: Final[Sequence[str]] = TOOLS["run_benchmark"].parameters["profile"]["enum"]
ARGUMENTS: Final[Mapping[str, str]] = {
    "model": "Hub id such as google/gemma-4-E4B-it, folder, or `12b qat`.",
    "target": "Where it runs or shall run, as list_targets calls it.",
    "name": "The deployment's name; needed where several could be meant.",
    "profile": f"How much is measured: {', '.join(PROFILES)}.",
    "symptom": "What was seen, in the user's own words.",
    "max_model_len": "The longest request in tokens, prompt and answer.",
    "users": "How many ask at once, as a whole number.",
    "hours_per_month": "Hours in which it is used.",
    "usd_per_month": "What it may cost at most, in dollars.",
}
"""What a prompt may be given, by name; a skill's front matter says which of them it takes.

Clients send all of it as text; whether a value can be is for the tool that it is given to.
"""


class SkillPrompt(Prompt):
    """A skill that a person can start from a menu."""

    body: str = Field(exclude=True)
    """Markdown, without the front matter."""

    @property
    def writes(self) -> bool:
        """Whether it has anything changed: a server that only looks would refuse that step."""
        named = _CALL.findall(self.body)
        return any(TOOLS[name].writes for name in named if name in TOOLS)

    async def render(self, arguments: Mapping[str, Any] | None = None) -> str:
        """Give the procedure, and what was said before it.

        Raises:
            ValidationError: An argument is missing or unknown.
        """
        secrets = runtime().secrets
        said = {name: text for name, text in (arguments or {}).items() if text not in {None, ""}}
        takes = {one.name: one.required for one in self.arguments or ()}
        lacks = sorted(name for name, required in takes.items() if required and name not in said)
        missing = [f"{name} is missing" for name in lacks]
        unknown = [
            f"{name[:60]} is none of {', '.join(takes)}" for name in said if name not in takes
        ]
        if wrong := "; ".join((*missing, *unknown)):
            words = str(redact(f"{self.name} does not take these arguments: {wrong}.", secrets))
            raise ValidationError(words, log_level=DEBUG)
        return str(redact(f"{_front(takes, said)}\n\n{self.body}\n", secrets))


def _skills() -> Iterator[SkillPrompt]:
    """Make a prompt of every skill, in the order of their names."""
    for folder in sorted(SKILLS.iterdir()):
        read = AgentSkill.from_directory(folder)
        metadata: Any = read.frontmatter.root.get("metadata", {})
        required = metadata.get("required", "").split()
        yield SkillPrompt(
            name=read.name,
            title=metadata.get("title", read.name),
            description=read.description,
            arguments=[
                PromptArgument(name=name, description=ARGUMENTS[name], required=name in required)
                for name in metadata.get("arguments", "").split()
            ],
            body=read.files["SKILL.md"].decode().split(_FENCE, 2)[-1].strip(),
        )


def _front(takes: Iterable[str], said: Mapping[str, str]) -> str:
    """Say what is known, in the words that stand in the calls."""
    # On one line, so that what a person said can never pass for a step.
    given = [f"- {name.upper()} is {one_line(text, 2_000)}" for name, text in said.items()]
    open_ = [name.upper() for name in takes if name not in said]
    rest = (
        f"Not said: {', '.join(open_)}. Leave it out of the calls, take it from an answer, or ask."
    )
    known = ["The user said:", *given] if given else []
    head = "Follow this procedure with the tools of this server."
    return "\n".join([head, "", *known, *([rest] if open_ else [])])


_LONGEST: Final = 2_000
"""Characters of an error."""
_JSON: Final = "application/json"
_MARKDOWN: Final = "text/markdown"


class Missing(ResourceError, NotFoundError):
    """There is nothing at that address: the protocol has a code for it."""


async def _json(looking: Awaitable[Answer]) -> str:
    """Give what a tool would give as its structured half."""
    rt = runtime()
    with collecting_notes() as notes:
        try:
            answer = await looking
        except OpsError as exc:
            raise _readable(exc) from exc
        with in_full(full=True):
            envelope = success(answer, notes, offered(rt))
    news = [REHEARSAL] if rt.settings.rehearsal else []
    envelope["warnings"] = [*news, *envelope["warnings"]]
    return json.dumps(outgoing(envelope, rt.secrets), ensure_ascii=False, indent=1)


def _readable(exc: OpsError) -> ResourceError:
    """Put an error of ours into the protocol's words; where nothing is, there is one for that."""
    if isinstance(exc, NotFound | InvalidArgument):
        return Missing(one_line(exc.summary, _LONGEST), log_level=DEBUG)
    words = one_line(f"{exc.code}: {exc.summary} {exc.fix}", _LONGEST)
    return ResourceError(redact(words, runtime().secrets), log_level=DEBUG)


async def _targets() -> str:
    return await _json(targets.list_all(runtime()))


async def _deployment(target: str, name: str) -> str:
    async def seen() -> Answer:
        return (await find(runtime().stage, target, name)).deployment

    return await _json(seen())


async def _report(run: str) -> str:
    from operations import benchmarks

    rt = runtime()
    try:
        return str(redact(benchmarks.report(rt, run), rt.secrets))
    except OpsError as exc:
        raise _readable(exc) from exc


def _template(
    fn: Any, uri: str, name: str, title: str, description: str, mime_type: str = _JSON
) -> ResourceTemplate:
    return ResourceTemplate.from_function(
        fn, uri, name=name, title=title, description=description, mime_type=mime_type
    )


RESOURCES: Final = (
    Resource.from_function(
        _targets,
        "vllm://targets",
        name="targets",
        title="Targets",
        mime_type=_JSON,
        description="The places a model can run: accelerator, price, engine, what is missing; as"
        " list_targets.",
    ),
)
TEMPLATES: Final = (
    _template(
        _deployment,
        "vllm://deployments/{target}/{name}",
        "deployment",
        "One deployment",
        "State, address and cost of a deployment; no model is asked or woken.",
    ),
    _template(
        _report,
        "vllm://benchmarks/{run}/report",
        "benchmark-report",
        "Benchmark report",
        "The report of a benchmark run as Markdown, or its progress while it is measured.",
        _MARKDOWN,
    ),
)


_VARIABLES: Final = {one.uri_template: set(one.parameters["properties"]) for one in TEMPLATES}


def completed(
    rt: Runtime,
    prompts: Sequence[Prompt],
    ref: CompletionReference,
    argument: CompletionArgument,
    given: CompletionContext | None,
) -> Completion:
    """Give at most a hundred values; what is not known has none, and nothing is an error."""
    from operations.help import KINDS, choices, fitting

    if isinstance(ref, PromptReference):
        named = (one for one in prompts if one.name == ref.name)
        takes = {one.name for prompt in named for one in prompt.arguments or ()}
    else:
        takes = _VARIABLES.get(ref.uri, set())
    known: Sequence[str] = ()
    if argument.name in takes:
        if argument.name in KINDS:
            known = choices(rt, argument.name, (given and given.arguments) or {})
        elif argument.name == "profile":
            known = PROFILES
    found = fitting(argument.value, known)
    return Completion(
        values=found[:MAX_COMPLETION_VALUES],
        total=len(found),
        has_more=len(found) > MAX_COMPLETION_VALUES,
    )


def furnish(server: FastMCP[Any], settings: Settings) -> None:
    """Add to a server what its clients can read and choose without calling a tool."""
    furniture = Furniture(settings)

    async def complete(
        ref: CompletionReference, argument: CompletionArgument, given: CompletionContext | None
    ) -> Completion:

        async with Context(fastmcp=server):
            prompts = await furniture.list_prompts()
            return completed(runtime(), prompts, ref, argument, given)

    server.add_provider(furniture)
    server.add_completion_handler(complete)


class Furniture(Provider):
    """Made when a client first asks for it: a start need not wait for what few look at.

    The same for every connection, and in the same order.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self._settings = settings

    @cached_property
    def _skills(self) -> SkillsDirectoryProvider:
        return SkillsDirectoryProvider(SKILLS)

    @cached_property
    def _prompts(self) -> Sequence[Prompt]:
        return [one for one in _skills() if not (self._settings.read_only and one.writes)]

    async def _list_resources(self) -> Sequence[Resource]:
        """Give those of ours, then the skills themselves, named for people and in order."""
        main = [
            one for one in await self._skills.list_resources() if one.name.endswith("/SKILL.md")
        ]
        titles = (f"Skill: {one.name.removesuffix('/SKILL.md').replace('-', ' ')}" for one in main)
        named = (
            one.model_copy(update={"title": title}) for one, title in zip(main, titles, strict=True)
        )
        return [*RESOURCES, *sorted(named, key=lambda one: one.name)]

    async def _get_resource(self, uri: str, version: VersionSpec | None = None) -> Resource | None:
        if uri.startswith("skill://"):  # a skill's manifest is there without being listed
            return await self._skills.get_resource(uri, version)
        return await super()._get_resource(uri, version)

    async def _list_resource_templates(self) -> Sequence[ResourceTemplate]:
        return TEMPLATES

    async def _list_prompts(self) -> Sequence[Prompt]:
        return self._prompts

    async def get_tasks(self) -> Sequence[FastMCPComponent]:
        """Give none; FastMCP asks at each start, and would have everything here made for it."""
        return ()
