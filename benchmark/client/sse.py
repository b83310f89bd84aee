"""Server-sent events, split exactly wherever the packets end.

Both ways give events in one plain form, `data:` with a JSON text and an empty line: the quick way
proves in a few passes of C that the bytes have it already, the slow way brings them to it.
"""

from typing import Final

_BOM: Final = b"\xef\xbb\xbf"
_MARK: Final = b"\n\ndata:"
END: Final = b"[DONE]"
"""What an OpenAI-compatible server says last."""


def plain_events(text: bytes) -> int:
    r"""Count the events of bytes that are nothing but whole events of one data line; else 0.

    >>> plain_events(b'data: {}\n\ndata: [DONE]\n\n')
    2
    >>> plain_events(b': ping\n\ndata: {}\n\n')
    0
    """
    if not (text.startswith(b"data:") and text.endswith(b"\n\n")):
        return 0
    count = text.count(_MARK) + 1
    # Two line ends for each event, and each pair but the last before a new event: no other line.
    # Taking line ends out finds them three times as fast as counting them.
    line_ends = len(text) - len(text.replace(b"\n", b""))
    return count if line_ends == 2 * count and b"\r" not in text else 0


class Splitter:
    """Holds what is not yet a whole event."""

    __slots__ = ("_data", "_rest", "_started")

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] | None = None
        self._started = False

    @property
    def pending(self) -> int:
        """Return how many bytes wait for the end of their event."""
        return len(self._rest) + sum(map(len, self._data or ()))

    @property
    def whole(self) -> bool:
        """Whether no event is half here."""
        return not self._rest and self._data is None

    def feed(self, text: bytes) -> tuple[bytes, int]:
        """Give the events that are whole now, in the plain form, and how many there are."""
        if not self._rest and self._data is None and (count := plain_events(text)):
            self._started = True
            return text, count
        events = self._split(text)
        return b"".join([b"data:%b\n\n" % event for event in events]), len(events)

    def _split(self, text: bytes) -> list[bytes]:
        *lines, self._rest = _lines(self._rest + text)
        events: list[bytes] = []
        if lines and not self._started:
            lines[0] = lines[0].removeprefix(_BOM)
            self._started = True
        for line in lines:
            if line:
                self._take(line)
            elif self._data is not None:
                # JSON has no line ends within its texts, so that a space says the same.
                events.append(b" ".join(self._data))
                self._data = None
        return events

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data = [*(self._data or ()), value.removeprefix(b" ")]


def _lines(text: bytes) -> list[bytes]:
    r"""Split at each line end; the last is what has none yet.

    A `\r` at the very end may be half of a `\r\n`, so it waits for what comes.
    """
    waiting = text.endswith(b"\r")
    body = text[:-1] if waiting else text
    lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    if waiting:
        lines[-1] += b"\r"
    return lines


def payloads(text: bytes) -> list[bytes]:
    """Give what the events of the plain form carry; one may begin with a space."""
    return [event[5:] for event in text.split(b"\n\n")[:-1]]
