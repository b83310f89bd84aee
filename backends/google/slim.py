"""Google's client libraries without what nobody asks for.

`import google.cloud.run_v2` loads ten services with three transports each, which takes longer than
a first call may. Here a package is opened without running its `__init__`; its types are found when
they are named, its clients where they lie.
"""

import importlib
import sys
from typing import Any, Final, cast

from backends.common import slim

_LEFT_OUT: Final = "google.api_core.operations_v1.transports.rest_asyncio"
"""It would load aiohttp, a third of the whole; google.api_core goes on where it cannot be had."""


class _Slim(slim.Slim):
    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__"):
            types = importlib.import_module(f"{self.__name__}.types")
            if hasattr(types, name):
                return getattr(types, name)
        return super().__getattr__(name)


def opened(package: str) -> None:
    """Make a package's modules importable one by one; harmless where it is loaded already."""
    slim.opened(package, _Slim)


def client_class(package: str, service: str, name: str) -> Any:
    """Give one client of a package, such as `ServicesAsyncClient` of run_v2's `services`."""
    cast("dict[str, Any]", sys.modules).setdefault(_LEFT_OUT, None)
    opened(package)
    return getattr(importlib.import_module(f"{package}.services.{service}.async_client"), name)
