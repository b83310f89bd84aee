"""Google's client of Compute Engine without what nobody asks for.

Importing google.cloud.compute_v1 whole takes 1.4 s of CPU (1.51, 2026-11-23); the modules that are
used take a fifth of it.
"""

import importlib
import importlib.util
import re
import sys
from types import ModuleType
from typing import Any, Final

PACKAGE: Final = "google.cloud.compute_v1"


class _Package(ModuleType):
    """The package; its types and modules are imported when they are named."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        types = importlib.import_module(f"{PACKAGE}.types")
        return (
            getattr(types, name)
            if hasattr(types, name)
            else importlib.import_module(f"{PACKAGE}.{name}")
        )


def prepare() -> None:
    """Make the package's modules importable one by one; harmless where it is loaded already."""
    if PACKAGE in sys.modules:
        return
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    module = _Package(PACKAGE)
    module.__spec__ = spec
    module.__path__ = list(spec.submodule_search_locations or ())
    sys.modules.setdefault(PACKAGE, module)  # another thread may have been here meanwhile


def client(name: str, credentials: Any, http: str) -> Any:
    """Return a client such as `ZoneOperations`; `http` is a rehearsal's."""
    prepare()
    service = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    package = f"{PACKAGE}.services.{service}"
    kind = getattr(importlib.import_module(f"{package}.client"), f"{name}Client")
    rest = getattr(importlib.import_module(f"{package}.transports.rest"), f"{name}RestTransport")
    if not http:
        return kind(transport=rest(credentials=credentials))
    host = http.removeprefix("http://")
    return kind(transport=rest(host=host, credentials=credentials, url_scheme="http"))
