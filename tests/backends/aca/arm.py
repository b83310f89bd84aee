"""Azure's answers, planted in this process: the real SDK asks, and nobody listens on a port."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Self
from urllib.parse import unquote

from azure.core.credentials import AccessToken
from azure.core.pipeline.transport import AsyncHttpTransport
from azure.core.rest import HttpRequest
from azure.core.rest._http_response_impl_async import AsyncHttpResponseImpl

Answer = tuple[int, Mapping[str, Any]]
Answerer = Callable[[str], Answer]
"""Given the body of the request."""


class Anybody:
    """A login that never runs out."""

    async def get_token(self, *_scopes: str, **_more: Any) -> AccessToken:
        return AccessToken("token", 4_000_000_000)

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass


class _Reply(AsyncHttpResponseImpl):
    """An answer that was read already."""

    async def read(self) -> bytes:
        return bytes(self._internal_response)

    async def load_body(self) -> None:
        self._content = bytes(self._internal_response)

    @property
    def content(self) -> bytes:
        return bytes(self._internal_response)


class Arm(AsyncHttpTransport[HttpRequest, _Reply]):
    """Answers by method and path; what nobody planted is not found."""

    def __init__(self) -> None:
        self.routes: list[tuple[re.Pattern[str], Answerer]] = []
        self.calls: list[str] = []
        self.query = ""
        """Of the newest call, what follows its path."""

    def on(self, pattern: str, answer: Answerer) -> None:
        """Answer calls such as `GET .*/revisions`; the newest rule that fits wins."""
        self.routes.insert(0, (re.compile(pattern, re.IGNORECASE), answer))

    def refuse(self, pattern: str, status: int, code: str, message: str = "No.") -> None:
        """Let such calls fail."""
        self.on(pattern, lambda _: (status, {"error": {"code": code, "message": message}}))

    async def send(self, request: HttpRequest, **_more: Any) -> _Reply:
        call = f"{request.method} {unquote(request.url.partition('?')[0])}"
        self.calls.append(call)
        self.query = unquote(request.url.partition("?")[2].replace("+", " "))
        answer = next((found for form, found in self.routes if form.fullmatch(call)), _nothing)
        status, body = answer(str(request.content or ""))
        return _Reply(
            request=request,
            internal_response=json.dumps(body).encode(),
            status_code=status,
            reason="",
            headers={"Content-Type": "application/json"},
            content_type="application/json",
            stream_download_generator=None,
        )

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        pass


def _nothing(_body: str) -> Answer:
    return 404, {"error": {"code": "ResourceNotFound", "message": "There is nothing."}}
