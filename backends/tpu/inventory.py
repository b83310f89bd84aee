"""Everything of TPUs that there is in the project, looked for once for all targets."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from backends.tpu.chip import Chip

_FRESH_SECONDS: Final = 1.0
"""Nine targets that are listed together look once."""

Look = Callable[[], Awaitable[Sequence[Chip]]]


class Inventory:
    """What was seen last, and when."""

    def __init__(self) -> None:
        self._lock = anyio.Lock()
        self._seen: Sequence[Chip] = ()
        self._at: float | None = None

    async def read(self, look: Look) -> Sequence[Chip]:
        """Give what was seen within the last second, or look. Raises what `look` does."""
        async with self._lock:
            now = anyio.current_time()
            if self._at is None or now - self._at > _FRESH_SECONDS:
                self._seen = await look()
                self._at = anyio.current_time()
            return self._seen

    def forget(self) -> None:
        """Something was changed: look anew."""
        self._at = None
