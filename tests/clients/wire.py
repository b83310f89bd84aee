"""What passed between a client and our server, read from its recordings."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

_META: Final = "io.modelcontextprotocol/"

Message = Mapping[str, Any]


class Call(NamedTuple):
    """One tool that was called, and what came of it."""

    tool: str
    code: str
    """`ok`, an error's code, `asks` while a human is asked, empty if nothing was answered."""


class Wire(NamedTuple):
    """What a client did, as our server saw it."""

    opened: str = ""
    """The first thing that was said: the method."""
    protocol: str = ""
    """The version that its tools were listed in."""
    elicitation: tuple[str, ...] = ()
    """The forms in which the client lets its human be asked."""
    tools: tuple[str, ...] = ()
    """As they were listed last."""
    calls: tuple[Call, ...] = ()
    asked: int = 0
    """How often a human was to be asked."""
    errors: str = ""
    """What the server printed beside the protocol."""


def read_wire(folder: Path) -> Wire:
    """Read every start of the server that was recorded there, oldest first."""
    wire = Wire()
    for file in sorted(folder.glob("*.in"), key=lambda one: one.stat().st_mtime_ns):
        sent = _messages(file)
        answers = _messages(file.with_suffix(".out"))
        wire = _joined(wire, _one(sent, answers, file.with_suffix(".err").read_text()))
    return wire


def _joined(first: Wire, then: Wire) -> Wire:
    return Wire(
        opened=first.opened or then.opened,
        protocol=then.protocol or first.protocol,
        elicitation=then.elicitation or first.elicitation,
        tools=then.tools or first.tools,
        calls=first.calls + then.calls,
        asked=first.asked + then.asked,
        errors=first.errors + then.errors,
    )


def _one(sent: list[Message], got: list[Message], errors: str) -> Wire:
    answers = {one["id"]: one for one in got if "id" in one and "method" not in one}
    opening = next((one for one in sent if one.get("method") == "initialize"), {})
    agreed = str(_result(opening, answers).get("protocolVersion", ""))
    listed = next((one for one in reversed(sent) if one.get("method") == "tools/list"), {})
    capabilities = _meta(sent, "clientCapabilities")
    if not capabilities or not _meta([listed], "protocolVersion"):
        capabilities = opening.get("params", {}).get("capabilities", {})
    calls = tuple(_call(one, answers) for one in sent if one.get("method") == "tools/call")
    asked = sum(one.get("method") == "elicitation/create" for one in got)
    return Wire(
        opened=str(sent[0].get("method", "")) if sent else "",
        protocol=(_meta([listed], "protocolVersion") or agreed) if listed else "",
        elicitation=_forms(capabilities),
        tools=tuple(tool["name"] for tool in _result(listed, answers).get("tools", ())),
        calls=calls,
        asked=asked + sum(call.code == "asks" for call in calls),
        errors=errors,
    )


def _forms(capabilities: Mapping[str, Any]) -> tuple[str, ...]:
    """Give the forms; before 2025-11-25 there was one, which had no name."""
    if "elicitation" not in capabilities:
        return ()
    return tuple(sorted(capabilities["elicitation"])) or ("form",)


def _call(request: Message, answers: Mapping[Any, Message]) -> Call:
    result = _result(request, answers)
    if result.get("resultType") == "input_required":
        code = "asks"
    else:
        said = result.get("structuredContent") or {}
        code = "ok" if said.get("ok") else str(said.get("code", ""))
    return Call(str(request["params"]["name"]), code)


def _result(request: Message, answers: Mapping[Any, Message]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = answers.get(request.get("id"), {}).get("result", {})
    return found


def _meta(messages: Iterable[Message], name: str) -> Any:
    """Give what the newest request says of its client, as it does since 2026-07-28."""
    found: Any = None
    for one in messages:
        found = one.get("params", {}).get("_meta", {}).get(_META + name) or found
    return found


def _messages(file: Path) -> list[Message]:
    lines = file.read_text().splitlines() if file.exists() else ()
    return [json.loads(line) for line in lines if line.strip()]
