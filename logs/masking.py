"""Personal data taken out of a line: users' words, addresses, card numbers."""

import ipaddress
import re
from collections import Counter
from collections.abc import Callable
from typing import Final

_STRING: Final = r"""(?:'(?:[^'\\]|\\.)*+(?:'|\Z)|"(?:[^"\\]|\\.)*+(?:"|\Z))"""
"""A Python or JSON string; one whose end was cut off goes on to the end of the line."""
_NUMBERS: Final = r"\[[0-9,\s.]*+(?:\]|\Z)"
_WORDS: Final = re.compile(
    rf"""(?P<before>(?:prompts?|outputs?|content|text|messages|bad_words|stop|token_ids|inputs?
          |suffix|query)["']?\s?[:=]\s?)
         (?P<words>{_STRING}|{_NUMBERS}(?<!\[\])|\[\s*+(?:{_STRING}[,\s]*+)++\]?)""",
    re.VERBOSE,
)
"""What a user wrote or was answered, as vLLM's request logger writes it: `prompt: '…'`,
`output: '…'`, token ids, `stop=['…']` (vLLM 0.4 to 0.14, read on 2026-11-22), and as JSON bodies
hold it."""
_OPENED: Final = re.compile(r"""[:=]\s?(?:['"]|\[[^\]])""")
"""What any such words begin with: a cheap first look."""

_EMAIL: Final = re.compile(
    r"(?<![\w.+%-])[\w.+%-]{1,64}+@(?:[\w-]{1,63}\.){1,6}[A-Za-z]{2,24}(?![\w-])"
)
_IPV4: Final = re.compile(r"(?<![\w.=-])(?:\d{1,3}\.){3}\d{1,3}(?!\.?\w)", re.ASCII)
_IPV6: Final = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:)[0-9A-Fa-f:]{3,39}(?![\w:])")
_CARD: Final = re.compile(r"(?<![\w.-])[2-6]\d{3}(?:[ -]?\d){9,15}(?![\w-]|\.\d)", re.ASCII)
_CARD_BEGINS: Final = re.compile(
    r"4(?:\d{12}|\d{15}|\d{18})$|(?:5[1-5]|2[2-7]|35|6[025])\d{14}$|3[47]\d{13}$|3[068]\d{12}$"
)
_PHONE: Final = re.compile(
    r"(?<![\w.])\+[1-9]\d{0,2}[ .-]?\(?\d{2,4}\)?(?:[ .-]\d{2,4}){2,3}(?!\d)"
)
_USER: Final = re.compile(
    r"""(?P<before>[?&](?:user|username|user_id|login|name)=|["']user["']:\s?["'])[^\s&"']+"""
)


def mask(text: str, counts: Counter[str] | None = None) -> str:
    """Give the text without personal data; `counts` learns how many of each kind were masked.

    Addresses of private networks and of this machine stay: they name machines, not people.

    >>> mask("prompt: 'How do I', from 10.0.0.7, then 8.8.4.4:5000")
    'prompt: [prompt], from 10.0.0.7, then [address]:5000'
    """
    seen: Counter[str] = Counter() if counts is None else counts
    text = mask_words(text, seen)
    if "@" in text:
        text = _all(_EMAIL, "email", text, seen)
    if "user" in text or "?" in text:
        text = _all(_USER, "user", text, seen)
    text = _where(_is_public, _IPV4, "address", text, seen)
    if text.count(":") > 1:
        text = _where(_is_public, _IPV6, "address", text, seen)
    text = _where(is_card, _CARD, "card", text, seen)
    return _all(_PHONE, "phone", text, seen) if "+" in text else text


def mask_words(text: str, counts: Counter[str]) -> str:
    """Give the text without what users wrote or were answered."""
    return _all(_WORDS, "prompt", text, counts) if _OPENED.search(text) else text


def is_card(digits: str) -> bool:
    """Whether the number could be of a payment card: its first digits, its length, its check.

    >>> is_card("4111 1111 1111 1111"), is_card("4111 1111 1111 1112")
    (True, False)
    """
    number = [int(digit) for digit in digits if digit.isdigit()]
    if not _CARD_BEGINS.match("".join(map(str, number))):
        return False
    doubled = (sum(divmod(2 * digit, 10)) for digit in number[-2::-2])
    return (sum(number[::-2]) + sum(doubled)) % 10 == 0


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _all(pattern: re.Pattern[str], kind: str, text: str, counts: Counter[str]) -> str:
    before = r"\g<before>" if "before" in pattern.groupindex else ""
    text, found = pattern.subn(f"{before}[{kind}]", text)
    if found:
        counts[kind] += found
    return text


def _where(
    is_one: Callable[[str], bool],
    pattern: re.Pattern[str],
    kind: str,
    text: str,
    counts: Counter[str],
) -> str:
    def hidden(match: re.Match[str]) -> str:
        if not is_one(match[0]):
            return match[0]
        counts[kind] += 1
        return f"[{kind}]"

    return pattern.sub(hidden, text)
