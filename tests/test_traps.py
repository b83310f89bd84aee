"""Every mistake that a real cloud would have shown first has a test that keeps it away."""

import ast
import tomllib
from typing import Any, Final

import pytest

from core.settings import ROOT

_FOLDER: Final = ROOT / "tests" / "traps"


def rows() -> list[dict[str, Any]]:
    """Return every row of the table."""
    files = sorted(_FOLDER.glob("*.toml"))
    return [row for file in files for row in tomllib.loads(file.read_text("utf-8")).get("trap", [])]


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row["finding"]))
def test_a_trap_has_a_test_that_exists(row: dict[str, Any]) -> None:
    """And says in a sentence what went wrong."""
    assert set(row) == {"finding", "trap", "test"}
    assert row["trap"].endswith(".")
    file, _, name = row["test"].partition("::")
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
    assert name.rpartition("::")[2].partition("[")[0] in names
