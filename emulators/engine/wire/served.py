"""What is served: the names, the limits and the engine behind them."""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from emulators.engine.engine import Engine
from emulators.engine.metrics import EngineMetrics
from emulators.engine.wire.errors import no_such_model

VERSION: Final = "0.32.0"


def random_id() -> str:
    """The sixteen hexadecimal digits of vLLM's ids."""
    return uuid.uuid4().hex[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One model on one engine, as the flags say."""

    names: tuple[str, ...]
    root: str
    max_model_len: int
    vocab_size: int
    engine: Engine
    metrics: EngineMetrics
    max_logprobs: int = 20
    multimodal: bool = False
    reasoning_parser: bool = False
    tool_parser: bool = False
    auto_tools: bool = False
    cache_details: bool = False

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def parses(self) -> bool:
        """Whether a parser stands between the model's text and a chat's reply."""
        return self.reasoning_parser or self.tool_parser

    @property
    def fingerprint(self) -> str:
        shape = f"{self.root}|{self.max_model_len}|{self.vocab_size}"
        return f"vllm-{VERSION}-{hashlib.sha256(shape.encode()).hexdigest()[:8]}"

    def check_name(self, model: str | None) -> None:
        """Refuse a model that is not served here; naming none is fine."""
        if model and model not in self.names:
            raise no_such_model(model, self.names)

    def cards(self, created: int) -> list[dict[str, Any]]:
        """`/v1/models`."""
        return [self._card(name, created) for name in self.names]

    def _card(self, name: str, created: int) -> dict[str, Any]:
        allowed = {
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
        }
        permission: Mapping[str, Any] = {
            "id": f"modelperm-{random_id()}",
            "object": "model_permission",
            "created": created,
            **allowed,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": self.root,
            "parent": None,
            "max_model_len": self.max_model_len,
            "permission": [permission],
        }
