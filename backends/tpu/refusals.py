"""Why a zone does not give a chip, read from Google's words: its statuses do not tell it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, get_args

from backends.google.errors import strictly
from core.cloud_errors import (
    CloudError,
    CloudRefused,
    CloudUnavailable,
    ConcurrentChange,
    NoCapacity,
    NotOurs,
    QuotaExceeded,
    ZoneRefused,
)
from core.errors import OpsError
from logs.catalogue import meaning as wording_for

Means = Literal[
    "ZONE_REFUSED",
    "NO_CAPACITY",
    "QUOTA_EXCEEDED",
    "NOT_OURS",
    "CLOUD_UNAVAILABLE",
    "CONCURRENT_CHANGE",
]


_ERRORS: Final[dict[Means, tuple[type[CloudError], str, str]]] = {
    "ZONE_REFUSED": (
        ZoneRefused,
        "{zone} does not give this accelerator in this way.",
        "Another zone may: call get_zones_with_available_quota.",
    ),
    "NO_CAPACITY": (
        NoCapacity,
        "{zone} has no chip free.",
        "Ask in another zone or again later; flex-start waits in a queue of its own.",
    ),
    "QUOTA_EXCEEDED": (
        QuotaExceeded,
        "The project's quota does not allow so many chips in {zone}.",
        "Call check_gpu_quotas and list_queued_resources: failed requests hold quota as well.",
    ),
    "NOT_OURS": (
        NotOurs,
        "{zone} has a TPU of that name which was not made here; it is left alone.",
        "Choose another name.",
    ),
    "CLOUD_UNAVAILABLE": (
        CloudUnavailable,
        "Google takes no more calls of the project just now.",
        "Call the same tool again in a minute.",
    ),
    "CONCURRENT_CHANGE": (
        ConcurrentChange,
        "What was there of that name in {zone} is not through yet.",
        "Call the same tool again in a minute.",
    ),
}


def meaning(words: str) -> Means | None:
    """Say what words of Google's mean; None where no wording fits.

    >>> meaning('There is no more capacity in the zone "us-east5-b"; you can try in another zone')
    'NO_CAPACITY'
    """
    wording = wording_for("tpu", words)
    return next((means for means in get_args(Means) if wording and wording.code == means), None)


def is_contradiction(words: str) -> bool:
    """Whether the request is said to name two ways of giving a chip.

    >>> is_contradiction("STANDARD provisioning model is incompatible with spot requests")
    True
    """
    wording = wording_for("tpu", words)
    return wording is not None and wording.code == "PROVISIONING_MODEL_CONFLICT"


def told(words: str, zone: str) -> OpsError:
    """Make an error of Google's words on a request that it had taken."""
    means = meaning(words)
    if means is None:
        return CloudRefused(
            f"The request for a chip in {zone} failed.",
            cause=words,
            fix="Change what the cause names.",
        )
    kind, summary, fix = _ERRORS[means]
    return kind(summary.format(zone=zone), cause=words, fix=fix)


@contextmanager
def refusing(what: str, zone: str) -> Iterator[None]:
    """Translate what Google raises while a zone is asked for something.

    Raises:
        ZoneRefused, NoCapacity, QuotaExceeded: The zone does not give it.
        CloudError: Google refused for another reason, or did not answer.
    """
    try:
        with strictly(what):
            yield
    except CloudError as exc:
        if meaning(exc.cause) is None:
            raise
        raise told(exc.cause, zone) from exc
