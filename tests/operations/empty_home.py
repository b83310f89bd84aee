"""The home of somebody who has configured no client."""

from pathlib import Path

import pytest

from operations.clients import clients


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, in which nothing points elsewhere."""
    monkeypatch.setenv("HOME", str(tmp_path))
    moved = [one.variable for one in clients() if one.variable]
    for name in ("XDG_CONFIG_HOME", "APPDATA", *moved):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
