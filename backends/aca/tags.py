"""What an app's tags say: whose it is, and what was asked for."""

import json
from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from backends.aca.names import EXPIRES_TAG, JSON_TAG, MANAGED_BY, SPEC_TAG, TARGET_TAG
from backends.aca.rules import rules
from core.errors import InvalidArgument
from core.records import DeploymentSpec

MANAGED_TAG: Final = "managed-by"


def tags_of(target: str, spec: DeploymentSpec) -> dict[str, str]:
    """Give the tags of an app.

    Raises:
        InvalidArgument: What is asked for is too long for tags.
    """
    return {
        MANAGED_TAG: MANAGED_BY,
        TARGET_TAG: target,
        SPEC_TAG: spec.fingerprint,
        **{f"{JSON_TAG}-{number}": part for number, part in enumerate(_parts(spec))},
    }


def ours(tags: Mapping[str, str] | None) -> bool:
    """Whether a thing was made here."""
    return _lower(tags).get(MANAGED_TAG) == MANAGED_BY


def target_in(tags: Mapping[str, str] | None) -> str | None:
    """Give the target that a thing was made for."""
    return _lower(tags).get(TARGET_TAG)


def fingerprint_in(tags: Mapping[str, str] | None) -> str | None:
    """Give the fingerprint of what was asked for."""
    return _lower(tags).get(SPEC_TAG)


def expires_in(tags: Mapping[str, str] | None) -> int | None:
    """Give when its time ends, in seconds since 1970; None where nobody said."""
    said = _lower(tags).get(EXPIRES_TAG, "")
    return int(said) if said.isdecimal() else None


def spec_in(tags: Mapping[str, str] | None) -> DeploymentSpec | None:
    """Give what was asked for; None where the tags do not say it, or were changed since."""
    held = _lower(tags)
    count, colon, first = held.get(f"{JSON_TAG}-0", "").partition(":")
    if not (colon and count.isdecimal()):
        return None
    rest = [held.get(f"{JSON_TAG}-{number}", "") for number in range(1, int(count))]
    try:
        return DeploymentSpec.model_validate_json("".join((first, *rest)))
    except ValidationError:
        return None


def _parts(spec: DeploymentSpec) -> list[str]:
    """Cut its JSON; later parts of a longer one that stood there before are not counted."""
    limits = rules().limits
    said = json.dumps(spec.model_dump(mode="json", exclude_defaults=True), separators=(",", ":"))
    # ASCII without spaces: nothing is counted twice, and no part is trimmed at its ends.
    text = said.replace(" ", "\\u0020")
    room = limits.tag_characters
    count = -(-(len(text) + len(f"{limits.json_tags}:")) // room)
    if count > limits.json_tags:
        raise InvalidArgument(
            f"What is asked for takes {len(text):,} characters, more than an app's tags hold.",
            fix="Shorten engine_args, or keep long values in a file of the image.",
        )
    whole = f"{count}:{text}"
    return [whole[start : start + room] for start in range(0, len(whole), room)]


def _lower(tags: Mapping[str, str] | None) -> dict[str, str]:
    """Azure keeps the case of a tag's name, and does not mind it."""
    return {name.lower(): value for name, value in (tags or {}).items()}
