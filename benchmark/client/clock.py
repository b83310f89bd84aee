"""Alarms that are on time: the event loop's own timers count in whole milliseconds."""

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Final

_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_FLAGS: Final = os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)


class _Timer(ctypes.Structure):
    _fields_ = [(name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns")]


class Alarm:
    """Calls once at a moment of `time.perf_counter`; setting it again moves it.

    On Linux it is a timer of the kernel, late by microseconds; elsewhere the loop's.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._ring = ring
        self._handle: asyncio.TimerHandle | None = None
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._fd = -1
        if self._libc is not None:
            self._fd = self._libc.timerfd_create(_MONOTONIC, _FLAGS)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._wake)

    def set(self, at: float) -> None:
        """Ring at that moment, at once if it is past."""
        if self._fd < 0 or self._libc is None:
            self.cancel()
            self._handle = self._loop.call_later(max(at - perf_counter(), 0), self._ring)
            return
        seconds, nanoseconds = divmod(max(int(at * 1e9), 1), 10**9)
        timer = _Timer(0, 0, seconds, nanoseconds)
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, ctypes.byref(timer), None)

    def cancel(self) -> None:
        """Ring no more unless set again."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0 and self._libc is not None:
            timer = _Timer(0, 0, 0, 0)
            self._libc.timerfd_settime(self._fd, 0, ctypes.byref(timer), None)

    def close(self) -> None:
        """Ring never again."""
        self.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _wake(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set anew between ringing and now
            return
        self._ring()
