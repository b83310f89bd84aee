"""What is asked: prompts of exact length, datasets, options."""

import hashlib
import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, starmap
from math import floor, gcd
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TextIO,
    TypeVar,
)

import numpy as np
import orjson
from numpy import typing as npt

from core.errors import EndpointError, InvalidArgument, OpsError, RequestRefused

if TYPE_CHECKING:
    from benchmark.loads import Job
    from core.endpoint import Endpoint


TEXT: Final = (
    "the of and a to in is that it was for on are with as his they at be this from have or by one "
    "had not but what all were when we there can an your which their said if do will each about "
    "how up out them then she many some so these would other into has more her two like him see "
    "time could no make than first been its who now people my made over did down only way find "
    "use may water long little very after words called just where most know get through back much "
    "before go good new write our used me man too any day same right look think also around "
    "another came come work three word must because does part even place well such here take why "
    "things help put years different away again off went old number great tell men say small "
    "every found still between name should home big give air line set own under read last never "
    "us left end along while might next sound below saw something thought both few those always "
    "house world hand school set light kind began country father mother night picture being study "
    "second soon story since white ever paper hard near sentence better best across during today "
    "however sure means knew it's try told young sun thing whole hear example heard several change "
    "answer room sea against top turned learn point city play toward five using himself usually "
    "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z, 0 1 2 3 4 5 6 7 8 9; yes: (no) - so! why?"
)
"""Common words, and every letter for tokenizers that know no more than those."""

MINIMUM_IDS: Final = 64
FALLBACK_IDS: Final = tuple(range(1000, 1512))
"""Where nothing tokenizes for us. Special tokens stand below 1,000 or at the end of all common
vocabularies, and none is smaller than 1,512; but which texts these ids are is not known."""
FALLBACK_WORDS: Final = tuple(f" {word}" for word in TEXT.split()[:64] if word.isalpha())
"""One token each in all common vocabularies."""
FALLBACK_TEMPLATE_TOKENS: Final = 10
"""Of one user's message: 8 for Gemma, 9 to 12 elsewhere, more where a system text is put before."""

_SPACES: Final = re.compile("[\u0120\u2581]")
_SPECIAL: Final = re.compile(r"<.+>|\[[A-Z]+\]", re.DOTALL)
"""How special tokens are written; ordinary words never look so."""


class Alphabet(NamedTuple):
    """What prompts are made of."""

    token_ids: tuple[int, ...]
    words: tuple[str, ...]
    """Texts that are one token each wherever they stand, with the space that belongs to them."""
    template_tokens: int
    """What a chat's prompt has beyond its words, its first word among it."""
    notes: tuple[str, ...] = ()
    """What is not as it should be, in sentences."""


_NO_TOKENIZER: Final = (
    "The engine has no /tokenize: prompts are made of the ids 1000 to 1511, and the length of "
    "chats is an estimate."
)
UNKNOWN: Final = Alphabet(
    FALLBACK_IDS, FALLBACK_WORDS, FALLBACK_TEMPLATE_TOKENS, notes=(_NO_TOKENIZER,)
)


class _Token(NamedTuple):
    id: int
    text: str


async def alphabet(endpoint: "Endpoint", model: str) -> Alphabet:
    """Ask the engine's tokenizer; where there is none, give `UNKNOWN`. It never raises."""
    try:
        tokens = await _tokens(endpoint, model)
    except EndpointError:
        return UNKNOWN
    ids = tuple(dict.fromkeys(token.id for token in tokens))
    if len(ids) < 2:
        return UNKNOWN
    few = f"The tokenizer made {len(ids)} kinds of tokens: short prompts repeat sooner."
    notes = () if len(ids) >= MINIMUM_IDS else (few,)
    words, template_tokens, said = await _chat(endpoint, model, tokens)
    return Alphabet(ids, words, template_tokens, notes + said)


async def _tokens(endpoint: "Endpoint", model: str) -> list[_Token]:
    asked = {"prompt": TEXT, "add_special_tokens": False, "return_token_strs": True}
    reply = await endpoint.post("/tokenize", {"model": model, **asked})
    ids = [token for token in _listed(reply, "tokens") if type(token) is int and token >= 0]
    texts = [_SPACES.sub(" ", str(text)) for text in _listed(reply, "token_strs")]
    texts = texts if len(texts) == len(ids) else [""] * len(ids)
    pairs = map(_Token, ids, texts)
    return [pair for pair in pairs if not _SPECIAL.fullmatch(pair.text.strip())]


