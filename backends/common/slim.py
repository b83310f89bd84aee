"""Packages opened without running their `__init__`, which may load what nobody asks for."""

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

_FROM_INIT: Final = ("__all__", "__version__")
"""What a package's `__init__` says of it; other such names are Python's own."""


class Slim(ModuleType):
    """A package whose modules are imported when they are named.

    Whoever names something else gets the whole: `__init__` runs then, once.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _FROM_INIT:
            raise AttributeError(name)
        if importlib.util.find_spec(f"{self.__name__}.{name}"):
            return importlib.import_module(f"{self.__name__}.{name}")
        _fill(self)
        return getattr(self, name)


def opened(package: str, kind: type[Slim] = Slim) -> None:
    """Make a package's modules importable one by one; harmless where it is loaded already."""
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    assert spec is not None
    module = kind(package)
    module.__spec__ = spec
    module.__path__ = list(spec.submodule_search_locations or ())
    sys.modules.setdefault(package, module)  # another thread may have been here meanwhile


def _fill(module: ModuleType) -> None:
    spec = module.__spec__
    assert spec is not None
    assert spec.loader is not None
    module.__class__ = ModuleType  # before: `__init__` itself asks for names that are not there yet
    spec.loader.exec_module(module)
