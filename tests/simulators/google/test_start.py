"""What the simulated Google costs before anybody has called it."""

import sys
from pathlib import Path

import pytest

from tests.planes import process_of


def test_a_start_imports_no_models_that_nobody_has_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those of Compute Engine alone take seconds."""
    module = ("-m", "simulators.google", "--folder", str(tmp_path), "--idle-exit", "60")
    with process_of((sys.executable, "-X", "importtime", *module), tmp_path):
        pass
    imported = capfd.readouterr().err
    assert "google.cloud.run_v2.types" in imported
    assert "google.cloud.compute_v1.types" not in imported
