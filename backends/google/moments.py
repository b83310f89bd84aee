"""Google's points in time."""

from datetime import UTC, datetime
from typing import Any


def when(stamp: Any) -> datetime:
    """Give a point in time as ours; the SDK's stubs call it a Timestamp, what comes is a datetime.

    >>> when(datetime(2026, 11, 21, 12, tzinfo=UTC))
    datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.timezone.utc)
    """
    return datetime.fromtimestamp(stamp.timestamp(), UTC)
