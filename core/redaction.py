"""Secrets and others' words made harmless in any text before it leaves the server."""

import re
import unicodedata
from collections.abc import Iterable
from typing import Any, Final

MASK: Final = "[redacted]"


_REFERENCES: Final = r"""(?:none|null|true|false|undefined|empty|secretref:|projects/|keyvaultref:
    |[^\s'",&;]{0,200}:latest\b|["'\[(]*[<${*[(]|os\.|self\.|str(?:ing)?\b|optional\b)"""
"""What stands where a secret would, and is none: no value, a reference, a variable."""

_KEY: Final = "[A-Za-z0-9%+/=_-]{16,}"
"""Of a signed address, or a connection string."""
_SHAPES: Final = {
    "hf_": r"\bhf_[A-Za-z0-9]{16,}",
    "api_org_": r"\bapi_org_[A-Za-z0-9]{16,}",
    "sk-": r"\bsk-[A-Za-z0-9_-]{16,}",  # as OpenAI's, ours among them
    "ya29.": r"\bya29\.[A-Za-z0-9_.-]{16,}",
    "aiza": r"\bAIza[A-Za-z0-9_-]{30,}",
    "gocspx-": r"\bGOCSPX-[A-Za-z0-9_-]{16,}",
    # JSON web tokens; one that begins within a word is not looked at without end, again and again.
    "eyj": r"""(?:(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+|(?<=-)eyJ[A-Za-z0-9_-]{8,500}+)
        \.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}""",
    "github_pat_": r"\bgithub_pat_[A-Za-z0-9_]{22,}",
    "ghp_ | gho_ | ghu_ | ghs_ | ghr_": r"\bgh[pousr]_[A-Za-z0-9]{30,}",
    "glpat-": r"\bglpat-[A-Za-z0-9_-]{16,}",
    "xox": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "hooks.slack.com/": r"(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{20,}",
    "akia | asia": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    # A client secret of Microsoft Entra.
    "8q~": r"(?<![A-Za-z0-9_.~-])[A-Za-z0-9_.~-]{3}8Q~[A-Za-z0-9_.~-]{31,37}",
    "bearer": r"(?<=[Bb]earer\s)[A-Za-z0-9_.~+/=-]{12,}",
    "basic": r"(?<=[Bb]asic\s)[A-Za-z0-9+/]{8,}={1,2}(?![A-Za-z0-9+/=])",
    "accountkey=": rf"(?<=AccountKey=){_KEY}",
    "sharedaccesskey=": rf"(?<=SharedAccessKey=){_KEY}",
    "sharedaccesssignature=": rf"(?<=SharedAccessSignature=){_KEY}",
    "--api-key | --api_key | --hf-token | --hf_token": rf"""
        (?:(?<=--api[-_]key\s)|(?<=--hf[-_]token\s))(?!{_REFERENCES}|API_KEY|HF_TOKEN)
        [^\s'\",;&)\]}}]{{4,}}""",
    "sig=": rf"(?<=[?&]sig=){_KEY}",
    "x-goog-signature=": r"(?<=[?&]X-Goog-Signature=)[A-Fa-f0-9]{16,}",
    "x-amz-signature=": rf"(?<=X-Amz-Signature=){_KEY}",
    "x-amz-security-token=": rf"(?<=X-Amz-Security-Token=){_KEY}",
    # A private key whose end is missing takes the rest of the text with it.
    "private key-----": r"""-----BEGIN\ [A-Z ]{0,24}PRIVATE\ KEY-----
        [\s\S]*?(?:-----END[ A-Z]{0,40}-----|\Z)""",
}
"""What each kind of secret looks like; the pattern matches it alone. The keys are lower-case words
of which any text that holds one has at least one: a cheap first look."""
_PATTERNS: Final = tuple(
    (tuple(hints.split(" | ")), re.compile(pattern, re.VERBOSE | re.ASCII))
    for hints, pattern in _SHAPES.items()
)

