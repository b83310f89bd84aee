"""Made-up deployments and engines, each with what is wrong with it."""

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from backends.base import Backend, HostState, LogQuery
from core.records import Access, Deployment, State, Target
from core.settings import Settings
from logs.read import Line
from operations.case import Diagnosis
from operations.diagnose import examine
from operations.resolve import Found
from operations.runtime import Runtime


def just_now() -> datetime:
    """Give the time; the tests before this one may have taken minutes."""
    return datetime.now(UTC)


HERE: Final = {"target": "somewhere", "name": "one"}
NOWHERE: Final = "http://127.0.0.1:9"


def deployment(state: State = State.READY, *, minutes: float = 1, **more: Any) -> Deployment:
    """Give one that has been in its state for some minutes."""
    since = just_now() - timedelta(minutes=minutes)
    said: dict[str, Any] = {
        **HERE,
        "state": state,
        "since": since,
        "model": "acme/m",
        "served_model_name": "acme/m",
        "engine": "vLLM",
        "url": NOWHERE,
        "revision": "abc",
        "replicas": int(state in {State.READY, State.LOADING}),
        "created_at": since - timedelta(hours=1),
    }
    return Deployment.model_validate({**said, **more})


class Somewhere:
    """A target that answers at an address, and can do nothing else."""

    def __init__(self, url: str = NOWHERE, backend: str = "local") -> None:
        self.target = Target(name="somewhere", backend=backend, description="made up")
        self._url = url

    async def access(self, name: str) -> Access:
        """Give the address."""
        assert name == "one"
        return Access(base_url=self._url, protection="none")


class Writes(Somewhere):
    """It keeps a log."""

    def __init__(self, url: str = NOWHERE, backend: str = "local", log: Sequence[str] = ()) -> None:
        super().__init__(url, backend)
        self.log = [Line(just_now() - timedelta(minutes=1), text) for text in log]
        self.queries: list[LogQuery] = []

    async def log_pages(self, name: str, query: LogQuery) -> AsyncGenerator[Sequence[Line], None]:
        """Give the lines that hold what is asked for, a page each, the newest first."""
        assert name == "one"
        self.queries.append(query)
        for line in reversed(self.log):
            if any(word.lower() in line.text.lower() for word in query.contains):
                yield [line]


class OnHost(Writes):
    """Its host can be looked at."""

    disk_gib = 0.2

    async def host(self) -> HostState:
        """Say how it is."""
        return HostState(
            health="short of disk" if self.disk_gib < 1 else "ok",
            cpu_percent=1.0,
            memory_available_gib=8.0,
            memory_total_gib=16.0,
            disk_free_gib=self.disk_gib,
        )

    async def usage(self, name: str) -> None:
        """Say that nothing of it runs."""


class Engine:
    """An engine that answers as it is told to."""

    def __init__(self) -> None:
        self.health = 200
        self.served = "acme/m"
        self.max_model_len = 2048
        self.answer: Any = {"choices": [{"text": "!"}]}
        self.answer_seconds = 0.0
        self.status = 200
        self.pages = [page()]
        """Of the metrics, one for each look; the last one stays."""
        self.asked = 0
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/metrics", self._metrics),
            ]
        )

    async def _health(self, _request: Request) -> Response:
        return Response(status_code=self.health)

    async def _models(self, _request: Request) -> Response:
        row = {"id": self.served, "max_model_len": self.max_model_len}
        return JSONResponse({"data": [row]})

    async def _complete(self, request: Request) -> Response:
        self.asked += 1
        await anyio.sleep(self.answer_seconds)
        if (await request.json())["model"] != self.served:
            return JSONResponse({"error": {"message": "The model does not exist."}}, 404)
        return JSONResponse(self.answer, self.status)

    async def _metrics(self, _request: Request) -> Response:
        text = self.pages.pop(0) if len(self.pages) > 1 else self.pages[0]
        return PlainTextResponse(text)


def page(
    *,
    waiting: int = 0,
    running: int = 0,
    kv: float = 0.1,
    preempted: int = 0,
    good: int = 0,
    bad: int = 0,
) -> str:
    """Write a page of metrics."""
    rows = {
        "vllm:num_requests_waiting": waiting,
        "vllm:num_requests_running": running,
        "vllm:kv_cache_usage_perc": kv,
        "vllm:num_preemptions_total": preempted,
        'vllm:request_success_total{finished_reason="stop"}': good,
        'http_requests_total{status="2xx"}': good,
        'http_requests_total{status="5xx"}': bad,
    }
    return "".join(f"{name} {value}\n" for name, value in rows.items())


async def diagnosed(
    backend: Somewhere, now: Deployment, folder: Path, *, seconds: float = 40
) -> Diagnosis:
    """Diagnose a made-up deployment, as if it had just been looked at."""
    runtime = Runtime(Settings(vllm_devops_state_dir=folder), frozenset())
    found = Found(cast("Backend", backend), now)
    return await examine(runtime, found, ends=anyio.current_time() + seconds)


def verdicts(seen: Diagnosis) -> dict[str, str]:
    """What each layer came to."""
    return {row.layer: row.verdict for row in seen.looked_at}


def tools(seen: Diagnosis) -> list[str]:
    """Which tools it names."""
    return [step.tool for step in seen.next]
