"""What vLLM as it is published cannot serve on an accelerator, whatever its memory holds."""

from typing import Final

from core.records import ModelShape
from planner.accelerators import Accelerator

_LONGEST_HEAD: Final = 256
"""That 64 KiB of shared memory are enough for: measured on a T4G (2026-11-20)."""
_ISSUE: Final = "https://github.com/vllm-project/vllm/issues/57712, open on 2026-11-20"
FIGURES: Final = "The figures are what such an image would come to."
"""Said after the reason where figures are told all the same; a refusal has none."""


def unserved(model: ModelShape, device: Accelerator) -> str | None:
    """Say why published vLLM dies there, None where it does not."""
    longest = max((layer.head_size for layer in model.layers), default=0)
    if device.sm is None or device.sm >= 8 or longest <= _LONGEST_HEAD:
        return None
    return (
        f"Published vLLM cannot serve it there: its Triton attention of heads of {longest} needs"
        f" 96 KiB of shared memory, {device.title} has 64 ({_ISSUE}). An image of your own"
        " with smaller tiles may serve it there."
    )
