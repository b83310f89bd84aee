"""A client of one OpenAI-compatible engine: whom it believes; its errors are ours."""

import re
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Any, Final, NamedTuple, NoReturn

import anyio
import httpx2

from core.errors import (
    AddressNotAllowed,
    BadReply,
    BrokenStream,
    DeploymentFailed,
    EndpointError,
    Expired,
    HostError,
    ModelNotServed,
    NextStep,
    RequestRefused,
    Stopped,
    Throttled,
    Unauthorized,
    Unreachable,
)
from core.records import Access, Deployment, Record, State
from core.redaction import MOST_JSON_BYTES, NotJson, in_quotes, read_json


@lru_cache(maxsize=16)
def trusted(certificate: str | None = None) -> ssl.SSLContext:
    """Give the context of one certificate (PEM), or of the authorities that everybody trusts.

    Made once for each: it takes 20 ms, five times what a look at an engine does. A server's name
    or address must be in its certificate all the same.

    Raises:
        BadReply: It is no certificate.
        HostError: SSL_CERT_FILE or SSL_CERT_DIR names authorities that cannot be read.
    """
    if certificate is None:
        try:
            return httpx2.create_ssl_context()
        except (OSError, ssl.SSLError) as exc:
            raise HostError(
                "SSL_CERT_FILE, or SSL_CERT_DIR, names no certificates.",
                fix="Correct it, or unset it.",
                cause=str(exc),
            ) from exc
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # it need not be an authority's
    try:
        context.load_verify_locations(cadata=certificate)
    except (ssl.SSLError, ValueError) as exc:
        raise BadReply(
            "What the VM published is not a certificate.",
            fix="Call get_logs; deploy it again if its VM cannot make one.",
            cause=str(exc),
        ) from exc
    return context


LOOK_SECONDS: Final = 5.0
"""A look at a healthy engine takes milliseconds; a hung one must not hang us."""
_MOST_BYTES: Final[Mapping[str, int]] = {"/metrics": 4 * 2**20}
"""Of an answer, unpacked, where it is no JSON: of 32 engines' metrics together."""
_MOST_STREAM_BYTES: Final = 32 * 2**20
"""Of all events of an answer: 100,000 tokens take 30 MB."""
_MOST_LINE_BYTES: Final = 2**20
"""Of one event; vLLM's take some hundred, some thousand with log probabilities."""
_MOST_REFUSAL_BYTES: Final = 64 * 2**10
_MOST_MODELS: Final = 2_000
_LONGEST_ID: Final = 200
_MOST_WORDS: Final = 6
"""Of a model's name: it stands in sentences, and what is longer is one itself."""
_VERSION: Final = re.compile(r"[\w.+-]{1,60}", re.ASCII)
_LOG: Final = "the engine's log (get_logs, if it was deployed from here)"
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


