"""Whether a model exists on the Hub and may be fetched from there."""

from collections.abc import Iterator
from functools import partial
from typing import Final

import anyio

from backends.common.gated import Verdict, ask
from backends.common.looked import Answer, Question
from core.records import DeploymentSpec
from core.settings import Settings

_SECONDS: Final = 15.0


def questions(settings: Settings, spec: DeploymentSpec) -> Iterator[Question]:
    """Ask the Hub where the weights come from there."""
    if spec.from_hub:
        question = f"{spec.model} can be fetched from the Hub"
        yield Question(question, partial(on_hub, settings, spec.model))


async def on_hub(settings: Settings, model: str) -> Answer:
    """Ask the Hub, but for a rehearsal."""
    if settings.rehearsal:
        return Answer(passed=None, detail="In a rehearsal nobody asks the real Hub.")
    verdict: Verdict | None = None
    with anyio.move_on_after(_SECONDS):
        verdict = await anyio.to_thread.run_sync(
            ask, model, settings.hf_token, abandon_on_cancel=True
        )
    if verdict is None:
        return Answer(passed=None, detail=f"The Hub did not answer within {_SECONDS:.0f} s.")
    return Answer(*verdict)
