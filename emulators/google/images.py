"""Whether an image can be pulled by the revision that names it."""

from typing import Final

from google.cloud.run_v2.types import Condition

from emulators.google.conditions import RolloutFailed
from emulators.google.dockerhub import digest_of
from emulators.google.state import Project, World

_HUBS: Final = ("docker.io/", "index.docker.io/", "mirror.gcr.io/")
_PKG: Final = "-docker.pkg.dev/"


def check_image(world: World, project: Project, image: str) -> None:
    """Refuse an image that is not there, or that may not be read.

    Raises:
        RolloutFailed: CONTAINER_MISSING or CONTAINER_IMAGE_UNAUTHORIZED.
    """
    _region, ours, rest = image.partition(_PKG)
    if ours and rest.partition("/")[0] != project.id:
        raise _unauthorized(project, image)
    if project.knobs.rollout == "image-missing" or not exists(world, rest if ours else image):
        raise RolloutFailed(
            "NOT_FOUND",
            f"Image '{image}' not found.",
            common=Condition.CommonReason.CONTAINER_MISSING,
        )


def exists(world: World, image: str) -> bool:
    """Say whether a registry has it; `image` is without the host of a project's own registry."""
    for hub in _HUBS:
        image = image.removeprefix(hub)
    named, _, digest = image.partition("@")
    name, _, tag = named.partition(":")
    return digest_of(world, name, digest or tag or "latest") is not None


def _unauthorized(project: Project, image: str) -> RolloutFailed:
    agent = f"service-{project.number}@serverless-robot-prod.iam.gserviceaccount.com"
    return RolloutFailed(
        "PERMISSION_DENIED",
        f"Google Cloud Run Service Agent {agent} must have permission to read the image, {image}."
        " Ensure that the provided container image URL is correct and that the above account has"
        " permission to access the image.",
        common=Condition.CommonReason.CONTAINER_IMAGE_UNAUTHORIZED,
    )
