"""Every az command that is printed, held against what the Azure CLI itself takes."""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from backends.aca import secrets, storage
from core.environment import ROOT
from tests.backends.aca.planned import A100, DENSE_31B, FOLDER, PATCHED, T4, script, site, small

_TABLE: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("az_commands.toml").read_text(encoding="utf-8")
)
_EVERYWHERE: Final = set(str(_TABLE.pop("everywhere")).split())
_WISHES: Final[tuple[dict[str, Any], ...]] = (
    small(),
    small(weights=FOLDER, access="public"),
    small(access="internal"),
    {"model": DENSE_31B, "image": PATCHED, "min_replicas": 1, "max_replicas": 3},
)
_SAID: Final = re.compile(r"\baz(?: (?:-{0,2}[a-z][a-z.-]*|[A-Z_]+))+")
_PRINTING: Final = ("backends/aca", "operations", "tools", "core")
targets = pytest.mark.parametrize("target", [A100, T4])


def wrong(words: list[str]) -> str:
    """Say what the CLI would say of one command, without its `az`; nothing if it is content."""
    name = next((one for one in _prefixes(words) if one in _TABLE), None)
    if name is None:
        return f"'{' '.join(words[:3])}' is misspelled or not recognized"
    given = {word for word in words if word.startswith("--")}
    unknown = given - _EVERYWHERE - set(_TABLE[name]["allowed"].split())
    missing = [one for one in _TABLE[name]["required"].split() if not given & {*one.split("|")}]
    return f"{name}: unknown {sorted(unknown)}, missing {missing}" if unknown or missing else ""


def _prefixes(words: list[str]) -> Iterator[str]:
    for end in range(min(len(words), 5), 0, -1):
        yield " ".join(words[:end])


def _commands(script: str) -> Iterator[list[str]]:
    """Take a shell's lines apart; what stands between words for YAML is none of them."""
    plain = script.partition(" <<")[0].replace('"$(', " ; az_in ").replace(')"', " ")
    for line in plain.splitlines():
        words: list[str] = []
        for word in (*shlex.split(line.replace("; az_in ", "| ")), "|"):
            if word not in {"|", "||"}:
                words.append(word)
                continue
            if words[:1] == ["az"]:
                yield words[1:]
            words = []


def _printed(target: str) -> Iterator[str]:
    mine = {"azure_subscription_id": "mine", "hf_token": "hf_x"}
    for more in ({}, {"azure_log_analytics_workspace_id": "g-1"}):
        opened = site(target, **mine, **more)
        yield from (script(opened, **wish) for wish in _WISHES)
    yield from (command for _, command in storage.upload_commands(opened, "a b", "./a", None).steps)
    yield secrets.by_roles(opened).split("`")[1]
    yield storage.has_room(opened, None, 2**40).fix.split("`")[1]
    yield secrets.answer(opened).command
    yield secrets.read_command(opened, "k")
    yield secrets.left(opened, "k").how_to_remove


@targets
def test_az_takes_every_command_that_is_printed(target: str) -> None:
    """Known commands, known options, and none that must be given is missing."""
    commands = [words for script in _printed(target) for words in _commands(script)]
    assert len({" ".join(words[:3]) for words in commands}) > 20
    assert [problem for words in commands if (problem := wrong(words))] == []


def _texts(tree: ast.AST) -> Iterator[str]:
    """Give the texts of a module, a blank word for each value in them; docstrings are left out."""
    told = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values
            )
        elif isinstance(node, ast.Constant) and id(node) not in told:
            yield str(node.value)


def _mentions() -> Iterator[tuple[str, list[str]]]:
    for folder in _PRINTING:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for said in _texts(ast.parse(path.read_text(encoding="utf-8"))):
                for found in _SAID.finditer(said):
                    yield path.name, found.group().split()[1:]


def test_az_knows_every_command_that_a_text_names() -> None:
    """A fix that names a command which is not there is no fix."""
    named = list(_mentions())
    assert len(named) >= 5
    assert [(place, problem) for place, words in named if (problem := wrong(words))] == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("support tickets create", "not recognized"),
        ("containerapp env create --name x --resource-group y --gpu", "unknown ['--gpu']"),
        ("keyvault secret set --name x", "missing ['--vault-name']"),
        ("group show", "missing ['--name|--resource-group']"),
    ],
)
def test_what_az_would_refuse_is_found(command: str, said: str) -> None:
    """As the CLI says it of the same words."""
    assert said in wrong(command.split())