_NAMED: Final = re.compile(
    rf"""((?<![A-Za-z])
         (?:(?P<sure>api[_-]?key|apikey|passwo?r?d|passphrase|client[_-]?secret|app[_-]?secret
              |secret[_-]?(?:access[_-]?)?key|account[_-]?key|authorization)
           |(?<!page_)(?:access|refresh|id|auth|session|security)?[_-]?token)
         ["']?\s?(?P<sign>[=:])\s?
         (?P<scheme>(?:basic|bearer|token|negotiate)\s)?
         ["'\[(]*+)
         (?!{_REFERENCES})
         (?P<value>(?P<quoted>(?<=["'])[^"']{{4,}})|[^\s"',;&)\]}}]{{4,}})""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
"""A value after a name that says it is secret."""
_FROM_FILE: Final = re.compile(r"(?:~|\.{1,2})?(?:/[\w.-]+){2,}", re.ASCII)
"""A path, as `kubectl --from-file=NAME=` takes it: where a secret is read from, and none itself."""
_FLAG: Final = re.compile(r"--(?:api[-_]k(?:ey?)?|hf[-_]t(?:o(?:k(?:en?)?)?)?)")
"""Of an engine, for a secret that is the next word; its parser takes abbreviations."""
_KEY_LINE: Final = re.compile(
    r"(?=.*[a-z])(?=.*[A-Z])(?=.*[0-9])\s*[A-Za-z0-9+/]{60,80}={0,2}\s*", re.ASCII
)
"""A line of a private key's body that stands alone, as logs tear them apart: 64 characters of
base64, 70 of OpenSSH's. A certificate in one piece is none."""
_KEY_LINE_LENGTHS: Final = range(60, 97)
_SHORTEST: Final = 15
"""Characters of the shortest text in which a secret can be known by its shape alone."""
_NAMES: Final = ("key", "passw", "pwd", "passphrase", "secret", "token", "authori")
_LOGIN: Final = re.compile(r"(?<=://)([^\s/:@'\"<>${}]{0,64}):([^\s/@'\"<>]{1,256})(?=@)", re.ASCII)


def redact(value: Any, known: Iterable[str] = ()) -> Any:
    """Give the same text, list or dict with every known or secret-looking value masked.

    >>> redact({"log": "using key s3cret-of-mine"}, known=["s3cret-of-mine"])
    {'log': 'using key [redacted]'}
    """
    secrets = sorted((secret for secret in known if secret), key=len, reverse=True)
    return _redact(value, secrets)


def _redact(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        return _redact_text(value, secrets)
    if isinstance(value, dict):
        return {_redact(key, secrets): _redact(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        before = (None, *value)
        return [
            MASK if _is_flags_secret(flag, item) else _redact(item, secrets)
            for flag, item in zip(before, value, strict=False)
        ]
    return value


def _is_flags_secret(flag: object, item: object) -> bool:
    """Whether two words of a list are a flag and the secret that it takes."""
    if not (isinstance(flag, str) and isinstance(item, str) and _FLAG.fullmatch(flag)):
        return False
    return not re.match(_REFERENCES, item, re.VERBOSE | re.IGNORECASE)


def _redact_text(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    if len(text) < _SHORTEST and "=" not in text and ":" not in text:
        return text
    if len(text) in _KEY_LINE_LENGTHS and _KEY_LINE.fullmatch(text):
        return MASK
    folded = text.lower()
    for hints, pattern in _PATTERNS:  # almost never one, and most of the time goes here
        for hint in hints:
            if hint in folded:
                text = pattern.sub(MASK, text)
                break
    if "://" in folded and "@" in folded:
        text = _LOGIN.sub(rf"\1:{MASK}", text)
    if ("=" in folded or ":" in folded) and any(name in folded for name in _NAMES):
        text = _NAMED.sub(_hide, text)
    return text


def _hide(match: re.Match[str]) -> str:
    is_masked = match["value"] in MASK
    is_place = match.string.endswith("--from-file=", 0, match.start()) and _FROM_FILE.fullmatch(
        match["value"]
    )
    return match[0] if is_masked or is_place or not _is_chosen(match) else match[1] + MASK


def _is_chosen(match: re.Match[str]) -> bool:
    """After a colon, and after «token», words are more likely than secrets."""
    value = match["value"]
    is_mixed = any(map(str.isdigit, value)) and any(map(str.isalpha, value))
    if not match["sure"]:
        return len(value) >= 12 and is_mixed
    is_quoted = bool(match["quoted"]) and " " not in value
    is_sure = match["sign"] == "=" or match["scheme"] or is_quoted
    return bool(is_sure) or (len(value) >= 6 and is_mixed)


MOST_JSON_BYTES: Final = 2 * 2**20
"""Objects made of it take up to thirty times as much memory."""
_DEEPEST: Final = 64
"""Objects and lists within each other; vLLM's answers have six."""
_MOST_NESTED: Final = 100_000
"""Objects and lists together: 2 MiB of empty ones take 60 MB; of log probabilities 35,000 fit."""
_HALVED: Final = 400
"""A secret that the cut halves is no longer than this; or it is long enough to be known."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_LAST_WORD: Final = re.compile(r"\S*\Z")
_LAST_NUMBER: Final = re.compile(r"[0-9 -]*\Z")
_JOINERS: Final = "\u200c\u200d"
"""Without which words of some languages, and some pictures, are not what they are."""


class NotJson(ValueError):
    """It is no JSON, or none that is read here."""


def read_json(text: bytes) -> Any:
    """Read JSON of a bounded size, depth and number of parts; NaN and the like are no JSON.

    Raises:
        NotJson: It is something else.
    """
    if len(text) > MOST_JSON_BYTES:
        raise NotJson("It is too large.")
    from orjson import JSONDecodeError, loads  # noqa: PLC0415  what listing the tools need not pay

    nested = text.count(b"[") + text.count(b"{")
    if nested > _MOST_NESTED:
        raise NotJson("It has too many parts.")
    try:
        value = loads(text)
    except JSONDecodeError as exc:
        raise NotJson(exc.msg) from exc
    if nested > _DEEPEST and _is_deep(value):
        raise NotJson("It is nested too deeply.")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        inner = [one for one in level if isinstance(one, dict | list)]
        if not inner:
            return False
        level = [one for row in inner for one in (row.values() if isinstance(row, dict) else row)]
    return True


def printable(text: str, *, keep: str = "") -> str:
    r"""Give a text without colours, and without characters that hide, turn or break others.

    >>> printable("\x1b[2J\u202eup\x00 and\n down")
    'up and  down'
    """
    if text.isprintable():
        return text
    text = _COLOUR.sub("", text)
    return "".join(one if one in keep else _printable(one) for one in text)


def one_line(text: object, most: int) -> str:
    r"""Give the beginning of a text as words on one line.

    >>> one_line("a\tb\x1b\n\u202ec", 9), one_line("several words", 9)
    ('a b c', 'several…')
    """
    said = str(text)
    if len(said) <= most and said.isprintable() and "  " not in said:
        return said.strip()
    line = " ".join(printable(shortened(said, 4 * most + _HALVED)).split())
    if len(line) <= most:
        return line
    cut = f"{quoted(line, most - 1)}…"
    if cut.count('"') % 2:  # words of others stay in quotes
        cut = f'{quoted(line, most - 2)}…"'
    return cut


def in_quotes(text: object, most: int = 300) -> str:
    r"""Give words of others as they stand in a sentence of ours; nothing where there are none.

    >>> in_quotes('it said "no"\n')
    '"it said \'no\'"'
    """
    line = one_line(text, most).replace('"', "'")
    return f'"{line}"' if line else ""


def shortened(text: str, most: int) -> str:
    """Give the beginning of a text, without the word or number that the cut would halve."""
    if len(text) <= most:
        return text
    rest, end = text[: max(0, most - _HALVED)], text[max(0, most - _HALVED) : most]
    return rest + _LAST_NUMBER.sub("", _LAST_WORD.sub("", end, count=1), count=1)


def quoted(text: str, most: int) -> str:
    """Give the beginning of a line as evidence; only of a single long word it is half a word.

    >>> quoted("the key is sk-abcdef", 15)
    'the key is'
    """
    return shortened(text, most) or text[:most]


_LINE: Final = frozenset(
    ("summary", "cause", "fix", "detail", "warnings", "code", "evidence", "errors", "lines", "rows")
)
"""Fields whose texts are each one line, wherever they stand in an answer."""
_SPOKEN: Final = frozenset(("answer", "reasoning", "answer_so_far"))
"""Fields that hold what a model said, in whatever language."""
_LONGEST_KEY: Final = 200


def harmless(value: Any, name: str = "") -> Any:
    """Give an answer with nothing in it that could hide, turn or pass for something else."""
    if isinstance(value, str):
        if name not in _LINE:
            return printable(value, keep="\n\t" + (_JOINERS if name in _SPOKEN else ""))
        return value if value.isprintable() else " ".join(printable(value).split())
    if isinstance(value, dict):
        return {
            _key(key): harmless(one, key if isinstance(key, str) else name)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [harmless(one, name) for one in value]
    return value


def _key(key: Any) -> Any:
    """Return a name as one line; ours are short and printable as they are."""
    plain = not isinstance(key, str) or (key.isprintable() and len(key) <= _LONGEST_KEY)
    return key if plain else one_line(key, _LONGEST_KEY)


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    if character.isspace():
        return " "
    kind = unicodedata.category(character)
    if kind == "Cs":
        return "\N{REPLACEMENT CHARACTER}"
    return "" if kind in {"Cf", "Cc"} else " "
