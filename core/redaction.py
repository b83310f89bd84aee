"""Secrets taken out of any text before it leaves the server."""

import re
from collections.abc import Iterable
from typing import Any, Final

MASK: Final = "[redacted]"

_SHAPES: Final = re.compile(
    r"""\bhf_[A-Za-z0-9]{16,}                      # Hugging Face
      | \bsk-[A-Za-z0-9_-]{16,}                    # OpenAI-style keys, ours among them
      | \bya29\.[A-Za-z0-9_.-]{16,}                # Google OAuth
      | \bAIza[A-Za-z0-9_-]{30,}                   # Google API keys
      | \beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}   # JSON web tokens
      | (?<=[Bb]earer\s)[A-Za-z0-9_.~+/=-]{12,}
      | (?<=AccountKey=)[A-Za-z0-9+/=]{16,}
      | (?<=[?&]sig=)[A-Za-z0-9%+/=_-]{16,}
      | (?<=[?&]X-Goog-Signature=)[A-Fa-f0-9]{16,}
    """,
    re.VERBOSE,
)


def redact(value: Any, known: Iterable[str] = ()) -> Any:
    """Give the same text, list or dict with every known or secret-looking value masked.

    >>> redact({"log": "using key s3cret-of-mine"}, known=["s3cret-of-mine"])
    {'log': 'using key [redacted]'}
    """
    secrets = sorted((secret for secret in known if secret), key=len, reverse=True)
    return _redact(value, secrets)


def _redact(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, MASK)
        return _SHAPES.sub(MASK, value)
    if isinstance(value, dict):
        return {_redact(key, secrets): _redact(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact(item, secrets) for item in value]
    return value
