"""Runs a program of ours and kills it, as `kill -9` does, at a stated moment.

`python -m tests.survival.dying EVENT:ENDING[,EVENT:ENDING …] SCRIPT [ARGUMENT …]`: the events are
Python's own (`sys.audit`), raised before a thing is done; each makes the next one count.
"""

import os
import runpy
import signal
import sys
from collections.abc import Sequence
from typing import Any


def main(moment: str, script: str, arguments: Sequence[str]) -> None:
    """Become the script; die when the last event of the moment is about to happen."""
    awaited = [step.partition(":") for step in moment.split(",")]

    def watch(event: str, subjects: tuple[Any, ...]) -> None:
        if not awaited or event != awaited[0][0]:
            return
        if any(str(subject).endswith(awaited[0][2]) for subject in subjects[:2]):
            awaited.pop(0)
            if not awaited:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.argv = [script, *arguments]
    sys.addaudithook(watch)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
