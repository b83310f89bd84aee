"""Whether the share holds a whole model where the weights are to come from it."""

from collections.abc import Iterator
from functools import partial

from backends.aca import shares
from backends.aca.site import Site
from backends.common.preflight import Answer, Question
from core.cloud_errors import CloudRefused
from core.errors import InvalidArgument
from core.records import DeploymentSpec


def questions(site: Site, spec: DeploymentSpec) -> Iterator[Question]:
    """Look into the share where the weights come from it."""
    if spec.weights and spec.weights.startswith("files://"):
        yield Question(f"{spec.weights} holds a whole model", partial(_whole, site, spec))


async def _whole(site: Site, spec: DeploymentSpec) -> Answer:
    location = spec.weights or ""
    try:
        verdict = await shares.whole(site, location)
    except (CloudRefused, InvalidArgument) as exc:
        return Answer(passed=False, detail=exc.summary, fix=exc.fix)
    fix = f"Copy it again: get_huggingface_model_copy_instructions(model={spec.model!r})."
    return Answer(
        passed=verdict.complete,
        detail=verdict.detail,
        fix=fix if verdict.complete is False else "",
    )
