"""A client of one OpenAI-compatible engine; its errors are ours."""

import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NoReturn

import httpx2

from core.errors import (
    AddressNotAllowed,
    BadReply,
    BrokenStream,
    EndpointError,
    ModelNotServed,
    RequestRefused,
    Unauthorized,
    Unreachable,
)
from core.records import Access, Record
from core.trust import trusted

LOOK_SECONDS: Final = 5.0
"""A look at a healthy engine takes milliseconds; a hung one must not hang us."""
_GATEWAY: Final = "RBAC: access denied"
"""So Envoy, the proxy before Container Apps, refuses an address."""
_NO_TOOLS: Final = (
    "It runs without a tool-call parser: leave `tools` out, or deploy it again with engine_args"
    " --enable-auto-tool-choice --tool-call-parser NAME (gemma4 for Gemma 4)."
)
_SILENT: Final = (
    "Nothing answers at {}.",
    "Call status_vllm to see whether it still boots or has died.",
)
_STRANGER: Final = (
    "Whoever answers at {} shows another certificate than the one to be trusted.",
    "Call status_vllm, which reads the newest; if it stays so, it is somebody else.",
)


class ServedModel(Record):
    """One row of /v1/models."""

    id: str
    max_model_len: int | None = None
    root: str | None = None


class Endpoint:
    """Speaks to one base URL with one credential."""

    def __init__(
        self,
        access: Access,
        *,
        timeout: float = LOOK_SECONDS,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        """Open it; `timeout` is of a look, in seconds."""
        headers = access.headers
        self.base_url: Final = access.base_url
        if not all(re.fullmatch(r"Bearer [!-~]+", value) for value in headers.values()):
            raise Unauthorized(
                f"The key for {self.base_url} holds what no HTTP header can carry.",
                fix="Give it in VLLM_API_KEY without spaces, line ends and accents.",
            )
        with self._translated():
            limits = httpx2.Limits(max_connections=64)
            if access.socket:
                transport = httpx2.AsyncHTTPTransport(uds=access.socket, limits=limits)
            self._client = httpx2.AsyncClient(
                base_url=access.http_url,
                headers=headers,
                timeout=timeout,
                limits=limits,
                transport=transport,
                verify=trusted(access.certificate),
            )

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.aclose()

    async def healthy(self) -> bool:
        """Whether /health says so; a wrong answer is False, silence raises `Unreachable`."""
        with self._translated():
            return (await self._client.get("/health")).is_success

    async def version(self) -> str | None:
        """Give vLLM's version, None where the server has no /version."""
        with self._translated():
            reply = await self._client.get("/version")
        return str(_json(reply).get("version")) if reply.is_success else None

    async def models(self) -> tuple[ServedModel, ...]:
        """Give what is served here.

        Raises:
            Unauthorized: The key is wrong.
            BadReply: It is no OpenAI-compatible server.
        """
        body = await self._get_json("/v1/models")
        rows = body.get("data")
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise BadReply(
                f"{self.base_url}/v1/models has no list of models.",
                fix="Check that the URL is that of an OpenAI-compatible server.",
            )
        return tuple(_served(row) for row in rows)

    async def metrics_text(self) -> str:
        """Give the whole /metrics page."""
        with self._translated():
            reply = await self._client.get("/metrics")
        self._check(reply, "/metrics")
        return reply.text

    async def say_one_token(self, model: str) -> None:
        """Let the model answer once: an open port is not yet an answer.

        Raises:
            EndpointError: It did not.
        """
        body = {"model": model, "prompt": [1], "max_tokens": 1}
        await self.post("/v1/completions", body, timeout=20)

    async def post(
        self, path: str, body: Mapping[str, Any], *, timeout: float = 30
    ) -> dict[str, Any]:
        """Send JSON, give the JSON that comes back; `timeout` in seconds."""
        with self._translated():
            reply = await self._client.post(path, json=body, timeout=timeout)
        self._check(reply, path)
        return _json(reply)

    @asynccontextmanager
    async def stream(
        self, path: str, body: Mapping[str, Any], *, timeout: float = 30
    ) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """Open a stream of server-sent events; each is one parsed chunk, `[DONE]` the end.

        `timeout` is the longest silence, in seconds.

        Raises:
            BrokenStream: It ended without `[DONE]`, or with an error of the engine.
        """
        with self._translated():
            async with self._client.stream("POST", path, json=body, timeout=timeout) as reply:
                if not reply.is_success:
                    await reply.aread()
                    self._check(reply, path)
                yield self._events(reply)

    async def _events(self, reply: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
        with self._broken():
            async for line in _lines(reply):
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                if data == "[DONE]":
                    return
                if data:
                    yield _event(data)
        raise _broken_stream("the connection closed")

    async def _get_json(self, path: str) -> dict[str, Any]:
        with self._translated():
            reply = await self._client.get(path)
        self._check(reply, path)
        return _json(reply)

    def _check(self, reply: httpx2.Response, path: str) -> None:
        if not reply.is_success:
            _refuse(reply, f"{self.base_url}{path}")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except httpx2.TimeoutException as exc:
            raise Unreachable(
                f"{self.base_url} gave no answer in time.",
                fix="Call get_system_status; the engine may be busy, booting or hung.",
                cause=type(exc).__name__,
            ) from exc
        except httpx2.TransportError as exc:
            words = str(exc) or type(exc).__name__
            said, fix = _STRANGER if "CERTIFICATE_VERIFY_FAILED" in words else _SILENT
            raise Unreachable(said.format(self.base_url), fix=fix, cause=words) from exc
        except httpx2.DecodingError as exc:
            raise BadReply(
                f"{self.base_url} sent what cannot be decoded.",
                fix="Check that no proxy stands before it, then ask again.",
                cause=str(exc),
            ) from exc
        except httpx2.InvalidURL as exc:
            raise Unreachable(
                f"{self.base_url} is no address.", fix="Set VLLM_BASE_URL to http(s)://host:port."
            ) from exc

    @contextmanager
    def _broken(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.RemoteProtocolError, httpx2.ReadError) as exc:
            raise _broken_stream(str(exc) or type(exc).__name__) from exc


async def _lines(reply: httpx2.Response) -> AsyncIterator[str]:
    """Split where server-sent events do, and not at U+2028 or U+0085, which answers may hold."""
    rest = b""
    async for piece in reply.aiter_bytes():
        *lines, rest = re.split(rb"[\r\n]", rest + piece)
        for line in lines:
            yield line.decode(errors="replace")
    yield rest.decode(errors="replace")


def _event(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError as exc:
        raise _broken_stream(f"not JSON: {data[:120]!r}") from exc
    if not isinstance(event, dict):
        raise _broken_stream(f"not an object: {data[:120]!r}")
    if "error" in event:
        raise _broken_stream(_words(event))
    return event


def _served(row: Mapping[str, Any]) -> ServedModel:
    length, root = row.get("max_model_len"), row.get("root")
    return ServedModel(
        id=str(row.get("id")),
        max_model_len=length if isinstance(length, int) else None,
        root=root if isinstance(root, str) else None,
    )


def _broken_stream(cause: str) -> BrokenStream:
    return BrokenStream(
        "The engine's stream broke off before its end.",
        fix="Call get_logs for the engine's last lines, then ask again.",
        cause=cause,
    )


def _json(reply: httpx2.Response) -> dict[str, Any]:
    try:
        body = reply.json()
    except ValueError as exc:
        raise _bad_reply(reply) from exc
    if not isinstance(body, dict):
        raise _bad_reply(reply)
    return body


def _bad_reply(reply: httpx2.Response) -> BadReply:
    return BadReply(
        f"{reply.url} answered with something that is no JSON object.",
        fix="Check that the URL is vLLM's own and that no login page or proxy stands before it.",
        cause=reply.text[:200],
    )


def _refuse(reply: httpx2.Response, url: str) -> NoReturn:
    if reply.status_code < 400:
        raise _bad_reply(reply)
    words = _words_of(reply)
    if reply.status_code == 403 and _GATEWAY in words:
        raise AddressNotAllowed(
            f"{url} does not let in the address that this machine is seen with.",
            fix="Call deploy_vllm again, which lets it in; or set AZURE_ALLOWED_ADDRESSES before.",
            cause=words,
        )
    if reply.status_code in {401, 403}:
        fix = "Give the right key in VLLM_API_KEY."
        raise Unauthorized(f"{url} refuses the key.", fix=fix, cause=words)
    if reply.status_code == 404 and "model" in words:
        raise ModelNotServed(
            "The endpoint does not serve that model.",
            fix="Call get_model_details for the id that it serves.",
            cause=words,
        )
    if reply.status_code < 500:
        said = f"The engine refuses the request ({reply.status_code})."
        fix = _NO_TOOLS if "--tool-call-parser" in words else "Change what its own words point to."
        raise RequestRefused(said, fix=fix, cause=words)
    raise EndpointError(
        f"{url} failed with status {reply.status_code}.",
        fix="Call get_logs for what the engine says of it.",
        cause=words,
    )


def _words_of(reply: httpx2.Response) -> str:
    try:
        body = reply.json()
    except ValueError:
        return reply.text[:300]
    return _words(body) if isinstance(body, dict) else reply.text[:300]


def _words(body: Mapping[str, Any]) -> str:
    error = body.get("error", body.get("detail", body))
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:600]