class _Reply(NamedTuple):
    """An answer that was read to its end, or to our bound."""

    url: str
    status: int
    body: bytes
    truncated: bool

    @property
    def is_success(self) -> bool:
        """Whether its status says that all is well."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """Return it as text, whatever its bytes are."""
        return self.body.decode(errors="replace")


class Endpoint:
    """Speaks to one base URL with one credential; whatever it sends is read within bounds."""

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
        self._seconds = timeout
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
                headers={**headers, "accept-encoding": "identity"},
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
        return (await self._look("GET", "/health")).is_success

    async def version(self) -> str | None:
        """Give vLLM's version, None where the server has no /version."""
        reply = await self._look("GET", "/version")
        found = _json(reply).get("version") if reply.is_success else None
        word = _VERSION.match(found) if isinstance(found, str) else None
        return word[0] if word else None

    async def models(self) -> tuple[ServedModel, ...]:
        """Give what is served here.

        Raises:
            Unauthorized: The key is wrong.
            BadReply: It is no OpenAI-compatible server.
        """
        reply = await self._ask("GET", "/v1/models")
        rows = _json(reply).get("data")
        found = [row for row in rows if _is_named(row)] if isinstance(rows, list) else []
        if rows != [] and not found:
            raise BadReply(
                f"{self.base_url}/v1/models has no list of models.",
                fix="Check that the URL is that of an OpenAI-compatible server.",
                cause=in_quotes(reply.text, 200),
            )
        return tuple(_served(row) for row in found[:_MOST_MODELS])

    async def model_meant(self, name: str) -> str:
        """Return a model's name; where that is not known, of whichever is served first."""
        if name != "not known":
            return name
        return next((row.id for row in await self.models()), name)

    async def metrics_text(self) -> str:
        """Give the whole /metrics page."""
        return (await self._ask("GET", "/metrics")).text

    async def say_one_token(self, model: str) -> None:
        """Let the model answer once: an open port is not yet an answer.

        Raises:
            EndpointError: It did not.
        """
        body = {"model": model, "prompt": [1], "max_tokens": 1}
        try:
            await self.post("/v1/completions", body, timeout=20)
        except RequestRefused as refused:
            await self._embed(model, refused, timeout=20)

    async def answer(self, model: str, *, max_tokens: int, timeout: float) -> str:
        """Let the model say a few words after a greeting, and give them; `timeout` in seconds.

        Of a model that makes embeddings alone, what it made is described in their place.

        Raises:
            BadReply: There is no text in what came.
        """
        body = {"model": model, "prompt": "Hello", "max_tokens": max_tokens, "temperature": 0}
        try:
            reply = await self.post("/v1/completions", body, timeout=timeout)
        except RequestRefused as refused:
            return await self._embed(model, refused, timeout=timeout)
        choices = reply.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        text = first.get("text") if isinstance(first, dict) else None
        if not isinstance(text, str):
            raise BadReply(
                "It answers a completion with something that holds no text.",
                fix=f"Check that the address is vLLM's own, and look at {_LOG}.",
                cause=in_quotes(reply, 200),
            )
        return text

    async def _embed(self, model: str, refused: RequestRefused, *, timeout: float) -> str:
        """Describe an embedding by a model that completes nothing; vLLM then has no such route.

        Raises:
            RequestRefused: It makes none either.
        """
        body = {"model": model, "input": "Hello"}
        try:
            rows = (await self.post("/v1/embeddings", body, timeout=timeout)).get("data")
        except EndpointError:
            raise refused from None
        first = rows[0] if isinstance(rows, list) and rows else None
        numbers = first.get("embedding") if isinstance(first, dict) else None
        if not isinstance(numbers, list) or not numbers:
            raise refused
        return f"an embedding of {len(numbers)} numbers"

    async def post(
        self, path: str, body: Mapping[str, Any], *, timeout: float = 30
    ) -> dict[str, Any]:
        """Send JSON, give the JSON that comes back; `timeout` in seconds."""
        return _json(await self._ask("POST", path, body, seconds=timeout))

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
                    with anyio.fail_after(timeout):
                        refusal = await self._read(reply, path)
                    _refuse(refusal, f"{self.base_url}{path}")
                yield self._events(reply)

    async def _events(self, reply: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
        try:
            async for line in _lines(reply):
                data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
                if data == b"[DONE]":
                    return
                if data:
                    yield _event(data)
        except (httpx2.RemoteProtocolError, httpx2.ReadError) as exc:
            raise _broken_stream(str(exc) or type(exc).__name__) from exc
        raise _broken_stream("the connection closed")

    async def _ask(
        self, method: str, path: str, body: Any = None, *, seconds: float | None = None
    ) -> _Reply:
        """Send one request and read its answer, which is good."""
        reply = await self._look(method, path, body, seconds=seconds)
        if not reply.is_success:
            _refuse(reply, f"{self.base_url}{path}")
        return reply

    async def _look(
        self, method: str, path: str, body: Any = None, *, seconds: float | None = None
    ) -> _Reply:
        """Send one request and read its answer; `seconds` is of the longest silence, and of both.

        A second more is for the client to say in which step it waited.
        """
        seconds = seconds or self._seconds
        given = {} if body is None else {"json": body}
        with self._translated(), anyio.fail_after(seconds + 1):
            async with self._client.stream(method, path, timeout=seconds, **given) as reply:
                return await self._read(reply, path)

    async def _read(self, reply: httpx2.Response, path: str) -> _Reply:
        """Read an answer up to the bound of its kind, which is that of what it is unpacked to.

        Raises:
            BadReply: It is longer.
            BrokenStream: It ended before its end.
        """
        most = _MOST_BYTES.get(path, MOST_JSON_BYTES)
        most = most if reply.is_success else _MOST_REFUSAL_BYTES
        pieces, size = [], 0
        try:
            async for piece in reply.aiter_bytes():
                pieces.append(piece)
                size += len(piece)
                if size > most:
                    break
        except (httpx2.RemoteProtocolError, httpx2.ReadError) as exc:
            raise _broken_stream(str(exc) or type(exc).__name__) from exc
        body = b"".join(pieces)
        found = _Reply(str(reply.url), reply.status_code, body[:most], truncated=len(body) > most)
        if found.truncated and found.is_success:
            raise BadReply(
                f"{self.base_url}{path} answered with more than {most >> 20} MiB.",
                fix="Check that the URL is that of an OpenAI-compatible server.",
                cause=in_quotes(found.text[:1_000], 200),
            )
        return found

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (httpx2.TimeoutException, TimeoutError) as exc:
            raise Unreachable(
                f"{self.base_url} gave no answer in time.",
                fix="Call get_system_status; the engine may be busy, booting or hung.",
                cause="Timeout" if isinstance(exc, TimeoutError) else type(exc).__name__,
            ) from exc
        except httpx2.TransportError as exc:
            words = str(exc) or type(exc).__name__
            said, fix = _STRANGER if "CERTIFICATE_VERIFY_FAILED" in words else _SILENT
            raise Unreachable(said.format(self.base_url), fix=fix, cause=in_quotes(words)) from exc
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


async def _lines(reply: httpx2.Response) -> AsyncIterator[bytes]:
    """Split where server-sent events do, and not at U+2028 or U+0085, which answers may hold."""
    rest, size = b"", 0
    async for piece in reply.aiter_bytes():
        size += len(piece)
        *lines, rest = re.split(rb"[\r\n]", rest + piece)
        for line in lines:
            if line:
                yield line
        if len(rest) > _MOST_LINE_BYTES or size > _MOST_STREAM_BYTES:
            raise _broken_stream(f"it has more than {size >> 20} MiB, or a line of that length")
    yield rest


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = read_json(data)
    except NotJson as exc:
        raise _broken_stream(f"not JSON: {_excerpt(data)}") from exc
    if not isinstance(event, dict):
        raise _broken_stream(f"not an object: {_excerpt(data)}")
    if event.get("error"):
        raise _broken_stream(_words(event))
    return event


def _excerpt(data: bytes) -> str:
    return in_quotes(data[:1_000].decode(errors="replace"), 120)


def _is_named(row: object) -> bool:
    """Whether a row of /v1/models has a name that can be written and asked for."""
    name = row.get("id") if isinstance(row, dict) else None
    return type(name) is int or (isinstance(name, str) and _is_name(name))


def _is_name(text: str) -> bool:
    words = len(text.split())
    return len(text) <= _LONGEST_ID and text.isprintable() and 0 < words <= _MOST_WORDS


def _served(row: Mapping[str, Any]) -> ServedModel:
    length, root = row.get("max_model_len"), row.get("root")
    return ServedModel(
        id=str(row["id"]),
        max_model_len=length if type(length) is int and length > 0 else None,
        root=root if isinstance(root, str) and _is_name(root) else None,
    )


def _broken_stream(cause: str) -> BrokenStream:
    return BrokenStream(
        "The engine's answer broke off before its end.",
        fix=f"Look at {_LOG}, then ask again.",
        cause=cause,
    )


def _json(reply: _Reply) -> dict[str, Any]:
    try:
        body = read_json(reply.body)
    except NotJson as exc:
        raise _bad_reply(reply) from exc
    if not isinstance(body, dict):
        raise _bad_reply(reply)
    return body


def _bad_reply(reply: _Reply) -> BadReply:
    return BadReply(
        f"{reply.url} answered with something that is no JSON object.",
        fix="Check that the URL is vLLM's own and that no login page or proxy stands before it.",
        cause=_excerpt(reply.body),
    )


class _Refusal(NamedTuple):
    """How an engine, or a gateway before it, says no."""

    statuses: Sequence[int]
    word: str
    """That stands in its answer."""
    kind: type[EndpointError]
    said: str
    fix: str


_SAID: Final = "The engine refuses the request ({status})."
_REFUSALS: Final = (
    _Refusal(
        (403,),
        "RBAC: access denied",  # Envoy, the proxy before Container Apps
        AddressNotAllowed,
        "{url} does not let in the address that this machine is seen with.",
        "Call deploy_vllm again, which lets it in; or set AZURE_ALLOWED_ADDRESSES before.",
    ),
    _Refusal(
        (401, 403),
        "",
        Unauthorized,
        "{url} refuses the key.",
        "Give the right key in VLLM_API_KEY.",
    ),
    _Refusal(
        (404,),
        "model",
        ModelNotServed,
        "The endpoint does not serve that model.",
        "Call get_model_details for the id that it serves.",
    ),
    _Refusal(
        (429,),
        "",
        Throttled,
        "{url} lets no more requests through now (429).",
        "Ask again in a minute, with fewer at once. If it stays so, call get_metrics: an engine or"
        " a gateway at its limit says so, and Cloud Run where no instance is free.",
    ),
    _Refusal(range(400, 500), "--tool-call-parser", RequestRefused, _SAID, _NO_TOOLS),
    _Refusal(
        (*range(400, 500), 501),  # vLLM's NotImplementedError
        "",
        RequestRefused,
        _SAID,
        "Change what its own words point to.",
    ),
    _Refusal(
        range(500, 1000),
        "",
        EndpointError,
        "{url} failed with status {status}.",
        f"Look at {_LOG}.",
    ),
)


def _refuse(reply: _Reply, url: str) -> NoReturn:
    words = _words_of(reply)
    for row in _REFUSALS:
        if reply.status in row.statuses and row.word in words:
            said = row.said.format(url=url, status=reply.status)
            raise row.kind(said, fix=row.fix, cause=words)
    raise _bad_reply(reply)


def _words_of(reply: _Reply) -> str:
    try:
        body = read_json(reply.body)
    except NotJson:
        body = None
    return _words(body) if isinstance(body, dict) else in_quotes(reply.text)


def _words(body: Mapping[str, Any]) -> str:
    error = body.get("error", body.get("detail", body))
    message = error.get("message", error) if isinstance(error, dict) else error
    return in_quotes(message, 600)


def not_running(one: Deployment) -> EndpointError | None:
    """Return the error of a deployment that is stopped, expired or failed; None of any other."""
    here = {"target": one.target, "name": one.name}
    if one.state is State.STOPPED:
        price = f" (${one.usd_per_hour:.2f} an hour)" if one.usd_per_hour else ""
        return Stopped(
            f"{one.name} on {one.target} is stopped.",
            fix=f"Start it with start_vllm{price}.",
            next_steps=(NextStep("start_vllm", here),),
        )
    failure = one.failure
    if one.state is State.EXPIRED:
        return Expired(
            one.summary(),
            fix=failure.fix if failure else "Deploy it again with deploy_vllm.",
            next_steps=(NextStep("deploy_vllm", here),),
        )
    if one.state is not State.FAILED:
        return None
    return DeploymentFailed(
        one.summary(),
        fix=failure.fix if failure else "Call diagnose for the cause.",
        next_steps=(NextStep("diagnose", here),),
    )
