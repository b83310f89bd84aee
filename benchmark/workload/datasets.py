"""Prompts out of a file: JSONL, or a list in the form of ShareGPT.

A line of JSONL is an object with `prompt` (a text, or token ids) or `prompt_token_ids` or
`messages`, and, if it wishes, `output_tokens` or `max_tokens`. An entry of ShareGPT is an object
with `conversations`; its first human turn is the prompt, and nothing else of it is used.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import orjson

from benchmark.workload.json_lists import objects, wrong
from benchmark.workload.options import Asked, options

MAX_PROMPTS: Final = 20_000
"""What follows in the file is left out: more are asked in no cell that ends within its time."""
MAX_PROMPT_BYTES: Final = 64 * 2**20
"""Of all prompts together, because every worker keeps them in memory."""
_HUMAN: Final = frozenset({"human", "user"})
_LENGTHS: Final = ("output_tokens", "max_tokens")
_Kind = Literal["text", "ids", "messages"]


class Entry(NamedTuple):
    """One prompt of a file."""

    place: str
    """Where it stands, for those who must correct it."""
    prompt: bytes
    """As JSON: a text, token ids or messages."""
    kind: _Kind
    output_tokens: int | None
    """None where the file does not say."""


def dataset_bodies(workload: Asked, *, model: str) -> Callable[[int], bytes]:
    """Give the function from a request's number to its JSON body.

    The prompts come in an order that the seed mixes; after `prompts_before_wrapping` requests the
    same order begins again.

    Raises:
        InvalidArgument: The file cannot be read, or a prompt does not fit the API.
    """
    path = Path(workload.dataset or "")
    entries = read(path)
    prompts = [_asked(entry, workload) for entry in entries]
    random = np.random.default_rng(workload.seed % 2**64)
    order: list[int] = random.permutation(len(entries)).tolist()

    @cache
    def front(output_tokens: int) -> bytes:
        asked = options(workload, model=model, output_tokens=output_tokens)
        return orjson.dumps(asked)[:-1] + b","

    def body(number: int) -> bytes:
        place = order[number % len(order)]
        tokens = entries[place].output_tokens or workload.output_tokens
        return front(tokens) + prompts[place]

    return body


def prompts_before_wrapping(path: Path) -> int:
    """Say how many requests a dataset serves before its first prompt comes again.

    From then on the engine's prefix cache may know what it is asked.

    Raises:
        InvalidArgument: The file cannot be read.
    """
    return len(read(path))


def read(path: Path) -> Sequence[Entry]:
    """Read the prompts of a file, up to 20,000 or 64 MiB of them, in the file's order.

    Raises:
        InvalidArgument: It cannot be read; the message names the line and the reason.
    """
    entries: list[Entry] = []
    size = 0
    for place, value in objects(path):
        entry = _entry(value, place)
        size += len(entry.prompt)
        if len(entries) == MAX_PROMPTS or size > MAX_PROMPT_BYTES:
            break
        entries.append(entry)
    if not entries:
        raise wrong(str(path), "holds no prompt")
    return entries


def _asked(entry: Entry, workload: Asked) -> bytes:
    """The prompt's field, and the end of the body."""
    if workload.api == "completion":
        if entry.kind == "messages":
            raise wrong(entry.place, "is a chat, which the completion API does not take")
        return b'"prompt":' + entry.prompt + b"}"
    if entry.kind == "messages":
        return b'"messages":' + entry.prompt + b"}"
    if entry.kind == "text":
        return b'"messages":[{"role":"user","content":' + entry.prompt + b"}]}"
    raise wrong(entry.place, "is a list of token ids, which the chat API does not take")


def _entry(value: Any, place: str) -> Entry:
    if not isinstance(value, Mapping):
        raise wrong(place, "is no object")
    for name, made in _READERS.items():
        if name in value:
            kind, prompt = made(value[name], place)
            return Entry(place, _dumped(prompt, place), kind, _length(value, place))
    raise wrong(place, f"has none of {', '.join(_READERS)}")


def _dumped(prompt: Any, place: str) -> bytes:
    try:
        return orjson.dumps(prompt)
    except orjson.JSONEncodeError as exc:  # half a character, a number beyond 64 bits
        raise wrong(place, f"cannot be sent: {exc}") from exc


def _length(value: Mapping[str, Any], place: str) -> int | None:
    said = next((value[name] for name in _LENGTHS if value.get(name) is not None), None)
    if said is not None and (type(said) is not int or said < 1):
        raise wrong(place, f"asks for {said!r} output tokens")
    return said


def _text_or_ids(prompt: Any, place: str) -> tuple[_Kind, Any]:
    if isinstance(prompt, str) and prompt:
        return "text", prompt
    return _ids(prompt, place)


def _ids(prompt: Any, place: str) -> tuple[_Kind, Any]:
    if not isinstance(prompt, list) or not prompt or not all(map(_is_id, prompt)):
        raise wrong(place, "has a prompt that is neither text nor token ids, or is empty")
    return "ids", prompt


def _is_id(token: Any) -> bool:
    return type(token) is int and 0 <= token < 2**31


def _messages(messages: Any, place: str) -> tuple[_Kind, Any]:
    if not isinstance(messages, list) or not messages:
        raise wrong(place, "has messages that are no list, or is empty")
    if not all(isinstance(one, Mapping) and "role" in one for one in messages):
        raise wrong(place, "has a message without a role")
    return "messages", messages


def _first_human(turns: Any, place: str) -> tuple[_Kind, Any]:
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise wrong(place, "has conversations that are no list of turns")
    said = next((turn.get("value") for turn in turns if turn.get("from") in _HUMAN), None)
    if not isinstance(said, str) or not said:
        raise wrong(place, "has no words of a human")
    return "text", said


_READERS: Final[Mapping[str, Callable[[Any, str], tuple[_Kind, Any]]]] = {
    "prompt_token_ids": _ids,
    "prompt": _text_or_ids,
    "messages": _messages,
    "conversations": _first_human,
}
