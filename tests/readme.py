"""The generated parts of README and docs.

`python -m tests.readme --write` writes them anew, and `--record` holds the README's conversation
again, on a simulated cloud.
"""

import re
import sys
import tempfile
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, get_args

import anyio
from pydantic import SecretStr
from pydantic.fields import FieldInfo

import first_contact
from core.environment import ROOT
from core.settings import Settings, Toolset
from operations.runtime import Stage
from planner.flags import Flags
from planner.places import Place, accelerator, place
from planner.price import price
from tests.conversation import SETTLED, agent_of
from tests.listing import MAX_TOKENS, listing, tokens
from tests.measure_house import imports
from tools import profile  # noqa: F401  registers the tools
from tools.surface import TOOLS, Registered

README: Final = ROOT / "README.md"
DOCS: Final = ROOT / "docs"

_QUESTIONS: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    (
        "Which GPU for the 12B QAT and four users, at $3 an hour?",
        "recommend_deployment",
        {"model": "12b qat", "users": 4, "max_model_len": 8192, "usd_per_hour": 3},
    ),
    (
        "What does an L4 cost a month at 60 hours?",
        "estimate_cost",
        {"target": "cloud-run-l4", "hours_per_month": 60},
    ),
    (
        "Is the 31B QAT an option on an L4?",
        "plan_deployment",
        {"model": "31b qat", "target": "cloud-run-l4"},
    ),
    (
        "Is the 31B QAT better than the 12B QAT on an A100?",
        "compare_targets",
        {"models": ["31b qat", "12b qat"], "targets": ["aca-a100"]},
    ),
)
"""Asked of a server without clouds: each answer is the same on every machine."""

_CLOUD: Final = "cloud-run-l4"
_CONVERSATION: Final[tuple[tuple[str, str, Mapping[str, Any]], ...]] = (
    (
        "Will the 12B QAT fit on an L4 with 32k tokens?",
        "plan_deployment",
        {"model": "12b qat", "target": _CLOUD, "max_model_len": 32768},
    ),
    (
        "Deploy it for an hour, and tell me when it answers.",
        "deploy_vllm",
        {
            "model": "12b qat",
            "target": _CLOUD,
            "name": "gemma",
            "max_model_len": 32768,
            "ttl_minutes": 60,
        },
    ),
    ("", "status_vllm", {"target": _CLOUD, "name": "gemma", "wait_s": 30}),
    ("Is anything wrong with it?", "diagnose", {"target": _CLOUD, "name": "gemma"}),
    ("Delete it.", "destroy_vllm", {"target": _CLOUD, "name": "gemma"}),
)
"""Told on a simulated cloud; the model that answers there has nothing to say."""

_PARAMETERS: Final = {
    "target": "The target, as `list_targets` names it.",
    "name": "The name of the deployment.",
    "model": "Hub id, folder or short name such as `12b qat`.",
    "confirm": "The token from the preview.",
    "detail": "Everything that is known.",
    "vllm_version": "The vLLM version to plan with.",
    "control_plane": "Compute Engine or the queue of Cloud TPU.",
    "api_key": "The key of that endpoint.",
    "prompt": "What the model is asked.",
    "wake": "Start a model that sleeps. This costs money.",
    "min_replicas": "Replicas that always run; 0 lets it sleep where the target can.",
    "max_replicas": "Replicas under load.",
    "replicas": "How many replicas there are.",
    "users": "People who use it at the same time.",
    "image": "A container image of your own.",
    "access": "Who can reach it.",
    "port": "The port of a local deployment.",
    "max_idle_minutes": "How long after the last request it sleeps.",
    "lease": "Who stops it when its time is over.",
    "schedule": "When it is warm, such as `Mon-Fri 08:55-18:00 Europe/Berlin`.",
    "zone": "The zone of the TPU.",
    "zones": "Zones to search, in order.",
    "zone_wait_minutes": "How long each zone is asked.",
    "minutes": "How far back to look.",
    "limit": "How many at most.",
    "lines": "How many lines.",
    "hours_per_month": "Hours a month in which it runs.",
    "usd_per_hour": "The most that an hour may cost, in dollars.",
    "usd_per_month": "The most that a month may cost, in dollars.",
}
"""What the tool list leaves out because an agent knows it."""


_ROOMS: Final = {
    "tools": "signatures, confirmation, answers",
    "operations": "plan, deploy, watch, diagnose, advise",
    "backends": "the contract, the lifecycle, vLLM's command line",
    "backends.cloud_run": "Cloud Run",
    "backends.aca": "Container Apps",
    "backends.tpu": "Cloud TPU",
    "backends.google": "what Google's two share",
    "backends.local": "this machine",
    "benchmark": "load, validity, reports",
    "planner": "memory, speed, boot, price",
    "logs": "boot phases, failures, reduction",
    "core": "settings, records, errors, journal",
    "simulators": "simulated clouds and engine",
}
"""What stands in each box of the picture of the house."""


