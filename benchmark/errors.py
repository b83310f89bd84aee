"""What can become of one request, as small numbers for columns and words for people."""

from enum import IntEnum


class Outcome(IntEnum):
    """Of one request; every failure is in exactly one class."""

    OK = 0
    CUT = 1
    """Ended by us when the cell was over."""
    DNS = 2
    CONNECT = 3
    """Refused or unreachable."""
    TLS = 4
    RESET = 5
    """The connection broke while we sent or waited."""
    TIMEOUT = 6
    THROTTLED = 7
    """429 or 503."""
    REDIRECT = 8
    UNAUTHORIZED = 9
    """401 or 403."""
    TOO_LONG = 10
    """400 whose words speak of length or of too many tokens."""
    REFUSED = 11
    """Any other 4xx."""
    SERVER_ERROR = 12
    """5xx but 503, or an error event in the stream."""
    GARBAGE = 13
    """What came is no HTTP, no SSE or no JSON."""
    BROKEN_STREAM = 14
    """The answer ended before its end was said."""
    NO_TOKENS = 15
    """A whole answer without one token."""


class Finish(IntEnum):
    """What the engine said of the end of an answer."""

    UNKNOWN = 0
    STOP = 1
    LENGTH = 2
    OTHER = 3