async def _chat(
    endpoint: "Endpoint", model: str, tokens: Sequence[_Token]
) -> tuple[tuple[str, ...], int, tuple[str, ...]]:
    texts = dict.fromkeys(token.text for token in tokens)
    spaced, letters = (
        tuple(text for text in texts if re.fullmatch(form, text))
        for form in (" [A-Za-z]+", "[A-Za-z]")
    )
    words = next((some for some in (spaced, letters) if len(some) > 15), FALLBACK_WORDS)
    try:
        short = await _count(endpoint, model, words[0])
        long = await _count(endpoint, model, words[0] + "".join(words))
    except EndpointError:
        return words, FALLBACK_TEMPLATE_TOKENS, ("The length of chats is an estimate.",)
    error = (long - short) / len(words) - 1
    said = () if not error else (f"Chats are made of words; their length is {error:+.1%} off.",)
    return words, short, said


async def _count(endpoint: "Endpoint", model: str, text: str) -> int:
    messages = [{"role": "user", "content": text.strip()}]
    reply = await endpoint.post("/tokenize", {"model": model, "messages": messages})
    return len(_listed(reply, "tokens"))


def _listed(reply: dict[str, Any], name: str) -> list[Any]:
    found = reply.get(name)
    return found if isinstance(found, list) else []


MAX_PROMPTS: Final = 20_000
"""What follows in the file is left out: more are asked in no cell that ends within its time."""
MAX_PROMPT_BYTES: Final = 64 * 2**20
"""Of all prompts together, because every worker keeps them in memory."""
_PIECE: Final = 2**16
"""Characters: the list that everybody uses is 670 MB long and need not be in memory."""
_LONGEST: Final = 64 * _PIECE
"""No value is longer; without it, one open quotation mark would read the file to its end."""
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


def _wrong(place: str | Path, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"{place} {reason}.",
        fix="Correct the dataset: JSONL with prompt or messages, or a list as ShareGPT's.",
    )


def read(path: Path) -> Sequence[Entry]:
    """Read the prompts of a file, up to 20,000 or 64 MiB of them, in the file's order.

    Raises:
        InvalidArgument: It cannot be read; the message names the line and the reason.
    """
    entries: list[Entry] = []
    size = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            while (first := file.read(1)).isspace():
                pass
            file.seek(0)
            for place, value in _listed_values(file, path) if first == "[" else _lines(file, path):
                entry = _entry(value, place)
                size += len(entry.prompt)
                if len(entries) == MAX_PROMPTS or size > MAX_PROMPT_BYTES:
                    break
                entries.append(entry)
    except OSError as exc:
        raise _wrong(path, f"cannot be read ({exc.strerror})") from exc
    except UnicodeDecodeError as exc:
        raise _wrong(path, "is not UTF-8 text") from exc
    if not entries:
        raise _wrong(path, "holds no prompt")
    return entries


def _lines(file: TextIO, path: Path) -> Iterator[tuple[str, Any]]:
    for number, text in enumerate(file, 1):
        if text.strip():
            place = f"Line {number} of {path}"
            try:
                value = orjson.loads(text)
            except orjson.JSONDecodeError as exc:
                raise _wrong(place, f"is no JSON: {exc.msg}") from exc
            yield place, value