def picture() -> str:
    """Return the rooms and who imports whom, without the arrows that others imply."""
    uses: dict[str, set[str]] = {room: set() for room in _ROOMS}
    for module, imported in imports().items():
        uses[_room(module)] |= {_room(one) for one in imported} - {_room(module)}
    for cloud in uses["backends"]:  # the registry names the clouds; each stands on the contract
        if cloud.startswith("backends."):
            uses["operations"].add(cloud)
    uses["backends"] -= {room for room in _ROOMS if room.startswith("backends.")}
    boxes = [f'    {_box(room)}["{room}<br>{holds}"]' for room, holds in _ROOMS.items()]
    arrows = [
        f"    {_box(room)} --> {_box(one)}"
        for room, used in uses.items()
        for one in sorted(used)
        if not any(one in _below(uses, other) for other in used)
    ]
    return "\n".join(["```mermaid", "flowchart TD", *boxes, *arrows, "```"])


def _room(module: str) -> str:
    inner = ".".join(module.split(".")[:2])
    return inner if inner in _ROOMS else module.partition(".")[0]


def _box(room: str) -> str:
    return room.replace(".", "_")


def _below(uses: Mapping[str, set[str]], room: str) -> set[str]:
    return {one for used in uses[room] for one in (used, *_below(uses, used))}


def targets_table() -> str:
    """Return the targets with accelerator, memory and price, as the planner reckons with them."""
    names = tomllib.loads((ROOT / "backends" / "targets.toml").read_text(encoding="utf-8"))
    kinds: dict[str, list[Place]] = {}
    for name in names:
        kinds.setdefault(re.sub(r"-(spot|flex)$", "", name), []).append(place(name))
    return "\n".join(
        [
            "| target | GPU or TPU | memory | $ per hour | sleeps when idle |",
            "|---|---|---|---|---|",
            *(_target_row(*of_kind) for of_kind in kinds.values()),
        ]
    )


def _target_row(first: Place, *others: Place) -> str:
    if first.provider == "own":
        return f"| `{first.name}` | this machine's GPUs, or its CPU | its own | 0 | no |"
    chip = accelerator(first.accelerator)
    named = ", ".join(
        [f"`{first.name}`", *(f"`{one.name.removeprefix(first.name)}`" for one in others)]
    )
    sleeps = "yes, for $0" if first.scale_to_zero else "no: bills until deleted"
    return (
        f"| {named} | {first.count} x {chip.title} | {first.count * (chip.sold_gib or 0):g} GB"
        f" | {', '.join(_hourly(one) for one in (first, *others))} | {sleeps} |"
    )


def _hourly(where: Place) -> str:
    costs = price(where)
    if costs.usd_per_hour is None or costs.usd_per_hour_highest is None:
        return "not known"
    if costs.usd_per_hour != costs.usd_per_hour_highest:
        return f"{costs.usd_per_hour:.2f}-{costs.usd_per_hour_highest:.2f}"
    return f"{costs.usd_per_hour:.2f}{' (not verified)' if costs.doubt else ''}"


async def questions() -> str:
    """Return questions of a new user with the first line of each answer."""
    parts = []
    with tempfile.TemporaryDirectory(prefix="vllm-devops-readme-") as folder:
        settings = Settings(vllm_devops_state_dir=Path(folder), engine="simulated", _env_file=None)
        async with agent_of(settings) as agent:
            for question, tool, arguments in _QUESTIONS:
                reply = await agent.brief(tool, **arguments)
                answer = reply.structured["summary"]
                parts.append(f"**{question}** `{_called(tool, arguments)}`\n\n> {answer}")
    return "\n\n".join(parts)


async def conversation() -> str:
    """Return a conversation as it goes on simulated clouds; each answer with its first line."""
    asked: list[str] = []

    def human(question: str) -> str:
        asked.append(question)
        return "accept"

    said = []
    with tempfile.TemporaryDirectory(prefix="vllm-devops-readme-") as folder:
        settings = Settings(
            vllm_devops_state_dir=Path(folder),
            rehearsal=True,
            google_cloud_project="my-project",
            _env_file=None,
        )
        async with _rehearsed(settings), agent_of(settings, human=human) as agent:
            await agent.brief("setup_target", target=_CLOUD)
            asked.clear()
            for words, tool, arguments in _CONVERSATION:
                reply = await agent.brief(tool, **arguments)
                while tool == "status_vllm" and reply.state not in SETTLED:
                    reply = await agent.brief(tool, **arguments)
                said.append(f"**You:** {words}\n\n" if words else "")
                said[-1] += f"`{_called(tool, arguments)}`<br>\n"
                if asked:
                    said[-1] += f"*asks you:* {asked.pop().splitlines()[0]} *You:* yes<br>\n"
                said[-1] += f"*answers:* {reply.structured['summary']}"
    return "> " + "\n\n".join(said).replace("\n", "\n> ").replace("> \n", ">\n")


@asynccontextmanager
async def _rehearsed(settings: Settings) -> AsyncIterator[None]:
    try:
        yield
    finally:
        Stage(settings).forget_rehearsal()


