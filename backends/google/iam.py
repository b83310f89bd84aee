"""Permissions and roles: what is needed, and what is granted without touching others' bindings."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from google.iam.v1.policy_pb2 import Policy

from backends.google.errors import strictly
from core.errors import ConcurrentChange
from core.records import Record


class Api(Record):
    """One API that is to be enabled."""

    name: str
    needed_by: str


class Role(Record):
    """One role of an account of ours."""

    name: str
    why: str


class Permissions(Record):
    """What whoever deploys must be allowed to do."""

    role: str
    """Which holds them all."""
    why: str
    needed_by: str
    names: tuple[str, ...]


VERSION: Final = 3
"""Of a policy: the one that tells conditions; with an older one they would be dropped."""
_ATTEMPTS: Final = 3

Read = Callable[[], Awaitable["Policy"]]
Write = Callable[["Policy"], Awaitable[object]]


def has_role(policy: "Policy", role: str, member: str) -> bool:
    """Whether somebody has a role without a condition."""
    return any(
        binding.role == role and member in binding.members
        for binding in policy.bindings
        if not binding.condition.expression
    )


async def grant(read: Read, write: Write, roles: Iterable[str], member: str, what: str) -> None:
    """Grant what is missing; a policy that somebody else changed meanwhile is read anew.

    Raises:
        ConcurrentChange: It was changed each time.
        CloudError: Google refuses.
    """
    for left in reversed(range(_ATTEMPTS)):
        with strictly(what):
            policy = await read()
            missing = [role for role in roles if not has_role(policy, role, member)]
            if not missing:
                return
            add_member(policy, missing, member)
        try:
            with strictly(what):
                await write(policy)
        except ConcurrentChange:
            if not left:
                raise
        else:
            return


def add_member(policy: "Policy", roles: Iterable[str], member: str) -> None:
    """Write somebody into a policy that was read; its etag stays."""
    for role in roles:
        same = (one for one in policy.bindings if one.role == role)
        binding = next((one for one in same if not one.condition.expression), None)
        (binding or policy.bindings.add(role=role)).members.append(member)
    policy.version = VERSION
