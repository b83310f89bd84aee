"""The README's tables, made from what there is: `python -m tests.readme --write`."""

import sys
from typing import get_args

import anyio

from core.settings import ROOT, Settings, Toolset
from tests.listing import MAX_TOKENS, listing, tokens
from tools import every  # noqa: F401  registers them
from tools.surface import TOOLS

README = ROOT / "README.md"


def tools_table() -> str:
    rows = [
        f"| `{name}` | {one.group} | {'yes' if one.default else ''} "
        f"| {_first_line(one.tool.description)} |"
        for name, one in sorted(TOOLS.items(), key=lambda row: (row[1].group, row[0]))
    ]
    return "\n".join(["| tool | group | by default | what it does |", "|---|---|---|---|", *rows])


def settings_table() -> str:
    rows = [
        f"| `{name.upper()}` | {' '.join((field.description or '').split())} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(["| setting | what it means |", "|---|---|", *rows])


async def budget_rows() -> list[str]:
    """Give the table of what each toolset costs, as a server of it lists its tools."""
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


def refreshed(text: str) -> str:
    """Give the README with the tables of tools and settings made anew."""
    for name, table in (("tools", tools_table()), ("settings", settings_table())):
        text = between(text, name, table)
    return text


def between(text: str, name: str, content: str) -> str:
    """Put content between a name's two markers."""
    head, _, rest = text.partition(f"<!-- {name} -->\n")
    _, end, tail = rest.partition(f"<!-- /{name} -->")
    if not end:
        raise LookupError(f"The README has no markers for {name}.")
    return f"{head}<!-- {name} -->\n{content}\n{end}{tail}"


def write(name: str, content: str) -> None:
    """Write one part of the README anew."""
    README.write_text(between(README.read_text(encoding="utf-8"), name, content), encoding="utf-8")


def _first_line(description: str | None) -> str:
    return (description or "").strip().splitlines()[0].replace("|", "\\|")


if __name__ == "__main__" and "--write" in sys.argv:
    README.write_text(refreshed(README.read_text(encoding="utf-8")), encoding="utf-8")
    write("budgets", "\n".join(anyio.run(budget_rows)))