def _called(tool: str, arguments: Mapping[str, Any]) -> str:
    return f"{tool}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def tools_reference() -> str:
    """Return every tool with all of its parameters, the seldom ones too."""
    parts = []
    for group in get_args(Toolset):
        names = sorted(name for name, one in TOOLS.items() if one.group == group)
        if not names or group == "compat":
            continue
        parts.append(f"## {group}")
        parts.extend(_tool(name, TOOLS[name]) for name in names)
    parts.append(
        "## compat\n\nOld names of the tools above. They can always be called; "
        "`TOOLSETS=compat` lists them.\n"
    )
    rows = (
        f"- `{name}`: {_first_line(one.tool.description)}"
        for name, one in sorted(TOOLS.items())
        if one.group == "compat"
    )
    return "\n\n".join(parts) + "\n".join(["", *rows])


def _tool(name: str, one: Registered) -> str:
    description = " ".join((one.tool.description or "").split())
    listed = "Listed by default." if one.default else f"Listed with `TOOLSETS={one.group}`."
    required = one.tool.parameters.get("required", ())
    rows = [_parameter(key, row, key in required) for key, row in one.parameters.items()]
    return "\n".join(
        [f"### `{name}`", "", f"{description} {listed}", *([""] if rows else ()), *rows]
    )


def _parameter(name: str, row: Mapping[str, Any], required: bool) -> str:  # noqa: FBT001
    choices = row.get("enum") or row.get("items", {}).get("enum")
    kind = row.get("type", "string")
    if kind == "array":
        kind = f"list of {row.get('items', {}).get('type', 'string')}s"
    words = row.get("description") or _PARAMETERS.get(name) or _flag(name)
    facts = [kind]
    if choices:
        facts = [" or ".join(f"`{one}`" for one in choices)]
    if required:
        facts.append("required")
    if "default" in row:
        facts.append(f"default `{row['default']}`")
    return f"- `{name}` ({', '.join(facts)}){': ' if words else ''}{words}"


def _flag(name: str) -> str:
    return f"vLLM's `--{name.replace('_', '-')}`." if name in Flags.model_fields else ""


def settings_table() -> str:
    """Return every setting with its values, default and meaning."""
    rows = [
        f"| `{name.upper()}` | {_values(field)} | {' '.join((field.description or '').split())} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(["| setting | default | what it means |", "|---|---|---|", *rows])


def _values(field: FieldInfo) -> str:
    if SecretStr in get_args(field.annotation):
        return "(secret)"
    default = field.default
    if default is False:
        return "0"
    return "" if default in (None, ()) else f"`{default}`"


async def budget_rows() -> list[str]:
    """Return the table of what each toolset costs, as a server of it lists its tools."""
    groups: tuple[Toolset, ...] = get_args(Toolset)
    adding = [(one,) for one in groups if one in {"all", "compat"} or _adds(one)]
    rows = [await _row(*toolset) for toolset in ((), *adding)]
    return ["| `TOOLSETS` | tools | tokens | longest description |", "|---|---|---|---|", *rows]


def _adds(group: Toolset) -> bool:
    """Whether a group has a tool that is not listed anyway."""
    return any(one.group == group and not one.default for one in TOOLS.values())


async def _row(*toolsets: Toolset) -> str:
    tools = await listing(*toolsets)
    most = f" (at most {MAX_TOKENS[toolsets]:,})" if toolsets in MAX_TOKENS else ""
    longest = max(len(tool.description or "") for tool in tools)
    named = f"`{toolsets[0]}`" if toolsets else "not set"
    return f"| {named} | {len(tools)} | {tokens(tools):,}{most} | {longest} characters |"


async def generated() -> dict[str, str]:
    """Return what stands between each pair of markers."""
    return {
        "rooms": picture(),
        "targets": targets_table(),
        "questions": await questions(),
        "tools": tools_reference(),
        "settings": settings_table(),
        "first contact": first_contact.tables(),
        "budgets": "\n".join(await budget_rows()),
    }


def pages() -> list[Path]:
    """Return the README and every page of the documentation."""
    return [README, *sorted(DOCS.glob("*.md"))]


def part(name: str) -> str:
    """Return what stands between a name's two markers, on the page that has them."""
    text = _page(name).read_text(encoding="utf-8")
    return text.partition(f"<!-- {name} -->\n")[2].partition(f"\n<!-- /{name} -->")[0]


def write(name: str, content: str) -> None:
    """Write one part anew, on the page that has its markers."""
    page = _page(name)
    head, begin, rest = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition(f"<!-- /{name} -->")
    page.write_text(f"{head}{begin}{content}\n{end}{tail}", encoding="utf-8")


def _page(name: str) -> Path:
    for page in pages():
        if f"<!-- /{name} -->" in page.read_text(encoding="utf-8"):
            return page
    raise LookupError(f"No page has markers for {name}.")


def _first_line(description: str | None) -> str:
    return (description or "").strip().splitlines()[0]


if __name__ == "__main__":
    if "--write" in sys.argv:
        for each, content in anyio.run(generated).items():
            write(each, content)
    if "--record" in sys.argv:
        write("conversation", anyio.run(conversation))
