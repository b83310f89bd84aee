"""Every mistake that a real cloud would have shown first has a test that keeps it away."""

import ast
import re
import tomllib
from typing import Any, Final

import pytest

from core.environment import ROOT

FINDINGS: Final = {
    "first-contact": (
        *("1.1", "1.2", "1.3", "1.4", "1.5", "2.1", "2.2", "2.4", "2.5", "2.6", "2.7"),
        *("3.1", "3.2", "3.3", "3.4", "3.5", "4.1", "5", "6.1", "7.1", "7.2", "8.1"),
    ),
    "contracts": ("3.1", "3.2", "3.3", "3.4", "3.5", "4"),
    "redteam": tuple(f"R{number}" for number in range(1, 13)),
}
"""What two reviews against real clouds, engines and command lines found, and one that attacked."""
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


def test_every_finding_has_its_row() -> None:
    """Nothing that was found is without a test."""
    known = {row["finding"].partition(" (")[0] for row in rows()}
    missing = [
        f"{review} {number}"
        for review, numbers in FINDINGS.items()
        for number in numbers
        if not any(re.match(rf"{review} {re.escape(number)}\b", one) for one in known)
    ]
    assert not missing
