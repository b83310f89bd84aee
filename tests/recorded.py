"""`python -m tests.recorded CLOUD FILE --folder F …`: a cloud that writes down its calls.

One line of FILE for each, as the vendors' own specifications judge them.
"""

import base64
import importlib
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import grpc
import grpc.aio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from simulators.common.lifetime import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request and its answer."""

    kind: Literal["http", "grpc"]
    method: str
    """GET, PUT …; of gRPC the full name, such as google.cloud.run.v2.Services/CreateService."""
    path: str = ""
    query: str = ""
    params: str = ""
    """The routing header of gRPC, x-goog-request-params."""
    asked: str
    """The body; of gRPC the message in base64; empty where it is no JSON."""
    status: str
    """200, 404 …; of gRPC OK, NOT_FOUND …."""
    answered: str
    """Like `asked`."""

    def message(self, what: Literal["asked", "answered"]) -> bytes:
        """Give a message of gRPC as it was sent."""
        return base64.b64decode(getattr(self, what))


def calls(file: Path) -> Iterator[Call]:
    """Read what was recorded, in the order of the answers."""
    for line in file.read_text(encoding="utf-8").splitlines():
        yield Call(**json.loads(line))


class Recorder:
    """Appends calls to a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def web(self, app: ASGIApp) -> ASGIApp:
        """Stand around a web server's application."""

        async def recorded(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or scope["path"].startswith("/rehearsal/"):
                await app(scope, receive, send)
                return
            asked, answered = bytearray(), bytearray()
            heard = {"status": 0, "json": False}
            sends_json = _is_json(Headers(scope=scope))

            async def hear() -> Message:
                message = await receive()
                if sends_json:
                    asked.extend(message.get("body", b""))
                return message

            async def tell(message: Message) -> None:
                if message["type"] == "http.response.start":
                    is_json = _is_json(Headers(raw=message["headers"]))
                    heard.update(status=message["status"], json=is_json)
                elif heard["json"]:
                    answered.extend(message.get("body", b""))
                await send(message)

            await app(scope, hear, tell)
            self._keep(
                Call(
                    kind="http",
                    method=scope["method"],
                    path=scope["path"],
                    query=scope["query_string"].decode(),
                    asked=asked.decode(),
                    status=str(heard["status"]),
                    answered=answered.decode(),
                )
            )

        return recorded

    def grpc(self) -> grpc.aio.ServerInterceptor:
        """Stand around the methods of a gRPC server that take one message and give one."""
        return _Interceptor(self._keep)

    def _keep(self, call: Call) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(call)) + "\n")


class _Interceptor(grpc.aio.ServerInterceptor):
    def __init__(self, keep: Callable[[Call], None]) -> None:
        self._keep = keep

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = str(handler_call_details.method).removeprefix("/")
        given = dict(handler_call_details.invocation_metadata or ())
        params = str(given.get("x-goog-request-params", ""))

        async def behave(asked: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            answered: bytes = b""
            try:
                answer = await handler.unary_unary(handler.request_deserializer(asked), context)
                answered = handler.response_serializer(answer)
            finally:
                code = context.code() or grpc.StatusCode.OK
                status = code if isinstance(code, grpc.StatusCode) else _STATUS[int(code)]
                self._keep(
                    Call(
                        kind="grpc",
                        method=method,
                        params=params,
                        asked=base64.b64encode(asked).decode(),
                        status=status.name,
                        answered=base64.b64encode(answered).decode(),
                    )
                )
            return answered

        return grpc.unary_unary_rpc_method_handler(behave)


_STATUS = {code.value[0]: code for code in grpc.StatusCode}


def _is_json(headers: Headers) -> bool:
    return "json" in headers.get("content-type", "")


if __name__ == "__main__":
    cloud, file = sys.argv[1:3]
    packages = importlib.import_module(f"simulators.{cloud}.__main__").PACKAGES
    main(cloud, packages, Recorder(Path(file)))
