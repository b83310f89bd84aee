"""The calls that stand in a procedure, read from its text."""

import ast
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from core.environment import ROOT

SKILLS: Final = tuple(sorted((ROOT / "skills").glob("*/SKILL.md")))
CALL: Final = re.compile(r"`(\w+\([^`]*\))`")


def calls_of(text: str, values: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any]]:
    """Give each call with its arguments; placeholders are these values, or their own names.

    Read one by one: what an earlier call was answered may be a value of a later one.
    """
    for found in CALL.findall(text):
        call = ast.parse(found, mode="eval").body
        assert isinstance(call, ast.Call)
        assert isinstance(call.func, ast.Name)
        assert not call.args, found
        yield call.func.id, {str(one.arg): _value(one.value, values) for one in call.keywords}


def _value(node: ast.expr, values: Mapping[str, Any] | None) -> Any:
    if isinstance(node, ast.Name):
        assert node.id.isupper(), node.id
        return node.id if values is None else values[node.id]
    if isinstance(node, ast.List):
        return [_value(item, values) for item in node.elts]
    return ast.literal_eval(node)
