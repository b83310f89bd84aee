"""An OpenAI-compatible endpoint that answers what a test says, and remembers what it was asked."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from core.endpoint import Endpoint
from core.records import Access
from operations.analyse import Question
from tests.webserver import listening

Says = Callable[[dict[str, Any]], str]
CLAIM: Final = {"text": "The KV cache is too small.", "lines": ["L1"]}


def json_of(*claims: Mapping[str, Any]) -> str:
    """An answer in the form that is asked for."""
    return json.dumps({"claims": claims})


GOOD: Final = json_of(CLAIM)


def case_of(*texts: str, **more: Any) -> Question:
    """A case with these lines."""
    rows = {f"L{number}": text for number, text in enumerate(texts, 1)}
    return Question(task="Say what is wrong.", rows=rows, **more)


class Stranger:
    """The endpoint; every token is one character to it."""

    def __init__(
        self,
        says: Says | str = GOOD,
        *,
        context: int | None = 100_000,
        obeys_limit: bool = True,
        guides: bool = True,
        silent: bool = False,
    ) -> None:
        self.says: Says = (lambda _body: says) if isinstance(says, str) else says
        self._context, self._obeys, self._guides, self._silent = (
            context,
            obeys_limit,
            guides,
            silent,
        )
        self.bodies: list[dict[str, Any]] = []
        """Of the questions."""
        self.headers: list[Mapping[str, str]] = []
        self.asked: Final = anyio.Event()
        self.may_speak: Final = anyio.Event()
        """What a silent one waits for."""
        self.app: Final = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
            ]
        )

    @property
    def prompts(self) -> list[str]:
        """What it was asked, in words."""
        return [body["messages"][0]["content"] for body in self.bodies]

    @asynccontextmanager
    async def endpoint(self) -> AsyncIterator[Endpoint]:
        """Open a client of it."""
        async with listening(self.app) as url:
            endpoint = Endpoint(Access(base_url=url, protection="none"))
            yield endpoint
            await endpoint.aclose()

    async def _models(self, request: Request) -> Response:
        self.headers.append(dict(request.headers))
        length = {"max_model_len": self._context} if self._context else {}
        return JSONResponse({"data": [{"id": "stranger", **length}]})

    async def _chat(self, request: Request) -> Response:
        body = await request.json()
        self.asked.set()
        if "response_format" in body and not self._guides:
            return JSONResponse({"error": {"message": "no such field"}}, 400)
        self.bodies.append(body)
        if self._silent:
            await self.may_speak.wait()
        text = self.says(body)[: body["max_tokens"] if self._obeys else None]
        return JSONResponse({"choices": [{"message": {"content": text}}]})
