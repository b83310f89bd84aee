"""Which engine an image holds, by its name."""

import re
from typing import Final

_TAGGED: Final = re.compile(r":v?([0-9]+\.[0-9]+\.[0-9]+)")


def version_in(image: str) -> str | None:
    """Give the version that an image's tag names.

    >>> version_in("docker.io/vllm/vllm-openai:v0.32.0-cu129@sha256:00")
    '0.32.0'
    """
    match = _TAGGED.search(image)
    return match[1] if match else None


def version_of(image: str, own: str, own_version: str) -> str | None:
    """Give the version by an image's tag, or that of our own where it is pinned by its digest."""
    is_own = repository(image) == repository(own)
    return version_in(image) or (own_version if is_own else None)


def repository(image: str) -> str:
    """Give an image's name without tag and digest."""
    return image.partition("@")[0].rpartition(":")[0] or image.partition("@")[0]
