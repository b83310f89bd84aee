"""JSON with comments is changed in one place, and means and says the same in every other."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations import config_files

_OURS = {"command": "python", "args": ["server.py"]}
_COMMENTED = """{
    // mine
    "servers": {
        "one": {"command": "x"}, // keep this
        /* and
           this */
    },
    "inputs": [1, 2,],
}
"""

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(document=st.dictionaries(st.text(), _JSON, max_size=4), indent=st.sampled_from([None, 1, 4]))
def test_any_json_is_read_as_python_reads_it_and_gains_one_member(
    document: dict[str, Any], indent: int | None
) -> None:
    """Whatever else stands in a file comes out of a change as it went in."""
    text = json.dumps(document, indent=indent)
    assert config_files.read_jsonc(text) == document
    servers = document.get("servers", {})
    if isinstance(servers, dict):
        wanted = {**document, "servers": {**servers, "ours": _OURS}}
        assert (
            config_files.read_jsonc(config_files.put_jsonc(text, ("servers", "ours"), _OURS))
            == wanted
        )


def test_comments_commas_and_indentation_stay() -> None:
    """Each line that was there is still there, and ours looks like its neighbours."""
    new = config_files.put_jsonc(_COMMENTED, ("servers", "ours"), _OURS)
    lines = new.splitlines()
    assert [line for line in _COMMENTED.splitlines() if line not in lines] == []
    assert lines[3] == '        "one": {"command": "x"}, // keep this'
    assert lines[4] == '        "ours": {'
    assert lines[5] == '            "command": "python",'
    assert config_files.read_jsonc(new)["servers"]["ours"] == _OURS


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", '{\n  "a": 1\n}\n'),
        ("{}", '{\n  "a": 1\n}'),
        ('{"b": 2}', '{"b": 2,\n  "a": 1\n}'),
        ('{\r\n\t"b": 2 // two\r\n}\r\n', '{\r\n\t"b": 2, // two\r\n\t"a": 1\r\n}\r\n'),
        ("{ // nothing\n}", '{ // nothing\n  "a": 1\n}'),
        ('{"a": 3, "b": 2}', '{"a": 1, "b": 2}'),
    ],
)
def test_it_is_written_as_a_person_would(text: str, wanted: str) -> None:
    """A comment stays with what it is about; line ends and tabs are those of the file."""
    assert config_files.put_jsonc(text, ("a",), 1) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{\n  "a": 1,\n  "b": 2\n}', '{\n  "b": 2\n}'),
        ('{\n  "b": 2,\n  "a": 1\n}', '{\n  "b": 2\n}'),
        ('{"a": 1}', "{}"),
        ('{\r\n  "b": 2,\r\n  "a": 1,\r\n}', '{\r\n  "b": 2,\r\n}'),
    ],
)
def test_a_member_is_taken_away_with_its_line(text: str, wanted: str) -> None:
    """No comma and no empty line is left behind."""
    assert config_files.drop(text, ("a",)) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "{", "[1 2]", '{"a" 1}', '{"a": 1 "b": 2}', "{a: 1}", '{"a": NaN}', "{} {}", '{"a": 01}',
        '{"a": 1,, "b": 2}', "// only a comment", '{"a": "x\n"}', "/* {",
    ],
)  # fmt: skip
def test_what_is_no_json_is_refused_and_not_quoted(text: str) -> None:
    """The message names a line: the text itself may hold a secret."""
    with pytest.raises(ValueError, match=r"^line \d+ is not as JSON wants it$"):
        config_files.read_jsonc(text)


def test_a_member_that_is_there_twice_is_refused() -> None:
    """Which of the two a client believes nobody knows."""
    with pytest.raises(ValueError, match="twice"):
        config_files.put_jsonc('{"a": {}, "a": {}}', ("a", "b"), 1)


def test_what_is_no_object_gets_no_member() -> None:
    """A list where servers should be is not overwritten."""
    with pytest.raises(ValueError, match="no object"):
        config_files.put_jsonc('{"a": []}', ("a", "b"), 1)
