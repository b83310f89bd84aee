"""What the SDK's own models say of a body: its keys, their types, what only Azure writes."""

import enum
import functools
import importlib
import types
import typing
from collections.abc import Mapping
from typing import Any, Final

from simulators.azure.admission import Refused, refusal


class Field(typing.NamedTuple):
    """One key of an object."""

    kind: Any
    """A type hint, or the Shape of what is inside."""
    read_only: bool = False
    required: bool = False


class Shape(typing.NamedTuple):
    """An object and its keys."""

    name: str
    fields: Mapping[str, Field]


def _flat(name: str, **kinds: Any) -> Shape:
    """Describe an object whose keys are all required but those of maps."""
    return Shape(name, {key: Field(kind, required=kind is str) for key, kind in kinds.items()})


IDENTITY: Final = _flat("Identity", location=str, tags=dict[str, str])
_ROLE: Final = _flat(
    "RoleAssignmentProperties", roleDefinitionId=str, principalId=str, principalType=Any
)
ASSIGNMENT: Final = Shape(
    "RoleAssignmentCreateParameters", {"properties": Field(_ROLE, required=True)}
)
_PERMISSION: Final = Shape(
    "Permission",
    {key: Field(list[str]) for key in ("actions", "notActions", "dataActions", "notDataActions")},
)
_DEFINITION: Final = Shape(
    "RoleDefinitionProperties",
    {
        "roleName": Field(str, required=True),
        "description": Field(str),
        "type": Field(str),
        "permissions": Field(list[_PERMISSION], required=True),  # type: ignore[valid-type]
        "assignableScopes": Field(list[str], required=True),
    },
)
DEFINITION: Final = Shape("RoleDefinition", {"properties": Field(_DEFINITION, required=True)})
"""Of packages whose models are of an older kind, which tell less of themselves."""


def checked(model: type | Shape, body: Any, *, patch: bool = False) -> dict[str, Any]:
    """Give the body without what only Azure writes; a patch may lack things and hold nulls.

    Raises:
        Refused: A key is none of the model's, a value is of another type, something is missing.
    """
    shape = model if isinstance(model, Shape) else _shape(model)
    if not isinstance(body, Mapping):
        raise _wrong(shape.name, body)
    for key in body:
        if key not in shape.fields:
            raise _content(f"Could not find member '{key}' on object of type '{shape.name}'.")
    for key, field in shape.fields.items():
        if field.required and not patch and body.get(key) is None:
            raise _content(f"Required property '{key}' not found on object of '{shape.name}'.")
    return {
        key: _value(shape.fields[key].kind, value, f"{shape.name}.{key}", patch=patch)
        for key, value in body.items()
        if not shape.fields[key].read_only and (value is not None or patch)
    }


def _value(kind: Any, value: Any, where: str, *, patch: bool) -> Any:
    if value is None or kind is Any:
        return value
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return [_value(inner[0], one, where, patch=False) for one in _typed(list, value, where)]
    if origin is dict:
        held = _typed(dict, value, where)
        return {key: _value(inner[1], one, where, patch=patch) for key, one in held.items()}
    if origin in {typing.Union, types.UnionType}:
        return _choice([one for one in inner if one is not type(None)], value, where, patch=patch)
    if isinstance(kind, Shape) or hasattr(kind, "_calculated"):
        return checked(kind, value, patch=patch)
    if kind is float:
        return _typed((int, float), value, where)
    return _typed(kind, value, where) if kind in {str, int, bool} else value


def _choice(kinds: list[Any], value: Any, where: str, *, patch: bool) -> Any:
    enums = [one for one in kinds if isinstance(one, type) and issubclass(one, enum.Enum)]
    if not enums:
        return _value(kinds[0], value, where, patch=patch)
    known = [str(one.value) for one in enums[0]]
    found = next((one for one in known if one.lower() == str(value).lower()), None)
    if found is None:
        raise _content(f"'{value}' is not a valid value of '{where}': {', '.join(known)}.")
    return found


def _typed(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(where, value)
    return value


def _wrong(where: str, value: Any) -> Refused:
    return _content(f"Error converting value {value!r:.80} of '{where}'.")


def _content(why: str) -> Refused:
    return refusal("content", why=why)


@functools.cache
def _shape(model: Any) -> Shape:
    """Read a model that is a mapping, with a field of REST for each attribute."""
    model.__new__(model)
    package = importlib.import_module(model.__module__.rpartition(".")[0])
    hints = typing.get_type_hints(model, localns={"_models": package})
    fields = {
        field._rest_name: Field(  # noqa: SLF001  the SDK has no other word for it
            hints[name],
            read_only=field._visibility == ["read"],  # noqa: SLF001  the same
            required=type(None) not in typing.get_args(hints[name]),
        )
        for name, field in model._attr_to_rest_field.items()  # noqa: SLF001  the same
    }
    return Shape(model.__name__, fields)
