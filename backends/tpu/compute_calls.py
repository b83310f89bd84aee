"""Calls of Compute Engine: its clients are synchronous, so each is made in a thread."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio

from backends.google.errors import READ_SECONDS, WRITE_SECONDS, patient_in_threads
from core.cloud_errors import CloudTimeout, CloudUnavailable

T = TypeVar("T")

_LOOK = "Look with status_vllm whether it happened; the same call again is harmless."


async def looking(what: str, call: Callable[..., T], **arguments: Any) -> T:
    """Make a call that only looks: it may be made again.

    Raises:
        CloudTimeout, CloudUnavailable: No answer came, or none in time.
        GoogleAPICallError: Google refused; `strictly` or `translated` around this translates it.
    """
    retry = patient_in_threads()
    return await _called(what, READ_SECONDS, call, timeout=READ_SECONDS, retry=retry, **arguments)


async def changing(what: str, call: Callable[..., T], **arguments: Any) -> T:
    """Make a call that changes something, once. Raises what `looking` does."""
    return await _called(what, WRITE_SECONDS, call, timeout=WRITE_SECONDS, retry=None, **arguments)


async def _called(what: str, seconds: float, call: Callable[..., T], **arguments: Any) -> T:
    """Let nothing that hangs hold its caller: the thread is left to the client's own limit."""

    def work() -> T:
        with _reached(what):
            return call(**arguments)

    try:
        with anyio.fail_after(seconds + 1):
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    except TimeoutError as exc:
        raise _late(what) from exc


@contextmanager
def _reached(what: str) -> Iterator[None]:
    """Turn failures of the connection itself, which the clients pass on as they are, into ours."""
    from google.auth.exceptions import TransportError
    from requests.exceptions import RequestException, Timeout

    try:
        yield
    except Timeout as exc:
        raise _late(what) from exc
    except (RequestException, TransportError) as exc:
        raise CloudUnavailable(
            f"Google is not to be reached: {what}.",
            cause=str(exc),
            fix="Call the same tool again in a minute.",
        ) from exc


def _late(what: str) -> CloudTimeout:
    return CloudTimeout(f"Google did not answer in time: {what}.", fix=_LOOK)
