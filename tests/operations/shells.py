"""Commands, as a shell reads them."""

import shutil
import subprocess  # noqa: TID251  a test asks a shell


def assert_shell(command: str) -> None:
    """It is one that bash can read; nothing of it is run."""
    bash = shutil.which("bash")
    assert bash
    read = subprocess.run([bash, "-n", "-c", command], capture_output=True, check=False)
    assert read.returncode == 0, (command, read.stderr)
