"""The folder `skills/`: procedures in our tools' words, for agents that use this server."""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from fastmcp.resources import Resource
from fastmcp.server.providers import SkillsDirectoryProvider
from fastmcp.server.providers.skills.skill_provider import SkillProvider

from tools.surface import TOOLS

_FENCE: Final = "---\n"
_CALL: Final = re.compile(r"`(\w+)(?:`|\()")


class Skill(NamedTuple):
    """One procedure."""

    name: str
    title: str
    description: str
    arguments: tuple[str, ...]
    """What a person may say to begin with."""
    required: frozenset[str]
    body: str
    """Markdown, without the front matter."""

    @property
    def writes(self) -> bool:
        """Whether it has anything changed: a server that only looks would refuse that step."""
        named = _CALL.findall(self.body)
        return any(TOOLS[name].writes for name in named if name in TOOLS)


def skills(provider: SkillsDirectoryProvider) -> Iterator[Skill]:
    """Read every skill, in the order of their names."""
    folders = [one for one in provider.providers if isinstance(one, SkillProvider)]
    for info in sorted((one.skill_info for one in folders), key=lambda info: info.name):
        said = info.frontmatter.get("metadata", {})
        text = (info.path / info.main_file).read_text(encoding="utf-8")
        yield Skill(
            name=info.name,
            title=said.get("title", info.name),
            description=info.description,
            arguments=tuple(said.get("arguments", "").split()),
            required=frozenset(said.get("required", "").split()),
            body=text.split(_FENCE, 2)[-1].strip(),
        )


def titled(resources: Iterable[Resource]) -> list[Resource]:
    """Keep the skills themselves of what their provider serves, named for people and in order."""
    main = [one for one in resources if str(one.uri).endswith("/SKILL.md")]
    return [
        one.model_copy(update={"title": _title(one.name.removesuffix("/SKILL.md"))})
        for one in sorted(main, key=lambda one: one.name)
    ]


def _title(name: str) -> str:
    """Write a skill's name as words.

    >>> _title("tear-down")
    'Skill: tear down'
    """
    return f"Skill: {name.replace('-', ' ')}"
