"""What was sent over HTTP lately, for a client whose connection broke before it had read all."""

from collections import OrderedDict
from typing import Final

from mcp.server.streamable_http import EventCallback, EventId, EventMessage, EventStore, StreamId
from mcp.types import JSONRPCMessage, jsonrpc_message_adapter

MOST_BYTES: Final = 8 * 1024 * 1024
"""Of all sessions together: fifty of the longest replies that there are."""
_OWN_BYTES: Final = 500
"""What an event takes beside its message."""


class Sent(EventStore):
    """The newest messages, whichever their streams; the oldest go when there is no more room.

    FastMCP's own store counts messages, or forgets them by the hour: neither bounds its memory.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[EventId, tuple[StreamId, bytes]] = OrderedDict()
        self._bytes = 0
        self._number = 0

    async def store_event(self, stream_id: StreamId, message: JSONRPCMessage | None) -> EventId:
        """Keep a message, or with None the place from which a stream begins; give its number."""
        said = b""
        if message is not None:
            said = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        self._number += 1
        event_id = str(self._number)
        self._kept[event_id] = (stream_id, said)
        self._bytes += len(said) + _OWN_BYTES
        while self._bytes > self._most_bytes:
            _, (_, gone) = self._kept.popitem(last=False)
            self._bytes -= len(gone) + _OWN_BYTES
        return event_id

    async def replay_events_after(
        self, last_event_id: EventId, send_callback: EventCallback
    ) -> StreamId | None:
        """Send again what came after an event in its stream; None where it is no longer kept."""
        if last_event_id not in self._kept:
            return None
        stream_id, _ = self._kept[last_event_id]
        ids = list(self._kept)
        later = [(one, *self._kept[one]) for one in ids[ids.index(last_event_id) + 1 :]]
        for event_id, stream, said in later:
            if stream == stream_id and said:
                message = jsonrpc_message_adapter.validate_json(said, by_name=False)
                await send_callback(EventMessage(message, event_id))
        return stream_id
