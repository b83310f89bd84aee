"""Prompts out of files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark import workload
from benchmark.records import Workload
from benchmark.workload import bodies, read
from core.errors import InvalidArgument
from tests.benchmark.driven import a_job

SHARED: list[dict[str, Any]] = [
    {"id": str(i), "conversations": [{"from": "human", "value": f"ask {i}"}, {"from": "gpt"}]}
    for i in range(30)
]


def written(folder: Path, *values: Any, name: str = "set.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(map(json.dumps, values)), encoding="utf-8")
    return path


def asked(path: Path, **workload: Any) -> Callable[[int], Any]:
    body = bodies(a_job("", path, workload=Workload(dataset=str(path), **workload)))
    return lambda number: json.loads(body(number))


def test_every_prompt_comes_once_before_the_first_comes_again(tmp_path: Path) -> None:
    """In an order that the seed mixes, and no other."""
    path = written(tmp_path, *({"prompt": f"p{i}"} for i in range(50)))
    many = len(read(path))
    one, other = asked(path, seed=1), asked(path, seed=2)
    orders = [[ask(number)["prompt"] for number in range(many)] for ask in (one, other)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(f"p{i}" for i in range(50))
    assert orders[0] != orders[1]
    assert [one(many + number)["prompt"] for number in range(50)] == orders[0]
    assert [asked(path, seed=1)(number)["prompt"] for number in range(50)] == orders[0]


@pytest.mark.parametrize(
    ("line", "api", "field", "value"),
    [
        ({"prompt": "é\n"}, "completion", "prompt", "é\n"),
        ({"prompt": [1, 2]}, "completion", "prompt", [1, 2]),
        ({"prompt": "x", "prompt_token_ids": [3]}, "completion", "prompt", [3]),
        ({"prompt": "x"}, "chat", "messages", [{"role": "user", "content": "x"}]),
        ({"messages": [{"role": "a"}]}, "chat", "messages", [{"role": "a"}]),
        (SHARED[7], "completion", "prompt", "ask 7"),
        (SHARED[7], "chat", "messages", [{"role": "user", "content": "ask 7"}]),
    ],
)
def test_each_form_of_a_line_is_asked(
    tmp_path: Path, line: Any, api: str, field: str, value: Any
) -> None:
    """Token ids are more exact than the text they came from."""
    assert asked(written(tmp_path, line), api=api)(5)[field] == value


@pytest.mark.parametrize("name", ["output_tokens", "max_tokens"])
def test_a_line_may_say_how_long_its_answer_is(tmp_path: Path, name: str) -> None:
    """Where it does not, the workload does."""
    ask = asked(written(tmp_path, {"prompt": "p", name: 7}, {"prompt": "q", name: None}))
    lengths = {ask(n)["prompt"]: (ask(n)["max_tokens"], ask(n)["min_tokens"]) for n in (0, 1)}
    assert lengths == {"p": (7, 7), "q": (64, 64)}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_as_sharegpt_has_it_is_read(tmp_path: Path, indent: int | None) -> None:
    """Of each conversation the first human turn; white space and a byte order mark do no harm."""
    path = tmp_path / "share.json"
    path.write_text("\ufeff \n" + json.dumps(SHARED, indent=indent), encoding="utf-8")
    assert [json.loads(entry.prompt) for entry in read(path)] == [f"ask {i}" for i in range(30)]


@given(texts=st.lists(st.text(min_size=1), min_size=1, max_size=5), piece=st.integers(1, 60))
def test_a_list_reads_the_same_in_pieces_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], piece: int
) -> None:
    """Brackets, commas and quotation marks in a prompt are its own."""
    path = tmp_path_factory.getbasetemp() / "list.json"
    values = [{"conversations": [{"from": "human", "value": text}]} for text in texts]
    path.write_text(json.dumps(values, indent=1), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workload, "_PIECE", piece)
        assert [json.loads(entry.prompt) for entry in read(path)] == texts


GOOD = '{"prompt": "p"}\n\n'
LISTED = '[\n{"prompt": "p"},\n\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD + "{", "Line 3 of .* is no JSON"),
        (GOOD + "7", "Line 3 of .* is no object"),
        (GOOD + "{}", "Line 3 of .* has none of prompt_token_ids, prompt, messages, conv"),
        (GOOD + '{"prompt": ""}', "Line 3 .* empty"),
        (GOOD + '{"prompt": []}', "Line 3 .* empty"),
        (GOOD + '{"prompt": [1, true]}', "Line 3 .* neither text nor token ids"),
        (GOOD + '{"prompt_token_ids": [-1]}', "Line 3 .* token ids"),
        (GOOD + '{"prompt_token_ids": "abc"}', "Line 3 .* token ids"),
        (GOOD + '{"messages": []}', "Line 3 .* empty"),
        (GOOD + '{"messages": [{"content": "x"}]}', "Line 3 .* without a role"),
        (GOOD + '{"conversations": 1}', "Line 3 .* no list of turns"),
        (GOOD + '{"conversations": [{"from": "gpt", "value": "x"}]}', "Line 3 .* human"),
        (GOOD + '{"prompt": "p", "max_tokens": 0}', "Line 3 .* asks for 0 output tokens"),
        (LISTED + '{"prompt": "\\ud800"}]', "entry at line 4 of .* cannot be sent"),
        (LISTED + '{"prompt": }]', "entry at line 4 of .* is no JSON"),
        (LISTED + '{"prompt": "p', "entry at line 4 of .* is no JSON"),
        (LISTED, "ends at line 4 within its list"),
        ("[]", "holds no prompt"),
        (" \n", "holds no prompt"),
        ("", "holds no prompt"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    """So that a person can correct it."""
    path = tmp_path / "bad"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidArgument, match=words):
        read(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, a folder, or no text."""
    (tmp_path / "latin").write_bytes(b'{"prompt": "\xe9"}')
    for path in (tmp_path / "none", tmp_path, tmp_path / "latin"):
        with pytest.raises(InvalidArgument, match=path.name):
            read(path)


def test_a_prompt_that_does_not_fit_the_api_is_refused(tmp_path: Path) -> None:
    """Before anything is sent."""
    for line, api, words in (
        ({"messages": [{"role": "user"}]}, "completion", "Line 1 .* is a chat"),
        ({"prompt": [1]}, "chat", "Line 1 .* list of token ids"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            asked(written(tmp_path, line), api=api)


@pytest.mark.parametrize(("limit", "value"), [("MAX_PROMPTS", 3), ("MAX_PROMPT_BYTES", 15)])
def test_memory_is_bounded_for_any_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """What stands behind the limit is not even read."""
    path = written(tmp_path, *({"prompt": "abc"} for _ in range(3)))
    path.write_text(path.read_text(encoding="utf-8") + '\n{"prompt": "abc"}\n{"prompt": "d"}\n{')
    monkeypatch.setattr(workload, limit, value)
    assert len(read(path)) == 3


def test_one_open_quotation_mark_does_not_read_a_list_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value has a longest length."""
    monkeypatch.setattr(workload, "_PIECE", 16)
    monkeypatch.setattr(workload, "_LONGEST", 64)
    path = tmp_path / "list.json"
    path.write_text('[{"prompt": "' + "x" * 500 + '"}]', encoding="utf-8")
    with pytest.raises(InvalidArgument, match="line 1"):
        read(path)
