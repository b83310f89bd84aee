"""Tokens in the memory of one server, where the journal is damaged: they end with it."""

import hashlib
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from core.journal import TOKEN_MINUTES, utc_now


class _Held(NamedTuple):
    bound_to: str
    expires: datetime


class HeldTokens:
    """As strict as the journal's: each is good for one thing, once, for ten minutes."""

    def __init__(self, clock: Callable[[], datetime] = utc_now) -> None:
        self._clock: Final = clock
        self._held: Final[dict[str, _Held]] = {}

    def mint(self, bound_to: str) -> str:
        """Give a token that says yes to exactly this."""
        now, token = self._clock(), secrets.token_hex(6)
        for key in [key for key, one in self._held.items() if one.expires < now]:
            self._held.pop(key, None)
        expires = now + timedelta(minutes=TOKEN_MINUTES)
        self._held[_digest(token)] = _Held(bound_to, expires)
        return token

    def redeem(self, token: str, bound_to: str) -> bool:
        """Use a token up; whether it was good for this."""
        now, key = self._clock(), _digest(token)
        one = self._held.get(key)
        latest = now + timedelta(minutes=TOKEN_MINUTES)
        if one is None or one.bound_to != bound_to or not now <= one.expires <= latest:
            return False
        return self._held.pop(key, None) is not None


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
