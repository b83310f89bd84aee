"""Protobuf messages as JSON, so that what the simulated cloud knows outlives its process."""

import base64
import importlib
from typing import Annotated, Any, Final

from pydantic import PlainSerializer, PlainValidator

_TYPE: Final = "type"
_DATA: Final = "data"


def _written(message: Any) -> Any:
    kind = type(message)
    if hasattr(kind, "serialize"):  # of proto-plus
        data: bytes = kind.serialize(message)
    else:
        data = message.SerializeToString()
    return {
        _TYPE: f"{kind.__module__}:{kind.__qualname__}",
        _DATA: base64.b64encode(data).decode("ascii"),
    }


def _read(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    module, _, name = value[_TYPE].partition(":")
    kind = getattr(importlib.import_module(module), name)
    parse = getattr(kind, "deserialize", None) or kind.FromString
    return parse(base64.b64decode(value[_DATA]))


Proto = Annotated[Any, PlainValidator(_read), PlainSerializer(_written)]
"""Any message, of proto-plus or plain, that a model keeps by its type and bytes."""
