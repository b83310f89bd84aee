"""Nobody changes what an agent reads of a tool without seeing it in a diff."""

import json

import pytest

from core.settings import Settings
from tests.conversation import agent_of
from tests.golden import PROFILES, as_sent, file_of, sent

pytestmark = pytest.mark.anyio

TO_WRITE_ANEW = "If it should be so: python -m tests.golden --write, and review the diff."


@pytest.mark.parametrize("profile", PROFILES)
async def test_the_list_is_the_one_that_was_reviewed(profile: str) -> None:
    """Names, descriptions, parameters and annotations: the words that a model chooses by."""
    kept = {tool["name"]: tool for tool in json.loads(file_of(profile).read_text("utf-8"))}
    found = {tool["name"]: tool for tool in await sent(profile)}
    changed = [name for name in kept | found if kept.get(name) != found.get(name)]
    assert not changed, f"{profile}: {changed} changed. {TO_WRITE_ANEW}"
    assert list(kept) == list(found), f"{profile}: the order changed. {TO_WRITE_ANEW}"


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_both_protocols_are_told_the_same(settings: Settings, mode: str) -> None:
    """What was reviewed in one is what clients of the other read."""
    async with agent_of(settings, mode=mode) as agent:
        found = as_sent(await agent.client.list_tools())
    assert found == json.loads(file_of("all").read_text("utf-8"))


def test_what_only_writes_is_not_in_the_read_only_list() -> None:
    """The four files differ as their names say."""
    names = {
        profile: {tool["name"] for tool in json.loads(file_of(profile).read_text("utf-8"))}
        for profile in PROFILES
    }
    assert names["default"] < names["all"]
    assert names["read-only"] < names["all"]
    assert names["default"] < names["compat"]
    assert "destroy_vllm" not in names["read-only"]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_tool_has_a_title_for_people(profile: str) -> None:
    """Clients show it in lists and when they ask for leave; it is the name, spelled out."""
    for tool in json.loads(file_of(profile).read_text("utf-8")):
        assert tool["title"][0].isupper(), tool["name"]
        assert not {"Vllm", "Gpu", "Sre", "Hf"} & set(tool["title"].split()), tool["title"]


@pytest.mark.parametrize("profile", PROFILES)
def test_no_schema_of_answers_is_sent(profile: str) -> None:
    """Every answer has the same five fields, which the instructions tell once for all tools."""
    for tool in json.loads(file_of(profile).read_text("utf-8")):
        assert "outputSchema" not in tool


@pytest.mark.parametrize("profile", PROFILES)
def test_no_schema_refers_to_another_place(profile: str) -> None:
    """There are clients that do not follow references, and the server does not write them out."""
    listed = file_of(profile).read_text("utf-8")
    assert not [word for word in ("$ref", "$defs", "$dynamicRef") if word in listed]
