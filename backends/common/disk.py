"""Small files for this user only, written whole or not at all."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.errors import DiskFull, HostError


def write_whole(path: Path, text: str) -> None:
    """Write a file of which nobody ever reads a half; its folder must be there.

    Raises:
        HostError: It cannot be written; what was there before is still there.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with on_disk(path.parent):
        part.unlink(missing_ok=True)
        handle = os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(path)


@contextmanager
def on_disk(folder: Path) -> Iterator[None]:
    """Turn what the system says while `folder` is written to into an error of ours."""
    try:
        yield
    except OSError as exc:
        if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DiskFull(
                f"The disk of {folder} is full.",
                fix="Make room there, or set VLLM_DEVOPS_STATE_DIR to another disk.",
                cause=str(exc),
            ) from exc
        raise HostError(
            f"{folder} cannot be written.",
            fix="Give this user the right to write there, or set VLLM_DEVOPS_STATE_DIR.",
            cause=str(exc),
        ) from exc
