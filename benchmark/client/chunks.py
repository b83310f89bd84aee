r"""The read that streams are made of, known without taking it apart: one chunk that is one event.

Between two chunks a read is proven to be one by a few looks at it. It opens with the only size that
its length allows and `data: {`; it closes with `}`, an empty line and the chunk's own line end; and
there is no line end in between. So the chunk ends where the read does, the event has one line, and
the stream is between two chunks again: a parser that never saw the read is none the wiser. Nor can
an answer be over with it, which takes `\r\n\r\n`.
"""

from typing import Final

_OPENING: Final = b"%b\r\ndata: {"
_CLOSING: Final = b"}\n\n\r\n"
_CHUNK_END: Final = b"\r\n"
_EVENT_END: Final = b"\n\n"
_INSIDE: Final = len(_OPENING % b"")
"""Behind the size's line end and not behind the brace, for a size of up to 7 digits."""
_BEFORE_END: Final = -len(_EVENT_END + _CHUNK_END)
_LONGEST: Final = 2**14
"""Bytes; of each length up to this the openings are kept, which comes to 4 MB at most."""


class _Openings(dict[int, tuple[bytes, ...]]):
    """How such a read of so many bytes begins, its size in small letters or in capitals."""

    def __missing__(self, length: int) -> tuple[bytes, ...]:
        if length > _LONGEST:
            return ()
        self[length] = found = _openings(length)
        return found


def _openings(length: int) -> tuple[bytes, ...]:
    for digits in range(1, len(b"%x" % length) + 1):
        size = length - digits - 2 * len(_CHUNK_END)
        if len(b"%x" % size) == digits:
            return _OPENING % b"%x" % size, _OPENING % b"%X" % size
    return ()


_openings_of: Final = _Openings().__getitem__


def is_one_event(data: bytes) -> bool:
    r"""Whether a read that began between two chunks is a whole one, and that one event.

    >>> is_one_event(b'a\r\ndata: {}\n\n\r\n'), is_one_event(b'b\r\ndata: {}\n\n\r\n')
    (True, False)
    """
    return (
        data.startswith(_openings_of(len(data)))
        and data.endswith(_CLOSING)
        and data.find(b"\n", _INSIDE, _BEFORE_END) < 0
        and data.find(b"\r", _INSIDE, _BEFORE_END) < 0
    )


def ends_a_chunk(data: bytes, body: bytes) -> bool:
    r"""Whether a read leaves the stream between two chunks, and no event half there.

    Its body ends with an empty line, so what follows is framing: that begins with the chunk's own
    line end, and where two line ends of the body come right before the last `\r\n`, it is that.
    """
    return body.endswith(_EVENT_END) and data.endswith(_EVENT_END + _CHUNK_END)


def event_of(data: bytes) -> bytes:
    """Give the event of such a read; events that are bare already stay as they are."""
    if data.endswith(_EVENT_END):
        return data
    return data[data.index(b"\n") + 1 : -len(_CHUNK_END)]
