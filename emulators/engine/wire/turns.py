"""Conversations written out with Gemma 4's turn markers.

The model's own Jinja template is not run: the markers, a trimmed content and the opening of the
model's turn are what Gemma 4's template gives for plain messages.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from emulators.engine.wire.errors import WireError

_TEXTS: Final = frozenset({"text", "input_text", "output_text", "refusal", "thinking"})
_MARKERS: Final = (("<|turn>", "<turn|>"), ("<start_of_turn>", "<end_of_turn>"))


def render(
    messages: Sequence[Mapping[str, Any]],
    special: Mapping[str, int],
    *,
    model_name: str,
    multimodal: bool = False,
    open_turn: bool = True,
) -> str:
    """The prompt that the model sees."""
    if not messages:
        raise WireError(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    start, end = next((pair for pair in _MARKERS if pair[0] in special), _MARKERS[0])
    turns = "".join(
        f"{start}{_role(one)}\n{_text(one, model_name, multimodal=multimodal).strip()}{end}\n"
        for one in messages
    )
    return f"<bos>{turns}{start}model\n" if open_turn else f"<bos>{turns}"


def _role(message: Mapping[str, Any]) -> str:
    if "role" not in message:
        raise WireError(
            "1 validation error: role", kind="Bad Request", param="body.messages.0.role"
        )
    return "model" if message["role"] == "assistant" else str(message["role"])


def _text(message: Mapping[str, Any], model_name: str, *, multimodal: bool) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    if not multimodal and any(part.get("type", "text") not in _TEXTS for part in content):
        raise WireError(f"{model_name} is not a multimodal model")
    return "".join(part.get("text", "<image>") for part in content)
