"""What the endpoint did: when it had each request, and when it wrote each token."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Structs = npt.NDArray[Any]

_ROW: Final = np.dtype(
    [
        ("received_ns", "<i8"),
        ("done_ns", "<i8"),
        ("connection", "<u4"),
        ("port", "<u4"),
        ("prompt_tokens", "<u4"),
        ("tokens", "<u4"),
        ("head", "S64"),
    ]
)
_SEND: Final = np.dtype(
    [("ns", "<i8"), ("request", "<u4"), ("tokens", "<u4"), ("events", "<u4"), ("unused", "<u4")]
)
HEAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One row for each request, in the order they came; times as those of `Samples`.

    A token's time was read just before the send that carried it, so that no honest claim is below
    it. A time that never came is NaN.
    """

    received: Floats
    """When it had the whole request."""
    first_token: Floats
    last_token: Floats
    prompt_tokens: Ints
    tokens: Ints
    """Written."""
    events: Ints
    head: tuple[bytes, ...]
    """The prompt's first 64 bytes as they stood in the body: they tell requests apart."""
    sends: Structs
    """Those that carried tokens, in order: ns, request, tokens, events."""

    def __len__(self) -> int:
        return len(self.received)

    def token_times(self, request: int) -> Floats:
        """Give the time of each event of one request, in seconds."""
        mine = self.sends[self.sends["request"] == request]
        return np.repeat(mine["ns"] / 1e9, mine["events"])


def read(file: Path) -> Truth:
    """Read what the endpoint wrote at its end."""
    data = file.read_bytes()
    row_count, send_count = np.frombuffer(data, "<i8", 2)
    rows = np.frombuffer(data, _ROW, row_count, offset=16)
    sends = np.frombuffer(data, _SEND, send_count, offset=16 + rows.nbytes)
    first, last = np.full((2, row_count), np.nan)
    # Sends are in the order of time: the first of a request is written last here.
    first[sends["request"][::-1]] = sends["ns"][::-1] / 1e9
    last[sends["request"]] = sends["ns"] / 1e9
    return Truth(
        received=rows["received_ns"] / 1e9,
        first_token=first,
        last_token=np.where(rows["done_ns"] > 0, last, np.nan),
        prompt_tokens=rows["prompt_tokens"].astype(np.int64),
        tokens=_total(sends, "tokens", row_count),
        events=_total(sends, "events", row_count),
        head=tuple(rows["head"].tolist()),
        sends=sends,
    )


def _total(sends: Structs, column: str, requests: int) -> Ints:
    return np.bincount(sends["request"], sends[column], requests).astype(np.int64)
