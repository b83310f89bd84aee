"""Whether the model exists on the Hub and may be fetched from there."""

from collections.abc import Iterator
from functools import partial
from typing import Final

import anyio

from backends.cloud_run.gated import Verdict, ask
from backends.cloud_run.looked import Answer, Question
from backends.cloud_run.site import Site
from core.records import DeploymentSpec

_SECONDS: Final = 15.0


def questions(site: Site, spec: DeploymentSpec) -> Iterator[Question]:
    """Ask the Hub where the weights come from there."""
    if spec.engine == "vllm" and (spec.weights or "hub") == "hub":
        yield Question(f"{spec.model} can be fetched from the Hub", partial(_hub, site, spec.model))


async def _hub(site: Site, model: str) -> Answer:
    if site.rehearsed:
        return Answer(passed=None, detail="In a rehearsal nobody asks the real Hub.")
    verdict: Verdict | None = None
    with anyio.move_on_after(_SECONDS):
        verdict = await anyio.to_thread.run_sync(
            ask, model, site.settings.hf_token, abandon_on_cancel=True
        )
    if verdict is None:
        return Answer(passed=None, detail=f"The Hub did not answer within {_SECONDS:.0f} s.")
    return Answer(*verdict)
