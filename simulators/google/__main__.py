"""`python -m simulators.google --folder F [--idle-exit SECONDS]`: a Google Cloud of one's own."""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import anyio

_PACKAGES: Final = (
    "google.cloud.run_v2",
    "google.cloud.secretmanager_v1",
    "google.cloud.logging_v2",
    "google.cloud.monitoring_v3",
    "google.cloud.cloudquotas_v1",
    "google.cloud.devtools.cloudbuild_v1",
    "google.cloud.iam_admin_v1",
    "google.cloud.resourcemanager_v3",
    "google.cloud.service_usage_v1",
    "google.cloud.artifactregistry_v1",
    "google.cloud.aiplatform_v1",
    "google.cloud.tpu_v2",
    "google.cloud.compute_v1",
)


class _TypesOnly(ModuleType):
    """A package of the SDK without its clients, which take seconds to import."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(f"{self.__name__}.types"), name)


def _open_types_only() -> None:
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        module = _TypesOnly(package)
        module.__spec__ = spec
        module.__path__ = list(spec.submodule_search_locations or ())
        sys.modules[package] = module


def main(argv: Sequence[str]) -> None:
    """Run until told to end, or until nobody has called for so long."""
    parser = argparse.ArgumentParser(prog="python -m simulators.google")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--idle-exit", type=float, metavar="SECONDS")
    parser.add_argument("--record", type=Path, metavar="FILE")
    asked = parser.parse_args(argv)
    _open_types_only()
    plane = importlib.import_module("simulators.google.plane")
    anyio.run(plane.serve, asked.folder, asked.idle_exit, asked.record)


if __name__ == "__main__":
    main(sys.argv[1:])
