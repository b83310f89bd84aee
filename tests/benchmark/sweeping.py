"""A sweep without a load: an endpoint that can close, and workers that make up what they saw."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from benchmark import report
from benchmark.folder import RunFolder, replace
from benchmark.loads import Job
from benchmark.profiles import make, plan_of
from benchmark.records import Measured, Provenance, RunPlan, Slice, Subject
from benchmark.run import End, conclude
from tests.benchmark.made import measured_of, some_samples

MODEL = "tiny"
WALL_SECONDS = 14.0


class Door:
    """Serves /v1/models while it is open, and refuses questions."""

    def __init__(self) -> None:
        self.url = ""
        self.model = MODEL
        self.key: str | None = None
        self.closed = False
        self.refusals = 0
        """How many connections are still broken."""
        self.refuses: Sequence[str] | None = None
        """Which fields of a question; None: it takes no questions at all."""
        self.questions: list[str] = []
        """As they were asked."""
        self.unauthorized = 0
        """How many requests are still told that the key is wrong."""
        self.requests = 0
        self.at_work: list[int] | None = None
        """What /metrics says of running requests, look by look; None: there is no such page."""
        self.last_at_work: int | None = None
        self.max_model_len = 2048
        self.started: float | None = None
        """When the engine's process began, as /metrics says; None: it does not say."""

    async def answer(self, stream: SocketStream) -> None:
        reader = BufferedByteReceiveStream(stream)
        async with stream:
            while not self.closed:
                try:
                    head = (await reader.receive_until(b"\r\n\r\n", 2**16)).decode()
                    length = head.lower().partition("content-length: ")[2].partition("\r")[0]
                    asked = await reader.receive_exactly(int(length)) if length else b""
                except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                    return
                if self.refusals:
                    self.refusals -= 1
                    return
                await stream.send(self._reply(f"{head}\r\n\r\n", asked.decode()))

    def _reply(self, head: str, asked: str) -> bytes:
        self.requests += 1
        body = json.dumps({"data": [{"id": self.model, "max_model_len": self.max_model_len}]})
        status = "200 OK" if " /v1/models " in head else "404 Not Found"
        if self.refuses is not None and "/completions " in head:
            named = next((name for name in self.refuses if f'"{name}"' in asked), None)
            status = "400 Bad Request" if named else "200 OK"
            body = json.dumps({"error": {"message": f"Unsupported parameter: {named!r}."}})
            self.questions.append(asked)
        if self.at_work is not None and " /metrics " in head:
            self.last_at_work = self.at_work.pop(0) if self.at_work else 0
            status, body = "200 OK", f"vllm:num_requests_running {self.last_at_work}\n"
        if self.started is not None and " /metrics " in head:
            said = "vllm:num_requests_running 0\nprocess_start_time_seconds"
            status, body = "200 OK", f"{said} {self.started}\n"
        late = self.unauthorized and " /v1/models " in head
        if late or (self.key and f"Bearer {self.key}\r\n" not in head):
            status = "401 Unauthorized"
            self.unauthorized = max(0, self.unauthorized - 1)
        return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@asynccontextmanager
async def open_door() -> AsyncIterator[Door]:
    door = Door()
    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610  no Django here
        door.url = f"http://127.0.0.1:{port}"
        tasks.start_soon(listener.serve, door.answer)
        yield door
        tasks.cancel_scope.cancel()


class Workers:
    """Measure nothing, at once; `act` is what happens meanwhile."""

    def __init__(self, act: Callable[[Job], Awaitable[None]] | None = None) -> None:
        self.hired: list[int] = []
        self.jobs: list[Job] = []
        self.act = act
        self.requests = 100
        self.failed: str | None = None

    @asynccontextmanager
    async def __call__(self, workers: int, _log: Path) -> AsyncIterator["Workers"]:
        self.hired.append(workers)
        async with anyio.create_task_group():  # as the fleet has one
            yield self

    async def measure(
        self,
        job: Job,
        *,
        enough: Callable[[Sequence[Slice]], bool],
        tell: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> Measured:
        self.jobs.append(job)
        tell("measuring")
        if self.act:
            await self.act(job)
        stop()
        return measured_of(
            some_samples(self.requests),
            begin=100.0,
            end=100.0 + 0.1 * self.requests,
            wall_seconds=WALL_SECONDS,
            failed=self.failed,
        )


def a_plan(**overrides: Any) -> RunPlan:
    """Two contexts and two loads."""
    return plan_of(**{"contexts": [8, 512], "concurrencies": [1, 8], **overrides})


def a_run(
    runs: Path, url: str, plan: RunPlan | None = None, *, usd_per_hour: float | None = None
) -> RunFolder:
    return make(
        runs,
        base_url=url,
        plan=plan or a_plan(),
        subject=Subject(model=MODEL, max_model_len=2048),
        provenance=Provenance(usd_per_hour=usd_per_hour),
    )


def ids(folder: RunFolder) -> list[str]:
    return [cell.id for cell in folder.cells()]


async def measured(folder: RunFolder, workers: Workers, patience_seconds: float = 0.0) -> End:
    return await conclude(folder, crew=workers, patience_seconds=patience_seconds)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with open_door() as door:
        yield door


@pytest.fixture(autouse=True)
def no_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chart takes a second; one test draws it."""

    def write_all(folder: RunFolder) -> None:
        replace(folder.report_file, f"{len(folder.cells())} cells")

    monkeypatch.setattr(report, "write_all", write_all)
