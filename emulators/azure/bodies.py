"""What every resource's body has in common: a region, tags, who made it and when."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from emulators.azure.refusing import conflict, invalid
from emulators.azure.state import Subscription

_TAGS: Final = 50
_TAG_NAME: Final = 512
_TAG_VALUE: Final = 256
"""Letters. Source: learn.microsoft.com, Use tags to organize your Azure resources."""
_NOT_IN_NAMES: Final = frozenset("<>%&\\?/")


def region_of(body: Mapping[str, Any], there: Mapping[str, Any] | None = None) -> str:
    """Give the region that a body names, which must be that of what is there already.

    Raises:
        Refused: It names none, or another one.
    """
    named = body.get("location")
    if not isinstance(named, str) or not named:
        raise invalid("The location property is required for this definition.", "LocationRequired")
    region = plain_region(named)
    if there and plain_region(there["location"]) != region:
        raise conflict(
            "InvalidResourceLocation",
            f"The resource '{there['name']}' already exists in location '{there['location']}'. A"
            f" resource with the same name cannot be created in location '{named}'. Please select"
            " a new resource name.",
        )
    return region


def plain_region(named: str) -> str:
    """Write `Sweden Central` as swedencentral."""
    return named.lower().replace(" ", "")


def check_tags(tags: Mapping[str, str] | None) -> None:
    """Refuse tags that ARM does not keep.

    Raises:
        Refused: There are too many, or one is too long or has a letter that may not be.
    """
    if tags and len(tags) > _TAGS:
        raise invalid(
            f"The number of tags is '{len(tags)}'; at most '{_TAGS}' are allowed.", "InvalidTags"
        )
    for name, value in (tags or {}).items():
        if not name or len(name) > _TAG_NAME or _NOT_IN_NAMES & set(name):
            raise invalid(f"The tag name '{name[:80]}' is not valid.", "InvalidTagName")
        if len(value) > _TAG_VALUE:
            raise invalid(
                f"Tag value too large. The value of tag '{name}' has {len(value)} letters; at most"
                f" {_TAG_VALUE} are allowed.",
                "InvalidTagValueLength",
            )


def merged(there: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a JSON merge patch (RFC 7396): objects merge, arrays are replaced, null removes.

    >>> merged({"a": {"b": 1, "c": 2}, "d": [1, 2]}, {"a": {"b": None}, "d": [3]})
    {'a': {'c': 2}, 'd': [3]}
    """
    result = dict(there)
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            old = result.get(key)
            result[key] = merged(old if isinstance(old, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def moment(at: float | None = None) -> str:
    """Write a moment (epoch seconds; None is now) as Azure does."""
    then = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    return then.isoformat(timespec="microseconds").replace("+00:00", "Z")


def system_data(sub: Subscription, there: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Say who made a resource, and who changed it last: the caller, now."""
    now = moment()
    made = (there or {}).get("systemData", {})
    return {
        "createdBy": made.get("createdBy", sub.caller_name),
        "createdByType": "User",
        "createdAt": made.get("createdAt", now),
        "lastModifiedBy": sub.caller_name,
        "lastModifiedByType": "User",
        "lastModifiedAt": now,
    }
