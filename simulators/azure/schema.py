"""What the SDK's own models say of a body: its keys, their types, what only Azure writes."""

import enum
import functools
import importlib
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from simulators.azure.admission import refusal

_typed_dict: Any = TypedDict


def checked(model: Any, body: Any, *, patch: bool = False) -> dict[str, Any]:
    """Give the body without what only Azure writes; a patch may lack things and hold nulls.

    Raises:
        Refused: A key is none of the model's, a value is of another type, something is missing.
    """
    try:
        return _adapter(model, patch).validate_python(body)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(map(str, (model.__name__, *first["loc"])))
        raise refusal("content", why=f"{where}: {first['msg']}") from exc


@functools.cache
def _adapter(model: Any, patch: bool) -> TypeAdapter[dict[str, Any]]:  # noqa: FBT001  part of a key
    return TypeAdapter(_type(model, patch=patch))


def _type(hint: Any, *, patch: bool) -> Any:
    """Return what checks a value of one of the SDK's type hints."""
    origin = typing.get_origin(hint)
    inner = [one for one in typing.get_args(hint) if one is not type(None)]
    if origin in {typing.Union, types.UnionType}:
        enums = [one for one in inner if isinstance(one, type) and issubclass(one, enum.Enum)]
        return _choice(enums[0]) if enums else _type(inner[0], patch=patch)
    if origin is list:
        row: Any = _type(inner[0], patch=False)
        return list[row]
    if origin is dict:
        value: Any = _type(inner[1], patch=patch) | None
        return dict[str, value]
    if hasattr(hint, "_calculated"):
        return _object(hint, patch=patch)
    return hint if hint in {str, int, bool, float} else Any


def _choice(kind: type[enum.Enum]) -> Any:
    """Return what takes a value of an enumeration in any letters."""
    known = {str(one.value).lower(): one.value for one in kind}
    return Annotated[
        Literal[*known.values()],
        BeforeValidator(lambda value: known.get(str(value).lower(), value)),
    ]


def _object(model: Any, *, patch: bool) -> Any:
    """Read a model that is a mapping, with a field of REST for each attribute."""
    model.__new__(model)
    package = importlib.import_module(model.__module__.rpartition(".")[0])
    hints = typing.get_type_hints(model, localns={"_models": package})
    fields, read_only = dict[str, Any](), set[str]()
    for name, field in model._attr_to_rest_field.items():  # noqa: SLF001  the SDK has no other word
        if field._visibility == ["read"]:  # noqa: SLF001  the same
            read_only.add(field._rest_name)  # noqa: SLF001  the same
            continue
        kind: Any = _type(hints[name], patch=patch)
        optional = patch or type(None) in typing.get_args(hints[name])
        fields[field._rest_name] = NotRequired[kind | None] if optional else kind  # noqa: SLF001  the same

    def written(body: Any) -> Any:
        if not isinstance(body, Mapping):
            return body
        kept = {key: value for key, value in body.items() if key not in read_only}
        return kept if patch else {key: one for key, one in kept.items() if one is not None}

    closed = with_config(ConfigDict(extra="forbid", strict=True))
    return Annotated[closed(_typed_dict(model.__name__, fields)), BeforeValidator(written)]
