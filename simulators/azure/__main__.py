"""`python -m simulators.azure --folder F [--idle-exit SECONDS]`: an Azure of one's own."""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

import anyio

_PACKAGES: Final = (
    "azure.keyvault.secrets",
    "azure.keyvault.secrets._generated",
    "azure.mgmt.appcontainers",
    "azure.mgmt.authorization",
    "azure.mgmt.authorization.v2022_04_01",
    "azure.mgmt.keyvault",
    "azure.mgmt.loganalytics",
    "azure.mgmt.msi",
    "azure.mgmt.msi.v2024_11_30",
    "azure.mgmt.resource.resources",
    "azure.mgmt.storage",
)


def _open_models_only() -> None:
    """Leave out the packages' clients, which take long to import: only models are needed."""
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        module = ModuleType(package)
        module.__spec__ = spec
        module.__path__ = list(spec.submodule_search_locations or ())
        sys.modules[package] = module


def main(argv: Sequence[str]) -> None:
    """Run until told to end, or until nobody has called for so long."""
    parser = argparse.ArgumentParser(prog="python -m simulators.azure")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--idle-exit", type=float, metavar="SECONDS")
    parser.add_argument("--record", type=Path, metavar="FILE")
    asked = parser.parse_args(argv)
    _open_models_only()
    plane = importlib.import_module("simulators.azure.plane")
    anyio.run(plane.serve, asked.folder, asked.idle_exit, asked.record)


if __name__ == "__main__":
    main(sys.argv[1:])
