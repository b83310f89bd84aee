"""What runs before an engine whose compiled code is carried, as its store and its log see it."""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

MIB: Final = 2**20
_SIZE: Final = 8 * MIB
"""Of what an engine compiles here; a real one is ten times as large."""


class Missing(Exception):
    """The store has no such file, or shows none."""


class Store(NamedTuple):
    """Where files are kept; each may raise OSError with why not."""

    read: Callable[[str], Awaitable[bytes]]
    write: Callable[[str, bytes], Awaitable[None]]


def store_in(env: Mapping[str, str]) -> str:
    """Return where an engine's compiled code is to lie; empty where nothing is carried."""
    return str(json.loads(env.get("COMPILE_CACHE", "{}")).get("store", ""))


class Carrying:
    """One boot of an engine."""

    def __init__(self, env: Mapping[str, str], say: Callable[[str], None]) -> None:
        self._key, self._say = str(json.loads(env["COMPILE_CACHE"])["key"]), say
        self.found = False

    async def before(self, store: Store) -> None:
        """Fetch what an earlier boot left."""
        began, name = time.monotonic(), f"{self._key}.tar"
        try:
            size = len(await store.read(name))
        except Missing:
            self._say(f"compile-cache: none for {self._key} yet")
        except OSError as exc:
            self._say(f"compile-cache: not fetched {self._key}: {exc}")
        else:
            self.found, took = True, time.monotonic() - began
            self._say(f"compile-cache: carried {self._key}, {size / MIB:.0f} MiB in {took:.1f} s")

    async def after(self, store: Store) -> None:
        """Save what this boot compiled, once the engine has answered."""
        if self.found:
            return
        began = time.monotonic()
        try:
            await store.write(f"{self._key}.tar", bytes(_SIZE))
        except OSError as exc:
            self._say(f"compile-cache: not saved: {exc}")
        else:
            took = time.monotonic() - began
            self._say(f"compile-cache: saved {self._key}, {_SIZE / MIB:.0f} MiB in {took:.1f} s")
