"""The part of Kusto's query language that logs are asked in, refused as Kusto refuses."""

from typing import Any, Final

import pytest

from simulators.azure.kql import BadQuery, Tables, answered

_COLUMNS: Final = {"TimeGenerated": "datetime", "App_s": "string", "Log_s": "string"}
_NOW: Final = 1_000_000.0
_ROWS: Final[list[dict[str, str | float]]] = [
    {"TimeGenerated": _NOW - 7200, "App_s": "one", "Log_s": "INFO: Loading weights"},
    {"TimeGenerated": _NOW - 60, "App_s": "two", "Log_s": "it's a 'quoted' word"},
    {"TimeGenerated": _NOW - 30, "App_s": "one", "Log_s": "ERROR out of memory"},
]
_TABLES: Final[Tables] = {"Logs_CL": (_COLUMNS, _ROWS)}


def _told(query: str, column: str = "Log_s") -> list[Any]:
    return [row[column] for row in answered(query, _TABLES, _NOW).rows]


def test_a_table_alone_gives_every_row() -> None:
    """Nothing is left out, and the columns have their types."""
    found = answered("Logs_CL", _TABLES, _NOW)
    assert len(found.rows) == 3
    assert found.columns == _COLUMNS


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("App_s == 'one'", 2),
        ('App_s == "one"', 2),
        ("App_s == 'ONE'", 0),
        ("App_s =~ 'ONE'", 2),
        ("App_s != 'one'", 1),
        ("App_s in ('two', 'three')", 1),
        ("Log_s contains 'WEIGHTS'", 1),
        ("Log_s contains_cs 'WEIGHTS'", 0),
        ("Log_s contains 'WEIGHTS' or Log_s contains 'Memory'", 2),
        ("Log_s contains 'WEIGHTS' or App_s contains 'W' or Log_s contains 'memory'", 3),
        ("Log_s contains 'nothing' or Log_s contains 'at all'", 0),
        ("(Log_s contains 'o' or Log_s contains 'e') and App_s == 'two'", 1),
        ("Log_s startswith 'error'", 1),
        ("Log_s has 'load'", 0),
        ("Log_s has 'loading'", 1),
        ("TimeGenerated > ago(1h)", 2),
        ("TimeGenerated <= ago(1h)", 1),
        ("TimeGenerated < now()", 3),
        ("TimeGenerated >= datetime(1970-01-12T13:46:00Z)", 1),
        ("App_s == 'one' and Log_s contains 'memory'", 1),
        ("App_s == 'two' or Log_s contains 'memory' and App_s == 'one'", 2),
        ("(App_s == 'two' or Log_s contains 'memory') and App_s == 'one'", 1),
    ],
)
def test_a_condition_chooses_rows(condition: str, count: int) -> None:
    """Each operator is Kusto's, also in what it makes of capitals."""
    assert len(_told(f"Logs_CL | where {condition}")) == count


def test_a_quote_is_escaped_by_a_backslash_and_not_by_itself() -> None:
    """Two texts in a row are one text: a doubled quote is lost."""
    assert len(_told(r"Logs_CL | where Log_s contains 'it\'s'")) == 1
    assert _told("Logs_CL | where Log_s contains 'it''s'") == []
    assert len(_told("Logs_CL | where Log_s contains @'it''s'")) == 1


def test_rows_are_ordered_cut_and_projected() -> None:
    """The newest first unless it is said otherwise."""
    newest = "Logs_CL | order by TimeGenerated | take 1 | project Log_s"
    assert _told(newest) == ["ERROR out of memory"]
    assert _told("Logs_CL | sort by TimeGenerated asc | limit 1") == ["INFO: Loading weights"]
    assert _told("Logs_CL | top 1 by TimeGenerated desc") == ["ERROR out of memory"]
    renamed = "Logs_CL | order by App_s asc, TimeGenerated desc | project App = App_s, Log_s"
    assert _told(renamed, "App") == ["one", "one", "two"]
    assert answered(renamed, _TABLES, _NOW).columns == {"App": "string", "Log_s": "string"}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("Missing_CL | take 1", "SEM0100"),
        ("Logs_CL | where Reason_s == 'x'", "SEM0100"),
        ("Logs_CL | project Reason_s", "SEM0100"),
        ("Logs_CL | where App_s == 'one", "SYN0002"),
        ("Logs_CL | where App_s ==", "SYN0002"),
        ("Logs_CL | where App_s == 'one' and", "SYN0002"),
        ("Logs_CL | summarize count()", "SYN0002"),
        ("Logs_CL | take 'one'", "SYN0002"),
        ("Logs_CL take 1", "SYN0002"),
        ("Logs_CL | where TimeGenerated > datetime(yesterday)", "SYN0002"),
        ("", "SYN0002"),
    ],
)
def test_what_is_not_understood_is_refused(query: str, code: str) -> None:
    """A table or column that is missing is an error of meaning, the rest is one of grammar."""
    with pytest.raises(BadQuery) as refused:
        answered(query, _TABLES, _NOW)
    assert refused.value.code == code
