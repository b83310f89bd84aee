"""What stands beside the tools: resources, prompts, skills and completion."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from fastmcp import FastMCP
from fastmcp.prompts import Prompt
from fastmcp.resources import Resource, ResourceTemplate
from fastmcp.server.completions import CompletionReference
from fastmcp.server.context import Context
from fastmcp.server.providers import Provider, SkillsDirectoryProvider
from fastmcp.utilities.components import FastMCPComponent
from fastmcp.utilities.versions import VersionSpec
from mcp.types import Completion, CompletionArgument, CompletionContext

from core.environment import ROOT
from core.settings import Settings
from tools.surface import runtime


def furnish(server: FastMCP[Any], settings: Settings) -> None:
    """Add to a server what its clients can read and choose without calling a tool."""
    furniture = Furniture(settings)

    async def complete(
        ref: CompletionReference, argument: CompletionArgument, given: CompletionContext | None
    ) -> Completion:
        from tools.completing import completed

        async with Context(fastmcp=server):
            prompts = await furniture.list_prompts()
            return await completed(runtime(), prompts, ref, argument, given)

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
        return SkillsDirectoryProvider(ROOT / "skills")

    @cached_property
    def _prompts(self) -> Sequence[Prompt]:
        from tools.prompts import prompts

        return prompts(self._skills, read_only=self._settings.read_only)

    async def _list_resources(self) -> Sequence[Resource]:
        from tools.resources import RESOURCES
        from tools.skills import titled

        return [*RESOURCES, *titled(await self._skills.list_resources())]

    async def _get_resource(self, uri: str, version: VersionSpec | None = None) -> Resource | None:
        if uri.startswith("skill://"):  # a skill's manifest is there without being listed
            return await self._skills.get_resource(uri, version)
        return await super()._get_resource(uri, version)

    async def _list_resource_templates(self) -> Sequence[ResourceTemplate]:
        from tools.resources import TEMPLATES

        return TEMPLATES

    async def _list_prompts(self) -> Sequence[Prompt]:
        return self._prompts

    async def get_tasks(self) -> Sequence[FastMCPComponent]:
        """Give none; FastMCP asks at each start, and would have everything here made for it."""
        return ()
