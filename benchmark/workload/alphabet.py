"""Ordinary tokens of a model, as its engine's own tokenizer makes them."""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from core.endpoint import Endpoint
from core.errors import EndpointError

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


async def alphabet(endpoint: Endpoint, model: str) -> Alphabet:
    """Ask the engine's tokenizer; where there is none, give `UNKNOWN`. It never raises."""
    try:
        tokens = await _tokens(endpoint, model)
    except EndpointError:
        return UNKNOWN
    ids = tuple(dict.fromkeys(token.id for token in tokens))
    if len(ids) < 2:
        return UNKNOWN
    notes = () if len(ids) >= MINIMUM_IDS else (_few(len(ids)),)
    words, template_tokens, said = await _chat(endpoint, model, tokens)
    return Alphabet(ids, words, template_tokens, notes + said)


async def _tokens(endpoint: Endpoint, model: str) -> list[_Token]:
    asked = {"prompt": TEXT, "add_special_tokens": False, "return_token_strs": True}
    reply = await endpoint.post("/tokenize", {"model": model, **asked})
    ids = [token for token in _listed(reply, "tokens") if type(token) is int and token >= 0]
    texts = [_SPACES.sub(" ", str(text)) for text in _listed(reply, "token_strs")]
    texts = texts if len(texts) == len(ids) else [""] * len(ids)
    pairs = map(_Token, ids, texts)
    return [pair for pair in pairs if not _SPECIAL.fullmatch(pair.text.strip())]


async def _chat(
    endpoint: Endpoint, model: str, tokens: Sequence[_Token]
) -> tuple[tuple[str, ...], int, tuple[str, ...]]:
    words = _words(tokens)
    try:
        short = await _count(endpoint, model, words[0])
        long = await _count(endpoint, model, words[0] + "".join(words))
    except EndpointError:
        return words, FALLBACK_TEMPLATE_TOKENS, ("The length of chats is an estimate.",)
    error = (long - short) / len(words) - 1
    said = () if not error else (f"Chats are made of words; their length is {error:+.1%} off.",)
    return words, short, said


def _words(tokens: Sequence[_Token]) -> tuple[str, ...]:
    texts = dict.fromkeys(token.text for token in tokens)
    spaced = tuple(text for text in texts if re.fullmatch(" [A-Za-z]+", text))
    letters = tuple(text for text in texts if re.fullmatch("[A-Za-z]", text))
    return next((some for some in (spaced, letters) if len(some) > 15), FALLBACK_WORDS)


async def _count(endpoint: Endpoint, model: str, text: str) -> int:
    """Tokens of a chat's whole prompt."""
    messages = [{"role": "user", "content": text.strip()}]
    reply = await endpoint.post("/tokenize", {"model": model, "messages": messages})
    return len(_listed(reply, "tokens"))


def _listed(reply: dict[str, Any], name: str) -> list[Any]:
    found = reply.get(name)
    return found if isinstance(found, list) else []


def _few(count: int) -> str:
    return f"The tokenizer made {count} kinds of tokens: short prompts repeat sooner."
