"""What `make clients` reads out of the recordings of a client and our server."""

import json
from pathlib import Path
from typing import Any, Final

from tests.clients.wire import Call, read_wire

_META: Final = "io.modelcontextprotocol/"


def recorded(
    folder: Path, sent: list[dict[str, Any]], got: list[dict[str, Any]], name: str = "1"
) -> None:
    for end, messages in (("in", sent), ("out", got)):
        lines = "".join(f"{json.dumps({'jsonrpc': '2.0', **one})}\n" for one in messages)
        (folder / f"{name}.{end}").write_text(lines)
    (folder / f"{name}.err").write_text("")


def answered(number: int, **structured: Any) -> dict[str, Any]:
    return {"id": number, "result": {"structuredContent": structured, "content": []}}


def destroy(number: int, **more: Any) -> dict[str, Any]:
    params = {"name": "destroy_vllm", "arguments": {}, **more}
    return {"id": number, "method": "tools/call", "params": params}


def test_the_old_era_is_read(tmp_path: Path) -> None:
    """The version is the one the server agreed to; the capabilities are those of the opening."""
    opening = {"protocolVersion": "2099-01-01", "capabilities": {"elicitation": {}}}
    recorded(
        tmp_path,
        [
            {"id": 0, "method": "initialize", "params": opening},
            {"id": 1, "method": "tools/list"},
            destroy(2),
        ],
        [
            {"id": 0, "result": {"protocolVersion": "2025-06-18"}},
            {"id": 1, "result": {"tools": [{"name": "destroy_vllm"}]}},
            {"id": 0, "method": "elicitation/create", "params": {}},
            answered(2, ok=False, code="CANCELLED"),
        ],
    )
    wire = read_wire(tmp_path)
    assert (wire.opened, wire.protocol) == ("initialize", "2025-06-18")
    assert wire.elicitation == ("form",)
    assert wire.tools == ("destroy_vllm",)
    assert wire.calls == (Call("destroy_vllm", "CANCELLED"),)
    assert wire.asked == 1


def test_the_new_era_is_read(tmp_path: Path) -> None:
    """Every request says who asks; being asked is an answer, and the call is made again."""
    about = {
        f"{_META}protocolVersion": "2026-07-28",
        f"{_META}clientCapabilities": {"elicitation": {"url": {}, "form": {}}},
    }
    recorded(
        tmp_path,
        [
            {"id": "probe", "method": "server/discover", "params": {"_meta": about}},
            {"id": 1, "method": "tools/list", "params": {"_meta": about}},
            destroy(2, _meta=about),
            destroy(3, _meta=about),
        ],
        [
            {"id": 1, "result": {"tools": []}},
            {"id": 2, "result": {"resultType": "input_required"}},
            answered(3, ok=True),
        ],
    )
    wire = read_wire(tmp_path)
    assert (wire.opened, wire.protocol) == ("server/discover", "2026-07-28")
    assert wire.elicitation == ("form", "url")
    assert wire.calls == (Call("destroy_vllm", "asks"), Call("destroy_vllm", "ok"))
    assert wire.asked == 1


def test_a_probe_of_the_new_era_is_not_a_conversation_in_it(tmp_path: Path) -> None:
    """A client that tries the new era and goes on in the old one is listed with the old one."""
    about = {f"{_META}protocolVersion": "2026-07-28", f"{_META}clientCapabilities": {}}
    opening = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {"form": {}}}}
    recorded(
        tmp_path,
        [
            {"id": 0, "method": "server/discover", "params": {"_meta": about}},
            {"id": 1, "method": "initialize", "params": opening},
            {"id": 2, "method": "tools/list", "params": {"_meta": {"progressToken": 0}}},
        ],
        [
            {"id": 1, "result": {"protocolVersion": "2025-11-25"}},
            {"id": 2, "result": {"tools": []}},
        ],
    )
    wire = read_wire(tmp_path)
    assert (wire.protocol, wire.elicitation) == ("2025-11-25", ("form",))


def test_several_starts_are_one_client(tmp_path: Path) -> None:
    """Command lines start the server anew for every call."""
    recorded(tmp_path, [{"id": 1, "method": "tools/list"}], [], name="1")
    recorded(tmp_path, [destroy(1)], [answered(1, ok=False, code="BUSY")], name="2")
    assert read_wire(tmp_path).calls == (Call("destroy_vllm", "BUSY"),)


def test_a_client_that_never_came_is_read_as_nothing(tmp_path: Path) -> None:
    """It has failed, and says so elsewhere."""
    assert not read_wire(tmp_path).tools


def test_a_call_without_an_answer_has_no_code(tmp_path: Path) -> None:
    """The client or the server ended in between."""
    recorded(tmp_path, [destroy(1)], [])
    assert read_wire(tmp_path).calls == (Call("destroy_vllm", ""),)
