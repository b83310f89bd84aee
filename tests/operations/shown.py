"""Made-up targets that show whatever a test puts there, and that can hang or refuse."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from backends.base import World
from backends.registry import BACKENDS
from core.errors import CloudUnavailable
from core.records import Access, Deployment, State, Target
from operations import runtime

NOW: Final = datetime.now(UTC)
"""A test takes seconds; what it shows is minutes or hours old."""


def shown(name: str, target: str = "sky", **changes: Any) -> Deployment:
    """Make up a deployment, well and awake."""
    values: dict[str, Any] = {
        "name": name,
        "target": target,
        "state": State.READY,
        "since": NOW - timedelta(hours=1),
        "created_at": NOW - timedelta(hours=2),
        "model": "m",
        "served_model_name": "m",
        "engine": "vLLM 0.32.0",
        "revision": "r1",
        "replicas": 1,
        "usd_per_hour": 0.7,
        "usd_so_far": 1.4,
    }
    return Deployment.model_validate({**values, **changes})


class Shows:
    """A target that has what `there` says."""

    there: tuple[Deployment, ...] = ()
    url: str = "http://127.0.0.1:9"
    opened: list[str]
    """Names whose endpoint was asked for."""

    def __init__(self, target: Target, world: World) -> None:
        self.target: Final = target

    async def list(self) -> Sequence[Deployment]:
        return [one for one in self.there if one.target == self.target.name]

    async def describe(self, name: str) -> Deployment:
        return next(one for one in await self.list() if one.name == name)

    async def access(self, name: str) -> Access:
        self.opened.append(name)
        return Access(base_url=self.url, protection="")


class Hangs(Shows):
    """A target that never says what it has."""

    async def list(self) -> Sequence[Deployment]:
        await anyio.sleep_forever()
        raise AssertionError("it woke up")

    async def describe(self, name: str) -> Deployment:
        await self.list()
        raise AssertionError("it woke up")


class Refuses(Shows):
    """A target that cannot be reached."""

    async def list(self) -> Sequence[Deployment]:
        raise CloudUnavailable("The cloud is closed.", fix="Come back tomorrow.")


def world_of(
    patch: pytest.MonkeyPatch,
    folder: Path,
    there: Iterable[Deployment] = (),
    *,
    url: str = Shows.url,
    **targets: type[Shows],
) -> list[str]:
    """Give the server these targets and no other; gives the names whose endpoint is asked for."""
    rows = []
    opened: list[str] = []
    for name, kind in targets.items():
        made = type(kind.__name__, (kind,), {"there": tuple(there), "url": url, "opened": opened})
        patch.setitem(BACKENDS, name, partial(_itself, made))
        rows.append(f'[{name}]\nbackend = "{name}"\ndescription = "{name}"\nmin_replicas = 0\n')
    path = folder / "targets.toml"
    path.write_text("\n".join(rows), encoding="utf-8")
    patch.setattr(runtime, "_TARGETS", path)
    return opened


def _itself(kind: Any) -> Any:
    return kind


def engine(*, waiting: int = 0, kv_usage: float = 0.1) -> Starlette:
    """An engine that only has metrics."""
    page = (
        "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 3\n"
        f"# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting {waiting}\n"
        f"# TYPE vllm:kv_cache_usage_perc gauge\nvllm:kv_cache_usage_perc {kv_usage}\n"
    )

    async def metrics(_request: Any) -> PlainTextResponse:
        return PlainTextResponse(page)

    return Starlette(routes=[Route("/metrics", metrics)])


def hung_engine() -> Starlette:
    """An engine that takes a question and never answers."""

    async def metrics(_request: Any) -> PlainTextResponse:
        await anyio.sleep_forever()
        raise AssertionError("it woke up")

    return Starlette(routes=[Route("/metrics", metrics)])
