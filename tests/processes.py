"""What is seen of processes, each of which may end between two looks at it."""

import psutil


def words_of(process: psutil.Process) -> str:
    """Give its command line; nothing of one that has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def variables_of(process: psutil.Process) -> str:
    """Give its environment; nothing of one that has ended."""
    try:
        return str(process.environ())
    except psutil.Error:
        return ""


def command_lines() -> list[str]:
    """Give those of all that run."""
    return [words_of(process) for process in psutil.process_iter()]


def lives(pid: int) -> bool:
    """Whether it is there, and no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def load_workers() -> list[psutil.Process]:
    """Give the living workers of load below this process; other tests have children too."""
    below = psutil.Process().children(recursive=True)
    return [one for one in below if "benchmark.worker" in words_of(one) and lives(one.pid)]
