"""Events come out the same however the packets fell."""

import itertools

import orjson
from hypothesis import given
from hypothesis import strategies as st

from benchmark.wire import Splitter, payloads, plain_events

_JSON = st.dictionaries(st.text(max_size=6), st.text(max_size=12), max_size=3).map(orjson.dumps)
_LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
_NOISE = st.sampled_from(
    [b": ping", b"event: message", b"id: 7", b"retry: 10", b"nonsense", b"data"]
)


@st.composite
def _streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream with everything the format allows, and what it says."""
    text = b"\xef\xbb\xbf" if draw(st.booleans()) else b""
    said = []
    for payload in draw(st.lists(_JSON, max_size=6)):
        end = draw(_LINE_ENDS)
        noise = [line for line in draw(st.lists(_NOISE, max_size=2)) if line != b"data"]
        text += b"".join(line + end for line in noise)
        space = b" " if draw(st.booleans()) else b""
        lines = [payload[:1], payload[1:]] if draw(st.booleans()) else [payload]
        text += b"".join(b"data:" + space + line + end for line in lines) + end
        said.append(b" ".join(lines))
    return text, said


def _cut(text: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(bounds) if a < b]


def _said(pieces: list[bytes]) -> list[bytes]:
    splitter = Splitter()
    fed = [splitter.feed(piece) for piece in pieces]
    events = [one.strip() for text, _ in fed for one in payloads(text)]
    assert len(events) == sum(count for _, count in fed)
    return events


@given(_streams(), st.lists(st.integers(0, 4096)))
def test_any_fragmentation_gives_the_same_events(
    stream: tuple[bytes, list[bytes]], places: list[int]
) -> None:
    """Comments, other fields, byte order marks and all line ends are taken as the format has it."""
    text, said = stream
    # A lone \r at the very end may be half of a \r\n: the event is whole with the next byte.
    assert _said([*_cut(text, places), b":\n"]) == said


@given(st.lists(st.sampled_from([b"data:", b" ", b"\n", b"\n\n", b"\r", b"x", b"{}", b":"])))
def test_what_is_taken_for_plain_is_plain(parts: list[bytes]) -> None:
    """The quick way says yes only to what the slow way reads the same."""
    text = b"".join(parts)
    count = plain_events(text)
    if count:
        slow = Splitter()
        slow.feed(b"\n")
        events = [slow.feed(text[n : n + 1]) for n in range(len(text))]
        assert sum(number for _, number in events) == count
        assert [p.lstrip() for t, _ in events for p in payloads(t)] == [
            p.lstrip() for p in payloads(text)
        ]
