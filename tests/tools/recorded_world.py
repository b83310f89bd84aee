"""A world in memory that knows whoever changed it."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from backends.base import Leftover, QueuedResource
from core.records import Deployment, Remainder, State
from tests.tools.calls import MODEL

_MADE: Final = datetime(2026, 11, 1, tzinfo=UTC)
ROWS: Final = {
    "free": ("local", 0.0),
    "run": ("cloud_run", 2.5),
    "app": ("aca", 2.5),
    "chip": ("tpu", 2.5),
}
"""Targets of this world: their backend, and dollars an hour."""


@dataclass
class Kept:
    """What is in the world, and what was done to it."""

    url: str
    """Where models answer."""
    writes: list[str] = field(default_factory=list)
    deployments: dict[tuple[str, str], Deployment] = field(default_factory=dict)
    specs: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    """What was given for those that were made with more than a model."""
    leftovers: list[QueuedResource] = field(default_factory=list)
    is_set_up: bool = False
    hangs: bool = False
    """Nothing that is asked of it ever answers."""
    delete_seconds: float = 0.0
    """How long each thing takes that it is told to take away."""
    broken: dict[str, Exception | None] = field(default_factory=dict)
    """What each of these targets says to everything; None is never anything."""
    paid: dict[str, Remainder] = field(default_factory=dict)
    """By target: what is there and bills by the month until a purge."""
    spare: dict[str, Leftover] = field(default_factory=dict)
    """By id: what no deployment of the account of `app` and `run` needs any more."""

    def put(self, target: str, state: State, name: str = "one", **said: Any) -> None:
        """Let a deployment be there."""
        values: dict[str, Any] = {
            "name": name,
            "target": target,
            "state": state,
            "since": _MADE,
            "model": MODEL,
            "served_model_name": MODEL,
            "engine": "vLLM 0.32.0",
            "url": self.url,
            "revision": "0123456789ab",
            "replicas": int(state is State.READY),
            "created_at": _MADE,
            "usd_per_hour": ROWS.get(target, ("", 2.5))[1],
        }
        self.deployments[target, name] = Deployment.model_validate({**values, **said})

    def leftover(self) -> None:
        """Let a request be there that will never serve."""
        values: dict[str, Any] = {
            "id": "vllm-devops-leftover",
            "path": "queue/vllm-devops-leftover",
            "zone": "us-east5-b",
            "control_plane": "queued",
            "state": "FAILED",
            "node": "",
            "accelerator": "v6e-1",
            "provisioning": "spot",
            "created_at": "2026-11-01",
            "ours": True,
            "deployment": "gone",
            "target": "chip",
            "leftover": True,
        }
        self.leftovers = [QueuedResource.model_validate(values)]
