"""How long Azure is waited for: for one answer, and for a change that it goes on with alone."""

from typing import Any, Final

from core.cloud_errors import CloudTimeout, CloudUnavailable

READ_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 15.0
UNSURE: Final = (CloudUnavailable, CloudTimeout)
"""After these a change may have happened all the same."""


def reading() -> dict[str, Any]:
    """Give the limits of a call that only looks: it may be made again, for a few seconds."""
    return {
        "connection_timeout": READ_SECONDS,
        "read_timeout": READ_SECONDS,
        "retry_total": 2,
        "retry_backoff_max": 2,
        "timeout": READ_SECONDS,
    }


def writing() -> dict[str, Any]:
    """Give the limits of a call that changes something: it is made once."""
    return {
        "connection_timeout": WRITE_SECONDS,
        "read_timeout": WRITE_SECONDS,
        "retry_total": 0,
    }
