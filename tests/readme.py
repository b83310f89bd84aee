"""The README's tables, made from what is registered: `python -m tests.readme --write`."""

import sys

from core.settings import ROOT, Settings
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


def refreshed(text: str) -> str:
    """Give the README with its tables made anew."""
    for name, table in (("tools", tools_table()), ("settings", settings_table())):
        head, _, rest = text.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition(f"<!-- /{name} -->")
        text = f"{head}<!-- {name} -->\n{table}\n{end}{tail}"
    return text


def _first_line(description: str | None) -> str:
    return (description or "").strip().splitlines()[0].replace("|", "\\|")


if __name__ == "__main__" and "--write" in sys.argv:
    README.write_text(refreshed(README.read_text(encoding="utf-8")), encoding="utf-8")
