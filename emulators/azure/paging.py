"""Pages of what is listed, with the link to the next one."""

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

from emulators.azure.refusing import invalid
from emulators.azure.serving import Call

PAGE: Final = 5
"""How many rows; Azure gives more, but whoever asks must not count on that."""


def page(call: Call, rows: Sequence[dict[str, Any]], size: int = PAGE) -> dict[str, Any]:
    """Give one page of rows and the whole URL of the next, if there is one.

    Raises:
        Refused: The token is not one of ours.
    """
    token = call.query.get("$skipToken", "0")
    if not token.isdecimal():
        raise invalid("The skip token is not valid.", "InvalidSkipToken")
    begin, end = int(token), int(token) + size
    told: dict[str, Any] = {"value": list(rows[begin:end])}
    if end < len(rows):
        query = urlencode({**call.query, "$skipToken": str(end)}, safe="$")
        told["nextLink"] = f"{call.world.urls.arm}{call.path}?{query}"
    return told
