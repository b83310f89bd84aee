"""A set-up that ended before all was there."""

from collections.abc import Sequence

from core.errors import OpsError


def unfinished(exc: OpsError, done: Sequence[str], left: Sequence[str]) -> OpsError:
    """Say the same as an error that ended the work, and how far it had come."""
    return type(exc)(
        f"Set-up ended after {len(done)} of {len(done) + len(left)} steps, at “{left[0]}”:"
        f" {exc.summary}",
        cause=exc.cause,
        fix=f"{exc.fix} What is done stays done: the next call goes on.",
        data={**exc.data, "done": list(done), "not_done": list(left)},
        next_steps=exc.next_steps,
    )
