"""Tokens turned into text as they come, cut at stop strings."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Delta:
    """What is new of one answer since somebody last looked."""

    text: str = ""
    reasoning: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    def __bool__(self) -> bool:
        return bool(self.tokens) or self.finish_reason is not None

    def add(self, other: "Delta") -> None:
        """Merge what came next, as happens when a client reads slower than the engine writes."""
        self.text += other.text
        self.reasoning += other.reasoning
        self.tokens += other.tokens
        self.finish_reason = other.finish_reason
        self.stop_reason = other.stop_reason


class Transcript:
    """Holds back what may yet turn out to be a stop string or half a character."""

    def __init__(self, stops: Sequence[str], *, keep_stop: bool = False) -> None:
        self._stops = tuple(stops)
        self._keep_stop = keep_stop
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._longest = max(map(len, self._stops), default=0)

    def push(self, piece: bytes, *, may_stop: bool = True) -> tuple[str, str | None]:
        """Text that is final now, and the stop string that was found."""
        self._held += self._decoder.decode(piece)
        for stop in self._stops if may_stop else ():
            position = self._held.find(stop)
            if position >= 0:
                end = position + len(stop) if self._keep_stop else position
                text, self._held = self._held[:end], ""
                return text, stop
        keep = max(0, self._longest - 1)
        cut = max(0, len(self._held) - keep)
        text, self._held = self._held[:cut], self._held[cut:]
        return text, None

    def close(self) -> str:
        """What was held back, now that nothing more comes."""
        text = self._held + self._decoder.decode(b"", final=True)
        self._held = ""
        return text
