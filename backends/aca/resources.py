"""What every resource of Azure shares: whose it is, its body, its state, and `az`."""

import json
import shlex
from collections.abc import Awaitable, Mapping
from typing import Any, Final, TypeVar

from azure.core.exceptions import ResourceNotFoundError
from pydantic import ValidationError

from backends.aca.container import rules
from backends.aca.site import (
    EXPIRES_TAG,
    JSON_TAG,
    MANAGED_BY,
    SPEC_TAG,
    TARGET_TAG,
    Ground,
    translated,
)
from backends.lifecycle import Status
from core.errors import CloudRefused, InvalidArgument, OpsError
from core.records import DeploymentSpec

T = TypeVar("T")

MANAGED_TAG: Final = "managed-by"
OURS: Final = {MANAGED_TAG: MANAGED_BY}
TAGS: Final = ("--tags", f"{MANAGED_TAG}={MANAGED_BY}")
TEXT: Final = ("--output", "tsv")

REGISTERING: Final = "registering providers"
ENVIRONMENT: Final = "creating the environment"
EFFECT: Final = "waiting for access to take effect"
PREPARING: Final = "preparing"
"""Group, workspace, identity, secrets and storage: each takes seconds."""
PHASES: Final = frozenset({REGISTERING, ENVIRONMENT, EFFECT, PREPARING})
"""Everything that a deployment may wait for before it has an app."""


def tags_of(target: str, spec: DeploymentSpec) -> dict[str, str]:
    """Return the tags of an app.

    Raises:
        InvalidArgument: What is asked for is too long for tags.
    """
    limits = rules().limits
    said = json.dumps(spec.model_dump(mode="json", exclude_defaults=True), separators=(",", ":"))
    # ASCII without spaces: nothing is counted twice, and no part is trimmed at its ends.
    text, room = said.replace(" ", "\\u0020"), limits.tag_characters
    count = -(-(len(text) + len(f"{limits.json_tags}:")) // room)
    if count > limits.json_tags:
        raise InvalidArgument(
            f"What is asked for takes {len(text):,} characters, more than an app's tags hold.",
            fix="Shorten engine_args, or keep long values in a file of the image.",
        )
    whole = f"{count}:{text}"
    parts = [whole[start : start + room] for start in range(0, len(whole), room)]
    return {
        **OURS,
        TARGET_TAG: target,
        SPEC_TAG: spec.fingerprint,
        **{f"{JSON_TAG}-{number}": part for number, part in enumerate(parts)},
    }


def is_ours(tags: Mapping[str, str] | None) -> bool:
    """Whether a thing was made here."""
    return _lower(tags).get(MANAGED_TAG) == MANAGED_BY


def was_made_here(found: Any) -> bool:
    """Whether a resource was, as its tags say."""
    return is_ours(found.tags)


def target_in(tags: Mapping[str, str] | None) -> str | None:
    """Return the target that a thing was made for."""
    return _lower(tags).get(TARGET_TAG)


def fingerprint_in(tags: Mapping[str, str] | None) -> str | None:
    """Return the fingerprint of what was asked for."""
    return _lower(tags).get(SPEC_TAG)


def expires_in(tags: Mapping[str, str] | None) -> int | None:
    """Return when its time ends, in seconds since 1970; None where nobody said."""
    said = _lower(tags).get(EXPIRES_TAG, "")
    return int(said) if said.isdecimal() else None


def spec_from_tags(tags: Mapping[str, str] | None) -> DeploymentSpec | None:
    """Return what was asked for; None where the tags do not say it, or were changed since."""
    held = _lower(tags)
    # Later parts of a longer one that stood there before are not counted.
    count, colon, first = held.get(f"{JSON_TAG}-0", "").partition(":")
    if not (colon and count.isdecimal()):
        return None
    rest = [held.get(f"{JSON_TAG}-{number}", "") for number in range(1, int(count))]
    try:
        return DeploymentSpec.model_validate_json("".join((first, *rest)))
    except ValidationError:
        return None


def _lower(tags: Mapping[str, str] | None) -> dict[str, str]:
    """Azure keeps the case of a tag's name, and does not mind it."""
    return {name.lower(): value for name, value in (tags or {}).items()}


def as_sent(model: Any) -> dict[str, Any]:
    """Return a typed body as it goes over the wire, without what is unset."""
    # The older of Azure's packages have models of another kind.
    older = hasattr(model, "serialize")
    sent: dict[str, Any] = model.serialize() if older else model.as_dict(exclude_readonly=True)
    return sent


def body(path: str, model: Any) -> dict[str, Any]:
    """Return what is shown of a typed body: where it is sent, and what."""
    return {"id": path, **as_sent(model)}


def is_policy(exc: OpsError) -> bool:
    """Whether a policy refused it."""
    return isinstance(exc, CloudRefused) and "RequestDisallowedByPolicy" in exc.summary


async def or_none(what: str, asked: Awaitable[T]) -> T | None:
    """Return what is asked for; None if there is none."""
    try:
        with translated(what):
            return await asked
    except ResourceNotFoundError:
        return None


def provisioned(state: str | None) -> Status:
    """Read a provisioning state.

    >>> [str(provisioned(each)) for each in ("Succeeded", None, "Creating", "Failed")]
    ['ready', 'ready', 'pending', 'failed']
    """
    if state is None or state.lower() == "succeeded":
        return Status.READY
    return Status.FAILED if state.lower() in {"failed", "canceled"} else Status.PENDING


def by_state(found: Any) -> Status:
    """Read the provisioning state of a resource that has properties."""
    return provisioned(found.properties.provisioning_state if found.properties else None)


def here(ground: Ground) -> tuple[str, ...]:
    """Return the flags of the group; whoever pastes may have chosen another subscription."""
    return "--resource-group", ground.resource_group, "--subscription", ground.subscription


def unless(show: tuple[str, ...], made: str) -> str:
    """Do `made` where `show` finds nothing.

    `az … create` puts a whole new body: an environment of somebody's would lose its other profiles,
    a group its tags, and a share that was enlarged its size.
    """
    return f"{shlex.join(('az', *show, '--output', 'none'))} 2>/dev/null || {made}"


def create_unless_there(kind: str, named: tuple[str, ...], *flags: str) -> str:
    """Create a thing of a kind such as "keyvault" where there is none of that name."""
    words = tuple(kind.split())
    return unless((*words, "show", *named), shlex.join(("az", *words, "create", *named, *flags)))