def _listed_values(file: TextIO, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield one value after the other out of a list, of which only pieces are in memory."""
    decoder, text, line, mark = json.JSONDecoder(), "", 1, "["
    while True:
        while not (rest := text.lstrip(f" \t\r\n{mark}")):
            line += text.count("\n")
            if not (text := file.read(_PIECE)):
                raise _wrong(path, f"ends at line {line} within its list")
        line += text.count("\n", 0, len(text) - len(rest))
        if rest.startswith("]"):
            return
        text, mark, place = rest, ",", f"The entry at line {line} of {path}"
        while True:
            try:
                value, end = decoder.raw_decode(text)
                break
            except (json.JSONDecodeError, RecursionError) as exc:
                piece = "" if len(text) > _LONGEST else file.read(_PIECE)
                if not piece:
                    raise _wrong(place, f"is no JSON: {exc}") from exc
                text += piece
        line += text.count("\n", 0, end)
        text = text[end:]
        yield place, value


def _entry(value: Any, place: str) -> Entry:
    if not isinstance(value, Mapping):
        raise _wrong(place, "is no object")
    name = next((name for name in _READERS if name in value), None)
    if name is None:
        raise _wrong(place, f"has none of {', '.join(_READERS)}")
    kind, prompt = _READERS[name](value[name], place)
    said = next((value[each] for each in _LENGTHS if value.get(each) is not None), None)
    if said is not None and (type(said) is not int or said < 1):
        raise _wrong(place, f"asks for {said!r} output tokens")
    try:
        return Entry(place, orjson.dumps(prompt), kind, said)
    except orjson.JSONEncodeError as exc:  # half a character, a number beyond 64 bits
        raise _wrong(place, f"cannot be sent: {exc}") from exc


def _text_or_ids(prompt: Any, place: str) -> tuple[_Kind, Any]:
    if isinstance(prompt, str) and prompt:
        return "text", prompt
    is_ids = isinstance(prompt, list) and prompt
    if not is_ids or not all(type(token) is int and 0 <= token < 2**31 for token in prompt):
        raise _wrong(place, "has a prompt that is neither text nor token ids, or is empty")
    return "ids", prompt


def _messages(messages: Any, place: str) -> tuple[_Kind, Any]:
    if not isinstance(messages, list) or not messages:
        raise _wrong(place, "has messages that are no list, or is empty")
    if not all(isinstance(one, Mapping) and "role" in one for one in messages):
        raise _wrong(place, "has a message without a role")
    return "messages", messages


def _first_human(turns: Any, place: str) -> tuple[_Kind, Any]:
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise _wrong(place, "has conversations that are no list of turns")
    said = next((t.get("value") for t in turns if t.get("from") in {"human", "user"}), None)
    if not isinstance(said, str) or not said:
        raise _wrong(place, "has no words of a human")
    return "text", said


_READERS: Final[Mapping[str, Callable[[Any, str], tuple[_Kind, Any]]]] = {
    "prompt_token_ids": lambda ids, place: _text_or_ids(
        ids if isinstance(ids, list) else None, place
    ),
    "prompt": _text_or_ids,
    "messages": _messages,
    "conversations": _first_human,
}


def require_askable(entries: Sequence[Entry], api: str) -> None:
    """Refuse prompts that an API does not take, before anything is paid for.

    Raises:
        InvalidArgument: The message names the first one.
    """
    for entry in entries:
        _asked(entry, api)


def sha256(entries: Sequence[Entry]) -> str:
    """Give what tells the prompts of one dataset from those of another."""
    said = hashlib.sha256()
    for entry in entries:
        said.update(b"%d %d " % (entry.output_tokens or 0, len(entry.prompt)) + entry.prompt)
    return said.hexdigest()


def shared(entries: Sequence[Entry]) -> float:
    """Give the share of all prompts, in bytes, that begins as another one does.

    So much an engine's prefix cache may know of prompts that are asked once each: a conversation's
    earlier turns, and instructions that all of them begin with.
    """
    prompts = sorted(entry.prompt for entry in entries)
    return sum(starmap(_common, pairwise(prompts))) / sum(map(len, prompts))


def _common(one: bytes, other: bytes) -> int:
    """Give how many bytes two prompts begin with alike."""
    ends = range(min(len(one), len(other)))
    return bisect_left(ends, x=True, key=lambda end: one[: end + 1] != other[: end + 1])


def _of_dataset(job: "Job") -> Callable[[int], bytes]:
    """Ask the prompts in an order that the seed mixes; after the last one it begins again, and
    the engine's prefix cache may know what it is asked.
    """
    entries = read(Path(job.dataset or ""))
    prompts = [_asked(entry, job.api) for entry in entries]
    random = np.random.default_rng(job.seed % 2**64)
    order: list[int] = random.permutation(len(entries)).tolist()
    front = cache(partial(_opening, job))

    def body(number: int) -> bytes:
        place = order[number % len(order)]
        return front(entries[place].output_tokens or job.output_tokens) + prompts[place]

    return body


def _asked(entry: Entry, api: str) -> bytes:
    """The prompt's field, and the end of the body."""
    if api == "completion":
        if entry.kind == "messages":
            raise _wrong(entry.place, "is a chat, which the completion API does not take")
        return b'"prompt":' + entry.prompt + b"}"
    if entry.kind == "messages":
        return b'"messages":' + entry.prompt + b"}"
    if entry.kind == "text":
        return b'"messages":[{"role":"user","content":' + entry.prompt + b"}]}"
    raise _wrong(entry.place, "is a list of token ids, which the chat API does not take")


Bodies = Callable[[int], bytes]
Rows = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
T = TypeVar("T")

HEAD_TOKENS: Final = 16
"""One block of the usual size; no request's cost grows with more."""
TAILS: Final = 8
_BATCH: Final = 1024
_COUNTED: Final = 2**31
"""The counter stays below it, so that its mixing stays within 64 bits."""


def bodies(job: "Job") -> Bodies:
    """Give the function from a request's number to its JSON body.

    A body takes below 1 µs where prompts are short and one copy of its bytes where they are long.
    Numbers may come in any order; near ones are the fastest.

    Raises:
        InvalidArgument: The prompt cannot be made: a chat shorter than its template, an alphabet
            too small, a dataset that cannot be read.
    """
    if job.dataset is not None:
        return _of_dataset(job)
    return _chats(job) if job.api == "chat" else _completions(job)


def _completions(job: "Job") -> Bodies:
    parts = _Parts(job, job.context, len(job.token_ids))
    cells = _cells(job.token_ids)
    width = cells.shape[1] * parts.head_tokens
    front = _opening(job, job.output_tokens) + b'"prompt":[' + cells[parts.shared].tobytes()
    # A cell ends with a comma, which the last token must not have.
    ends = [cells[tail].tobytes()[:-1] + b"]}" for tail in parts.tails]
    if not parts.head_tokens:
        whole = front[:-1] + b"]}"
        return lambda _number: whole
    cut = width if parts.tail_tokens else width - 1
    closings = ends if parts.tail_tokens else [b"]}"] * TAILS
    heads = _Batches(lambda batch: cells[parts.heads(batch)].tobytes())

    def body(number: int) -> bytes:
        batch, row = divmod(number, _BATCH)
        at = row * width
        return front + heads.of(batch)[at : at + cut] + closings[number % TAILS]

    return body


def _chats(job: "Job") -> Bodies:
    left, words = job.context - job.template_tokens, job.words
    if left < 1 or not words:
        raise InvalidArgument(
            f"A chat of {job.context} prompt tokens cannot be made: its template takes "
            f"{job.template_tokens}.",
            fix="Ask for longer contexts, for the completion API, or for prompts from a dataset.",
        )
    parts = _Parts(job, left, len(words))
    texts = [orjson.dumps(word)[1:-1] for word in words]
    # Templates trim a message, so the first word is told apart: it counts as the template's.
    first = orjson.dumps(words[0].strip())[1:-1]
    front = _opening(job, job.output_tokens) + b'"messages":[{"role":"user","content":"' + first
    front += _spell(texts, parts.shared.tolist())
    closings = [_spell(texts, tail.tolist()) + b'"}]}' for tail in parts.tails]
    heads = _Batches(lambda batch: [_spell(texts, row) for row in parts.heads(batch).tolist()])

    def body(number: int) -> bytes:
        batch, row = divmod(number, _BATCH)
        return front + heads.of(batch)[row] + closings[number % TAILS]

    return body


class _Parts:
    """Which tokens stand where, as places in the alphabet."""

    def __init__(self, job: "Job", context: int, alphabet_size: int) -> None:
        if alphabet_size < 2:
            raise InvalidArgument(
                f"Prompts cannot be made of {alphabet_size} kinds of tokens.",
                fix="Give at least 2 token ids; 64 make every prompt of 5 tokens unique.",
            )
        shared = floor(job.prefix_share * context + 1e-9)
        self.head_tokens = min(HEAD_TOKENS, context - shared)
        self.tail_tokens = context - shared - self.head_tokens
        self._size = alphabet_size
        self._seed = (job.seed % 2**64, context)
        random = np.random.default_rng(self._seed)
        self.shared: Rows = random.integers(alphabet_size, size=shared)
        self.tails: Rows = random.integers(alphabet_size, size=(TAILS, self.tail_tokens))
        fitting = (n for n in range(1, self.head_tokens + 1) if alphabet_size**n <= _COUNTED)
        self._digits = max(fitting, default=0)
        """How many of the head's tokens count the requests."""
        self._period = int(alphabet_size**self._digits)
        self._step = int(random.integers(self._period))
        while gcd(self._step, self._period) != 1:  # else it would not come past every number
            self._step += 1
        self._start = int(random.integers(self._period))

    def heads(self, batch: int) -> Rows:
        random = np.random.default_rng((*self._seed, 1 + batch))
        rows = random.integers(self._size, size=(_BATCH, self.head_tokens))
        numbers = (batch * _BATCH + np.arange(_BATCH)) % self._period
        mixed = (numbers * self._step + self._start) % self._period
        for digit in range(self._digits):
            rows[:, digit] = mixed % self._size
            mixed //= self._size
        return rows


class _Batches(Generic[T]):
    """Keeps the batch in use and the one before: requests may come a little out of order."""

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make
        self._kept: dict[int, T] = {}

    def of(self, batch: int) -> T:
        found = self._kept.get(batch)
        if found is None:
            if len(self._kept) > 1:
                del self._kept[next(iter(self._kept))]
            found = self._kept[batch] = self._make(batch)
        return found


def _opening(job: "Job", output_tokens: int) -> bytes:
    """Give the fields of a streamed request whose usage is told at its end, as far as it may be.

    A chat asks for the usage with every event, because only so reasoning tokens are told apart as
    they come.
    """
    usage = {"include_usage": True}
    if job.api == "chat" and EACH_USAGE not in job.refuses:
        usage[EACH_USAGE] = True
    asked: dict[str, Any] = {"model": job.model, "stream": True, "stream_options": usage}
    asked["max_tokens"] = output_tokens
    if job.fixed_output:
        asked |= {"min_tokens": output_tokens, "ignore_eos": True, "temperature": 0}
    if BOUND in job.refuses:
        asked["max_completion_tokens"] = output_tokens
    kept = {name: value for name, value in asked.items() if name not in job.refuses}
    return orjson.dumps(kept)[:-1] + b","


EACH_USAGE: Final = "continuous_usage_stats"
BOUND: Final = "max_tokens"
_REFUSABLE: Final = (EACH_USAGE, "stream_options", BOUND, "min_tokens", "ignore_eos", "temperature")
"""Fields that an endpoint other than vLLM may not take; the first is within the second."""


async def refused_fields(endpoint: "Endpoint", job: "Job") -> tuple[str, ...] | None:
    """Ask for one token and learn from refusals which fields the endpoint does not take.

    Its words are none of the workload's, which would then be in the prefix cache. None where that
    is not known, for instance because the endpoint is at its limit.
    """
    words = b'"prompt":"Hi"'
    if job.api == "chat":
        words = b'"messages":[{"role":"user","content":"Hi"}]'
    refuses: tuple[str, ...] = ()
    while True:
        asked = replace(job, refuses=refuses)
        try:
            async with endpoint.stream(job.path, orjson.loads(_opening(asked, 1) + words + b"}")):
                return refuses
        except RequestRefused as exc:
            said = exc.cause
        except OpsError:  # the cell says it better
            return None
        named = (name for name in _REFUSABLE if name in said and name not in refuses)
        if (name := next(named, None)) is None:
            return None
        refuses = (*refuses, name)


def _cells(token_ids: Sequence[int]) -> Bytes:
    texts = [b"%d," % token for token in token_ids]
    width = max(map(len, texts))
    joined = b"".join(text.rjust(width) for text in texts)
    return np.frombuffer(joined, dtype=np.uint8).reshape(len(texts), width)


def _spell(texts: Sequence[bytes], places: Sequence[int]) -> bytes:
    return b"".join([texts[place] for place in places])
