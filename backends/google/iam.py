"""Roles on a thing of Google's, granted without touching others' bindings."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from google.iam.v1.policy_pb2 import Policy

from backends import lifecycle
from backends.google.errors import find, reading, strictly, writing
from backends.lifecycle import Resource
from core.errors import ConcurrentChange, OpsError
from core.reply import note

VERSION: Final = 3
"""Of a policy: the one that tells conditions; with an older one they would be dropped."""
_ATTEMPTS: Final = 3


def has_role(policy: Policy, role: str, member: str) -> bool:
    """Whether somebody has a role without a condition."""
    return any(
        binding.role == role and member in binding.members
        for binding in policy.bindings
        if not binding.condition.expression
    )


def binding(
    opened: Callable[[], Awaitable[Any]],
    thing: str,
    roles: Sequence[str],
    account: str,
    *,
    what: str,
    **more: Any,
) -> Resource:
    """Return the roles of a service account on a thing, as something that is there or is not.

    Args:
        opened: Opens the client that reads and writes the thing's policy.
        thing: Its full name.
        roles: All of them together.
        account: Its address.
        what: What granting them is, as in "let A read the secret B".
        more: Of the resource.
    """
    member = f"serviceAccount:{account}"
    asked = {"resource": thing, "options": {"requested_policy_version": VERSION}}

    async def get() -> Policy | None:
        client = await opened()
        looked = client.get_iam_policy(request=asked, **reading())
        policy: Policy | None = await find(f"see whether this is done: {what}", looked)
        has_all = policy and all(has_role(policy, role, member) for role in roles)
        return policy if has_all else None

    async def put() -> None:
        client = await opened()
        for left in reversed(range(_ATTEMPTS)):  # a policy that somebody else changed is read anew
            try:
                with strictly(what):
                    policy = await client.get_iam_policy(request=asked, **reading())
                    missing = [one for one in roles if not has_role(policy, one, member)]
                    add_member(policy, missing, member)
                    request = {"resource": thing, "policy": policy}
                    await client.set_iam_policy(request=request, **writing())
            except ConcurrentChange:
                if not left:
                    raise
            else:
                return

    bindings = [{"role": role, "members": [member]} for role in roles]
    body = {"resource": thing, "policy": {"bindings": bindings}}
    return Resource(body=body, get=get, put=put, **more)


def unless_refused(made: Resource, lacking: str) -> Resource:
    """Return the same, without which a deployment goes on: a refusal is noted, after `lacking`."""

    async def told(exc: OpsError) -> None:
        note(f"{lacking}: {exc.summary} {exc.cause}".strip())

    return lifecycle.unless_refused(made, told=told)[0]


def add_member(policy: Policy, roles: Iterable[str], member: str) -> None:
    """Write somebody into a policy that was read; its etag stays."""
    for role in roles:
        same = (one for one in policy.bindings if one.role == role)
        found = next((one for one in same if not one.condition.expression), None)
        (found or policy.bindings.add(role=role)).members.append(member)
    policy.version = VERSION
