"""vLLM's error bodies, and how a validation error becomes one."""

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from starlette.responses import JSONResponse

_PYDANTIC_WORDS: Final = frozenset(
    {"function-wrap", "function-after", "function-before", "nullable", "union", "tagged-union"}
    | {"str", "int", "float", "bool", "bytes", "list", "tuple", "dict", "set", "none"}
)
"""Parts of pydantic's `loc` that name a type, not a field; so do those with brackets."""
_SHOWN: Final = 10
_LONGEST_INPUT: Final = 200


class WireError(Exception):
    """A request that is answered with vLLM's error object."""

    def __init__(
        self,
        message: str,
        *,
        kind: str = "BadRequestError",
        code: int = 400,
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.code = code
        self.param = param

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.code)


class EngineError(WireError):
    """A refusal of vLLM's engine, not of its web server: a stream begins, and then says it."""


def invalid(
    message: str, param: str, value: object = None, *, kind: type[WireError] = WireError
) -> WireError:
    """A value that vLLM names in the message."""
    named = f"parameter={param}" + ("" if value is None else f", value={value}")
    return kind(f"{message} ({named})", param=param)


def no_such_model(name: str, known: Sequence[str]) -> WireError:
    return WireError(
        f"The model `{name}` does not exist. Valid aliases: {', '.join(known)}.",
        kind="NotFoundError",
        code=404,
        param="model",
    )


def engine_died() -> WireError:
    return WireError(
        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        kind="InternalServerError",
        code=500,
    )


def unreadable(errors: Sequence[Mapping[str, Any] | str]) -> WireError:
    """What FastAPI's validation found, in vLLM's words."""
    count = len(errors)
    label = "error" if count == 1 else "errors"
    lines = [f"{count} validation {label}:", *(f"  {_shown(e)}" for e in errors[:_SHOWN])]
    if count > _SHOWN:
        lines.append(f"  ...and {count - _SHOWN} more {label}")
    first = errors[0]
    param = None if isinstance(first, str) else _path(first["loc"])
    return WireError("\n".join(lines), kind=HTTPStatus.BAD_REQUEST.phrase, param=param)


def _path(location: Sequence[object]) -> str:
    parts = [str(part) for part in location]
    kept = [p for p in parts if not re.search(r"[\[\](){}]", p) and p not in _PYDANTIC_WORDS]
    return ".".join(kept or parts)


def _shown(error: Mapping[str, Any] | str) -> str:
    if isinstance(error, str):
        return error
    return str({**error, "loc": _path(error["loc"]), "input": _summary(error.get("input"))})


def _summary(value: object) -> str:
    if isinstance(value, (list, tuple, dict)):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _LONGEST_INPUT else f"{text[:_LONGEST_INPUT]}...[truncated]"
