"""Help that cannot list what is not there."""

from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import SecretStr

from core import VERSION
from core.errors import NotFound
from core.records import Answer, Record
from core.settings import Settings
from operations.runtime import Runtime


class ToolText(Protocol):
    """What is known of a registered tool."""

    description: str | None
    input_schema: dict[str, Any]


class ToolRow(Record):
    """One tool."""

    name: str
    group: str
    does: str
    parameters: dict[str, str]
    """With type and meaning; only for the tool that was asked about."""


class SettingRow(Record):
    """One setting."""

    name: str
    value: str
    """Secrets only as «set»."""
    means: str


class Help(Answer):
    """What this server can do and how it is set."""

    version: str
    tools: tuple[ToolRow, ...] = ()
    settings: tuple[SettingRow, ...] = ()
    more: str = ""

    def summary(self) -> str:
        """Say what is listed."""
        if len(self.tools) == 1 and not self.settings:
            return f"{self.tools[0].name}: {self.tools[0].does}"
        return f"{len(self.tools)} tools and {len(self.settings)} settings."


def explain(
    runtime: Runtime,
    topic: str | None,
    tools: Mapping[str, ToolText],
    groups: Mapping[str, str],
) -> Help:
    """Give everything in short, or one thing in full.

    Raises:
        NotFound: There is no such tool or setting.
    """
    if topic is None:
        return _overview(runtime, tools, groups)
    if topic in tools:
        row = _row(topic, tools[topic], groups[topic], full=True)
        return Help(version=VERSION, tools=(row,))
    setting = next((row for row in _settings(runtime) if row.name == topic.upper()), None)
    if setting:
        return Help(version=VERSION, settings=(setting,))
    raise NotFound(
        f"There is no tool or setting '{topic}'.",
        fix=f"Tools: {', '.join(sorted(runtime.listed))}.",
    )


def _overview(runtime: Runtime, tools: Mapping[str, ToolText], groups: Mapping[str, str]) -> Help:
    listed = [name for name in tools if name in runtime.listed]
    hidden = sorted({groups[name] for name in tools if name not in runtime.listed})
    more = f"More with TOOLSETS={','.join(hidden)}." if hidden else ""
    return Help(
        version=VERSION,
        tools=tuple(_row(name, tools[name], groups[name], full=False) for name in listed),
        settings=tuple(row for row in _settings(runtime) if row.value != "not set"),
        more=f"get_help(topic=…) explains one tool or setting. {more}".strip(),
    )


def _row(name: str, tool: ToolText, group: str, *, full: bool) -> ToolRow:
    properties = tool.input_schema.get("properties", {})
    does = (tool.description or "").strip()
    return ToolRow(
        name=name,
        group=group,
        does=" ".join(does.split()) if full else does.splitlines()[0],
        parameters={key: _parameter(row) for key, row in properties.items()} if full else {},
    )


def _parameter(row: Mapping[str, Any]) -> str:
    default = f", default {row['default']}" if "default" in row else ""
    return f"{row.get('type', 'any')}{default}. {row.get('description', '')}".strip()


def _settings(runtime: Runtime) -> tuple[SettingRow, ...]:
    rows = []
    for name, field in Settings.model_fields.items():
        value = getattr(runtime.settings, name)
        shown = "set" if isinstance(value, SecretStr) else str(value)
        rows.append(
            SettingRow(
                name=name.upper(),
                value="not set" if value in {None, ()} else shown,
                means=" ".join((field.description or "").split()),
            )
        )
    return tuple(rows)
